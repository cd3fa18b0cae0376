"""The QNN library of this machine: the package that carries it, its version, the platform."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qnnmem.errors import NoCompiler
from qnnmem.htp.remote.command import VARIABLE
from qnnmem.installation import command_for
from qnnmem.qnn.package import PACKAGE, package_folder

INSTALL = command_for("htp")
_LIBRARIES = ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so")


@dataclass(frozen=True, slots=True)
class Library:
    """The QNN libraries of an installed package, here or where a command leads to."""

    package_version: str  # of onnxruntime-qnn
    onnxruntime_version: str
    folder: Path
    command: tuple[str, ...] = ()  # starts the worker that has it; none for this machine

    @property
    def name(self) -> str:
        """Package and version, as numbers measured with it name their source."""
        return f"{PACKAGE} {self.package_version}"


@cache
def installed_library() -> Library:
    """The library of this machine; NoCompiler says in one sentence what is missing."""
    from importlib.metadata import PackageNotFoundError, version

    check_platform(sys.platform, platform.machine())
    try:
        found, runtime = version(PACKAGE), version("onnxruntime")
    except PackageNotFoundError as exc:
        cure = f"{INSTALL} installs {PACKAGE}, which has it; or {VARIABLE} names a command that "
        cure += "starts a worker where it is"
        raise NoCompiler("the real HTP library is not installed", cure=cure) from exc
    check_version(found)
    return Library(found, runtime, _folder(found))


def compiler_exists(system: str = sys.platform, machine: str = "") -> bool:
    """Whether an HTP compiler is published for a platform, by default this one."""
    return system == "linux" and (machine or platform.machine()) in ("x86_64", "AMD64")


def check_platform(system: str, machine: str) -> None:
    """Refuses platforms for which no HTP compiler is published."""
    if not compiler_exists(system, machine):
        raise NoCompiler(
            f"the HTP compiler exists for Linux on x86-64 only, this is {system} on {machine}",
            cure=f"{VARIABLE} names a command that starts a worker where it is: "
            "ssh to such a machine, docker, or qemu-user",
        )


def check_version(found: str) -> None:
    """Refuses versions whose interface is not known here."""
    parts = found.split(".")
    number = tuple(int(part) if part.isdigit() else 0 for part in parts[:2])
    if not (2, 7) <= number < (3, 0):
        what = f"{PACKAGE} {found} is not 2.7 or a later 2.x"
        raise NoCompiler(what, cure=f"{INSTALL} installs one")


def _folder(found: str) -> Path:
    place = package_folder(_LIBRARIES)
    if place is not None:
        return place
    cure = f"{INSTALL} on Linux x86-64 installs one"
    raise NoCompiler(f"{PACKAGE} {found} carries no HTP compiler here", cure=cure)
