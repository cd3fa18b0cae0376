"""The QNN library to use: on this machine, or on a worker that a command starts."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import NoCompiler, QnnMemError, UsageError, Words, WorkerError
from qnnmem.installation import PACKAGE, command_for, package_folder
from qnnmem.text import printable, quote, sentence

if TYPE_CHECKING:
    from qnnmem.htp.requests import RequestOutcome

# --- The commands that start workers -------------------------------------------------------------


VARIABLE = "QNNMEM_HTP_WORKER"
KEY = "htp_worker"
LOCAL = ("local",)  # means the library of this machine
SEPARATOR = ";"
_MAX_FILE = 1 << 20
_MAX_COMMANDS = 256
_SHOWN = 120  # characters of a command shown in a sentence

Command = tuple[str, ...]


def worker_commands() -> tuple[Command, ...]:
    """Return the commands that start workers, in order; none if this machine's library is used.

    The environment variable overrides the config file; an empty variable means this machine.
    """
    text, path = os.environ.get(VARIABLE), config_path()
    if text is not None:
        commands = split_commands(text, VARIABLE)
    else:
        commands = () if path is None else _from_file(path)
    return () if commands == (LOCAL,) else commands


def config_path() -> Path | None:
    """Return the user's config file. A project's file is never read: it could start any command."""
    base = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117
        return Path(base, "qnnmem", "config.toml")
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises for unknown users
    return Path(home, ".config", "qnnmem", "config.toml") if os.path.isabs(home) else None  # noqa: PTH117


def split_commands(text: str, where: str) -> tuple[Command, ...]:
    """Return the commands in a string, split as by a shell; a separate `;` ends a command."""
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise UsageError(f"{where} is not a valid command: {sentence(exc).lower()}") from exc
    commands: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            commands.append([])
        else:
            commands[-1].append(word)
    found = tuple(tuple(command) for command in commands if command)
    if len(found) > _MAX_COMMANDS:
        raise UsageError(f"{where} lists more than {_MAX_COMMANDS} commands")
    return found


def _from_file(path: Path) -> tuple[Command, ...]:
    import tomllib

    from qnnmem.bounded_file import is_there, read_bytes

    if not is_there(path):
        return ()
    try:
        settings = tomllib.loads(read_bytes(path, _MAX_FILE).decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"is not TOML: {sentence(exc)}", where=path) from exc
    value = settings.get(KEY, [])
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UsageError(f"{KEY} must be a command or a list of commands", where=path)
    return tuple(one for line in lines for one in split_commands(line, f"{path}: {KEY}"))


def show_command(command: Command) -> str:
    """Return a command as one printable line of limited length."""
    line = printable(shlex.join(command))
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."


# --- The package with the library -----------------------------------------------------------------


INSTALL = command_for("htp")
_LIBRARIES = ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so")


@dataclass(frozen=True, slots=True)
class Library:
    """The QNN libraries of an installed package, here or on a worker."""

    package_version: str  # of onnxruntime-qnn
    onnxruntime_version: str
    folder: Path
    command: tuple[str, ...] = ()  # starts the worker that has the library; empty for this machine

    @property
    def name(self) -> str:
        """Package and version, used as the source of measured numbers."""
        return f"{PACKAGE} {self.package_version}"


@cache
def installed_library() -> Library:
    """Return the library of this machine; raise NoCompiler if a part is missing."""
    from importlib.metadata import PackageNotFoundError, version

    check_platform(sys.platform, platform.machine())
    try:
        found, runtime = version(PACKAGE), version("onnxruntime")
    except PackageNotFoundError as exc:
        cure = (
            f"{INSTALL} installs {PACKAGE}, which contains the library; or set {VARIABLE} "
            "to a command that starts a worker on a machine that has the library"
        )
        raise NoCompiler("the real HTP library is not installed", cure=cure) from exc
    check_version(found)
    return Library(found, runtime, _folder(found))


def compiler_exists(system: str = sys.platform, machine: str = "") -> bool:
    """Return True if an HTP compiler is published for a platform, by default this one."""
    return system == "linux" and (machine or platform.machine()) in ("x86_64", "AMD64")


def check_platform(system: str, machine: str) -> None:
    """Raise NoCompiler for a platform without a published HTP compiler."""
    if not compiler_exists(system, machine):
        raise NoCompiler(
            f"the HTP compiler exists for Linux on x86-64 only; this machine is {system} "
            f"on {machine}",
            cure=f"set {VARIABLE} to a command that starts a worker on Linux x86-64, with "
            "ssh, docker or qemu-user",
        )


def check_version(found: str) -> None:
    """Raise NoCompiler for library versions with an unknown interface."""
    parts = found.split(".")
    number = tuple(int(part) if part.isdigit() else 0 for part in parts[:2])
    if not (2, 7) <= number < (3, 0):
        what = f"{PACKAGE} {found} is not supported; it must be 2.7 or a later 2.x"
        raise NoCompiler(what, cure=f"{INSTALL} installs a supported version")


def _folder(found: str) -> Path:
    place = package_folder(_LIBRARIES)
    if place is not None:
        return place
    cure = f"{INSTALL} on Linux x86-64 installs a version with the compiler"
    raise NoCompiler(f"{PACKAGE} {found} contains no HTP compiler for this machine", cure=cure)


# --- The library to use: of this machine or of a worker ------------------------------------------


def find_library() -> Library:
    """Return the library of the first worker that responds; without workers, this machine's.

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
    """Yield the library of every worker that responds; collect other errors in `refused`."""
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
    """Return the library; if it is missing, raise NoCompiler with `instead` added to its cure."""
    try:
        return find_library()
    except NoCompiler as missing:
        raise missing.with_cure(instead) from None


def library_there() -> bool:
    """Return True if a library is installed or a worker is configured; no worker is contacted."""
    if worker_commands():
        return True
    try:
        installed_library()
    except NoCompiler:
        return False
    return True


# --- A library that did not start: the missing part, and how to get it ----------------------------


_SETUP = re.compile(r"QNN SetupBackend failed (.{1,2000})")
_MISSING = re.compile(r"([^\s:/]{1,200}\.so[0-9.]*): cannot open shared object file")
_TOO_OLD = re.compile(r"version [`'\"](GLIBC(?:XX)?_[0-9.]{1,20})['`\"] not found")
_BUNDLED = re.compile(r"-[0-9a-f]{8}\.so")  # packages give bundled libraries such names
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
    """Raise NoCompiler if the library itself failed to start, for any model."""
    if outcome.kind != "refused":
        return
    texts = (outcome.sentence, *(line.text for line in outcome.log))
    for text in texts:
        if found := _MISSING.search(text):
            raise _missing(found[1])
        if found := _TOO_OLD.search(text):
            what = f"the QNN library needs {found[1]}, but this machine's C or C++ library is older"
            raise NoCompiler(what, cure="use a newer Linux, or a container with one")
    for text in texts:
        if found := _SETUP.search(text):
            said = quote(printable(found[1]))
            cure = f"{INSTALL} reinstalls the package"
            raise NoCompiler(f"the QNN library did not start: {said}", cure=cure)


def _missing(library: str) -> NoCompiler:
    what = f"the QNN library did not start: {library} is missing on this machine"
    if _BUNDLED.search(library):
        cure = f"the package is damaged; {INSTALL} reinstalls it"
    elif library in _PACKAGES:
        debian, fedora = _PACKAGES[library]
        cure = f"on Debian and Ubuntu `apt-get install {debian}`, on Fedora `dnf install {fedora}`"
    else:
        cure = f"`apt-file search {library}` or `dnf provides '*/{library}'` shows its package"
    return NoCompiler(what, cure=cure)
