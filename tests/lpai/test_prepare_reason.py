"""A model that cannot be prepared is refused with the operator that is the cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from qnnmem import LoadError, lpai


def looping(path: Path) -> Path:
    """Write a model with a loop that computes with floats and return its path."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("MatMul", ["h", "w"], ["m"]),
            helper.make_node("Tanh", ["m"], ["h_out"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("c", TensorProto.BOOL, []),
            value("h", TensorProto.FLOAT, [1, 4]),
        ],
        [value("c_out", TensorProto.BOOL, []), value("h_out", TensorProto.FLOAT, [1, 4])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["first"]),
            helper.make_node("Loop", ["n", "go", "first"], ["last"], name="steps", body=body),
            helper.make_node("MatMul", ["last", "w"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [
            numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
            numpy_helper.from_array(np.array(3), "n"),
            numpy_helper.from_array(np.array(True), "go"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize("allow_float", [False, True])
def test_a_crash_of_the_quantized_model_names_the_operator(
    allow_float: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the quantized model crashes, the error names the loop; with `allow_float`, the crash."""
    path = looping(tmp_path / "loop.onnx")

    def crash(path: Path, **_: object) -> None:
        raise LoadError(path, "a trial run crashed")

    monkeypatch.setattr("qnnmem.loader.onnx.read_with_graph", crash)
    with pytest.raises(LoadError) as refused:
        lpai.prepare(
            path, lpai.PrepareOptions(quantize=8, allow_float=allow_float, time_limit_s=60)
        )
    assert str(refused.value) == f"{path} " + (
        "cannot be prepared after quantization: a trial run crashed"
        if allow_float
        else (
            "cannot be prepared for LPAI; the ops inside Loop 'steps' cannot be quantized; "
            "export the model with the loop unrolled"
        )
    )
