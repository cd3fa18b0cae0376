"""Write the small models that the documentation uses.

    python examples/make_models.py vad.onnx          one of them
    python examples/make_models.py                   all of them, into the current folder

vad.onnx     a voice activity detector: 160 samples and a state of 32 numbers in, a score out
rate.onnx    the same for two sample rates: an input selects one of two branches
image.onnx   an image classifier with an open batch size
conv.onnx    one convolution with an open batch size
wide.onnx    `batch` MiB of input and almost no computation, to test limits
a.onnx       the same with 866 MiB, three of which fill a process domain
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def weights(*shape: int) -> NDArray[np.float32]:
    """Return pseudo-random weights that are the same on every machine."""
    count = int(np.prod(shape))
    fan_in = max(1, count // shape[-1])
    numbers = np.sin(np.arange(1, count + 1) * 1.7) / fan_in**0.5
    return np.asarray(numbers, np.float32).reshape(shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, NDArray[np.generic]],
) -> onnx.ModelProto:
    """Build a model from its nodes."""
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in end]
        for end in (inputs.items(), outputs.items())
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", ends[0], ends[1], stored)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def vad() -> onnx.ModelProto:
    """A recurrent network: state' = tanh(features + U state), speech = sigmoid(v state')."""
    nodes = [
        helper.make_node("MatMul", ["frame", "w1"], ["mixed"]),
        helper.make_node("Relu", ["mixed"], ["features"]),
        helper.make_node("MatMul", ["features", "w2"], ["new"]),
        helper.make_node("MatMul", ["state", "u"], ["old"]),
        helper.make_node("Add", ["new", "old"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["state_next"]),
        helper.make_node("MatMul", ["state_next", "v"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["speech"]),
    ]
    constants = {"w1": weights(160, 64), "w2": weights(64, 32), "u": weights(32, 32)}
    inputs = {"frame": [1, 160], "state": [1, 32]}
    outputs = {"speech": [1, 1], "state_next": [1, 32]}
    return model(nodes, inputs, outputs, {**constants, "v": weights(32, 1)})


def rate() -> onnx.ModelProto:
    """Build a detector with a branch for each sample rate, like published speech detectors."""
    branches = {16000: branch("fast", 200), 8000: branch("slow", 100)}
    value = numpy_helper.from_array(np.array(16000, np.int64))
    nodes = [
        helper.make_node("Constant", [], ["rate"], value=value),
        helper.make_node("Equal", ["sr", "rate"], ["is_fast"]),
        helper.make_node(
            "If",
            ["is_fast"],
            ["speech", "state_next"],
            then_branch=branches[16000],
            else_branch=branches[8000],
        ),
    ]
    made = model(
        nodes,
        {"input": [1, "samples"], "state": [1, 8]},
        {"speech": [1, 8], "state_next": [1, 8]},
        {"axis": np.array([1], np.int64)},
    )
    made.graph.input.append(helper.make_tensor_value_info("sr", TensorProto.INT64, []))
    return made


def branch(name: str, window: int) -> onnx.GraphProto:
    """Add the mean of a filter over all windows to the state."""
    nodes = [
        helper.make_node("Unsqueeze", ["input", "axis"], [f"{name}_row"]),
        helper.make_node("Conv", [f"{name}_row", f"{name}_filter"], [f"{name}_all"]),
        helper.make_node("ReduceMean", [f"{name}_all"], [f"{name}_mean"], axes=[2], keepdims=0),
        helper.make_node("Add", [f"{name}_mean", "state"], [f"{name}_state"]),
        helper.make_node("Sigmoid", [f"{name}_state"], [f"{name}_speech"]),
    ]
    outputs = [
        helper.make_tensor_value_info(f"{name}_{end}", TensorProto.FLOAT, [1, 8])
        for end in ("speech", "state")
    ]
    stored = [numpy_helper.from_array(weights(8, 1, window), f"{name}_filter")]
    return helper.make_graph(nodes, name, [], outputs, stored)


def image() -> onnx.ModelProto:
    """Two convolutions and a classifier of ten classes."""
    nodes = [
        helper.make_node("Conv", ["image", "k1"], ["c1"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "k2"], ["c2"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    constants = {"k1": weights(16, 3, 3, 3), "k2": weights(32, 16, 3, 3), "w": weights(32, 10)}
    return model(nodes, {"image": ["batch", 3, 32, 32]}, {"scores": ["batch", 10]}, constants)


def conv() -> onnx.ModelProto:
    """One convolution from 16 channels to 16."""
    shape: Shape = ["batch", 16, 32, 32]
    node = helper.make_node("Conv", ["x", "k"], ["y"], pads=[1] * 4)
    return model([node], {"x": shape}, {"y": shape}, {"k": weights(16, 16, 3, 3)})


def sliced(rows: int | str) -> onnx.ModelProto:
    """Give eight of `rows` times 262,144 numbers."""
    limits = {"from": [0, 0], "to": [1, 8], "axes": [1, 2]}
    node = helper.make_node("Slice", ["x", *limits], ["y"])
    constants = {name: np.array(value, np.int64) for name, value in limits.items()}
    return model([node], {"x": [1, rows, 1 << 18]}, {"y": [1, 1, 8]}, constants)


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "vad.onnx": vad,
    "rate.onnx": rate,
    "image.onnx": image,
    "conv.onnx": conv,
    "wide.onnx": lambda: sliced("batch"),
    "a.onnx": lambda: sliced(866),
}


def main(names: Sequence[str]) -> int:
    """Write the named models, or all of them."""
    for name in names or MODELS:
        if Path(name).name not in MODELS:
            print(f"{name} is none of {', '.join(MODELS)}", file=sys.stderr)
            return 2
        onnx.save(MODELS[Path(name).name](), name)
        print(f"Wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
