"""Load reports of the eAI compiler (`.eaix`, JSON).

The compiler writes a report next to each LPAI model: nodes with their execution order, and tensors
with their layout in memory, but no offsets. In published models the liveness bound of a report
equals the scratch size in the header of its binary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from qnnmem.bounded_file import read_bytes
from qnnmem.deadline import ask_deadline
from qnnmem.errors import LoadError
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.loader.model_checks import check_model
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, MAX_RANK

_MAX_FILE = 1 << 26  # published reports have 70 to 220 KB
# A value takes up to 200 bytes once parsed, however short it is in the file.
_MAX_VALUES = 2_000_000
_MAX_DIGITS = 20

_MAX_LAYOUT = 10_000
_ROW = re.compile(r"\[[0-9]{1,9}, ([0-9]{1,20}), ([0-9]{1,20}), ([0-9]{1,20})\]", re.ASCII)
_T = TypeVar("_T")

# Bits of a tensor's flag.
_INPUT, _OUTPUT, _CONSTANT, _HELPER = 0x1, 0x2, 0x4, 0x20
_IO = _INPUT | _OUTPUT
_KNOWN_FLAGS = _IO | _CONSTANT | _HELPER

_DTYPES = {dtype.value: dtype for dtype in DType} | {"float": DType.FLOAT32}


@dataclass(frozen=True, slots=True)
class _Item:
    """A tensor, as described at its first use in the report."""

    key: str
    name: str
    flag: int
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _ReportNode:
    """A node of the report, with its position in the source model and its execution order."""

    name: str
    operator: str
    order: int
    position: int
    inputs: tuple[_Item, ...]
    outputs: tuple[_Item, ...]


def read(path: Path) -> Model:
    """Return the first graph of an eAI compiler report, with nodes in execution order."""
    report = _parse(path)
    reader = _ReportReader(path)
    graphs = report.get("graphs")
    if not isinstance(graphs, list) or not graphs:
        raise LoadError(path, "is not an eAI report: the list 'graphs' is missing")
    model = reader.model(graphs[0], _name_of(report, "name") or path.stem, len(graphs))
    check_model(path, model)
    return model


def _parse(path: Path) -> dict[str, Any]:
    content = read_bytes(path, _MAX_FILE)
    if sum(map(content.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise LoadError(path, f"has more than {_MAX_VALUES:,} values, the limit for an eAI report")
    try:
        report = json.loads(content.decode("utf-8-sig"), parse_int=_integer, parse_constant=_refuse)
    except RecursionError as exc:
        raise LoadError(path, "is nested too deeply for an eAI report") from exc
    except MemoryError as exc:
        raise LoadError(path, "needs more memory to read than this machine has") from exc
    except ValueError as exc:  # bad UTF-8, bad JSON, or a number refused below
        raise LoadError(path, f"is not valid JSON: {str(exc)[:120]}") from exc
    if not isinstance(report, dict):
        raise LoadError(path, "is not an eAI report: the outermost value is not an object")
    return report


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number with {len(text)} digits is too long")
    return int(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a valid number")


class _ReportReader:
    """Reader of one parsed graph; every value is checked before use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.items: dict[str, _Item] = {}  # by tensor id
        self.taken: set[str] = set()
        self.odd: set[int] = set()  # flag bits of unknown meaning

    def fail(self, reason: str) -> NoReturn:
        """Raise a LoadError about the report."""
        raise LoadError(self.path, reason)

    def field(self, value: object, key: str, kind: type[_T], where: str) -> _T:
        """Return the entry `key` of an object; fail if its type is not `kind`."""
        entry = _entry(value, key)
        if not isinstance(entry, kind) or (kind is int and isinstance(entry, bool)):
            self.fail(f"{where} has no valid '{key}'")
        return entry

    def model(self, graph: object, name: str, graphs: int) -> Model:
        """Return the model of a graph, with its nodes in execution order."""
        nodes = self._ordered(self.field(graph, "nodes", list, "the graph"))
        listed = {key: tuple(self._items(graph, key, "the graph")) for key in ("inputs", "outputs")}
        inputs = self._marked(listed["inputs"], _INPUT)
        outputs = self._marked(listed["outputs"], _OUTPUT)
        ops = self._ops(nodes, inputs, outputs)
        return Model(
            name=name,
            format="eaix",
            tensors={i.name: Tensor(i.name, i.dtype, i.shape) for i in self.items.values()},
            ops=ops,
            inputs=tuple(item.name for item in inputs),
            outputs=tuple(item.name for item in outputs),
            constants=tuple(i.name for i in self.items.values() if i.flag & _CONSTANT),
            notes=tuple(self._notes(graphs)),
        )

    def _notes(self, graphs: int) -> Iterator[str]:
        if graphs > 1:
            yield f"only the first of {graphs} graphs in the report was read"
        if self.odd:
            bits = ", ".join(hex(bit) for bit in sorted(self.odd))
            yield f"unknown tensor flags {bits} were ignored"

    def _ordered(self, nodes: list[object]) -> list[_ReportNode]:
        """Return nodes sorted by `actual_order`; `nodes` are in the source model's order."""
        ordered = [self._node(position, node) for position, node in enumerate(nodes)]
        ordered.sort(key=lambda node: node.order)
        for before, after in pairwise(ordered):
            if before.order == after.order:
                self.fail(f"two nodes have the same actual_order, {before.order}")
        return ordered

    def _node(self, position: int, node: object) -> _ReportNode:
        ask_deadline()
        where = f"node {position}"
        operator = _encodable(self.field(node, "operator", str, where))
        return _ReportNode(
            name=_name_of(node, "name") or f"{operator}_{position}",
            operator=operator,
            order=self.field(node, "actual_order", int, where),
            position=position,
            inputs=tuple(self._items(node, "inputs", where)),
            outputs=tuple(self._items(node, "outputs", where)),
        )

    def _items(self, owner: object, key: str, where: str) -> Iterator[_Item]:
        for port in self.field(owner, key, list, where):
            for value in self.field(port, "value", list, f"{where}, {key}"):
                yield self._item(value, where)

    def _item(self, value: object, where: str) -> _Item:
        """Return the tensor of an entry: one shared object for all entries with the same id."""
        key = self._text(value, "tensor_id", where)
        where = f"tensor {quote(key)}"
        flag = self._flag(value, where)
        dtype, shape = self._stored(value, where) if flag & _CONSTANT else self._live(value, where)
        known = self.items.get(key)
        if known is None:
            name = self._unique(_name_of(value, "tensor_name") or "tensor", key)
            known = self.items[key] = _Item(key, name, flag, dtype, shape)
        elif (known.dtype, known.shape, known.flag & ~_IO) != (dtype, shape, flag & ~_IO):
            self.fail(f"{where} is described twice, with differences")
        elif flag & ~known.flag:
            known = self.items[key] = replace(known, flag=known.flag | flag)
        return known

    def _text(self, value: object, key: str, where: str) -> str:
        """Return the entry `key` as text; some compiler versions write a number."""
        entry = _entry(value, key)
        return str(entry) if isinstance(entry, int) else self.field(value, key, str, where)

    def _unique(self, name: str, key: str) -> str:
        while name in self.taken:
            name = f"{name}_{_encodable(key)}"
        self.taken.add(name)
        return name

    def _flag(self, value: object, where: str) -> int:
        text = self._text(value, "flag", where)
        try:
            flag = int(text, 0) if len(text) <= _MAX_DIGITS else -1
        except ValueError:
            self.fail(f"{where} has no valid 'flag'")
        if not 0 <= flag < 1 << 32:
            self.fail(f"{where} has no valid 'flag'")
        unknown = flag & ~_KNOWN_FLAGS
        self.odd.update(1 << bit for bit in range(32) if unknown >> bit & 1)
        return flag

    def _stored(self, value: object, where: str) -> tuple[DType, tuple[int, ...]]:
        """Return the type and shape of a constant as the binary stores it, compressed or not."""
        stored = _entry(value, "data_size")
        if stored is None:
            return self._live(value, where)
        return DType.UINT8, (self._size(stored, where),)

    def _live(self, value: object, where: str) -> tuple[DType, tuple[int, ...]]:
        kind = self.field(value, "type", dict, where)
        dtype = _DTYPES.get(self.field(kind, "dataType", str, where).lower())
        if dtype is None:
            self.fail(f"{where} has the unknown type {quote(kind['dataType'])}")
        shape = self._shape(kind, where)
        plain = Tensor("", dtype, shape).nbytes
        padded = _layout_bytes(kind.get("dataLayout"))
        if max(plain, padded) > MAX_BYTES:
            self.fail(f"{where} has more than {MAX_BYTES:,} bytes")
        # Padding between rows is part of the buffer. The layout of a helper tensor (working memory
        # of one step) may count elements instead of bytes, so the larger size is used.
        return dtype, shape if padded <= plain else (-(-padded * 8 // dtype.bits),)

    def _shape(self, kind: object, where: str) -> tuple[int, ...]:
        shape = self.field(
            self.field(kind, "shape", dict, where), "dimensions", list, f"{where}, shape"
        )
        if len(shape) > MAX_RANK:
            self.fail(f"{where} has more than {MAX_RANK} dimensions")
        return tuple(self._size(size, where) for size in shape)

    def _size(self, size: object, where: str) -> int:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_BYTES:
            self.fail(f"{where} has an impossible size: {quote(size)}")
        return size

    def _marked(self, listed: tuple[_Item, ...], bit: int) -> tuple[_Item, ...]:
        """Return the tensors in `listed`, then all other tensors whose flag contains `bit`."""
        marked = (item for item in self.items.values() if item.flag & bit)
        return tuple({item.key: item for item in (*listed, *marked)}.values())

    def _ops(
        self, nodes: list[_ReportNode], inputs: tuple[_Item, ...], outputs: tuple[_Item, ...]
    ) -> tuple[Op, ...]:
        ready = {item.key for item in self.items.values() if item.flag & _CONSTANT}
        ready.update(item.key for item in inputs)
        ops = [self._op(node, ready) for node in nodes]
        for item in outputs:
            if item.key not in ready:
                self.fail(f"output {quote(item.name)} is never produced")
        return tuple(ops)

    def _op(self, node: _ReportNode, ready: set[str]) -> Op:
        where = f"node {quote(node.name)}"
        # An input that no node writes is a helper tensor: working memory of this step.
        helpers = tuple(i for i in node.inputs if i.flag & _HELPER and i.key not in ready)
        own = {item.key for item in helpers}
        reads = tuple(item for item in node.inputs if item.key not in own)
        for item in reads:
            if item.key not in ready:
                self.fail(f"{where} reads {quote(item.name)} before any node produces it")
        for item in node.outputs:
            if item.key in ready:
                self.fail(f"{where} writes {quote(item.name)}, which already has a value")
            ready.add(item.key)
        ready.update(item.key for item in helpers)
        return Op(
            name=node.name,
            type=node.operator,
            inputs=tuple(dict.fromkeys(item.name for item in reads)),
            outputs=tuple(dict.fromkeys(item.name for item in (*node.outputs, *helpers))),
            effect=_effect(node, reads, helpers),
            sources=(node.position,),
        )


def _effect(node: _ReportNode, reads: tuple[_Item, ...], helpers: tuple[_Item, ...]) -> Effect:
    live = [item for item in reads if not item.flag & _CONSTANT]
    if len(node.outputs) != 1 or helpers or not live:
        return Effect.COMPUTE
    output = node.outputs[0]
    if node.operator == "NOP":
        fits = len(reads) == 1 and _nbytes(output) <= _nbytes(live[0])
        return Effect.VIEW if fits else Effect.COMPUTE
    same = all((item.dtype, item.shape) == (output.dtype, output.shape) for item in live)
    elementwise = node.operator.startswith("SUPER_ELEM_") and same
    return Effect.ELEMENTWISE if elementwise else Effect.COMPUTE


def _nbytes(item: _Item) -> int:
    return Tensor(item.name, item.dtype, item.shape).nbytes


def _layout_bytes(layout: object) -> int:
    """Return a layout's size in bytes; each row states index, start pad, valid size and stride."""
    if not isinstance(layout, str):
        return 0
    rows = _ROW.finditer(layout[:_MAX_LAYOUT])
    return max(
        (int(pad) + int(valid) * int(stride) for pad, valid, stride in (r.groups() for r in rows)),
        default=0,
    )


def _entry(value: object, key: str) -> object:
    """Return the entry of an object; None if it is missing, or if the value is not an object."""
    return value.get(key) if isinstance(value, Mapping) else None


def _name_of(value: object, key: str) -> str:
    """Return the name in an entry of an object; empty if the name is missing."""
    name = _entry(value, key)
    return _encodable(name) if isinstance(name, str) else ""


def _encodable(text: str) -> str:
    # JSON can contain half a surrogate pair, which no UTF-8 file can.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
