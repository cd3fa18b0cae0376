"""One time limit covers fixing shapes, compiling, loading and naming weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from told_worker import ToldWorker, done, loading

from qnnmem.errors import OutOfTime
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.measure import MeasuredModel, measure
from qnnmem.htp.requests import RequestOutcome
from qnnmem.loader.onnx import trial
from qnnmem.targets.socs import find_soc

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
branching (float[batch, 4] x, int64 rate) => (float[batch, 4] y) <float[4] w = {1, 2, 3, 4}> {
    wide = Constant <value = int64 {16000}> ()
    is_wide = Equal (rate, wide)
    y = If (is_wide) <
        then_branch = t () => (float[batch, 4] a) { a = Mul (x, w) },
        else_branch = e () => (float[batch, 4] b) { b = Add (x, w) }
    >
}"""


def answer(verb: str, options: Mapping[str, Any], limit: int | None) -> RequestOutcome:
    """Compile and load every model."""
    if verb == "compile":
        return done(options)
    load = loading((0,), "Setting context 1 reserved space to 10546688")
    outcome: RequestOutcome = load(verb, options, limit)
    return outcome


def test_one_limit_governs_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step gets the time that the earlier steps left."""
    given = 1800.0
    model, limits = tmp_path / "branching.onnx", []

    class Watched(trial.TrialChild):
        def __init__(self, path: Path, time_limit_s: float) -> None:
            limits.append(time_limit_s)
            super().__init__(path, time_limit_s)

    monkeypatch.setattr(trial, "TrialChild", Watched)
    onnx.save(onnx.parser.parse_model(MODEL), model)
    told: Any = ToldWorker(answer)
    options = CompileOptions(dims={"batch": 2}, values={"rate": 16000}, time_limit_s=given)
    made = measure(model, find_soc("SM8650"), options, name_weights=True, worker=told)
    assert isinstance(made, MeasuredModel)
    first, last = limits
    between = [limit for _, _, limit in told.asked]
    assert given > first > max(between) >= min(between) > last > given - 600
    assert "w" in [item.name for item in made.bill.largest_weights]


def test_shapes_that_take_too_long_are_a_timeout(tmp_path: Path) -> None:
    """Fixing shapes over the time limit names the limit and exits with 4."""
    model = tmp_path / "branching.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), model)
    told: Any = ToldWorker(answer)
    options = CompileOptions(dims={"batch": 2}, values={"rate": 16000}, time_limit_s=0.001)
    with pytest.raises(OutOfTime, match=r"not found within 0\.001 s; allow more time") as caught:
        measure(model, find_soc("SM8650"), options, worker=told)
    assert caught.value.exit_code == 4
