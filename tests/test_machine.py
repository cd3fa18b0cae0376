"""The usable memory, in every form that the system reports it."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from qnnmem import machine

MACHINE = 4096 * 1000


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine of 4,096,000 bytes and return the folder of its control groups."""
    numbers = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", numbers.__getitem__)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "fs")
    return tmp_path


def place(folder: Path, lines: str, limits: dict[str, str]) -> int | None:
    """Return the usable memory of a process in these groups."""
    (folder / "own").write_bytes(lines.encode())
    for name, text in limits.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return machine.usable_memory()


def test_without_groups_it_is_the_machine(groups: Path) -> None:
    """Without control groups, with an empty or an invalid file, the machine's memory counts."""
    assert machine.usable_memory() == MACHINE
    for lines in ("", "\n", "x", ":::", "1:cpu", "\xff:\xff"):
        assert place(groups, lines, {"fs/memory.max": "max\n"}) == MACHINE


@pytest.mark.parametrize("text", ["", "max", "-1", "1.5", "\u0663", "1 2", "0x10", "9" * 5000])
def test_what_is_no_number_is_no_limit(text: str, groups: Path) -> None:
    """A limit that is not plain digits is ignored."""
    assert place(groups, "0::/a", {"fs/a/memory.max": text}) == MACHINE


@pytest.mark.parametrize(
    ("lines", "limits", "wanted"),
    [
        ("0::/a/b", {"fs/a/b/memory.max": "5000", "fs/a/memory.max": "4000"}, 4000),
        ("0::/a/b", {"fs/a/b/memory.max": "5000", "fs/memory.max": "6000"}, 5000),
        ("0::/a", {"fs/a/memory.max": "99999999"}, MACHINE),
        ("0::/", {"fs/memory.max": "7000\n", "memory.max": "1"}, 7000),
        ("3:memory:/a", {"fs/memory/a/memory.limit_in_bytes": "3000"}, 3000),
        ("3:memory:/a", {"fs/memory.limit_in_bytes": "1"}, MACHINE),
        ("3:cpu:/a", {"fs/memory/a/memory.limit_in_bytes": "1", "fs/a/memory.max": "1"}, MACHINE),
        ("3:memory_x:/a", {"fs/memory/a/memory.limit_in_bytes": "1"}, MACHINE),
        ("1:cpu:/\n0::/a:b", {"fs/a:b/memory.max": "2000"}, 2000),
    ],
)
def test_the_least_limit_counts(
    lines: str, limits: dict[str, str], wanted: int, groups: Path
) -> None:
    """The least limit of the process's own groups and their parents counts."""
    assert place(groups, lines, limits) == wanted


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without `sysconf`, the memory is unknown."""
    monkeypatch.delattr(os, "sysconf")
    assert machine.usable_memory() is None


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"), [(-1, -1, None), (5, -1, 5), (5, 9, 5), (-1, 9, 9)]
)
def test_the_limit_of_the_shell(
    soft: int, hard: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lower of the soft and the hard limit of the address space counts."""
    limits = {resource.RLIMIT_AS: (soft, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    assert machine.address_space_limit() == wanted


def test_without_limits_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the `resource` module, as on Windows, there is no limit."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert machine.address_space_limit() is None
