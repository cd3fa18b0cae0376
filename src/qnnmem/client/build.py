"""The shim as shared objects: compiled at first use with the machine's own compiler, then kept."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from qnnmem.cache_folder import NOWHERE, cache_folder, read_kept, write_kept
from qnnmem.errors import UsageError
from qnnmem.scratch_folder import scratch_folder
from qnnmem.text import shorten

PRELOADED = "libqnnmem_client.so"
# File and what the compiler is told for it.
_OBJECTS = {PRELOADED: (), "libQnnLpai.so": ("-DSTUB=0",), "libQnnSystem.so": ("-DSTUB=1",)}
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_LARGEST = 1 << 20
_LARGEST_PROGRAM = 64 << 20  # bytes of one that are looked at
_SECONDS = 120


def shim_folder(target: Path) -> Path:
    """Put the objects of `check-client` into a folder of this run."""
    source = files("qnnmem.client").joinpath("shim.c").read_bytes()
    return build_objects(target, source, _OBJECTS)


def build_objects(target: Path, source: bytes, objects: Mapping[str, tuple[str, ...]]) -> Path:
    """Put objects made of one source into a folder, from the cache or freshly compiled."""
    if not sys.platform.startswith("linux"):
        raise UsageError(
            "programs can be checked on Linux only; elsewhere run this in a Linux container"
        )
    shared = files("qnnmem.client").joinpath("line.h").read_bytes()
    whole = source.replace(b'#include "line.h"\n', shared)
    compiler = find_compiler()
    # Whatever compiler made it: an image may have none any more.
    said = "\0".join((*_FLAGS, os.uname().machine)).encode()
    kept = cache_folder() / "client" / hashlib.sha256(whole + said).hexdigest()[:32]
    for name, flags in objects.items():
        (target / name).write_bytes(_object(kept / name, whole, compiler, flags))
    return target


def find_compiler() -> str | None:
    """The C compiler: what CC names, else cc, gcc or clang."""
    words = os.environ.get("CC", "").split()
    names = (*words[:1], "cc", "gcc", "clang")
    return next((found for name in names if (found := shutil.which(name))), None)


def _object(kept: Path, source: bytes, compiler: str | None, flags: tuple[str, ...]) -> bytes:
    try:
        return read_kept(kept, _LARGEST)
    except OSError:
        pass  # the first time
    if compiler is None:
        raise UsageError(
            "checking a program takes a C compiler once, and there is none here; install one "
            "(on Debian: apt-get install gcc libc6-dev) or let CC name it"
        )
    made = _compile(source, compiler, flags)
    if kept.parts[: len(NOWHERE.parts)] != NOWHERE.parts:
        with contextlib.suppress(OSError):  # compiled again the next time
            write_kept(kept, made)
    return made


def _compile(source: bytes, compiler: str, flags: tuple[str, ...]) -> bytes:
    with scratch_folder() as folder:
        target = Path(folder, "object.so")
        command = [compiler, *_FLAGS, *flags, "-x", "c", "-", "-o", str(target)]
        try:
            done = subprocess.run(  # noqa: S603  # the user's compiler on our source
                [*command, "-ldl", "-lpthread"],
                input=source,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise UsageError(f"the C compiler {compiler} cannot be run: {exc}") from exc
        if done.returncode or not target.is_file():
            text = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
            raise UsageError(
                f"the C compiler {compiler} cannot compile the part of qnnmem that runs inside of "
                f"programs (it needs glibc and its headers): {shorten(text[0], 300)}"
            )
        return target.read_bytes()


def check_program(command: str) -> str:
    """The path of the program; refuses what the dynamic loader has no part in."""
    found = shutil.which(command)
    if found is None:
        reason = "cannot be run" if Path(command).exists() else "is not there"
        raise UsageError(f"the program {shorten(command, 200)!r} {reason}")
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
    """The library of a sanitizer that a program is linked with: it has to come before ours."""
    with path.open("rb") as file:
        found = re.search(rb"lib[at]san\.so\.[0-9]+", file.read(_LARGEST_PROGRAM))
    return found[0].decode() if found else ""


def _is_static(path: Path) -> bool:
    """Whether an ELF program names no interpreter; a script's interpreter is another program."""
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
