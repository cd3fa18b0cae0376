"""Generated logs: respelled, composed and healthy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qnnmem.doctor.kb.knowledge import built_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import robust_logs


def test_spelling_keeps_the_verdict() -> None:
    """At least 95 % of respelled failures keep their verdict."""
    tried = tuple(robust_logs.spelling(built_in(), 150, seed=40_000))
    assert robust_logs.good(tried) >= 0.95 * len(tried), [
        one.name for one in tried if one.said != one.expected
    ]


def test_no_composed_message_is_healthy() -> None:
    """No composed failure message is called healthy."""
    tried = tuple(robust_logs.composed(built_in(), 150, seed=7))
    assert [one.name for one in tried if not one.said] == []


def test_good_runs_raise_no_alarm() -> None:
    """Healthy logs raise no incident; varied ones raise at most 2 %."""
    logs = len(robust_logs.healthy_logs())
    tried = tuple(robust_logs.healthy(built_in(), 2 * logs))
    assert [one.name for one in tried[:logs] if one.said] == []
    assert sum(bool(one.said) for one in tried) <= 0.02 * len(tried)


@pytest.mark.parametrize("name", sorted(robust_logs.VARIATIONS))
def test_variations_change_a_log_and_are_drawn_again(name: str) -> None:
    """Each variation changes a line and is reproducible from its seed."""
    head = "03-17 16:13:31.123     0     7 E QnnDsp: "
    line = (head + "qnn_graph_create failed: reading /a/b/c.bin err 1002 ") * 2
    change = robust_logs.VARIATIONS[name]
    assert any(change(line, robust_logs._drawing(seed)) != line for seed in range(9))
    assert change(line, robust_logs._drawing(3)) == change(line, robust_logs._drawing(3))
