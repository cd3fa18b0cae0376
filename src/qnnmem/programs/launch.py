"""Start a user's program with a preloaded shared object, await its end and kill its processes.

Programs that cannot load the object are refused.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from qnnmem.errors import UsageError
from qnnmem.native_parts import NativePart, made_objects
from qnnmem.results.programs import ClientResult, WatchResult
from qnnmem.text import quote, shorten

PRELOADED = "libqnnmem_client.so"
_LARGEST_PROGRAM = 64 << 20  # bytes of a program that are searched
_LONGEST_FOLDER = 107 - len("/socket")  # bytes of the folder name; a socket's path is limited

SHIM = NativePart(
    "qnnmem.programs",
    "shim.c",
    {
        PRELOADED: (),
        "libQnnLpai.so": ("-DSTUB=0", "-Wl,-soname,libQnnLpai.so"),
        "libQnnSystem.so": ("-DSTUB=1", "-Wl,-soname,libQnnSystem.so"),
    },
    use="checking a program",
)
OBSERVER_OBJECT = "libqnnmem_observer.so"
OBSERVER = NativePart(
    "qnnmem.programs", "observer.c", {OBSERVER_OBJECT: ()}, use="watching a program"
)
_GRACE_S = 2.0  # seconds after an interrupt, which the terminal also sends to the program


def build_objects(target: Path, part: NativePart) -> Path:
    """Write the shared objects of a native part into a folder; return the folder."""
    if not sys.platform.startswith("linux"):
        raise UsageError("programs can be checked only on Linux; elsewhere use a Linux container")
    _check_folder(target)
    for name, data in made_objects(part).items():
        (target / name).write_bytes(data)
    return target


def _check_folder(target: Path) -> None:
    """Raise UsageError for a folder that the loader ignores or that cannot contain a socket."""
    name = os.fsencode(target)
    if any(sign in name for sign in b" :\t\n") or len(name) > _LONGEST_FOLDER:
        raise UsageError(
            "the temporary folder has white space or a colon in its name, or a name too long "
            "for LD_PRELOAD",
            cure="set TMPDIR to another folder, such as /tmp",
        )


def _no_program(command: str) -> UsageError:
    said = f"the program {shorten(command, 200)!r}"
    here = Path(command)
    if not here.is_file():
        return UsageError(f"{said} does not exist")
    if here.name == command and os.access(here, os.X_OK):  # a shell searches PATH instead
        return UsageError(f"{said} is not in a folder of PATH", cure=f"write ./{command}")
    return UsageError(f"{said} cannot be run")


def check_program(command: str) -> str:
    """Return the path of a program; raise UsageError if the program cannot load a shared object."""
    path = shutil.which(command)
    if path is None:
        raise _no_program(command)
    status = Path(path).stat()
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and status.st_uid != os.geteuid():
        raise UsageError(
            f"{shorten(command, 200)!r} is a setuid program, for which the system ignores "
            "LD_PRELOAD; check a copy without the setuid bit"
        )
    with Path(path).open("rb") as file:
        head = file.read(4096)
    if head[:5] == b"\x7fELF\x01":
        raise UsageError(f"{shorten(command, 200)!r} is a 32-bit program; build it for 64 bits")
    if head[:4] == b"\x7fELF" and b"/ld-musl-" in head:
        raise UsageError(
            f"{shorten(command, 200)!r} is linked with musl; link it with glibc to check it"
        )
    if _is_static(Path(path)):
        raise UsageError(
            f"{shorten(command, 200)!r} is statically linked, so its QNN calls cannot be "
            "checked; link it dynamically"
        )
    return path


def sanitizer_of(path: Path) -> str:
    """Return the sanitizer library of a program, which must be preloaded first; "" if none."""
    with path.open("rb") as file:
        found = re.search(rb"lib[at]san\.so\.[0-9]+", file.read(_LARGEST_PROGRAM))
    return found[0].decode() if found else ""


def _is_static(path: Path) -> bool:
    """Return True for an ELF program without an interpreter: a static program."""
    with path.open("rb") as file:
        head = file.read(4096)
    if head[:4] != b"\x7fELF" or len(head) < 64:
        return False
    wide, order = head[4] == 2, "little" if head[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], order)  # type: ignore[arg-type]

    table, each, count = (number(32, 8), number(54, 2), number(56, 2)) if wide else (0, 0, 0)
    kinds = [number(table + i * each, 4) for i in range(min(count, 64))]
    return wide and 3 not in kinds  # PT_INTERP


@contextmanager
def started(
    program: str,
    command: Sequence[str],
    preload: Path,
    *,
    environment: Mapping[str, str] | None = None,
    to_stderr: bool = False,
    output: IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program with a preloaded object; its whole process tree is killed at the end.

    `to_stderr` keeps standard output free for the result. `output` receives everything that the
    program prints; if it is given, standard input is empty.
    """
    objects = (sanitizer_of(Path(program)), str(preload), os.environ.get("LD_PRELOAD", ""))
    own = {"LD_PRELOAD": ":".join(filter(None, objects))}
    to = output if output is not None else sys.__stderr__ if to_stderr else None
    try:
        child = subprocess.Popen(  # noqa: S603  # the user's own program, as requested
            list(command),
            executable=program,
            env={**os.environ, **(environment or {}), **own},
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=to,
            stderr=output,
        )
    except OSError as exc:
        raise UsageError(
            f"the program {quote(command[0])} cannot be run ({exc.strerror or exc})"
        ) from exc
    try:
        yield child
    finally:
        if child.poll() is None:
            kill_tree(child)


def wait(
    child: subprocess.Popen[bytes],
    limit_s: float | None,
    time_left: Callable[[], float] | None = None,
    look_s: float = math.inf,
) -> tuple[int, bool]:
    """Return the exit code (negative for a signal), and True if a time limit killed the program.

    `time_left` is another limit, checked every `look_s` seconds.
    """
    end = math.inf if limit_s is None else time.monotonic() + limit_s
    while True:
        left = min(end - time.monotonic(), math.inf if time_left is None else time_left())
        if left <= 0:
            return kill_tree(child), True
        pause = min(left, look_s)
        try:
            return child.wait(None if math.isinf(pause) else pause), False
        except subprocess.TimeoutExpired:
            pass  # check again
        except KeyboardInterrupt:
            end = min(end, time.monotonic() + _GRACE_S)


def kill_tree(child: subprocess.Popen[bytes]) -> int:
    """Kill a program and all processes that it started; return its exit code.

    The user's program can be a child of a script or a debugger.
    """
    _kill(child.pid)
    return child.wait()


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # otherwise it could start more processes meanwhile
    for child in _children(pid):
        _kill(child)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Return the processes started by any thread of a process."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children.extend(map(int, (task / "children").read_text("ascii").split()))
    return children


def exit_status(code: int) -> int:
    """Return the exit status as a shell reports it: 128 plus the number of a fatal signal."""
    return code if code >= 0 else 128 - code


def signal_name(code: int) -> str:
    """Return the signal's name for a negative return code; empty for other codes."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:  # only the first and the last real-time signal have names
        return f"SIGRTMIN+{-code - signal.SIGRTMIN}"


def end_words(result: ClientResult | WatchResult) -> str:
    """Return how a program ended, as part of a verdict."""
    if result.timed_out:
        return "it did not end in time"
    return f"ended by {result.ended_by}" if result.ended_by else f"exit code {result.exit_code}"
