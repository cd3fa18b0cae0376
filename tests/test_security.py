"""The numbers in SECURITY.md equal those of the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "SECURITY.md"
ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| `([a-z_.]+)\.([A-Z_]+)` \|$", PAGE.read_text("utf-8"), re.M
)
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def number(text: str) -> float:
    """Return a number with its unit in bytes, seconds or pieces."""
    digits, _, unit = text.replace(",", "").partition(" ")
    return float(digits) * UNITS[unit]


def test_the_table_is_there() -> None:
    """Every row of the table is read, and there are more than 30."""
    lines = PAGE.read_text("utf-8").partition("## The numbers")[2].partition("\n## ")[0]
    written = [line for line in lines.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(written) - 1 > 30


@pytest.mark.parametrize(("what", "promised", "module", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_a_promised_number_is_that_of_the_code(
    what: str, promised: str, module: str, name: str
) -> None:
    """Each limit on the page equals the constant that the row names."""
    assert getattr(import_module(f"qnnmem.{module}"), name) == number(promised), what
