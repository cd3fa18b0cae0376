"""Shared objects of ours for other programs, and the programs that can load them."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from pathlib import Path

from qnnmem.errors import UsageError
from qnnmem.native_parts import NativePart, made_objects
from qnnmem.text import shorten

PRELOADED = "libqnnmem_client.so"
_LARGEST_PROGRAM = 64 << 20  # bytes of one that are looked at
_LONGEST_FOLDER = 107 - len("/socket")  # bytes of its name, so that a socket in it has one

SHIM = NativePart(
    "qnnmem.programs",
    "shim.c",
    {PRELOADED: (), "libQnnLpai.so": ("-DSTUB=0",), "libQnnSystem.so": ("-DSTUB=1",)},
    use="checking a program",
)
OBSERVER_OBJECT = "libqnnmem_observer.so"
OBSERVER = NativePart(
    "qnnmem.programs", "observer.c", {OBSERVER_OBJECT: ()}, use="watching a program"
)


def shim_folder(target: Path) -> Path:
    """Write the objects of `check-client` into a folder of this run."""
    return build_objects(target, SHIM)


def build_objects(target: Path, part: NativePart) -> Path:
    """Write the objects of a part into a folder for the dynamic loader."""
    if not sys.platform.startswith("linux"):
        raise UsageError(
            "programs can be checked on Linux only; elsewhere run this in a Linux container"
        )
    _check_folder(target)
    for name, data in made_objects(part).items():
        (target / name).write_bytes(data)
    return target


def _check_folder(target: Path) -> None:
    """Refuse a folder that the loader ignores or that can hold no socket."""
    name = os.fsencode(target)
    if any(sign in name for sign in b" :\t\n") or len(name) > _LONGEST_FOLDER:
        raise UsageError(
            "the temporary folder has a space or a colon in its name, or a name that is too long: "
            "nothing can be put into a program from there",
            cure="let TMPDIR name another folder, such as /tmp",
        )


def _no_program(command: str) -> UsageError:
    said = f"the program {shorten(command, 200)!r}"
    here = Path(command)
    if not here.is_file():
        return UsageError(f"{said} is not there")
    if here.name == command and os.access(here, os.X_OK):  # shells look for it elsewhere, too
        return UsageError(f"{said} is in no folder of PATH", cure=f"write ./{command}")
    return UsageError(f"{said} cannot be run")


def check_program(command: str) -> str:
    """Return the path of a program; refuse one that cannot be preloaded into."""
    found = shutil.which(command)
    if found is None:
        raise _no_program(command)
    status = Path(found).stat()
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and status.st_uid != os.geteuid():
        raise UsageError(
            f"{shorten(command, 200)!r} changes its user when it starts (setuid), so the system "
            "lets nothing be put into it; check a copy of it without that bit"
        )
    with Path(found).open("rb") as file:
        head = file.read(4096)
    if head[:5] == b"\x7fELF\x01":
        raise UsageError(f"{shorten(command, 200)!r} is a 32-bit program; build it for 64 bits")
    if head[:4] == b"\x7fELF" and b"/ld-musl-" in head:
        raise UsageError(
            f"{shorten(command, 200)!r} is linked with musl; link it with glibc to check it"
        )
    if _is_static(Path(found)):
        raise UsageError(
            f"{shorten(command, 200)!r} is statically linked, so nothing can be put between it and "
            "QNN; link it dynamically to check it"
        )
    return found


def sanitizer_of(path: Path) -> str:
    """Return the sanitizer library of a program: it must be preloaded before ours."""
    with path.open("rb") as file:
        found = re.search(rb"lib[at]san\.so\.[0-9]+", file.read(_LARGEST_PROGRAM))
    return found[0].decode() if found else ""


def _is_static(path: Path) -> bool:
    """Return whether an ELF program has no interpreter; a script has another program."""
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
