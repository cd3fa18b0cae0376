"""The reference page with C and Python side by side."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import side_by_side  # noqa: E402 - a script, not a package

from qnnmem.qnn import c_names  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "lpai-c-and-python.md"


def test_every_python_name_exists() -> None:
    """Every Python name on the page exists."""
    for name in side_by_side.every_python_name():
        side_by_side.resolve(name)


def test_every_name_in_the_python_column_is_one_of_them() -> None:
    """Every name in the Python column comes from the generator."""
    rows = re.findall(
        r"^\| .*?`[^`]+` \|(?: [\w]+ \|)? `([\w.]+)` \|", PAGE.read_text("utf-8"), re.M
    )
    known = {side_by_side.shown(name).strip("`") for name in side_by_side.every_python_name()}
    assert len(rows) > 60
    assert set(rows) <= known


def test_every_constant_is_on_the_page() -> None:
    """Every C constant is on the page, or on the page of error codes."""
    page = PAGE.read_text("utf-8")
    codes = (ROOT / "docs" / "reference" / "error-codes.md").read_text("utf-8")
    names = [name for name in vars(c_names) if name.startswith("QNN_")]
    assert [name for name in names if f"`{name}` " not in page and f"`{name}`" not in codes] == []


def test_a_name_that_does_not_exist_is_noticed() -> None:
    """A name that does not exist raises AttributeError."""
    for name in ("qnnmem.lpai.Mem.nonsense", "qnnmem.lpai.Nonsense", "nonsense.at.all"):
        with pytest.raises(AttributeError):
            side_by_side.resolve(name)
