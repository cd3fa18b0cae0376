"""The table of config keys agrees with the reference page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qnnmem.lpai.config.json_positions import JsonKind
from qnnmem.lpai.config.schema import BY_PATH, Key, tcm_works_on

COMMANDS = Path(__file__).parents[2] / "docs" / "reference" / "commands"
PAGE = (COMMANDS / "lint.md").read_text("utf-8")
LEAVES = [key for key in BY_PATH.values() if key.kind is not JsonKind.OBJECT and not key.item]


@pytest.mark.parametrize("key", LEAVES, ids=lambda key: key.path)
def test_the_page_lists_every_key_with_its_default(key: Key) -> None:
    """The page lists every key with its default."""
    (row,) = re.findall(rf"^\| `{re.escape(key.path)}` \|.*$", PAGE, re.MULTILINE)
    default = str(key.default).lower() if isinstance(key.default, bool) else key.default
    assert default is None or re.search(rf"\| `?{default}\b.* \|$", row)


@pytest.mark.parametrize("key", LEAVES, ids=lambda key: key.path)
def test_a_default_is_an_allowed_value(key: Key) -> None:
    """Each default is an allowed value of its key."""
    assert key.default is None or not key.values or key.default in key.values


@pytest.mark.parametrize(
    ("version", "works"),
    [("v4", False), ("v5", False), ("v5_1", False), ("v6", True), ("v7", True)],
)
def test_tcm_comes_with_v6(version: str, works: bool) -> None:
    """TCM works on hardware v6 and later."""
    assert tcm_works_on(version) is works
