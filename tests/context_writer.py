"""Writes HTP context binaries, so that readers can be tested without the library.

`pack_context` is the inverse of the reader: reading the bytes returns the given value. The blob
after the version words is noise, so no library can run it. The value selects format 2.2 or 2.3,
metadata version 1 or 3, and graph records of 0, 40 or 112 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from qnnmem.htp.binary.context import HTP_BACKEND, HtpContext, HtpGraph
from qnnmem.qnn.enums import UNDEFINED, DataType, TensorMemType, TensorType
from qnnmem.qnn.tensor import SCALE_OFFSET, Quantization, TensorInfo


@dataclass(frozen=True)
class Inline:
    """Bytes stored in the table itself."""

    data: bytes


@dataclass(frozen=True)
class Octets:
    """A string, or a vector of elements of fixed size."""

    data: bytes
    width: int = 1


@dataclass(frozen=True)
class TableOf:
    """A table whose fields are keyed by slot number."""

    fields: Mapping[int, Inline | Octets | TableOf | VectorOf]


@dataclass(frozen=True)
class VectorOf:
    """A vector of tables."""

    tables: Sequence[TableOf]


Field = Inline | Octets | TableOf | VectorOf


class FlatWriter:
    """Writes a FlatBuffer front to back: a table precedes the objects that it points to."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def finish(self, root: TableOf) -> int:
        """Write everything and return the position of the root table."""
        position = self._table(root)
        struct.pack_into("<I", self.data, 0, position)
        return position

    def field_position(self, table: int, slot: int) -> int:
        """Return the position of a table's field."""
        vtable = table - int(struct.unpack_from("<i", self.data, table)[0])
        return table + int(struct.unpack_from("<H", self.data, vtable + 4 + 2 * slot)[0])

    def _table(self, table: TableOf) -> int:
        sizes = {n: len(f.data) if isinstance(f, Inline) else 4 for n, f in table.fields.items()}
        offsets, end = {}, 4
        for slot, size in sizes.items():
            end += -end % min(size, 4)
            offsets[slot], end = end, end + size
        slots = [offsets.get(slot, 0) for slot in range(max(offsets, default=-1) + 1)]
        self._align(4)
        vtable = len(self.data)
        self.data += struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), end, *slots)
        self._align(4)
        position = len(self.data)
        self.data += struct.pack("<i", position - vtable) + bytes(end - 4)
        for slot, field in table.fields.items():
            self._field(position + offsets[slot], field)
        return position

    def _field(self, at: int, field: Field) -> None:
        if isinstance(field, Inline):
            self.data[at : at + len(field.data)] = field.data
            return
        target = self._table(field) if isinstance(field, TableOf) else self._vector(field)
        struct.pack_into("<I", self.data, at, target - at)

    def _vector(self, field: Octets | VectorOf) -> int:
        self._align(4)
        position = len(self.data)
        if isinstance(field, Octets):
            self.data += struct.pack("<I", len(field.data) // field.width) + field.data + b"\0"
            return position
        self.data += struct.pack("<I", len(field.tables)) + bytes(4 * len(field.tables))
        for number, table in enumerate(field.tables):
            at = position + 4 + 4 * number
            struct.pack_into("<I", self.data, at, self._table(table) - at)
        return position

    def _align(self, unit: int) -> None:
        self.data += bytes(-len(self.data) % unit)


# --- Contexts ------------------------------------------------------------------------------------


def pack_context(context: HtpContext, backend: int = HTP_BACKEND) -> bytes:
    """Return a context binary that reads back as this value, with its stated sizes."""
    blob = struct.pack("<QQQ", *context.blob_version).ljust(context.blob_bytes, b"\x5a")
    pack = _pack_2_2 if context.format_version == (2, 2) else pack_2_3
    return pack(_info(context, backend), blob)


def sized(context: HtpContext) -> HtpContext:
    """Return the context with the file size of its binary."""
    return replace(context, file_bytes=len(pack_context(context)))


def pack_2_3(info: TableOf, blob: bytes) -> bytes:
    """Return a container of version 2.3."""
    writer = FlatWriter()
    writer.finish(TableOf({0: info}))
    offset = -(-(40 + len(writer.data)) // 4096) * 4096
    head = struct.pack(">IIQ", 2, 3, 1) + struct.pack("<QQQ", len(writer.data), offset, len(blob))
    return (head + bytes(writer.data)).ljust(offset, b"\0") + blob


def _pack_2_2(info: TableOf, blob: bytes) -> bytes:
    writer = FlatWriter()
    root = writer.finish(TableOf({0: info, 2: Inline(bytes(8))}))
    writer.data += bytes(-len(writer.data) % 8)
    at = writer.field_position(root, 2)
    struct.pack_into("<Q", writer.data, at, len(writer.data) - at)
    head = struct.pack(">IIQ", 2, 2, 0)
    return head + bytes(writer.data) + struct.pack("<Q", len(blob)) + blob


def _info(context: HtpContext, backend: int) -> TableOf:
    common: dict[int, Field] = {
        0: u32(backend),
        1: _text(context.build_id),
        2: Inline(struct.pack("<III", *context.core_api)),
        3: Inline(struct.pack("<III", *context.backend_api)),
        4: _text(context.soc_version),
    }
    version = Inline(struct.pack("<III", *context.blob_version))
    size = Inline(struct.pack("<Q", context.blob_bytes))
    tensors = VectorOf([_tensor(tensor) for tensor in context.context_tensors])
    graphs = VectorOf([_graph(graph) for graph in context.graphs])
    count = u32(len(context.graphs))
    if context.info_version == 1:
        hardware = _hardware(context.graphs)
        rest: dict[int, Field] = {6: version, 7: u32(len(hardware)), 8: Octets(hardware)}
        rest |= {11: tensors, 12: count, 13: graphs, 14: size}
    else:
        rest = {5: version, 8: tensors, 9: count, 10: graphs, 11: size}
        if context.dsp_arch is not None:
            rest |= {14: u32(8), 15: Octets(struct.pack("<II", 1, context.dsp_arch))}
        if context.soc_model is not None:
            rest |= {16: u32(context.soc_model)}
    return union(context.info_version, TableOf(common | rest))


def _hardware(graphs: Sequence[HtpGraph]) -> bytes:
    return b"".join(
        struct.pack("<I4xI4xQ", 1, number, graph.spill_fill)
        for number, graph in enumerate(graphs)
        if graph.spill_fill is not None
    )


def _graph(graph: HtpGraph) -> TableOf:
    plain = TableOf(
        {
            0: _text(graph.name),
            1: u32(len(graph.inputs)),
            2: VectorOf([_tensor(tensor) for tensor in graph.inputs]),
            3: u32(len(graph.outputs)),
            4: VectorOf([_tensor(tensor) for tensor in graph.outputs]),
        }
    )
    if graph.vtcm is None:
        return union(1, plain)
    record = _record(graph)
    second = TableOf({0: plain, 2: VectorOf([])})
    return union(3, TableOf({0: second, 1: u32(len(record)), 2: Octets(record)}))


def _record(graph: HtpGraph) -> bytes:
    numbers = (graph.spill_fill, graph.vtcm, graph.optimization_level, graph.dlbc)
    record = struct.pack("<I4xQIIB7xQ", 1, *numbers, graph.hvx_threads)
    if graph.const is None:
        return record
    sizes = (graph.io, graph.op_data, graph.const, graph.ddr_tensors, graph.shared_weights)
    native = (graph.native_k, graph.native_v, graph.safe_share_io)
    return record + struct.pack("<I4xQQI4xQQQQQ", 2, *native, *sizes)


def _tensor(tensor: TensorInfo) -> TableOf:
    pair = tensor.scale_offset
    fields: dict[int, Field] = {
        0: u32(tensor.id),
        4: u32(UNDEFINED if pair is None else 1),
        6: u32(len(tensor.dimensions)),
        7: Octets(struct.pack(f"<{len(tensor.dimensions)}I", *tensor.dimensions), 4),
        9: _text(tensor.name),
    }
    if tensor.type is not TensorType.APP_WRITE:  # the default, so it is omitted
        fields[1] = u32(tensor.type)
    if tensor.data_type is not DataType.UNDEFINED:
        fields[3] = u32(tensor.data_type)
    if tensor.mem_type is not TensorMemType.UNDEFINED:
        fields[10] = u32(tensor.mem_type)
    if pair is not None:
        fields[14] = Inline(b"\x01")
        scale, offset = struct.pack("<f", pair.scale), struct.pack("<i", pair.offset)
        fields[15] = TableOf({0: Inline(scale), 1: Inline(offset)})
    return TableOf(fields)


def union(version: int, value: TableOf) -> TableOf:
    """Return a versioned union value."""
    return TableOf({0: u32(version), 1: Inline(bytes([version])), 2: value})


def u32(value: int) -> Inline:
    """Return a 32-bit number."""
    return Inline(struct.pack("<I", value))


def _text(text: str) -> Octets:
    return Octets(text.encode())


# --- Examples ------------------------------------------------------------------------------------


def example_graph(name: str = "graph", **changes: object) -> HtpGraph:
    """Return a graph of two quantized tensors with every number set."""
    graph = HtpGraph(
        name,
        (example_tensor("x", 1),),
        (example_tensor("y", 2, type=TensorType.APP_READ),),
        *(8 << 20, 2, False, 4),
        spill_fill=65_536,
        native_k=256,
        native_v=64,
        safe_share_io=False,
        io=16_384,
        op_data=4_608,
        const=3_000_000,
        ddr_tensors=8_192,
        shared_weights=0,
    )
    return replace(graph, **changes)


def example_tensor(name: str, number: int, **changes: object) -> TensorInfo:
    """Return a tensor of 8,000 bytes."""
    tensor = TensorInfo(
        number,
        name,
        TensorType.APP_WRITE,
        DataType.UFIXED_POINT_8,
        (1, 40, 200),
        Quantization(SCALE_OFFSET, (0.5,), (-128,)),
    )
    return replace(tensor, **changes)


def example_context(*graphs: HtpGraph, **changes: object) -> HtpContext:
    """Return a context for SM8650 as SDK 2.51 writes it, by default with one graph."""
    context = HtpContext(
        *((2, 3), (4, 0, 6), 4096, 0, 3, "v2.51.0.0", (2, 40, 0), (5, 51, 0), 57, 75),
        graphs or (example_graph(),),
        (),
    )
    return sized(replace(context, **changes))


def old_graph(name: str = "old", **changes: object) -> HtpGraph:
    """Return a graph as SDK 2.25 and older describe it."""
    inputs = (example_tensor("x", 1, quantization=None),)
    outputs = (example_tensor("y", 2, type=TensorType.APP_READ, quantization=None),)
    graph = HtpGraph(name, inputs, outputs, spill_fill=4096)
    return replace(graph, **changes)


def old_context(*graphs: HtpGraph, **changes: object) -> HtpContext:
    """Return a context in format 2.2, as SDK 2.22 writes it."""
    old: dict[str, object] = {
        "format_version": (2, 2),
        "info_version": 1,
        "build_id": "v2.22.0.0",
        "soc_model": None,
        "dsp_arch": None,
        "blob_version": (3, 1, 1),
    }
    return example_context(*(graphs or (old_graph(),)), **old | changes)
