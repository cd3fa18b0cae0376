"""Sizes are tried even on a slow machine, where importing libraries takes long."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from qnnmem.errors import FreeDimensions
from qnnmem.loader.onnx import read_shaped
from qnnmem.loader.onnx.sizes import size_search
from qnnmem.loader.onnx.trial import TrialChild

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
open (float[batch, 4] x) => (float[batch, 4] y) { y = Relu (x) }"""


def test_time_for_trying_begins_when_the_model_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit for trial runs starts after the child has opened the model."""
    passed, path, opened = [0.0], tmp_path / "open.onnx", TrialChild.open

    def slowly(child: TrialChild, model: onnx.ModelProto) -> None:
        opened(child, model)
        passed[0] += 3600

    monkeypatch.setattr(TrialChild, "open", slowly)
    monkeypatch.setattr(f"{size_search.__name__}.time.monotonic", lambda: passed[0])
    onnx.save(onnx.parser.parse_model(MODEL), path)
    with pytest.raises(FreeDimensions) as caught:
        read_shaped(path)
    assert not caught.value.untried
    assert [(one.name, one.value) for one in caught.value.settings] == [("dims", "batch=1")]
