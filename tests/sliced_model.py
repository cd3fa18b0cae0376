"""A model with inputs of any size that is cheap to compile."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper


def sliced(path: Path, mib: int | str) -> Path:
    """Write a model that slices 8 floats from this many MiB, or from an open dimension."""
    limits = (("s", [0, 0]), ("e", [1, 8]), ("a", [1, 2]))
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "s", "e", "a"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, mib, 1 << 18])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 8])],
        [numpy_helper.from_array(numpy.array(v, numpy.int64), name) for name, v in limits],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path
