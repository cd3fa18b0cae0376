"""Finds the QNN library to use: on this machine, or on a worker that a command starts."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.errors import NoCompiler, QnnMemError, Words, WorkerError
from qnnmem.htp.installed import (
    INSTALL,
    LOCAL,
    Command,
    Library,
    installed_library,
    worker_commands,
)
from qnnmem.htp.requests import RequestOutcome
from qnnmem.text import lazy_pattern, printable, quote


def find_library() -> Library:
    """Return the library of the first worker that responds, or of this machine if no worker is set.

    Raise NoCompiler if the library is missing, WorkerError if no worker responds.
    """
    commands = worker_commands()
    if not commands:
        return installed_library()
    failures: list[QnnMemError] = []
    for command in commands:
        try:
            return library_at(command)
        except (NoCompiler, WorkerError) as exc:
            failures.append(exc)
    raise failures[0]


def find_libraries(refused: list[QnnMemError]) -> Iterator[Library]:
    """Yield the library of each worker that responds; add errors of other workers to `refused`."""
    for command in worker_commands() or (LOCAL,):
        try:
            yield library_at(command)
        except (NoCompiler, WorkerError) as exc:
            refused.append(exc)


def library_at(command: Command) -> Library:
    """Return the library of one worker; the connection stays open for the next caller."""
    if command == LOCAL:
        return installed_library()
    from qnnmem.htp.remote.client import connect, park

    connection = connect(command)
    park(connection)
    return connection.library


def library_or(instead: Words) -> Library:
    """Return the library; if it is missing, raise NoCompiler with `instead` added to the cure."""
    try:
        return find_library()
    except NoCompiler as missing:
        raise missing.with_cure(instead) from None


def has_library() -> bool:
    """Return True if a library is installed or a worker is configured; no worker is contacted."""
    if worker_commands():
        return True
    try:
        installed_library()
    except NoCompiler:
        return False
    return True


# --- A library that did not start: the missing part, and how to get it ----------------------------


_SETUP = lazy_pattern(r"QNN SetupBackend failed (.{1,2000})")
_MISSING = lazy_pattern(r"([^\s:/]{1,200}\.so[0-9.]*): cannot open shared object file")
_TOO_OLD = lazy_pattern(r"version [`'\"](GLIBC(?:XX)?_[0-9.]{1,20})['`\"] not found")
_BUNDLED = lazy_pattern(r"-[0-9a-f]{8}\.so")  # packages give bundled libraries such names
# Packages that contain a system library: the name on Debian, the name on Fedora.
_PACKAGES = {
    "libatomic.so.1": ("libatomic1", "libatomic"),
    "libc++.so.1": ("libc++1", "libcxx"),
    "libc++abi.so.1": ("libc++abi1", "libcxxabi"),
    "libgcc_s.so.1": ("libgcc-s1", "libgcc"),
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
    "libz.so.1": ("zlib1g", "zlib"),
}


def check_started(outcome: RequestOutcome) -> None:
    """Raise NoCompiler if the library itself failed to start."""
    if outcome.kind != "refused":
        return
    texts = (outcome.sentence, *(line.text for line in outcome.log))
    for text in texts:
        if found := _MISSING.search(text):
            raise _missing(found[1])
        if found := _TOO_OLD.search(text):
            problem = (
                f"the QNN library needs {found[1]}, but this machine's C or C++ library is older"
            )
            raise NoCompiler(problem, cure="use a newer Linux, or a container with a newer Linux")
    for text in texts:
        if found := _SETUP.search(text):
            reason = quote(printable(found[1]))
            cure = f"{INSTALL} reinstalls the package"
            raise NoCompiler(f"the QNN library did not start: {reason}", cure=cure)


def _missing(library: str) -> NoCompiler:
    problem = f"the QNN library did not start: {library} is missing on this machine"
    if _BUNDLED.search(library):
        cure = f"the package is damaged; {INSTALL} reinstalls it"
    elif library in _PACKAGES:
        debian, fedora = _PACKAGES[library]
        cure = f"on Debian and Ubuntu `apt-get install {debian}`, on Fedora `dnf install {fedora}`"
    else:
        cure = f"`apt-file search {library}` or `dnf provides '*/{library}'` shows its package"
    return NoCompiler(problem, cure=cure)
