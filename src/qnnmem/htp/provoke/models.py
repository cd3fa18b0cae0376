"""Small models that are hard on memory: some hundred bytes of ONNX each, 8 bits throughout.

8-bit models compile for every SoC, also for those that do not compute in FP16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SIDE = 1024  # an input of h x 1024 x 1024 has h MiB


def sliced_inputs(count: int, mib: int) -> bytes:
    """Inputs of `mib` MiB each, of which only one row is used: all IO, hardly any work."""
    from onnx import helper

    shape, row = [1, mib, _SIDE, _SIDE], [1, 1, 1, _SIDE]
    ends = _constants("begin", [0, 0, 0, 0]) + _constants("end", row)
    nodes, inputs, outputs = [], [], []
    for number in range(count):
        cut = helper.make_node(
            "Slice", [f"xf{number}", "begin", "end"], [f"yf{number}"], f"slice{number}"
        )
        nodes += [_dequantized(f"x{number}", f"xf{number}"), cut]
        nodes += [_quantized(f"yf{number}", f"y{number}")]
        inputs.append((f"x{number}", shape))
        outputs.append((f"y{number}", row))
    return _model(nodes, inputs, outputs, ends)


def wide_softmax(length: int) -> bytes:
    """A softmax over one axis: every output needs every input, so it cannot be cut."""
    from onnx import helper

    nodes = [
        _dequantized("x", "xf"),
        helper.make_node("Softmax", ["xf"], ["yf"], "softmax", axis=-1),
        _quantized("yf", "y"),
    ]
    return _model(nodes, [("x", [1, length])], [("y", [1, length])], [])


def small_convolution() -> bytes:
    """A convolution that any SoC compiles in a second."""
    import numpy
    from onnx import helper, numpy_helper

    channels, shape = 32, [1, 32, 16, 16]
    numbers = numpy.random.default_rng(0).integers(0, 256, (channels, channels, 1, 1))
    nodes = [
        _dequantized("w", "wf"),
        _dequantized("x", "xf"),
        helper.make_node("Conv", ["xf", "wf"], ["yf"], "conv"),
        _quantized("yf", "y"),
    ]
    weights = [numpy_helper.from_array(numbers.astype("uint8"), "w")]
    return _model(nodes, [("x", shape)], [("y", shape)], weights)


def _dequantized(source: str, target: str) -> Any:
    from onnx import helper

    return helper.make_node("DequantizeLinear", [source, "scale", "zero"], [target], target)


def _quantized(source: str, target: str) -> Any:
    from onnx import helper

    return helper.make_node("QuantizeLinear", [source, "scale", "zero"], [target], target)


def _constants(name: str, values: Sequence[int]) -> list[Any]:
    import numpy
    from onnx import numpy_helper

    return [numpy_helper.from_array(numpy.asarray(values, "int64"), name)]


def _model(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, list[int]]],
    outputs: Sequence[tuple[str, list[int]]],
    constants: Sequence[Any],
) -> bytes:
    import numpy
    from onnx import TensorProto, helper, numpy_helper

    scale = [
        numpy_helper.from_array(numpy.asarray(1 / 256, "float32"), "scale"),
        numpy_helper.from_array(numpy.asarray(0, "uint8"), "zero"),
    ]
    given, wanted = (
        [helper.make_tensor_value_info(name, TensorProto.UINT8, shape) for name, shape in side]
        for side in (inputs, outputs)
    )
    graph = helper.make_graph(list(nodes), "provoked", given, wanted, [*scale, *constants])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    blob: bytes = model.SerializeToString(deterministic=True)
    return blob
