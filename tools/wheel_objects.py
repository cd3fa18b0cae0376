"""The C parts, compiled for wheels, so that users need no compiler."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from qnnmem.doctor.logs.compiled_search import TEXTS
from qnnmem.native_parts import (
    ELF_MACHINES,
    SHIPPED,
    SHIPPED_LIST,
    compile_object,
    elf_machine,
    listed_object,
)
from qnnmem.planner.packing import PACKING
from qnnmem.programs.launch import OBSERVER, SHIM

PARTS = (SHIM, OBSERVER, TEXTS, PACKING)
MACHINES = tuple(ELF_MACHINES)
PLACE = f"qnnmem/{SHIPPED}"  # folder in the wheel


def compiler_for(machine: str, named: str) -> list[str]:
    """Return the compiler command: the given command, the system's, or Debian's cross compiler."""
    here = machine == platform.machine()
    return shlex.split(named) or ["cc" if here else f"{machine}-linux-gnu-gcc"]


def write_objects(folder: Path, machine: str, compiler: Sequence[str]) -> list[Path]:
    """Compile all objects for a machine into a folder; the last file lists the others."""
    if machine not in MACHINES:
        raise ValueError(f"wheels are made for {' and '.join(MACHINES)}, not for {machine!r}")
    listed: dict[str, dict[str, str]] = {}
    needs: list[tuple[int, int]] = []
    for part in PARTS:
        for name in part.objects:
            data = compile_object(part, name, compiler)
            if elf_machine(data) != machine:
                raise ValueError(f"{shlex.join(compiler)} does not compile for {machine}")
            needs += glibc_versions(data)
            listed[name] = listed_object(part.made_of(machine), hashlib.sha256(data).hexdigest())
            (folder / name).write_bytes(data)
    if not needs:
        raise ValueError(f"{shlex.join(compiler)} links with another C library than glibc")
    said = {"machine": machine, "glibc": max(needs), "objects": listed}
    text = json.dumps(said, indent=1)
    (folder / SHIPPED_LIST).write_text(text + "\n", "utf-8")
    return [folder / name for name in (*listed, SHIPPED_LIST)]


def glibc_versions(data: bytes) -> list[tuple[int, int]]:
    """Return the glibc versions that an object requires; empty if none."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    sections = ELFFile(io.BytesIO(data)).iter_sections()
    needs = [section for section in sections if isinstance(section, GNUVerNeedSection)]
    names = [one.name for each in needs for _, group in each.iter_versions() for one in group]
    found = [name.removeprefix("GLIBC_").split(".") for name in names if name.startswith("GLIBC_")]
    return [(int(words[0]), int(words[1])) for words in found]
