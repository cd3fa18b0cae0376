"""Tiny graphs for the self-test, created without files.

counter   y = 2 (h + x), next h is h + x         state in persistent memory, IO in scratch
double    y = 2 (h + x), next h is h + x         a second graph with its own state
plain     y = (x + x) + x                        no state, IO in scratch
outside   y = (x + x) + x                        no state, IO in memory of the application
bare      y = x + x                              like outside, but needs no scratch either
window    y = 2 (last two frames)                returns 6038 until it has received two frames
layout    y = (x + x) + x                        like plain, but without a program
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.binary import pack
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.planner import Io, PoolOptions, plan_model
from qnnmem.results.inspect import FrameWindow
from qnnmem.units import Align

if TYPE_CHECKING:
    import onnx

ELEMENTS = 25  # 100 bytes of int32: neither a multiple of 16 nor of 64
_OPSET, _IR_VERSION = 17, 8
_FRAME, _PAIR = (1, ELEMENTS), (2, ELEMENTS)


@cache
def context(hw_version: str = "v6") -> CompiledContext:
    """Return a context with all graphs, compiled for a hardware version."""
    from qnnmem.version import __version__

    state = (("h", "next"),)
    plain = _model(_op("Add", "x x", "t"), _op("Add", "t x", "y"))
    counter = _model(_op("Add", "x h", "next"), _op("Add", "next next", "y"), states=state)
    slide = FrameWindow("window", "h", "next", 1, 2, 1, True, 0, None)
    window = _model(
        _op("Split", "h", "gone kept"),
        _op("Concat", "kept x", "next"),
        _op("Add", "next next", "y"),
        states=state,
        wide=frozenset(("h", "next", "y")),
    )
    graphs = (
        _compiled("counter", counter, states=state),
        _compiled("double", counter, states=state),
        _compiled("plain", plain),
        _compiled("outside", plain, io=Io.OUTSIDE),
        _compiled("bare", _model(_op("Add", "x x", "y")), io=Io.OUTSIDE),
        _compiled("window", window, states=state, windows=(slide,)),
        replace(_planned("layout", plain, Io.INSIDE, ()), name="layout"),
    )
    return CompiledContext(graphs, hw_version, f"qnnmem {__version__}")


@cache
def binary(hw_version: str = "v6") -> bytes:
    """Return the context binary of all graphs."""
    return b"".join(pack(context(hw_version)))


def graph(name: str) -> CompiledGraph:
    """Return the graph with this name."""
    return next(graph for graph in context().graphs if graph.name == name)


def _op(kind: str, inputs: str, outputs: str) -> Op:
    makes = tuple(outputs.split())
    return Op(name=f"{kind} {makes[0]}", type=kind, inputs=tuple(inputs.split()), outputs=makes)


def _model(
    *ops: Op, states: tuple[tuple[str, str], ...] = (), wide: frozenset[str] = frozenset()
) -> Model:
    old, new = tuple(a for a, _ in states), tuple(b for _, b in states)
    names = dict.fromkeys(("x", *old, *(name for op in ops for name in op.outputs)))
    tensors = {n: Tensor(n, DType.INT32, _PAIR if n in wide else _FRAME) for n in names}
    numbered = tuple(replace(op, sources=(number,)) for number, op in enumerate(ops))
    return Model("selftest", "onnx", tensors, numbered, ("x", *old), ("y", *new))


def _planned(name: str, model: Model, io: Io, states: tuple[tuple[str, str], ...]) -> CompiledGraph:
    plan = plan_model(model, PoolOptions(io=io, states=states, align=Align(64)), time_limit=1.0)
    return CompiledGraph(
        name=name,
        model=plan.model,
        buffers=plan.buffers,
        scratch_bytes=plan.scratch_bytes,
        persistent_bytes=plan.persistent_bytes,
        align=plan.align,
        io=io,
        states=states,
    )


def _compiled(
    name: str,
    model: Model,
    *,
    io: Io = Io.INSIDE,
    states: tuple[tuple[str, str], ...] = (),
    windows: tuple[FrameWindow, ...] = (),
) -> CompiledGraph:
    from qnnmem.lpai.program import arrange

    planned = _planned(name, model, io, states)
    program = arrange(_proto(model), planned.model, None)
    return replace(
        planned,
        model=program.model,
        windows=windows,
        program=program.proto.SerializeToString(deterministic=True),
        in_order=True,  # a chain of ops has only one order
    )


def _proto(model: Model) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT32, model.tensors[name].shape)

    nodes = [_node(op) for op in model.ops]
    inputs, outputs = map(info, model.inputs), map(info, model.outputs)
    inner = [info(name) for op in model.ops for name in op.outputs if name not in model.outputs]
    graph = helper.make_graph(nodes, "selftest", list(inputs), list(outputs), value_info=inner)
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)


def _node(op: Op) -> onnx.NodeProto:
    from onnx import helper

    node = helper.make_node(op.type, op.inputs, op.outputs)
    if op.type in ("Split", "Concat"):
        node.attribute.append(helper.make_attribute("axis", 0))
    return node
