"""The description in a context binary: reads and writes compiled graphs as canonical JSON.

Canonical means: keys sorted, no white space, ASCII with escapes, tensors and quantization sorted by
name. Equal contexts have equal descriptions. Every value is checked for type and range; errors name
the path of the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import asdict

from qnnmem.errors import Damaged
from qnnmem.ir import DType, Effect, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.loader.onnx.tensor import DTYPES
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.planner import Io, PlacedBuffer, Pool
from qnnmem.results.inspect import FrameWindow
from qnnmem.text import quote
from qnnmem.units import MAX_RANK

MAX_TEXT = 1 << 16  # characters of a name or a note
T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Read = Callable[[Any], T]

MAX_META = 64 << 20  # bytes
# Brackets and commas are counted before parsing, which limits the parser's memory.
MAX_VALUES = 2_000_000
MAX_GRAPHS = 1024
MAX_TENSORS = 100_000  # in a binary, bodies included
MAX_ELEMENTS = 1 << 40  # in a tensor
MAX_POOL = 1 << 40  # bytes
MAX_COUNT = (1 << 31) - 1  # frames, nodes, float ops
_MAX_BODIES_DEEP = 16
# Fields outside the description: a program has its own section, and other fields are reported
# before planning.
_NOT_STORED = frozenset(("program", "assumed", "encodings", "holds_for"))


class Row(Generic[T]):
    """Reader of a JSON object that has exactly the given keys; each key has its own reader."""

    def __init__(self, make: Callable[..., T], **reads: Read[Any]) -> None:
        self._make, self._reads = make, reads

    def __call__(self, value: Any) -> T:
        """Return the value that a JSON object stores; raise Damaged for wrong keys or values."""
        if type(value) is not dict:
            raise Damaged(f"is {_shown(value)} instead of an object")
        if value.keys() != self._reads.keys():
            missing = sorted(self._reads.keys() - value.keys())
            extra = sorted(value.keys() - self._reads.keys())
            if missing:
                raise Damaged(f"lacks {quote(missing[0])}")
            raise Damaged(f"has an unknown key {quote(extra[0])}")
        return self._make(**{key: self._value(key, value[key]) for key in self._reads})

    def _value(self, key: str, value: Any) -> Any:
        try:
            return self._reads[key](value)
        except Damaged as exc:
            raise exc.inside(f".{key}") from None


def text(value: Any) -> str:
    """Return a string of bounded length; raise Damaged for other values."""
    if type(value) is not str:
        raise Damaged(f"is {_shown(value)} instead of a string")
    if len(value) > MAX_TEXT:
        raise Damaged(f"has {len(value):,} characters, over the limit of {MAX_TEXT:,}")
    return value


def flag(value: Any) -> bool:
    """Return a boolean; raise Damaged for other values."""
    if type(value) is not bool:
        raise Damaged(f"is {_shown(value)} instead of true or false")
    return value


def integer(low: int, high: int) -> Read[int]:
    """Return a reader of whole numbers `low <= n <= high`."""

    def read(value: Any) -> int:
        if type(value) is not int:
            raise Damaged(f"is {_shown(value)} instead of a whole number")
        if not low <= value <= high:
            raise Damaged(f"is {quote(value)}, not between {low:,} and {high:,}")
        return value

    return read


def word(kind: type[E]) -> Read[E]:
    """Return a reader of enum members, stored as words."""
    words = {member.value: member for member in kind}

    def read(value: Any) -> E:
        member = words.get(value) if type(value) is str else None
        if member is None:
            raise Damaged(f"is {_shown(value)}; it must be one of {', '.join(words)}")
        return member

    return read


def listing(read: Read[T], limit: int | None = None) -> Read[tuple[T, ...]]:
    """Return a reader of lists, whose elements are read by `read`."""

    def read_all(value: Any) -> tuple[T, ...]:
        if type(value) is not list:
            raise Damaged(f"is {_shown(value)} instead of a list")
        if limit is not None and len(value) > limit:
            raise Damaged(f"has {len(value):,} entries, over the limit of {limit:,}")
        elements: list[T] = []
        try:
            for element in value:
                elements.append(read(element))
        except Damaged as exc:
            raise exc.inside(f"[{len(elements)}]") from None
        return tuple(elements)

    return read_all


def pair(read: Read[T]) -> Read[tuple[T, T]]:
    """Return a reader of lists with exactly two elements."""

    def read_two(value: Any) -> tuple[T, T]:
        elements = listing(read, 2)(value)
        if len(elements) != 2:
            raise Damaged("must have two entries")
        return elements[0], elements[1]

    return read_two


def optional(read: Read[T]) -> Read[T | None]:
    """Return a reader that also accepts null."""
    return lambda value: None if value is None else read(value)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | float):
        return json.dumps(value)
    return quote(value)


class Description(NamedTuple):
    """The parsed description, before programs and constants are added."""

    producer: str
    hw_version: str
    graphs: tuple[CompiledGraph, ...]


# --- Writing -------------------------------------------------------------------------------------


def encode(context: CompiledContext) -> bytes:
    """Return the description of a context as JSON."""
    value = {
        "producer": context.producer,
        "hw_version": context.hw_version,
        "graphs": context.graphs,
    }
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain
    ).encode("ascii")


def _plain(value: Any) -> Any:
    """Return the plain form of a value that `json` cannot encode."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Span):
        return (value.lower, value.upper)
    if isinstance(value, Mapping):  # tensors or quantization by name
        return [{**_plain(row), "name": name} for name, row in sorted(value.items())]
    if isinstance(value, Quant):
        return {"scale": float(value.scale), "zero_point": value.zero_point}
    if isinstance(value, FrameWindow):
        return asdict(value)
    if is_dataclass(value):
        names = (field.name for field in fields(value))
        return {name: getattr(value, name) for name in names if name not in _NOT_STORED}
    return int(value) if hasattr(value, "__index__") else float(value)  # a NumPy number


# --- Reading -------------------------------------------------------------------------------------


def decode(data: bytes, programs: Sequence[bytes]) -> Description:
    """Return the parsed description of a context; raise Damaged if it is malformed.

    Every value is checked for type and range; `binary/check` checks that values are consistent.
    """

    def graphs(value: Any) -> tuple[CompiledGraph, ...]:
        rows = listing(lambda row: row, MAX_GRAPHS)(value)
        if len(rows) != len(programs):
            raise Damaged(f"has {len(rows):,} entries for {len(programs):,} programs")
        numbered = iter(programs)
        return listing(lambda row: _graph(next(numbered))(row))(value)

    return Row(Description, producer=text, hw_version=text, graphs=graphs)(_parse(data))


def _parse(data: bytes) -> Any:
    if len(data) > MAX_META:
        raise Damaged(f"description has {len(data):,} bytes, over the limit of {MAX_META:,}")
    values = data.count(b",") + data.count(b"[") + data.count(b"{") + data.count(b":")
    if values > MAX_VALUES:
        raise Damaged(f"description has more than {MAX_VALUES:,} values")
    try:
        # Decoded here, because json would also accept UTF-16 and UTF-32.
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
    values = dict(pairs)
    if len(values) != len(pairs):
        raise Damaged("description has an object with the same key twice")
    return values


def _no_constant(name: str) -> float:
    raise Damaged(f"description contains {name}, which JSON does not allow")


_size = integer(0, MAX_POOL)
_count = integer(0, MAX_COUNT)
_positive = integer(1, MAX_COUNT)
_align = integer(1, 1 << 20)
_step_pair = pair(integer(-1, MAX_COUNT))
_dimensions = listing(integer(0, MAX_ELEMENTS), MAX_RANK)
_names = listing(text)


def _shape(value: Any) -> tuple[int, ...]:
    shape = _dimensions(value)
    if math.prod(shape) > MAX_ELEMENTS:
        raise Damaged(f"has more than {MAX_ELEMENTS:,} elements")
    return shape


def _live(value: Any) -> Span:
    lower, upper = _step_pair(value)
    if upper <= lower:
        raise Damaged(f"ends at step {upper:,} but begins at {lower:,}")
    return Span(lower, upper)


def _scale(value: Any) -> float:
    if type(value) is not float or not 0 < value < math.inf:
        shown = value if type(value) is float else quote(value)
        raise Damaged(f"is {shown}, not a positive number")
    return value


def _element(value: Any) -> int:
    if type(value) is not int or value not in DTYPES:
        raise Damaged(f"is {quote(value)}, not an ONNX element type with a fixed size")
    return value


_tensor = Row(Tensor, name=text, dtype=word(DType), shape=_shape)
_fixed = Row(FixedBuffer, name=text, size=_size, live=_live, align=_align, offset=optional(_size))
_buffer = Row(
    PlacedBuffer,
    name=text,
    pool=word(Pool),
    size=_size,
    live=_live,
    offset=_size,
    aliases=_names,
)
_window = Row(
    FrameWindow,
    name=text,
    old=text,
    new=text,
    frames=_positive,
    size=_positive,
    stride=_positive,
    blocking=flag,
    padding=_count,
    reset=optional(text),
)
_constant = Row(
    Constant,
    name=text,
    element=_element,
    shape=_shape,
    offset=_size,
    size=_size,
    folded=flag,
)
_quant = Row(
    lambda name, scale, zero_point: (name, Quant(scale, zero_point)),
    name=text,
    scale=_scale,
    zero_point=integer(-(1 << 31), (1 << 31) - 1),
)


def _by_name(rows: Sequence[tuple[str, T]]) -> dict[str, T]:
    values = dict(rows)
    if len(values) != len(rows):
        raise Damaged("name the same tensor twice")
    return values


def _tensors(value: Any) -> dict[str, Tensor]:
    tensors = listing(_tensor, MAX_TENSORS)(value)
    return _by_name([(tensor.name, tensor) for tensor in tensors])


def _graph(program: bytes) -> Read[CompiledGraph]:
    return Row(
        partial(CompiledGraph, program=program),
        name=text,
        model=_model,
        buffers=listing(_buffer),
        scratch_bytes=_size,
        persistent_bytes=_size,
        align=_align,
        io=word(Io),
        states=listing(pair(text)),
        windows=listing(_window),
        quants=lambda value: _by_name(listing(_quant)(value)),
        constants=listing(_constant),
        in_order=flag,
        notes=_names,
        float_ops=_count,
    )


def _model(value: Any, depth: int = 0) -> Model:
    if depth > _MAX_BODIES_DEEP:
        raise Damaged(f"is nested in more than {_MAX_BODIES_DEEP} ops")
    op = Row(
        Op,
        name=text,
        type=text,
        inputs=_names,
        outputs=_names,
        effect=word(Effect),
        sources=listing(_count),
        bodies=listing(lambda body: _model(body, depth + 1)),
        repeats=flag,
    )
    row = Row(
        Model,
        name=text,
        format=text,
        tensors=_tensors,
        ops=listing(op),
        inputs=_names,
        outputs=_names,
        constants=_names,
        states=_names,
        buffers=listing(_fixed),
        notes=_names,
    )
    return row(value)
