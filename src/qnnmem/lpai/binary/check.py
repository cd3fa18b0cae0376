"""Checks that the values in a binary's description are consistent.

Every reference, position and size is checked, so that later code need not check again. Overlaps of
live buffers are not checked: a wrong plan must be loadable, so that its faults can be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from qnnmem.errors import Damaged
from qnnmem.ir import Model, Tensor
from qnnmem.loader.onnx.tensor import DTYPES
from qnnmem.lpai.binary.meta import MAX_GRAPHS, MAX_POOL, MAX_TENSORS, Description
from qnnmem.lpai.compiled import CONSTANT_ALIGN, CompiledGraph, Constant
from qnnmem.planner import Io, PlacedBuffer, Pool
from qnnmem.results.inspect import FrameWindow
from qnnmem.text import quote

HW_VERSION = re.compile(r"v([0-9]{1,3})(?:_([0-9]{1,3}))?", re.ASCII)

Scope = tuple[Mapping[str, Tensor], ...]  # tensors of a model, then of the models around it


def check(description: Description, constants_bytes: int) -> None:
    """Raise Damaged for the first value that is inconsistent with others."""
    if not HW_VERSION.fullmatch(description.hw_version):
        shown = quote(description.hw_version)
        raise Damaged(f"is {shown}; it must be a hardware version such as v6", "hw_version")
    if not 0 < len(description.graphs) <= MAX_GRAPHS:
        fault = f"has {len(description.graphs):,} entries; allowed: 1 to {MAX_GRAPHS}"
        raise Damaged(fault, "graphs")
    _unique((graph.name for graph in description.graphs), "graphs")
    tensors = sum(_count_tensors(graph.model) for graph in description.graphs)
    if tensors > MAX_TENSORS:
        raise Damaged(f"have {tensors:,} tensors, over the limit of {MAX_TENSORS:,}", "graphs")
    for number, graph in enumerate(description.graphs):
        try:
            _check_graph(graph, constants_bytes)
        except Damaged as exc:
            raise exc.inside(f"graphs[{number}]") from None


def _check_graph(graph: CompiledGraph, constants_bytes: int) -> None:
    try:
        # A buffer list has no outputs and no ops.
        for key in () if graph.model.buffers else ("outputs", "ops"):
            if not getattr(graph.model, key):
                raise Damaged("is empty", f".{key}")
        _check_model(graph.model, ())
    except Damaged as exc:
        raise exc.inside(".model") from None
    _check_buffers(graph)
    _check_places(graph)
    _check_states(graph)
    _check_windows(graph)
    _visible(graph.quants, (graph.model.tensors,), ".quants")
    _check_constants(graph.constants, constants_bytes)


def _count_tensors(model: Model) -> int:
    inner = sum(_count_tensors(body) for op in model.ops for body in op.bodies)
    return len(model.tensors) + inner


# --- Models --------------------------------------------------------------------------------------


def _check_model(model: Model, around: Scope) -> None:
    scope = (model.tensors, *around)
    for key in ("inputs", "outputs", "constants", "states"):
        names = getattr(model, key)
        _unique(names, f".{key}")
        _visible(names, scope, f".{key}")
    _unique((buffer.name for buffer in model.buffers), ".buffers")
    _unique((name for op in model.ops for name in op.outputs), ".ops")  # each is written once
    for number, op in enumerate(model.ops):
        _visible(op.inputs, scope, f".ops[{number}].inputs")
        _visible(op.outputs, (model.tensors,), f".ops[{number}].outputs")
        for place, body in enumerate(op.bodies):
            try:
                _check_model(body, scope)
            except Damaged as exc:
                raise exc.inside(f".ops[{number}].bodies[{place}]") from None


def _visible(names: Iterable[str], scope: Scope, where: str) -> None:
    """Raise Damaged unless each name is a tensor of one of the models in `scope`."""
    for name in names:
        if not any(name in tensors for tensors in scope):
            raise Damaged(f"names {quote(name)}, which is not a tensor", where)


def _unique(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Damaged(f"names {quote(name)} twice", where)
        seen.add(name)


# --- Buffers and offsets -------------------------------------------------------------------------


def _check_buffers(graph: CompiledGraph) -> None:
    pools: dict[Pool, int] = {
        Pool.SCRATCH: graph.scratch_bytes,
        Pool.PERSISTENT: graph.persistent_bytes,
    }
    if graph.io is Io.OUTSIDE:
        pools[Pool.IO] = MAX_POOL  # buffers of the application, each separate
    steps = len(graph.model.ops)
    for number, buffer in enumerate(graph.buffers):
        fault = _fault(buffer, pools, graph.align)
        if not fault and graph.model.ops and buffer.live.upper > steps + 1:
            fault = f"is in use until step {buffer.live.upper:,} of a graph with {steps:,} steps"
        if fault:
            raise Damaged(f"({quote(buffer.name)}) {fault}", f".buffers[{number}]")


def _fault(buffer: PlacedBuffer, pools: Mapping[Pool, int], align: int) -> str:
    size = pools.get(buffer.pool)
    if size is None:
        return f"is in pool {buffer.pool.value}, which this graph does not have"
    end = buffer.offset + buffer.size
    if end > size:
        return f"ends at byte {end:,} of {buffer.pool.value}, which has only {size:,} bytes"
    if buffer.offset % align:
        return f"starts at byte {buffer.offset:,}, not a multiple of {align}"
    return ""


def _check_places(graph: CompiledGraph) -> None:
    sizes: dict[str, int] = {}
    for number, buffer in enumerate(graph.buffers):
        for name in (buffer.name, *buffer.aliases):
            if name in sizes:
                raise Damaged(f"places {quote(name)} a second time", f".buffers[{number}]")
            sizes[name] = buffer.size
    for name in _planned(graph.model):
        tensor = graph.model.tensors.get(name)
        is_empty = tensor is not None and not tensor.nbytes  # an empty tensor needs no buffer
        if name not in sizes and not is_empty:
            raise Damaged(f"do not include {quote(name)}", ".buffers")
    for name, size in sizes.items():
        tensor = graph.model.tensors.get(name)  # None: memory of a body, which has no tensor here
        if tensor is not None and tensor.nbytes > size:
            need = f"{quote(name)}, which needs {tensor.nbytes:,}"
            raise Damaged(f"reserve {size:,} bytes for {need}", ".buffers")


def _planned(model: Model) -> Iterator[str]:
    """Yield each tensor that needs an offset: inputs, op outputs and state, but no constants."""
    constants = set(model.constants)
    yield from (name for name in model.inputs if name not in constants)
    for op in model.ops:
        yield from (name for name in op.outputs if name not in constants)
    yield from model.states
    yield from (buffer.name for buffer in model.buffers)


# --- State, windows, constants -------------------------------------------------------------------


def _check_states(graph: CompiledGraph) -> None:
    model = graph.model
    _unique((name for pair in graph.states for name in pair), ".states")
    inputs, outputs = set(model.inputs), set(model.outputs)
    for number, (old, new) in enumerate(graph.states):
        where = f".states[{number}]"
        if old not in inputs or new not in outputs:
            fault = f"({quote(old)}, {quote(new)}) is not a pair of an input and an output"
            raise Damaged(fault, where)
        a, b = model.tensors[old], model.tensors[new]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            fault = f"pairs {quote(old)} with {quote(new)}, which has another type or shape"
            raise Damaged(fault, where)


def _check_windows(graph: CompiledGraph) -> None:
    _unique((window.name for window in graph.windows), ".windows")
    pairs, inputs = set(graph.states), set(graph.model.inputs)
    for number, window in enumerate(graph.windows):
        fault = _window_fault(window)
        if (window.old, window.new) not in pairs:
            fault = "uses tensors that are not a state pair"
        elif window.reset is not None and window.reset not in inputs:
            fault = f"uses the reset {quote(window.reset)}, which is not an input"
        if fault:
            raise Damaged(f"({quote(window.name)}) {fault}", f".windows[{number}]")


def _window_fault(window: FrameWindow) -> str:
    if window.frames > window.size or window.size % window.frames:
        return (
            f"has {window.size:,} frames, not a multiple of the {window.frames:,} that each "
            "execution adds"
        )
    if not window.frames <= window.stride <= window.size or window.stride % window.frames:
        valid = f"a multiple of {window.frames:,} up to {window.size:,}"
        return f"moves by {window.stride:,} frames; the number must be {valid}"
    if window.padding > window.size:
        return f"has {window.padding:,} frames of padding, but only {window.size:,} frames"
    return ""


def _check_constants(constants: tuple[Constant, ...], constants_bytes: int) -> None:
    _unique((constant.name for constant in constants), ".constants")
    for number, constant in enumerate(constants):
        end = constant.offset + constant.size
        need = Tensor(constant.name, DTYPES[constant.element], constant.shape).nbytes
        fault = ""
        if constant.offset % CONSTANT_ALIGN:
            fault = f"starts at byte {constant.offset:,}, not a multiple of {CONSTANT_ALIGN}"
        elif end > constants_bytes:
            fault = f"ends at byte {end:,}, but there are {constants_bytes:,} bytes of constants"
        elif constant.size != need:
            fault = f"has {constant.size:,} bytes, but its type and shape need {need:,}"
        if fault:
            raise Damaged(f"({quote(constant.name)}) {fault}", f".constants[{number}]")
