"""How long shapes may take to be fixed before a compile: as long as the user lets it compile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from told_worker import ToldWorker, done, loading

from qnnmem.htp.bill.measure import MeasuredModel, measure
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.worker import RequestOutcome
from qnnmem.load.onnx.trial import child
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
    """Compile and load everything."""
    if verb == "compile":
        return done(options)
    load = loading((0,), "Setting context 1 reserved space to 10546688")
    outcome: RequestOutcome = load(verb, options, limit)
    return outcome


@pytest.mark.parametrize(("given", "used"), [(1800.0, 1800.0), (5.0, 60.0)])
def test_shapes_have_the_time_of_a_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: float, used: float
) -> None:
    """For the compiler and for the names of weights; a short limit is for the compiler alone."""
    model, limits = tmp_path / "branching.onnx", []

    class Watched(child.TrialChild):
        def __init__(self, path: Path, time_limit_s: float) -> None:
            limits.append(time_limit_s)
            super().__init__(path, time_limit_s)

    monkeypatch.setattr(child, "TrialChild", Watched)
    onnx.save(onnx.parser.parse_model(MODEL), model)
    told: Any = ToldWorker(answer)
    options = CompileOptions(dims={"batch": 2}, values={"rate": 16000}, time_limit_s=given)
    made = measure(model, find_soc("SM8650"), options, name_weights=True, worker=told)
    assert isinstance(made, MeasuredModel)
    assert limits == [used, used]
    assert {limit for verb, _, limit in told.asked if verb == "compile"} == {given}
    assert "w" in [item.name for item in made.bill.largest_weights]
