"""What runs inside of programs: shipped with a wheel, or compiled at first use and kept."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from qnnmem.cache_folder import NOWHERE, cache_folder, read_kept, write_kept
from qnnmem.errors import UsageError
from qnnmem.scratch_folder import scratch_folder
from qnnmem.text import shorten

PRELOADED = "libqnnmem_client.so"
SHIPPED = "shipped"  # the folder of compiled objects, beside this file, in wheels that have them
SHIPPED_LIST = "shipped.json"
# Machines that wheels can bring objects for, by their number in ELF.
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_INCLUDED = re.compile(rb'^#include "([\w.]+)"\n', re.MULTILINE)
_LARGEST = 1 << 20
_LARGEST_PROGRAM = 64 << 20  # bytes of one that are looked at
_LONGEST_FOLDER = 107 - len("/socket")  # bytes of its name, so that a socket in it has one
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class NativePart:
    """A C source, and the objects made of it with what the compiler is told for each."""

    package: str
    source: str
    objects: Mapping[str, tuple[str, ...]]

    def text(self) -> bytes:
        """The source with our headers in it: the compiler needs no folder of ours."""
        return _with_headers(files(self.package).joinpath(self.source).read_bytes())

    def made_of(self, machine: str) -> str:
        """What the objects for a machine are made of, as a name; whatever compiler makes them."""
        told = [word for name in sorted(self.objects) for word in (name, *self.objects[name])]
        said = "\0".join((*_FLAGS, *told, machine)).encode()
        return hashlib.sha256(self.text() + said).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ShippedObject:
    """What a compiled object was made of, and what it has to be."""

    made_of: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ShippedObjects:
    """The compiled objects of a wheel; the format of the list beside them."""

    machine: str
    glibc: tuple[int, int]  # the oldest that has all they need
    objects: dict[str, ShippedObject]


SHIM = NativePart(
    "qnnmem.client",
    "shim.c",
    {PRELOADED: (), "libQnnLpai.so": ("-DSTUB=0",), "libQnnSystem.so": ("-DSTUB=1",)},
)


def _with_headers(source: bytes) -> bytes:
    def header(found: re.Match[bytes]) -> bytes:
        return _with_headers(files("qnnmem.client").joinpath(found[1].decode()).read_bytes())

    return _INCLUDED.sub(header, source)


def shim_folder(target: Path) -> Path:
    """Put the objects of `check-client` into a folder of this run."""
    return build_objects(target, SHIM)


def build_objects(target: Path, part: NativePart) -> Path:
    """Put the objects of a part into a folder: shipped, from the cache or freshly compiled."""
    if not sys.platform.startswith("linux"):
        raise UsageError(
            "programs can be checked on Linux only; elsewhere run this in a Linux container"
        )
    _check_folder(target)
    machine = os.uname().machine
    made_of = part.made_of(machine)
    folder = files("qnnmem.client").joinpath(SHIPPED)
    made = read_shipped(folder, tuple(part.objects), made_of, machine, _glibc())
    if made is None:
        # Whatever compiler made it: an image may have none any more.
        kept = cache_folder() / "client" / made_of
        made = {name: _object(kept / name, part, name) for name in part.objects}
    for name, data in made.items():
        (target / name).write_bytes(data)
    return target


def _check_folder(target: Path) -> None:
    """Refuse a folder from which the loader takes nothing, or where no socket can be."""
    name = os.fsencode(target)
    if any(sign in name for sign in b" :\t\n") or len(name) > _LONGEST_FOLDER:
        raise UsageError(
            "the temporary folder has a space or a colon in its name, or a name that is too long: "
            "nothing can be put into a program from there",
            cure="let TMPDIR name another folder, such as /tmp",
        )


def read_shipped(
    folder: Traversable,
    names: Sequence[str],
    made_of: str,
    machine: str,
    glibc: tuple[int, int] | None,
) -> dict[str, bytes] | None:
    """Objects that came with the wheel; None unless all are whole, current and for this machine."""
    import msgspec  # which nobody needs who builds a wheel

    try:
        with folder.joinpath(SHIPPED_LIST).open("rb") as file:
            listed = msgspec.json.decode(file.read(_LARGEST), type=ShippedObjects)
        if listed.machine != machine or glibc is None or glibc < listed.glibc:
            return None
        found = {}
        for name in names:
            with folder.joinpath(name).open("rb") as file:
                found[name] = file.read(_LARGEST)
            said = ShippedObject(made_of, hashlib.sha256(found[name]).hexdigest())
            if listed.objects.get(name) != said or elf_machine(found[name]) != machine:
                return None
    except (OSError, msgspec.MsgspecError):
        return None  # a wheel without objects, or a damaged one
    return found


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
    words = os.environ.get("CC", "").split()
    names = (*words[:1], "cc", "gcc", "clang")
    return next((found for name in names if (found := shutil.which(name))), None)


def _object(kept: Path, part: NativePart, name: str) -> bytes:
    try:
        return read_kept(kept, _LARGEST)
    except OSError:
        pass  # the first time
    compiler = find_compiler()
    if compiler is None:
        raise UsageError(
            "checking a program takes a C compiler once, and there is none here; install one "
            "(on Debian: apt-get install gcc libc6-dev) or let CC name it"
        )
    made = compile_object(part, name, (compiler,))
    if kept.parts[: len(NOWHERE.parts)] != NOWHERE.parts:
        with contextlib.suppress(OSError):  # compiled again the next time
            write_kept(kept, made)
    return made


def compile_object(part: NativePart, name: str, compiler: Sequence[str]) -> bytes:
    """An object of a part, made by a compiler that is given as the words that start it."""
    said = " ".join(compiler)
    with scratch_folder() as folder:
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
                f"the C compiler {said} cannot compile the part of qnnmem that runs inside of "
                f"programs (it needs glibc and its headers): {shorten(text[0], 300)}"
            )
        return target.read_bytes()


def _no_program(command: str) -> UsageError:
    said = f"the program {shorten(command, 200)!r}"
    here = Path(command)
    if not here.is_file():
        return UsageError(f"{said} is not there")
    if here.name == command and os.access(here, os.X_OK):  # shells look for it elsewhere, too
        return UsageError(f"{said} is in no folder of PATH", cure=f"write ./{command}")
    return UsageError(f"{said} cannot be run")


def check_program(command: str) -> str:
    """The path of the program; refuses what the dynamic loader has no part in."""
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
