"""Damaged config files give findings or one sentence, never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from seeds import few

from qnnmem.errors import LoadError
from qnnmem.lpai.config.check import lint_files
from qnnmem.lpai.config.settings import (
    LpaiConfig,
    RunConfig,
    make_pair,
    read_lpai_config,
    read_run_config,
)
from qnnmem.report.lpai import lint_text
from qnnmem.results.schema import encode

ROUNDS = few(200)
PAIR = make_pair(LpaiConfig())
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 70, 0.5, 1e300, "", "tcm", "\x00", "\ud800", "../..", "/"),
    *([], {}, [[]], [None], {"fps": {}}, "x" * 5000, [{"graph_name": []}]),
)


def damage_bytes(text: str, dice: random.Random) -> bytes:
    """Return the text with some bytes replaced, doubled, cut or swapped for punctuation."""
    content = bytearray(text.encode())
    for _ in range(dice.randint(1, 4)):
        spot = dice.randrange(len(content) + 1)
        stretch = slice(spot, spot + dice.randint(0, 12))
        what = dice.randrange(4)
        if what == 0:
            content[stretch] = dice.randbytes(dice.randint(0, 3))
        elif what == 1:
            content[spot:spot] = content[stretch]
        elif what == 2:
            content[stretch] = dice.choice((b'"', b"{", b"}", b"[", b",", b":", b"//", b"NaN"))
        else:
            del content[spot:]
    return bytes(content)


def damage_values(text: str, dice: random.Random) -> bytes:
    """Return the JSON with some odd values and keys."""
    value = json.loads(text)
    for _ in range(dice.randint(1, 3)):
        node = value
        while True:
            name = dice.choice([*node, "fps", "graph_configs", "context_configs"])
            if isinstance(node.get(name), dict) and node[name] and dice.random() < 0.7:
                node = node[name]
                continue
            node[name] = deepcopy(dice.choice(ODD))
            break
    return json.dumps(value).encode()


def refusal(read: Callable[[Path], RunConfig | LpaiConfig], path: Path) -> str:
    """Return the sentence with which a file is refused; empty if accepted."""
    try:
        read(path)
    except LoadError as exc:
        return exc.reason or "no reason given" * 100
    return ""


@pytest.mark.parametrize("damage", [damage_bytes, damage_values])
@pytest.mark.parametrize("victim", ["tool", "lpai"])
def test_damaged_files_give_findings_or_a_sentence(
    damage: Callable[[str, random.Random], bytes], victim: str, tmp_path: Path
) -> None:
    """Hundreds of damaged pairs are linted, rendered and read without an unexpected error."""
    texts = {"tool": PAIR.tool_text, "lpai": PAIR.lpai_text}
    tool, lpai = tmp_path / PAIR.tool_name, tmp_path / PAIR.lpai_name
    tool.write_text(PAIR.tool_text)
    lpai.write_text(PAIR.lpai_text)
    outcomes = set()
    for seed in range(ROUNDS):
        target = tool if victim == "tool" else lpai
        target.write_bytes(damage(texts[victim], random.Random(seed)))  # noqa: S311 - reproducible, not secret
        report = lint_files([tool])
        outcomes.add((bool(report.unreadable), bool(report.findings)))
        assert all(finding.sentence and finding.cure for finding in report.findings)
        lint_text(report)
        json.loads(encode(report))
        assert len(refusal(read_run_config, tool)) < 1000
        assert len(refusal(read_lpai_config, lpai)) < 1000
    assert any(found for _, found in outcomes)
    assert damage is damage_values or any(unreadable for unreadable, _ in outcomes)


def test_lint_finds_what_reading_refuses(tmp_path: Path) -> None:
    """A pair that a run would refuse never passes lint."""
    tool, lpai = tmp_path / PAIR.tool_name, tmp_path / PAIR.lpai_name
    refused = 0
    for seed in range(ROUNDS):
        dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
        tool.write_bytes(damage_values(PAIR.tool_text, dice))
        lpai.write_bytes(damage_values(PAIR.lpai_text, dice))
        if refusal(read_run_config, tool):
            refused += 1
            assert not lint_files([tool]).passes
    assert refused > ROUNDS // 10
