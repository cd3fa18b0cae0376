"""Random LPAI contexts, planned, with states and constants."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.planner import Io, PoolOptions, plan_model
from qnnmem.results.inspect import FrameWindow
from qnnmem.units import Bytes, Offset


def random_context(rng: random.Random) -> CompiledContext:
    """Return a valid context of one to three small planned graphs with states and constants."""
    stored = bytearray()
    graphs = tuple(_graph(rng, f"graph {n}", stored) for n in range(rng.randint(1, 3)))
    version = rng.choice(("v4", "v5", "v5_1", "v6", "v7"))
    return CompiledContext(graphs, version, "qnnmem 0.1.0", memoryview(bytes(stored)))


def _graph(rng: random.Random, name: str, stored: bytearray) -> CompiledGraph:
    states = (("h", "h next"),) if rng.random() < 0.6 else ()
    model = _model(rng, bool(states))
    io = rng.choice((Io.INSIDE, Io.OUTSIDE))
    plan = plan_model(model, PoolOptions(io=io, states=states), time_limit=0.01)
    window = FrameWindow("w", "h", "h next", 2, 8, 4, True, 2, rng.choice((None, "x")))
    return CompiledGraph(
        name,
        plan.model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        io,
        states,
        (window,) if states and rng.random() < 0.5 else (),
        {key: Quant(rng.uniform(1e-6, 1), rng.randint(-128, 127)) for key in ("x", "y")},
        tuple(_constants(rng, model, stored)),
        rng.randbytes(rng.choice((0, 1, 300))),
        rng.random() < 0.5,
        ("made at random",) * rng.randint(0, 2),
        rng.randint(0, 2),
    )


def _model(rng: random.Random, stateful: bool) -> Model:
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 4)))
    dtype = rng.choice((DType.INT8, DType.UINT8, DType.INT16, DType.FLOAT32, DType.BOOL))
    tensors = {name: Tensor(name, dtype, shape) for name in ("x", "y", "v", "w", "c")}
    ops = [Op("first", "Add", ("x", "w"), ("t0",), sources=(0, 1))]
    for number in range(rng.randint(0, 5)):
        effect = rng.choice(tuple(Effect))
        ops.append(Op(f"op {number}", "Relu", (f"t{number}",), (f"t{number + 1}",), effect))
    tensors |= {op.outputs[0]: Tensor(op.outputs[0], dtype, shape) for op in ops}
    if rng.random() < 0.3:
        inner = Model("body", "onnx", {"b": Tensor("b", dtype, shape)}, outputs=("b",))
        body = Model(**(_fields(inner) | {"ops": (Op("in", "Neg", ("x",), ("b",)),)}))
        ops.append(Op("if", "If", ("x",), ("v",), bodies=(body, body), repeats=True))
    else:
        ops.append(Op("view", "Reshape", (ops[-1].outputs[0],), ("v",), Effect.VIEW))
    ops.append(Op("last", "Mul", ("v", "c"), ("y",)))
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)
    if stateful:
        tensors |= {name: Tensor(name, DType.INT8, (8, 2)) for name in ("h", "h next")}
        ops.append(Op("state", "Tanh", ("h",), ("h next",)))
        inputs, outputs = ("x", "h"), ("y", "h next")
    return Model("m", "onnx", tensors, tuple(ops), inputs, outputs, ("w", "c"), notes=("seed",))


def _fields(model: Model) -> dict[str, Any]:
    return {key: getattr(model, key) for key in model.__dataclass_fields__}


def _constants(rng: random.Random, model: Model, stored: bytearray) -> Iterator[Constant]:
    elements = {"int8": 3, "uint8": 2, "int16": 5, "float32": 1, "bool": 9}
    for name in model.constants:
        tensor = model.tensors[name]
        stored += bytes(-len(stored) % 256)
        offset = Offset(len(stored))
        stored += rng.randbytes(tensor.nbytes)
        element = elements[tensor.dtype.value]
        yield Constant(name, element, tensor.shape, offset, Bytes(tensor.nbytes), name == "c")
