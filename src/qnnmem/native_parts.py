"""Native parts in C, which are shipped in a wheel, or compiled on first use and cached."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qnnmem.cache import DIGEST, NOWHERE, cache_folder, digest, read_kept, write_kept
from qnnmem.errors import UsageError
from qnnmem.text import lazy_pattern, shorten

SHIPPED = "shipped"  # folder of compiled objects next to this file, in wheels with objects
SHIPPED_LIST = "shipped.json"  # list of machine, minimum glibc, and objects
# Machines for which wheels can contain objects, with their ELF numbers.
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_INCLUDED = lazy_pattern(rb'^#include "([\w.]+)"\n', re.MULTILINE)
_LARGEST = 1 << 20
_SECONDS = 120


class NativePart(NamedTuple):
    """C source, and the objects to make from it, each with its compiler flags."""

    package: str
    source: str
    objects: Mapping[str, tuple[str, ...]]
    use: str  # purpose of the part, for the error about a missing compiler

    def text(self) -> bytes:
        """Return the source with its headers included, so that no include path is needed."""
        return _with_headers(self.package, _file(self.package, self.source).read_bytes())

    def made_of(self, machine: str) -> str:
        """Return a digest of the source, the flags and the machine, but not of the compiler."""
        words = [word for name in sorted(self.objects) for word in (name, *self.objects[name])]
        encoded = (word.encode() for word in (*_FLAGS, *words, machine))
        return digest((self.text(), *encoded)).hex()[:32]


# Quick commands call this: import no slow module.
def _file(package: str, name: str) -> Path:
    return Path(__file__).parent.joinpath(*package.split(".")[1:], name)


def _with_headers(package: str, source: bytes) -> bytes:
    def header(match: re.Match[bytes]) -> bytes:
        return _with_headers(package, _file(package, match[1].decode()).read_bytes())

    return _INCLUDED.sub(header, source)


def made_objects(part: NativePart) -> dict[str, bytes]:
    """Return the objects of a part: shipped, cached or freshly compiled."""
    machine = os.uname().machine
    made_of = part.made_of(machine)
    folder = Path(__file__).with_name(SHIPPED)
    shipped = read_shipped(folder, tuple(part.objects), made_of, machine, _glibc())
    if shipped is not None:
        return shipped
    # Accept objects of any compiler, because a container image may no longer have one.
    kept = cache_folder() / "compiled" / made_of
    return {name: _object(kept / name, part, name) for name in part.objects}


def load_library(part: NativePart, name: str) -> Any:
    """Load an object of a part with ctypes; raise ImportError if there is none."""
    import ctypes
    import sys

    if not sys.platform.startswith("linux"):
        raise ImportError("compiled code is loaded only on Linux")
    try:
        data = made_objects(part)[name]
        # Do not load the file itself: another process could replace it, or the mount may be noexec.
        # The descriptor stays open: the loader treats two libraries with one path as the same, and
        # the number of a closed descriptor is reused.
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except (UsageError, OSError) as exc:
        raise ImportError(str(exc)) from exc


def read_shipped(
    folder: Path,
    names: Sequence[str],
    made_of: str,
    machine: str,
    glibc: tuple[int, int] | None,
) -> dict[str, bytes] | None:
    """Return the wheel's objects; None unless all are intact, current and for this machine."""
    try:
        with folder.joinpath(SHIPPED_LIST).open("rb") as file:
            text = file.read(_LARGEST)
    except OSError:
        return None  # a wheel without objects
    from hashlib import sha256  # loads OpenSSL

    import msgspec  # not needed to build a wheel

    try:
        listed: Any = msgspec.json.decode(text)
        if listed["machine"] != machine or glibc is None or glibc < tuple(listed["glibc"]):
            return None
        objects = {}
        for name in names:
            with folder.joinpath(name).open("rb") as file:
                objects[name] = file.read(_LARGEST)
            expected = listed_object(made_of, sha256(objects[name]).hexdigest())
            if listed["objects"].get(name) != expected or elf_machine(objects[name]) != machine:
                return None
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # a damaged list
    return objects


def listed_object(made_of: str, sha256: str) -> dict[str, str]:
    """Return the entry of the wheel's object list for one compiled file."""
    return {"made_of": made_of, "sha256": sha256}


def elf_machine(data: bytes) -> str:
    """Return the machine of a 64-bit little-endian ELF file; "" for any other file."""
    if data[:6] != b"\x7fELF\x02\x01":
        return ""
    number = int.from_bytes(data[18:20], "little")
    return next((name for name, known in ELF_MACHINES.items() if known == number), "")


def _glibc() -> tuple[int, int] | None:
    """Return the glibc version; None for another C library such as musl."""
    try:
        match = re.match(r"glibc (\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (OSError, ValueError):
        return None
    return (int(match[1]), int(match[2])) if match else None


def find_compiler() -> str | None:
    """Return the C compiler: CC, else cc, gcc or clang."""
    import shutil

    words = os.environ.get("CC", "").split()
    names = (*words[:1], "cc", "gcc", "clang")
    return next((path for name in names if (path := shutil.which(name))), None)


def _object(kept: Path, part: NativePart, name: str) -> bytes:
    try:
        data = read_kept(kept, _LARGEST)
        if data[:DIGEST] == digest((data[DIGEST:],)):
            return data[DIGEST:]
    except OSError:
        pass  # not compiled yet
    compiler = find_compiler()
    if compiler is None:
        raise UsageError(
            f"{part.use} needs a C compiler once, and none was found; install one (on "
            "Debian: apt-get install gcc libc6-dev) or set CC to its path"
        )
    compiled = compile_object(part, name, (compiler,))
    if kept.parts[: len(NOWHERE.parts)] != NOWHERE.parts:
        with contextlib.suppress(OSError):  # not cached: it will be compiled again
            write_kept(kept, digest((compiled,)) + compiled)
    return compiled


def compile_object(part: NativePart, name: str, compiler: Sequence[str]) -> bytes:
    """Compile an object of a part; `compiler` is a command as a list of words."""
    import subprocess

    from qnnmem.temporary_folder import temporary_folder

    command = " ".join(compiler)
    with temporary_folder() as folder:
        target = Path(folder, "object.so")
        flags = (*_FLAGS, *part.objects[name], "-x", "c", "-", "-o", str(target))
        try:
            done = subprocess.run(  # noqa: S603  # the user's compiler on our source
                [*compiler, *flags, "-ldl", "-lpthread"],
                input=part.text(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise UsageError(f"the C compiler {command} cannot be run: {exc}") from exc
        if done.returncode or not target.is_file():
            text = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
            raise UsageError(
                f"the C compiler {command} cannot compile {part.source} of qnnmem, which "
                f"{part.use} needs (the compiler needs glibc and its headers): "
                f"{shorten(text[0], 300)}"
            )
        return target.read_bytes()
