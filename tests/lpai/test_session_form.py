"""A session returns real numbers, or stored integers on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from qnnmem import UsageError, lpai
from qnnmem.lpai.binary import write


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a float model, quantized during preparation; its output `best` is an index."""
    folder = tmp_path_factory.mktemp("form")
    weight = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("ArgMax", ["y"], ["best"], axis=1),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]),
            helper.make_tensor_value_info("best", TensorProto.INT64, [1, 1]),
        ],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "m.onnx")
    prepared = lpai.prepare(folder / "m.onnx", {"quantize": 8})
    write(prepared.context, folder / "m.bin")
    return folder / "m.bin"


X = np.array([[0.5, -0.25, 0.75, 0.1]], np.float32)
Y = X @ np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def forms(binary: Path, **how: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the outputs of a session, and the quantization of `y`, for each form of input."""
    with lpai.open(binary, trusted=True, **how) as session:
        quant = session.compiled.quants["x"]
        dtype = session.compiled.model.tensors["x"].dtype.value
        stored = np.rint(X / quant.scale + quant.zero_point).astype(dtype)
        for feeds in ({"x": X}, {"x": stored}, {"x": X.tolist()}):
            yield session.run(feeds), session.compiled.quants["y"]
        assert next(session.stream([{"x": X}]))["y"].dtype == session.run({"x": X})["y"].dtype


def test_outputs_are_real_numbers_whatever_was_given(binary: Path) -> None:
    """By default outputs are floats near the float model's, whatever the form of the inputs."""
    outputs = [found for found, _ in forms(binary)]
    for found in outputs:
        assert found["y"].dtype == np.float32
        np.testing.assert_allclose(found["y"], Y, atol=0.05)
        np.testing.assert_array_equal(found["y"], outputs[0]["y"])
        assert found["best"].dtype == np.int64


def test_stored_values_stand_for_the_real_ones(binary: Path) -> None:
    """With the scale and the zero point, stored outputs give the real outputs."""
    real = [found["y"] for found, _ in forms(binary)]
    for (stored, quant), expected in zip(forms(binary, native=True), real, strict=True):
        again = (stored["y"].astype(np.float64) - quant.zero_point) * quant.scale
        np.testing.assert_allclose(again, expected, rtol=1e-6)


@pytest.mark.parametrize(("native", "kinds"), [(True, "ui"), (False, "f")])
def test_either_form_can_be_asked_for(binary: Path, native: bool, kinds: str) -> None:
    """`native` selects stored or real outputs, whatever the form of the inputs."""
    for found, _ in forms(binary, native=native):
        assert found["y"].dtype.kind in kinds
        assert found["best"].dtype == np.int64


def test_a_form_is_yes_or_no(binary: Path) -> None:
    """`native` must be a bool; any other value raises UsageError."""
    with pytest.raises(UsageError, match="native must be True or False, not 'yes'"):
        lpai.open(binary, native="yes")


def test_a_session_says_what_it_takes(binary: Path) -> None:
    """The `repr` of a session shows its inputs and outputs; a wrong input raises UsageError."""
    with lpai.open(binary, trusted=True) as session:
        assert (
            repr(session)
            == "<Session of 'm': 'x' uint8 [1, 4] -> 'y' float32 [1, 3], 'best' int64 [1, 1]>"
        )
        wrong = r"input 'x' must be uint8 or real numbers \[1, 4\], not float32 \[4\]"
        with pytest.raises(UsageError, match=wrong):
            session.run({"x": X[0]})
        with pytest.raises(UsageError, match="by input name: 'x'"):
            session.run(X)


def test_a_model_is_prepared_and_written_as_plainly_as_it_is_opened(
    binary: Path, tmp_path: Path
) -> None:
    """`prepare` accepts a list of paths and option words, and its result has `write`."""
    model = binary.with_name("m.onnx")
    prepared = lpai.prepare([model], {"quantize": "int8"})
    assert prepared.write(tmp_path / "a.bin") == (tmp_path / "a.bin").stat().st_size
    assert (tmp_path / "a.bin").read_bytes() == binary.read_bytes()
    with pytest.raises(UsageError, match="two files have the same name"):
        lpai.prepare([model, str(model)])
    with pytest.raises(UsageError, match="'bits' is not an option; the options are io, states"):
        lpai.prepare(model, {"bits": 8})
    with pytest.raises(UsageError, match="quantize must be 8 or 16, not 'int4'"):
        lpai.prepare(model, {"quantize": "int4"})
