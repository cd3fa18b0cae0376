"""The description inside a context binary: compiled graphs as canonical JSON and back.

Canonical means: keys sorted, no white space, ASCII with escapes, tensors and quantization sorted by
name. Equal contexts have equal descriptions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from qnnmem.errors import Damaged
from qnnmem.ir import DType, Effect, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.loader.onnx.tensor import DTYPES
from qnnmem.lpai.binary.fields import Record, flag, integer, listing, optional, pair, text, word
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.planner import Io, PlacedBuffer, Pool
from qnnmem.results.inspect import FrameWindow
from qnnmem.text import quote
from qnnmem.units import MAX_RANK, Align, Bytes, Offset, Step

MAX_META = 64 << 20  # bytes
# Brackets and commas bound how many values a parser makes, and so its memory, before it starts.
MAX_VALUES = 2_000_000
MAX_GRAPHS = 1024
MAX_TENSORS = 100_000  # of a binary, bodies included
MAX_ELEMENTS = 1 << 40  # of a tensor
MAX_POOL = 1 << 40  # bytes
MAX_COUNT = (1 << 31) - 1  # frames, nodes, float ops
_MAX_BODIES_DEEP = 16

_CONTEXT = frozenset(("producer", "hw_version", "graphs"))
_GRAPH = frozenset(
    (
        *("name", "model", "buffers", "scratch_bytes", "persistent_bytes", "align", "io", "states"),
        *("windows", "quants", "constants", "in_order", "notes", "float_ops"),
    )
)
_MODEL = frozenset(
    (
        *("name", "format", "tensors", "ops", "inputs", "outputs"),
        *("constants", "states", "buffers", "notes"),
    )
)
_OP = frozenset(("name", "type", "inputs", "outputs", "effect", "sources", "bodies", "repeats"))
_TENSOR = frozenset(("name", "dtype", "shape"))
_FIXED = frozenset(("name", "size", "live", "align", "offset"))
_BUFFER = frozenset(("name", "pool", "size", "live", "offset", "aliases"))
_QUANT = frozenset(("name", "scale", "zero_point"))
_WINDOW = ("name", "old", "new", "frames", "size", "stride", "blocking", "padding", "reset")
_CONSTANT = ("name", "element", "shape", "offset", "size", "folded")

_size = integer(0, MAX_POOL)
_count = integer(0, MAX_COUNT)
_positive = integer(1, MAX_COUNT)
_align = integer(1, 1 << 20)
_step_pair = pair(integer(-1, MAX_COUNT))
_zero_point = integer(-(1 << 31), (1 << 31) - 1)
_dimensions = listing(integer(0, MAX_ELEMENTS), MAX_RANK)
_counts = listing(_count)
_names = listing(text)
_text_pairs = listing(pair(text))
_dtype, _effect, _pool, _io = word(DType), word(Effect), word(Pool), word(Io)


class Description(NamedTuple):
    """What the description says, before programs and constants are joined to it."""

    producer: str
    hw_version: str
    graphs: tuple[CompiledGraph, ...]


# --- Writing -------------------------------------------------------------------------------------


def encode(context: CompiledContext) -> bytes:
    """The description of a context."""
    value = {
        "producer": context.producer,
        "hw_version": context.hw_version,
        "graphs": [_graph_value(graph) for graph in context.graphs],
    }
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain
    ).encode("ascii")


def _plain(value: Any) -> int | float:
    """A number of numpy's as Python's own."""
    return int(value) if hasattr(value, "__index__") else float(value)


def _graph_value(graph: CompiledGraph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "model": _model_value(graph.model),
        "buffers": [_buffer_value(buffer) for buffer in graph.buffers],
        "scratch_bytes": graph.scratch_bytes,
        "persistent_bytes": graph.persistent_bytes,
        "align": graph.align,
        "io": graph.io.value,
        "states": graph.states,
        "windows": [{key: getattr(window, key) for key in _WINDOW} for window in graph.windows],
        "quants": [
            {"name": name, "scale": float(quant.scale), "zero_point": quant.zero_point}
            for name, quant in sorted(graph.quants.items())
        ],
        "constants": [{key: getattr(c, key) for key in _CONSTANT} for c in graph.constants],
        "in_order": graph.in_order,
        "notes": graph.notes,
        "float_ops": graph.float_ops,
    }


def _model_value(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "format": model.format,
        "tensors": [
            {"name": name, "dtype": tensor.dtype.value, "shape": tensor.shape}
            for name, tensor in sorted(model.tensors.items())
        ],
        "ops": [_op_value(op) for op in model.ops],
        "inputs": model.inputs,
        "outputs": model.outputs,
        "constants": model.constants,
        "states": model.states,
        "buffers": [
            {
                "name": buffer.name,
                "size": buffer.size,
                "live": (buffer.live.lower, buffer.live.upper),
                "align": buffer.align,
                "offset": buffer.offset,
            }
            for buffer in model.buffers
        ],
        "notes": model.notes,
    }


def _op_value(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "type": op.type,
        "inputs": op.inputs,
        "outputs": op.outputs,
        "effect": op.effect.value,
        "sources": op.sources,
        "bodies": [_model_value(body) for body in op.bodies],
        "repeats": op.repeats,
    }


def _buffer_value(buffer: PlacedBuffer) -> dict[str, Any]:
    return {
        "name": buffer.name,
        "pool": buffer.pool.value,
        "size": buffer.size,
        "live": (buffer.live.lower, buffer.live.upper),
        "offset": buffer.offset,
        "aliases": buffer.aliases,
    }


# --- Reading -------------------------------------------------------------------------------------


def decode(data: bytes, programs: Sequence[bytes]) -> Description:
    """The context that a description describes; raises `Damaged`.

    Every value has its type and range; whether values fit each other is for `binary_check`.
    """
    record = Record(_parse(data), _CONTEXT)
    producer, hw_version = record.get("producer", text), record.get("hw_version", text)
    values = record.get("graphs", listing(lambda value: value, MAX_GRAPHS))
    if len(values) != len(programs):
        raise Damaged(f"has {len(values):,} entries for {len(programs):,} programs", "graphs")
    numbered = iter(programs)
    graphs = record.get("graphs", listing(lambda value: _graph(value, next(numbered))))
    return Description(producer, hw_version, graphs)


def _parse(data: bytes) -> Any:
    if len(data) > MAX_META:
        raise Damaged(f"description has {len(data):,} bytes, more than {MAX_META:,}")
    values = data.count(b",") + data.count(b"[") + data.count(b"{") + data.count(b":")
    if values > MAX_VALUES:
        raise Damaged(f"description has more than {MAX_VALUES:,} values")
    try:
        # Decoded here: left to itself, json would also take UTF-16 and UTF-32.
        words = data.decode("utf-8")
        return json.loads(words, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as exc:
        raise Damaged(f"description is not UTF-8 at byte {exc.start:,}") from exc
    except json.JSONDecodeError as exc:
        raise Damaged(f"description is not JSON at character {exc.pos:,}") from exc
    except RecursionError as exc:
        raise Damaged("description is nested too deeply") from exc
    except ValueError as exc:  # an integer of thousands of digits
        raise Damaged("description has a number that is too long") from exc


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Damaged("description has an object with the same key twice")
    return found


def _no_constant(name: str) -> float:
    raise Damaged(f"description has the number {name}")


def _graph(value: Any, program: bytes) -> CompiledGraph:
    record = Record(value, _GRAPH)
    return CompiledGraph(
        name=record.get("name", text),
        model=record.get("model", _model),
        buffers=record.get("buffers", listing(_buffer)),
        scratch_bytes=Bytes(record.get("scratch_bytes", _size)),
        persistent_bytes=Bytes(record.get("persistent_bytes", _size)),
        align=Align(record.get("align", _align)),
        io=record.get("io", _io),
        states=record.get("states", _text_pairs),
        windows=record.get("windows", listing(_window)),
        quants=record.get("quants", _quants),
        constants=record.get("constants", listing(_constant)),
        program=program,
        in_order=record.get("in_order", flag),
        notes=record.get("notes", _names),
        float_ops=record.get("float_ops", _count),
    )


def _model(value: Any, depth: int = 0) -> Model:
    if depth > _MAX_BODIES_DEEP:
        raise Damaged(f"is nested in more than {_MAX_BODIES_DEEP} ops")
    record = Record(value, _MODEL)
    return Model(
        name=record.get("name", text),
        format=record.get("format", text),
        tensors=record.get("tensors", _tensors),
        ops=record.get("ops", listing(lambda op: _op(op, depth))),
        inputs=record.get("inputs", _names),
        outputs=record.get("outputs", _names),
        constants=record.get("constants", _names),
        states=record.get("states", _names),
        buffers=record.get("buffers", listing(_fixed)),
        notes=record.get("notes", _names),
    )


def _op(value: Any, depth: int) -> Op:
    record = Record(value, _OP)
    return Op(
        name=record.get("name", text),
        type=record.get("type", text),
        inputs=record.get("inputs", _names),
        outputs=record.get("outputs", _names),
        effect=record.get("effect", _effect),
        sources=record.get("sources", _counts),
        bodies=record.get("bodies", listing(lambda body: _model(body, depth + 1))),
        repeats=record.get("repeats", flag),
    )


def _tensors(value: Any) -> dict[str, Tensor]:
    tensors = listing(_tensor, MAX_TENSORS)(value)
    found = {tensor.name: tensor for tensor in tensors}
    if len(found) != len(tensors):
        raise Damaged("name the same tensor twice")
    return found


def _tensor(value: Any) -> Tensor:
    record = Record(value, _TENSOR)
    return Tensor(
        record.get("name", text), record.get("dtype", _dtype), record.get("shape", _shape)
    )


def _shape(value: Any) -> tuple[int, ...]:
    shape = _dimensions(value)
    if math.prod(shape) > MAX_ELEMENTS:
        raise Damaged(f"means more than {MAX_ELEMENTS:,} elements")
    return shape


def _live(value: Any) -> Span:
    lower, upper = _step_pair(value)
    if upper <= lower:
        raise Damaged(f"ends at step {upper:,} and begins at {lower:,}")
    return Span(Step(lower), Step(upper))


def _fixed(value: Any) -> FixedBuffer:
    record = Record(value, _FIXED)
    offset = record.get("offset", optional(_size))
    return FixedBuffer(
        record.get("name", text),
        Bytes(record.get("size", _size)),
        record.get("live", _live),
        Align(record.get("align", _align)),
        None if offset is None else Offset(offset),
    )


def _buffer(value: Any) -> PlacedBuffer:
    record = Record(value, _BUFFER)
    return PlacedBuffer(
        record.get("name", text),
        Bytes(record.get("size", _size)),
        record.get("live", _live),
        record.get("aliases", _names),
        pool=record.get("pool", _pool),
        offset=Offset(record.get("offset", _size)),
    )


def _window(value: Any) -> FrameWindow:
    record = Record(value, frozenset(_WINDOW))
    return FrameWindow(
        name=record.get("name", text),
        old=record.get("old", text),
        new=record.get("new", text),
        frames=record.get("frames", _positive),
        size=record.get("size", _positive),
        stride=record.get("stride", _positive),
        blocking=record.get("blocking", flag),
        padding=record.get("padding", _count),
        reset=record.get("reset", optional(text)),
    )


def _quants(value: Any) -> dict[str, Quant]:
    rows = listing(_quant)(value)
    found = dict(rows)
    if len(found) != len(rows):
        raise Damaged("name the same tensor twice")
    return found


def _quant(value: Any) -> tuple[str, Quant]:
    record = Record(value, _QUANT)
    quant = Quant(record.get("scale", _scale), record.get("zero_point", _zero_point))
    return record.get("name", text), quant


def _scale(value: Any) -> float:
    if type(value) is not float or not 0 < value < math.inf:
        shown = value if type(value) is float else quote(value)
        raise Damaged(f"is {shown}, not a positive number")
    return value


def _constant(value: Any) -> Constant:
    record = Record(value, frozenset(_CONSTANT))
    return Constant(
        name=record.get("name", text),
        element=record.get("element", _element),
        shape=record.get("shape", _shape),
        offset=Offset(record.get("offset", _size)),
        size=Bytes(record.get("size", _size)),
        folded=record.get("folded", flag),
    )


def _element(value: Any) -> int:
    if type(value) is not int or value not in DTYPES:
        raise Damaged(f"is {quote(value)}, not an ONNX element type with a fixed size")
    return value
