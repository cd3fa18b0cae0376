"""With inputs of gigabytes there is no trial run, since it would take minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from qnnmem.loader.onnx import read_shaped
from qnnmem.loader.onnx.trial import TrialChild
from qnnmem.loader.onnx.trial_program import Attempted

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
wide (float[batch, 262144] x) => (float[batch, 262144] y) { y = Relu (x) }"""


@pytest.mark.parametrize(("batch", "runs"), [(512, 1), (513, 0), (4096, 0), (1 << 30, 0)])
def test_inputs_that_are_too_large_are_not_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, runs: int
) -> None:
    """The limit counts all inputs together; above it, shapes are inferred with a note."""
    path, tried = tmp_path / "wide.onnx", []

    def attempt(_child: TrialChild, *_inputs: Any, watched: int, **_how: Any) -> Any:
        tried.append(watched)
        return Attempted((), ((batch, 262144),) * watched)

    monkeypatch.setattr(TrialChild, "attempt", attempt)
    onnx.save(onnx.parser.parse_model(MODEL), path)
    shaped = read_shaped(path, dims={"batch": batch})
    assert shaped.scope.types["y"].shape == (batch, 262144)
    assert len(tried) == runs
    assert bool(shaped.notes) is not bool(runs)
