"""Models that the proof calls identical compute the same bits."""

from __future__ import annotations

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import ChildFailed
from qnnmem.fix.proof import LEVELS
from qnnmem.fix.proof.prove import Prover, prove


def model(factor: float, more: str = "") -> onnx.ModelProto:
    """Return a model with `y` as `x` times a factor."""
    weight = numpy_helper.from_array(numpy.array([factor], numpy.float32), "w")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    nodes += [helper.make_node(more, ["y"], ["z"])] if more else []
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    last = "z" if more else "y"
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def part(kind: str, source: str, result: str) -> onnx.ModelProto:
    """Return a model of one node."""
    x = helper.make_tensor_value_info(source, TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info(result, TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node(kind, [source], [result])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_equal_models_are_identical() -> None:
    """A model is identical to itself."""
    found = prove(model(2.0), model(2.0))
    assert found.identical
    assert (found.samples, found.outputs, found.largest) == (3, 1, 0.0)


def test_last_bit_counts() -> None:
    """A difference in the last bit is found and measured."""
    found = prove(model(1.0), model(float(numpy.nextafter(numpy.float32(1), numpy.float32(2)))))
    assert found.differing == ("y",)
    assert 0 < found.relative < 1e-6


def test_parts_are_run_one_after_the_other() -> None:
    """A model cut in two parts is compared as a whole."""
    assert prove(model(3.0, "Relu"), model(3.0), part("Relu", "y", "z")).identical


def test_several_are_compared_with_one() -> None:
    """One prover runs the original once and compares several changed models."""
    with Prover(model(2.0)) as prover:
        assert prover.compare(model(2.0).SerializeToString()).identical
        difference = prover.compare(model(4.0).SerializeToString()).relative
        assert difference == pytest.approx(1.0)


def test_missing_output_is_said() -> None:
    """A changed model that lacks an output is refused."""
    with pytest.raises(ChildFailed, match="no output"):
        prove(model(2.0), model(2.0, "Relu"))


def test_a_zero_below_zero_counts() -> None:
    """A lost -0.0 is a difference, because the random inputs contain negative zeros."""
    before = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[64] x) => (float[64] y)
        <float zero = {0.0}> { a = Add(x, zero)  y = Reciprocal(a) }"""
    )
    after = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[64] x) => (float[64] y)
        { y = Reciprocal(x) }"""
    )
    found = prove(before, after)
    assert found.differing == ("y",)
    assert found.samples == 3
    assert prove(before, before).identical


def scaled(first: int, last: int) -> onnx.ModelProto:
    """Return a convolution, its batch normalisation, or both; ONNX Runtime may fuse them."""
    random = numpy.random.default_rng(0)
    shape = [1, 4, 9, 9]
    names = ("x", "c", "y")
    numbers = {
        "w": random.normal(size=(4, 4, 3, 3)),
        **{name: random.uniform(0.5, 2.0, 4) for name in ("scale", "shift", "mean", "var")},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["y"]),
    ][first:last]
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(names[first], TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(names[last], TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(value.astype(numpy.float32), name)
            for name, value in numbers.items()
            if name in read
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_optimisation_levels_are_compared_each_with_itself() -> None:
    """A cut stops operator fusion, so parts may differ from the whole at the highest level only."""
    with Prover(scaled(0, 2)) as prover:
        same = prover.levels(scaled(0, 2).SerializeToString())
        parts = scaled(0, 1).SerializeToString(), scaled(1, 2).SerializeToString()
        assert prover.compare(*parts).identical
        cut = prover.levels(*parts)
    assert [(one.level, one.identical) for one in same] == [(level, True) for level in LEVELS]
    assert not cut[-1].identical
    assert 0 < cut[-1].relative < 1e-4
