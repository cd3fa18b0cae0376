"""Small models for tests of `qnnmem fix`, and results that need no search."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper


def wide_picture(path: Path, width: int = 8, rows: int = 16) -> Path:
    """Write a model that widens a picture and narrows it again; bands halve what it needs."""
    random = numpy.random.default_rng(0)
    shapes = {"k1": (width, 3, 3, 3), "k2": (2, width, 3, 3)}
    stored = [
        numpy_helper.from_array(random.standard_normal(shape).astype("float32"), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c"], pads=[1] * 4, name="widen"),
        helper.make_node("Conv", ["c", "k2"], ["y"], strides=[2, 2], name="narrow"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, rows, rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path
