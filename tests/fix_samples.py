"""Small models for tests of `qnnmem fix`, and results that need no search."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from qnnmem.fix.graph.plan_settings import PlanRemedy
from qnnmem.fix.lpai import fix_for_lpai
from qnnmem.fix.remedy import FixCase
from qnnmem.fix.remedy_search import FixResult
from qnnmem.loader.onnx import read_shaped
from qnnmem.planner import PoolOptions


def wide_picture(path: Path, width: int = 8, rows: int = 16) -> Path:
    """Write a model that widens a picture and narrows it; bands halve its memory."""
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


def planned_fix(folder: Path, name: str = "h") -> FixResult:
    """Return the fix of a model that saves memory in place, which needs only plans."""
    path = folder / "chain.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    nodes = [
        helper.make_node("Concat", ["x", "x"], [name], axis=0),
        helper.make_node("Relu", [name], [f"{name}2"]),
        helper.make_node("ReduceMax", [f"{name}2"], ["y"]),
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(made, path)
    case = FixCase(path, read_shaped(path), PoolOptions())
    return fix_for_lpai(case, remedies=(PlanRemedy(),))
