"""Compiled objects of a wheel are used only if they match our sources and this machine."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from qnnmem.errors import UsageError
from qnnmem.native_parts import ELF_MACHINES, NativePart, read_shipped
from qnnmem.programs.launch import SHIM, build_objects

MADE_OF = "0123456789abcdef"
NAMES = ("first.so", "second.so")


def elf(machine: str) -> bytes:
    """Return the start of an object file, and some padding."""
    number = ELF_MACHINES[machine].to_bytes(2, "little")
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + number + bytes(100)


def ship(folder: Path, machine: str = "x86_64", data: bytes | None = None, **other: Any) -> Path:
    """Write a folder as in a wheel; `other` replaces entries of the list."""
    data = elf(machine) if data is None else data
    said = {"made_of": MADE_OF, "sha256": hashlib.sha256(data).hexdigest()}
    for name in NAMES:
        (folder / name).write_bytes(data)
    listed = {"machine": machine, "glibc": [2, 34], "objects": dict.fromkeys(NAMES, said)} | other
    (folder / "shipped.json").write_text(json.dumps(listed), "utf-8")
    return folder


def taken(
    folder: Path, machine: str = "x86_64", glibc: tuple[int, int] | None = (2, 36)
) -> dict[str, bytes] | None:
    """Return the objects that a machine accepts from a folder."""
    return read_shipped(folder, NAMES, MADE_OF, machine, glibc)


@pytest.mark.parametrize("machine", ELF_MACHINES)
def test_objects_of_this_machine_are_taken(tmp_path: Path, machine: str) -> None:
    """Objects of the same sources, for this machine and an old enough glibc, are accepted."""
    assert taken(ship(tmp_path, machine), machine, (2, 34)) == dict.fromkeys(NAMES, elf(machine))


def test_a_pure_wheel_has_none(tmp_path: Path) -> None:
    """Without shipped objects the reader returns None, and the objects are compiled."""
    assert taken(tmp_path / "nothing") is None
    assert taken(tmp_path) is None


def test_objects_of_other_sources_are_left(tmp_path: Path) -> None:
    """If one object comes from other sources, all are rejected, because versions must match."""
    said = {"made_of": MADE_OF, "sha256": hashlib.sha256(elf("x86_64")).hexdigest()}
    objects = {NAMES[0]: said, NAMES[1]: said | {"made_of": "fedcba9876543210"}}
    assert taken(ship(tmp_path, objects=objects)) is None


@pytest.mark.parametrize("machine", ["aarch64", "riscv64"])
def test_objects_of_another_machine_are_left(tmp_path: Path, machine: str) -> None:
    """Objects for another machine are rejected, as after copying an installation."""
    assert taken(ship(tmp_path), machine) is None


def test_a_list_that_is_wrong_about_the_machine_is_not_believed(tmp_path: Path) -> None:
    """Objects whose ELF header contradicts the list are rejected."""
    assert taken(ship(tmp_path, data=elf("x86_64"), machine="aarch64"), "x86_64") is None
    assert taken(ship(tmp_path, data=elf("aarch64"), machine="x86_64")) is None
    assert taken(ship(tmp_path, data=b"no object", machine="x86_64")) is None


@pytest.mark.parametrize("glibc", [(2, 33), (1, 99), None])
def test_an_older_glibc_and_another_c_library_get_none(
    tmp_path: Path, glibc: tuple[int, int] | None
) -> None:
    """An older glibc and musl get no objects, because the loader would stop the program."""
    assert taken(ship(tmp_path), glibc=glibc) is None


def test_damaged_objects_are_left(tmp_path: Path) -> None:
    """A truncated, changed or missing object rejects all objects."""
    path = ship(tmp_path) / NAMES[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert taken(tmp_path) is None
    path.write_bytes(whole[:-1] + b"!")
    assert taken(tmp_path) is None
    path.unlink()
    assert taken(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"machine": "x86_64"}', "\ud800", "{" * 5000])
def test_a_damaged_list_is_left(tmp_path: Path, text: str) -> None:
    """A malformed list rejects all objects."""
    (ship(tmp_path) / "shipped.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert taken(tmp_path) is None


def test_what_an_object_is_made_of_is_source_headers_options_and_machine() -> None:
    """The digest of an object depends on its source, headers, options and machine."""
    told = NativePart(
        SHIM.package, SHIM.source, dict(SHIM.objects) | {"libQnnLpai.so": ()}, SHIM.use
    )
    made = {SHIM.made_of("x86_64"), SHIM.made_of("aarch64"), told.made_of("x86_64")}
    assert len(made) == 3
    assert b'#include "' not in SHIM.text()


@pytest.mark.skipif(sys.platform != "linux", reason="programs are checked on Linux")
@pytest.mark.parametrize("name", ["a b", "a:b", "a" * 100])
def test_a_folder_that_the_loader_does_not_take_is_refused(tmp_path: Path, name: str) -> None:
    """A temporary folder with a space, a colon or a long name is refused, as LD_PRELOAD needs."""
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="temporary folder"):
        build_objects(tmp_path / name, SHIM)
