"""The part of the build that compiles: objects of ours in wheels for one kind of machine.

Only where `QNNMEM_WHEEL` names the machine; every other wheel is the pure one, and editable
installations and source archives are what they were. `CC` names the compiler with its options.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Here nothing of ours is installed, nor what it depends on: these two modules need nothing.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from qnnmem.client.build import (
    ELF_MACHINES,
    SHIM,
    SHIPPED,
    SHIPPED_LIST,
    ShippedObject,
    ShippedObjects,
    compile_object,
    elf_machine,
)
from qnnmem.watch.observer import OBSERVER

PARTS = (SHIM, OBSERVER)
MACHINES = tuple(ELF_MACHINES)
ASKED = "QNNMEM_WHEEL"


class WheelObjects(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls before and after it writes a wheel."""

    def dependencies(self) -> list[str]:
        """What a build in an environment of its own needs more than the pure one."""
        return ["pyelftools>=0.31"] if os.environ.get(ASKED) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile where a machine is named, and put the objects into the wheel."""
        machine = os.environ.get(ASKED, "")
        if not machine or version == "editable":
            return
        if machine not in MACHINES:
            raise ValueError(f"{ASKED} is {machine!r}; it is one of {', '.join(MACHINES)}")
        self.folder = tempfile.TemporaryDirectory()
        write_objects(
            Path(self.folder.name), machine, compiler_for(machine, os.environ.get("CC", ""))
        )
        build_data["pure_python"] = False
        # What is sure before anybody has looked: tools/wheels.py has it judged and renamed.
        build_data["tag"] = f"py3-none-linux_{machine}"
        for path in sorted(Path(self.folder.name).iterdir()):
            build_data["force_include"][str(path)] = f"qnnmem/client/{SHIPPED}/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: the tree stays as it was."""
        if folder := getattr(self, "folder", None):
            folder.cleanup()


def compiler_for(machine: str, named: str) -> list[str]:
    """The words that start a compiler: what was named, else the system's, or Debian's for others."""
    here = machine == platform.machine()
    return shlex.split(named) or ["cc" if here else f"{machine}-linux-gnu-gcc"]


def write_objects(folder: Path, machine: str, compiler: Sequence[str]) -> None:
    """Compile all objects for a machine into a folder, with the list that says what they are."""
    listed: dict[str, ShippedObject] = {}
    needs: list[tuple[int, int]] = []
    for part in PARTS:
        for name in part.objects:
            data = compile_object(part, name, compiler)
            if elf_machine(data) != machine:
                raise ValueError(f"{' '.join(compiler)} does not compile for {machine}")
            needs += glibc_versions(data)
            listed[name] = ShippedObject(part.made_of(machine), hashlib.sha256(data).hexdigest())
            (folder / name).write_bytes(data)
    if not needs:
        raise ValueError(f"{' '.join(compiler)} links with another C library than glibc")
    text = json.dumps(asdict(ShippedObjects(machine, max(needs), listed)), indent=1)
    (folder / SHIPPED_LIST).write_text(text + "\n", "utf-8")


def glibc_versions(data: bytes) -> list[tuple[int, int]]:
    """The versions of glibc that an object says it needs symbols of; none for one without any."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    sections = ELFFile(io.BytesIO(data)).iter_sections()
    needs = [section for section in sections if isinstance(section, GNUVerNeedSection)]
    names = [one.name for each in needs for _, group in each.iter_versions() for one in group]
    found = [name.removeprefix("GLIBC_").split(".") for name in names if name.startswith("GLIBC_")]
    return [(int(words[0]), int(words[1])) for words in found]
