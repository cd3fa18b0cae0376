"""Warnings about constants beyond FP16 concern the compiled graph, not the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from epcontext_run import run_epcontext
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from seeds import share

from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.compile.preflight import preflight_warnings
from qnnmem.htp.library import has_library

SHAPE = (1, 4, 8, 8)
F = onnx.TensorProto.FLOAT
node, info = helper.make_node, helper.make_tensor_value_info
Model = tuple[list[Any], dict[str, Any], float]  # nodes, constants, largest value of the input


def full(value: float, *shape: int) -> NDArray[numpy.float32]:
    """Return a constant array of one value."""
    return numpy.full(shape, value, "f4")


def branch(name: str, nodes: list[Any], output: str) -> Any:
    """Return a body of an If."""
    return helper.make_graph(nodes, name, [], [info(output, F, SHAPE)])


def either(condition: str) -> Any:
    """Return an If with one branch that multiplies by 1,048,576."""
    value = numpy_helper.from_array(numpy.array(1_048_576, "f4"))
    large = [node("Constant", [], ["k"], value=value), node("Mul", ["x", "k"], ["t"])]
    return node(
        "If",
        [condition],
        ["y"],
        then_branch=branch("then", large, "t"),
        else_branch=branch("else", [node("Relu", ["x"], ["e"])], "e"),
    )


NORM = {"g": full(100, 4), "b": full(0, 4), "m": full(0, 4), "v": full(9.79e7, 4)}
KERNEL = numpy.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype("f4")
CONV = node("Conv", ["x", "w"], ["c"], pads=[1] * 4)
SUM = node("ReduceSum", ["x"], ["s"], keepdims=0)
# onnxruntime-qnn 2.7.0 ran each model on HTP: results are right without a warning, and wrong
# by far more than FP16 rounding with a warning.
RIGHT: dict[str, Model] = {
    "a variance that is folded into a convolution": (
        [CONV, node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"])],
        {"w": 100 * KERNEL, **NORM},
        1,
    ),
    "a variance of a lone BatchNormalization": (
        [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])],
        {**NORM, "g": full(9000, 4)},
        1,
    ),
    "a factor that is folded into a convolution": (
        [CONV, node("Mul", ["c", "k"], ["y"])],
        {"w": 1e-6 * KERNEL, "k": full(1e6, 1, 4, 1, 1)},
        1,
    ),
    "constants whose product is small": (
        [node("Mul", ["k", "s"], ["ks"]), node("Mul", ["x", "ks"], ["y"])],
        {"k": full(1e6, 1, 4, 1, 1), "s": full(1e-6)},
        1,
    ),
    "limits of a Clip": (
        [node("Clip", ["x", "low", "high"], ["y"])],
        {"low": full(-1e6), "high": full(3.4e38)},
        1,
    ),
    "a branch that is never taken": ([either("c")], {"c": numpy.array(False)}, 1e-3),
}
WRONG: dict[str, Model] = {
    "a factor": ([node("Mul", ["x", "k"], ["y"])], {"k": full(1e6, 1, 4, 1, 1)}, 1e-3),
    "constants whose product is large": (
        [node("Mul", ["k", "s"], ["ks"]), node("Mul", ["x", "ks"], ["y"])],
        {"k": full(1e3, 1, 4, 1, 1), "s": full(1e3)},
        1e-4,
    ),
    "a branch that is taken": ([either("c")], {"c": numpy.array(True)}, 1e-3),
    "a branch that data choose": (
        [SUM, node("Less", ["s", "z"], ["n"]), node("Not", ["n"], ["c"]), either("c")],
        {"z": full(-1e3)},
        1e-3,
    ),
    "a bias": (
        [node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)],
        {"w": KERNEL, "b": full(1e5, 4)},
        1,
    ),
    "a slope": ([node("LeakyRelu", ["x"], ["y"], alpha=1e6)], {}, 1e-3),
    "a factor of a BatchNormalization": (
        [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], epsilon=0.0)],
        {**NORM, "v": full(1e-10, 4), "g": full(1, 4)},
        1e-3,
    ),
}


def save(path: Path, model: Model) -> Path:
    """Write a model from x to y."""
    nodes, constants, _ = model
    stored = [numpy_helper.from_array(numpy.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [info("x", F, SHAPE)], [info("y", F, None)], stored)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_folded_away_is_not_warned_of(tmp_path: Path, name: str) -> None:
    """A constant that folding removes from the compiled graph gives no warning."""
    assert preflight_warnings(save(tmp_path / "a.onnx", RIGHT[name]), CompileOptions()) == ()


@pytest.mark.parametrize("name", WRONG)
def test_what_the_compiled_graph_holds_is_warned_of(tmp_path: Path, name: str) -> None:
    """A constant beyond FP16 gives one warning, after folding and in each possible branch."""
    (told,) = preflight_warnings(save(tmp_path / "a.onnx", WRONG[name]), CompileOptions())
    assert told.startswith(
        "1 constant might overflow: HTP computes in FP16, whose largest value is 65,504: "
    )


def test_a_model_that_cannot_be_folded_is_looked_at_as_it_is(tmp_path: Path) -> None:
    """A model with free dimensions cannot be folded; its own constants are checked."""
    path = save(tmp_path / "a.onnx", WRONG["a factor"])
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path)
    (told,) = preflight_warnings(path, CompileOptions())
    assert "'k' of Mul (4 of 4 values, the largest is 1e+06)" in told


@pytest.fixture(scope="module")
def library() -> Any:
    """Return a worker of the real library."""
    from qnnmem.htp.worker import Worker

    with Worker(warm=True) as worker:
        yield worker


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the QNN library is not installed")
@pytest.mark.parametrize("name", share([*RIGHT, *WRONG], 3))
def test_the_real_library_computes_as_the_warning_says(
    tmp_path: Path, library: Any, name: str
) -> None:
    """The real library computes correctly without a warning, and wrongly with one."""
    import onnxruntime

    from qnnmem.htp.compile import Compiled, compile_model
    from qnnmem.htp.compile.compiled import rename_binary
    from qnnmem.targets.socs import find_soc

    model = RIGHT.get(name) or WRONG[name]
    path, soc = save(tmp_path / "a.onnx", model), find_soc("SM8650")
    x = (model[2] * numpy.random.default_rng(1).standard_normal(SHAPE)).astype("f4")
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = plain.run(None, {"x": x})
    made = compile_model(path, soc, output=tmp_path / "a.bin", worker=library)
    assert isinstance(made, Compiled)
    assert made.epcontext is not None
    context = tmp_path / "context.onnx"
    context.write_bytes(rename_binary(made.epcontext, made.binary_name, "a.bin"))
    (found,) = run_epcontext(context, {"x": x}, soc.model_id).values()
    off = float(numpy.abs(found - expected).max() / numpy.abs(expected).max())
    assert (off < 0.005) == (name in RIGHT), off
