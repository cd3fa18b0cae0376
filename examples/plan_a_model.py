"""Build a tiny ONNX model, plan its memory and print the offsets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import qnnmem


def build(path: Path) -> None:
    """Write a model of three ops: two layers and a residual addition."""
    shape = [1, 8, 16, 16]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Softmax", ["a"], ["b"], name="softmax"),
        helper.make_node("Add", ["a", "b"], ["y"], name="add"),
    ]
    graph = helper.make_graph(nodes, "tiny", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def main() -> None:
    """Plan the model in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.onnx"
        build(path)
        model = qnnmem.load(path)
    plan = qnnmem.plan(model)
    print(f"scratch {plan.scratch_bytes:,} bytes, {plan.proof_words}")
    for buffer in plan.buffers:
        steps = f"steps {buffer.live.lower} to {buffer.live.upper - 1}"
        print(f"{buffer.name}: {buffer.size:,} bytes at offset {buffer.offset:,}, {steps}")


if __name__ == "__main__":
    main()
