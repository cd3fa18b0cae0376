"""Reads QNN's C structs in the client's memory as values, and writes answers as bytes (LP64)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from qnnmem.errors import Fault
from qnnmem.programs.process_memory import PAGE, ProcessMemory
from qnnmem.qnn.binary_info import ApiVersion, BinaryInfo
from qnnmem.qnn.tensor import QnnTensor, ScaleOffset

_TENSOR = struct.Struct("<I4xI4xQ8xI44xI4xQI4xQI28x")  # the fields of `GivenTensor`
TENSOR_BYTES = _TENSOR.size
MOST_TENSORS = 1024
_GRAPH_INFO_BYTES = 88
_MOST_ITEMS = 64  # items of a NULL-terminated list
_UNDEFINED = 0x7FFFFFFF
_MOST_DIMENSIONS = 32


class TooLong(Fault):
    """Raised for a list without an end, or for an implausible number of items."""


class GivenTensor(NamedTuple):
    """Memory fields of a `Qnn_Tensor_t` that is passed to an execution."""

    version: int
    id: int
    name: int  # pointer
    data_type: int
    rank: int
    dimensions: int  # pointer
    mem_type: int
    data: int  # pointer or memory handle
    size: int


def pointers(memory: ProcessMemory, address: int) -> list[int]:
    """Return the items of a NULL-terminated list; empty for NULL."""
    items: list[int] = []
    while address:
        item = memory.pointer(address + 8 * len(items))
        if not item:
            break
        if len(items) == _MOST_ITEMS:
            raise TooLong("a list has no NULL within its first 64 items")
        items.append(item)
    return items


def option(memory: ProcessMemory, address: int) -> tuple[int, int]:
    """Return the option number and the value in a config struct or property struct."""
    number, value = memory.unpack("<IxxxxQ", address)
    return int(number), int(value)


def tensor_bytes(memory: ProcessMemory, address: int, count: int) -> bytes:
    """Return the raw tensor structs of an execution's inputs or outputs."""
    if count > MOST_TENSORS:
        raise TooLong(f"{count:,} tensors are over the limit")
    return memory.read(address, count * TENSOR_BYTES) if count else b""


def tensors(data: bytes) -> list[GivenTensor]:
    """Decode raw tensor structs."""
    return [GivenTensor(*fields) for fields in _TENSOR.iter_unpack(data)]


def dimensions(memory: ProcessMemory, address: int, count: int) -> tuple[int, ...]:
    """Return the dimensions of a tensor."""
    if count > _MOST_DIMENSIONS:
        raise TooLong(f"{count:,} dimensions are over the limit")
    return memory.unpack(f"<{count}I", address) if count else ()


class Dimensions:
    """Addresses of the dimensions of several tensors; neighbouring dimensions are read together."""

    def __init__(self, items: Iterable[GivenTensor]) -> None:
        places = {(i.dimensions, i.dimensions + 4 * i.rank) for i in items if i.rank}
        self._spans: list[tuple[int, int, list[slice]]] = []  # from, to, and the parts to compare
        for low, high in sorted(places):
            start, end, parts = self._spans.pop() if self._spans else (low, low, [])
            if parts and start // PAGE != (high - 1) // PAGE:  # only a page is mapped as a whole
                self._spans.append((start, end, parts))
                start, end, parts = low, low, []
            parts = [*parts, slice(low - start, high - start)]
            self._spans.append((start, max(end, high), parts))

    def read(self, memory: ProcessMemory) -> list[bytes]:
        """Return the dimensions at each address; raise Unreadable if an address is not mapped."""
        spans = [(memory.read(low, high - low), parts) for low, high, parts in self._spans]
        return [data[part] for data, parts in spans for part in parts]


class _Block:
    """Bytes for one block in the client; pointers are offsets until its address is known."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.pointers: list[tuple[int, int]] = []  # position and target offset

    def room(self, size: int) -> int:
        self.data += bytes(-len(self.data) % 16)
        at = len(self.data)
        self.data += bytes(size)
        return at

    def text(self, value: str) -> int:
        data = value.encode("utf-8", "surrogateescape") + b"\0"
        at = self.room(len(data))
        self.data[at : at + len(data)] = data
        return at

    def put(self, form: str, at: int, *values: Any) -> None:
        struct.pack_into(form, self.data, at, *values)

    def point(self, at: int, to: int) -> None:
        self.pointers.append((at, to))

    def placed(self, address: int) -> bytes:
        for at, to in self.pointers:
            struct.pack_into("<Q", self.data, at, address + to)
        return bytes(self.data)


class BinaryInfoBlock:
    """`QnnSystemContext_BinaryInfo_t` of one version and all that it points to, in one block."""

    def __init__(self, info: BinaryInfo, version: int = 1) -> None:
        self._block = block = _Block()
        top = block.room(144)
        block.put("<I", top, version)
        # Version 3 has no hardware blob, so later fields move up.
        blob, blob_size, count = (48, 64, 88) if version == 3 else (60, 88, 112)
        at = top + 8
        block.put("<I", at, int(info.backend_id))
        block.point(at + 8, block.text(info.build_id))
        _version(block, at + 16, info.core_api_version)
        _version(block, at + 28, info.backend_api_version)
        block.point(at + 40, block.text(info.soc_version))
        _version(block, at + blob, info.context_blob_version)
        block.put("<Q", at + blob_size, info.context_blob_size)
        block.put("<I", at + count, len(info.graphs))
        graphs = block.room(_GRAPH_INFO_BYTES * len(info.graphs))
        block.point(at + count + 8, graphs)
        for number, graph in enumerate(info.graphs):
            place = graphs + number * _GRAPH_INFO_BYTES
            block.put("<I", place, version)
            block.point(place + 8, block.text(graph.graph_name))
            self._tensors(place + 16, graph.graph_inputs)
            self._tensors(place + 32, graph.graph_outputs)

    @property
    def size(self) -> int:
        """Size of the block in bytes."""
        return len(self._block.data)

    def placed(self, address: int) -> bytes:
        """Return the bytes of the block, with pointers for this address."""
        return self._block.placed(address)

    def _tensors(self, at: int, items: Iterable[QnnTensor]) -> None:
        given = tuple(items)
        first = self._block.room(TENSOR_BYTES * max(len(given), 1))
        self._block.put("<I", at, len(given))
        self._block.point(at + 8, first)
        for number, tensor in enumerate(given):
            self._tensor(first + number * TENSOR_BYTES, tensor)

    def _tensor(self, at: int, tensor: QnnTensor) -> None:
        block = self._block
        block.put("<I", at, 1)
        at += 8
        block.put("<I", at, tensor.id)
        block.point(at + 8, block.text(tensor.name))
        block.put("<3I", at + 16, int(tensor.type), 0, int(tensor.data_type))
        quant = tensor.quantize_params
        if isinstance(quant, ScaleOffset):
            block.put("<IIfi", at + 32, 1, 0, quant.scale, quant.offset)
        else:
            block.put("<II", at + 32, _UNDEFINED, _UNDEFINED)
        sizes = block.room(4 * max(len(tensor.dimensions), 1))
        block.put(f"<{len(tensor.dimensions)}I", sizes, *tensor.dimensions)
        block.put("<I", at + 72, len(tensor.dimensions))
        block.point(at + 80, sizes)


def _version(block: _Block, at: int, version: ApiVersion) -> None:
    block.put("<3I", at, version.major, version.minor, version.patch)
