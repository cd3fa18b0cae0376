"""When reordering is skipped, the plan says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.planner import PoolOptions, plan_model
from qnnmem.planner.order import MOST_OPS
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.report.plan import render_text
from qnnmem.results.schema import encode


def chain(ops: int) -> Model:
    """Return a chain in which each op reads the result of the previous op."""
    names = [f"t{k}" for k in range(ops + 1)]
    return Model(
        "chain",
        "onnx",
        {name: Tensor(name, DType.UINT8, (64,)) for name in names},
        tuple(Op(f"op{k}", "Relu", (names[k],), (names[k + 1],)) for k in range(ops)),
        inputs=(names[0],),
        outputs=(names[-1],),
    )


def shown(model: Model, time_limit: float, *, reorder: bool = True) -> tuple[str, dict[str, Any]]:
    """Return the plan as text and as JSON."""
    plan = plan_model(model, PoolOptions(reorder=reorder), time_limit=time_limit)
    report = PlannedFile(plan, "chain.onnx")
    return render_text(report), json.loads(encode(report.result))


def test_a_graph_that_is_too_long_is_said_to_keep_its_order() -> None:
    """A graph over 10,000 ops keeps its order, and a note gives the limit and the number of ops."""
    text, values = shown(chain(MOST_OPS + 1), 10.0)
    why = "reordering ops was skipped: the graph has 10,001 ops, over the limit of 10,000"
    assert f"note: {why}" in text
    assert "does not lower" not in text
    assert any(note.startswith(why) for note in values["notes"])
    assert values["reorder"]["before_bytes"] == values["reorder"]["after_bytes"] == 128
    assert values["reorder"]["proven"] is False
    assert values["reorder"]["order"][:2] == ["op0", "op1"]


def test_no_time_is_said_too() -> None:
    """A time limit of zero skips reordering, and a note gives the used-up limit as the reason."""
    text, values = shown(chain(5), 0.0)
    assert "note: reordering ops was skipped: the time limit was used up" in text
    assert "does not lower" not in text
    assert values["reorder"]["proven"] is False


@pytest.mark.parametrize(("ops", "reorder"), [(5, True), (MOST_OPS + 1, False)])
def test_nothing_is_said_where_nothing_was_skipped(ops: int, reorder: bool) -> None:
    """No note appears when reordering ran or was not requested."""
    text, values = shown(chain(ops), 10.0, reorder=reorder)
    assert "skipped" not in text
    assert not values["notes"]
