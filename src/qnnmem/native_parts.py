"""Parts of ours in C: shipped with a wheel, or compiled at first use and kept."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qnnmem.cache import DIGEST, NOWHERE, cache_folder, digest, read_kept, write_kept
from qnnmem.errors import UsageError
from qnnmem.text import shorten

SHIPPED = "shipped"  # the folder of compiled objects, beside this file, in wheels that have them
SHIPPED_LIST = "shipped.json"  # their machine, the oldest glibc that has all they need, each object
# Machines that wheels can bring objects for, by their number in ELF.
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_INCLUDED = re.compile(rb'^#include "([\w.]+)"\n', re.MULTILINE)
_LARGEST = 1 << 20
_SECONDS = 120


class NativePart(NamedTuple):
    """A C source, and the objects made of it with what the compiler is told for each."""

    package: str
    source: str
    objects: Mapping[str, tuple[str, ...]]
    use: str  # what takes it, for the sentence that says why there must be a compiler

    def text(self) -> bytes:
        """The source with our headers in it: the compiler needs no folder of ours."""
        return _with_headers(self.package, _file(self.package, self.source).read_bytes())

    def made_of(self, machine: str) -> str:
        """What the objects for a machine are made of, as a name; whatever compiler makes them."""
        told = [word for name in sorted(self.objects) for word in (name, *self.objects[name])]
        said = (word.encode() for word in (*_FLAGS, *told, machine))
        return digest((self.text(), *said)).hex()[:32]


# Read with nothing that takes long to load: commands that are quick for their users ask for them.
def _file(package: str, name: str) -> Path:
    return Path(__file__).parent.joinpath(*package.split(".")[1:], name)


def _with_headers(package: str, source: bytes) -> bytes:
    def header(found: re.Match[bytes]) -> bytes:
        return _with_headers(package, _file(package, found[1].decode()).read_bytes())

    return _INCLUDED.sub(header, source)


def made_objects(part: NativePart) -> dict[str, bytes]:
    """The objects of a part: shipped, from the cache or freshly compiled."""
    machine = os.uname().machine
    made_of = part.made_of(machine)
    folder = Path(__file__).with_name(SHIPPED)
    made = read_shipped(folder, tuple(part.objects), made_of, machine, _glibc())
    if made is not None:
        return made
    # Whatever compiler made it: an image may have none any more.
    kept = cache_folder() / "compiled" / made_of
    return {name: _object(kept / name, part, name) for name in part.objects}


def load_library(part: NativePart, name: str) -> Any:
    """An object of a part, loaded with ctypes; ImportError where there is none."""
    import ctypes
    import sys

    if not sys.platform.startswith("linux"):
        raise ImportError("compiled code is loaded on Linux only")
    try:
        data = made_objects(part)[name]
        # Not from a file that another process could replace meanwhile, or that may not be executed.
        # It stays open: the loader takes two libraries with one path for the same one, and the
        # number of a closed descriptor is used again.
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
    """Objects that came with the wheel; None unless all are whole, current and for this machine."""
    try:
        with folder.joinpath(SHIPPED_LIST).open("rb") as file:
            text = file.read(_LARGEST)
    except OSError:
        return None  # a wheel without objects
    from hashlib import sha256  # which loads OpenSSL

    import msgspec  # which nobody needs who builds a wheel

    try:
        listed: Any = msgspec.json.decode(text)
        if listed["machine"] != machine or glibc is None or glibc < tuple(listed["glibc"]):
            return None
        found = {}
        for name in names:
            with folder.joinpath(name).open("rb") as file:
                found[name] = file.read(_LARGEST)
            said = listed_object(made_of, sha256(found[name]).hexdigest())
            if listed["objects"].get(name) != said or elf_machine(found[name]) != machine:
                return None
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # a damaged one
    return found


def listed_object(made_of: str, sha256: str) -> dict[str, str]:
    """What the list beside the objects of a wheel says of one."""
    return {"made_of": made_of, "sha256": sha256}


def elf_machine(data: bytes) -> str:
    """The machine of a 64-bit little-endian ELF file, empty for any other."""
    if data[:6] != b"\x7fELF\x02\x01":
        return ""
    number = int.from_bytes(data[18:20], "little")
    return next((name for name, known in ELF_MACHINES.items() if known == number), "")


def _glibc() -> tuple[int, int] | None:
    """The version of the C library if that is glibc; musl knows the question and says nothing."""
    try:
        found = re.match(r"glibc (\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (OSError, ValueError):
        return None
    return (int(found[1]), int(found[2])) if found else None


def find_compiler() -> str | None:
    """The C compiler: what CC names, else cc, gcc or clang."""
    import shutil

    words = os.environ.get("CC", "").split()
    names = (*words[:1], "cc", "gcc", "clang")
    return next((found for name in names if (found := shutil.which(name))), None)


def _object(kept: Path, part: NativePart, name: str) -> bytes:
    try:
        data = read_kept(kept, _LARGEST)
        if data[:DIGEST] == digest((data[DIGEST:],)):
            return data[DIGEST:]
    except OSError:
        pass  # the first time
    compiler = find_compiler()
    if compiler is None:
        raise UsageError(
            f"{part.use} takes a C compiler once, and there is none here; install one "
            "(on Debian: apt-get install gcc libc6-dev) or let CC name it"
        )
    made = compile_object(part, name, (compiler,))
    if kept.parts[: len(NOWHERE.parts)] != NOWHERE.parts:
        with contextlib.suppress(OSError):  # compiled again the next time
            write_kept(kept, digest((made,)) + made)
    return made


def compile_object(part: NativePart, name: str, compiler: Sequence[str]) -> bytes:
    """An object of a part, made by a compiler that is given as the words that start it."""
    import subprocess

    from qnnmem.temporary_folder import temporary_folder

    said = " ".join(compiler)
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
            raise UsageError(f"the C compiler {said} cannot be run: {exc}") from exc
        if done.returncode or not target.is_file():
            text = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
            raise UsageError(
                f"the C compiler {said} cannot compile {part.source} of qnnmem, without which "
                f"there is no {part.use} (it needs glibc and its headers): {shorten(text[0], 300)}"
            )
        return target.read_bytes()
