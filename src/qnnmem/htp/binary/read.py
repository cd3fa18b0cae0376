"""Reads QNN context binaries of the HTP backend without the vendor's libraries."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from qnnmem.errors import Damaged, LoadError, NotCompiled, NotHtp
from qnnmem.htp.binary.container import Container, open_container
from qnnmem.htp.binary.context import (
    HTP_BACKEND,
    LPAI_BACKEND,
    HtpContext,
    HtpGraph,
    Version,
    dotted,
)
from qnnmem.htp.binary.epcontext import find_context
from qnnmem.htp.binary.flatbuffer import FlatBuffer, Octets, Table
from qnnmem.htp.binary.pieces import Piece, PieceBytes
from qnnmem.loader.file_kind import kind_of_file, wrong_kind
from qnnmem.qnn.enums import UNDEFINED, DataType, TensorMemType, TensorType
from qnnmem.qnn.tensor import SCALE_OFFSET, Quantization, TensorInfo
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, MAX_RANK

MAX_GRAPHS = 4096
MAX_TENSORS = 100_000  # of all graphs together
MAX_RECORD = 1 << 16

_BACKENDS = {2: "Saver", 3: "CPU", 4: "GPU", 5: "DSP", 7: "HTA", 9: "IR", 12: "LPAI"}
_LPAI_REST = (
    "; `qnnmem inspect` shows its inputs and outputs; the other parts have no public format"
)
_VERSION = struct.Struct("<III")
_METADATA = struct.Struct("<II")
_SCALE_OFFSET = 1  # kind of quantization, by its number in the union
_DEFINED = 1
# Kinds of models that may hold a context binary.
_MODELS = frozenset({"onnx", "epcontext"})
# Kinds of files that are a context binary or of no known kind.
_BINARIES = frozenset({"htp", "binary"})

E = TypeVar("E", bound=IntEnum)


def read_context(path: Path | str) -> HtpContext:
    """Return the description in a context binary; the binary's code and weights are not read.

    For an ONNX model with an EPContext node, the binary is the one that the model embeds or names.
    """
    return read_piece(binary_at(Path(path)))


def describe_binary(path: Path | str) -> HtpContext:
    """Return the content of an HTP or LPAI context binary; for LPAI, only the public part."""
    return read_piece(binary_at(Path(path)), (HTP_BACKEND, LPAI_BACKEND))


def binary_at(path: Path) -> Piece:
    """Return the context binary: the file itself, or the one that an ONNX model embeds or names."""
    whole, kind = Piece.whole(path, str(path)), kind_of_file(path)
    if kind.name == "dlc":
        raise NotCompiled(path, "is a DLC, which is not compiled")
    if kind.name not in _MODELS | _BINARIES:
        raise wrong_kind(path, kind, "which is not a QNN context binary")
    is_model = path.suffix.lower() == ".onnx" or kind.name in _MODELS
    return find_context(whole) if is_model else whole


def read_piece(piece: Piece, backends: tuple[int, ...] = (HTP_BACKEND,)) -> HtpContext:
    """Return the description in a context binary that is a range of a file."""
    with PieceBytes(piece) as data:
        return _read(data, str(piece.file), backends)


def context_from_bytes(data: bytes, name: str) -> HtpContext:
    """Return the description in a context binary in memory; `name` names the binary in errors."""
    return _read(data, name, (HTP_BACKEND,))


def _read(data: Octets, name: str, backends: tuple[int, ...]) -> HtpContext:
    try:
        context = _ContextReader(open_container(data, name), backends).context()
        _check_content(context)
        return context
    except Damaged as exc:
        raise LoadError(name, f"the context binary is damaged: {exc}") from exc
    except NotHtp as exc:
        raise LoadError(name, str(exc)) from exc


def _check_content(context: HtpContext) -> None:
    """Raise Damaged for a context with no graph, or a graph with neither inputs nor outputs."""
    if not context.graphs:
        raise Damaged("it contains no graphs")
    for graph in context.graphs:
        if not (graph.inputs or graph.outputs):
            raise Damaged(f"graph {quote(graph.name)} has neither inputs nor outputs")


class _ContextReader:
    """Reads one context binary; limits the number of tensors in the whole file."""

    def __init__(self, container: Container, backends: tuple[int, ...]) -> None:
        self._container, self._backends = container, backends
        self._tensors_left = MAX_TENSORS

    def context(self) -> HtpContext:
        """Return the whole context."""
        root = FlatBuffer(self._container.metadata).root("")
        outer = _needed(root.table(0, "info"), "info")
        version = _version_of(outer, known=(1, 3))
        info = _needed(outer.table(2, "value"), "info.value")
        backend = info.u32(0, "backendId")
        if backend not in self._backends:
            name = _BACKENDS.get(backend, "unknown")
            more = _LPAI_REST if backend == LPAI_BACKEND else ""
            raise NotHtp(f"is a context binary for backend {backend} ({name}), not for HTP{more}")
        return self._context(info, version, backend)

    def _context(self, info: Table, version: int, backend: int) -> HtpContext:
        container, first = self._container, version == 1
        is_htp = backend == HTP_BACKEND
        soc_model = 0 if first else info.u32(16, "socModel")
        return HtpContext(
            format_version=container.format_version,
            info_version=version,
            build_id=info.text(1, "buildId"),
            core_api=_triple(info, 2, "coreApiVersion"),
            backend_api=_triple(info, 3, "backendApiVersion"),
            soc_model=soc_model or None,
            dsp_arch=None if first or not is_htp else _dsp_arch(info),
            blob_version=self._blob_version(info, 6 if first else 5, is_htp=is_htp),
            blob_bytes=self._blob_bytes(info, 14 if first else 11),
            graphs=self._graphs(info, 12 if first else 9, first, is_htp=is_htp),
            context_tensors=self._tensors(info, 11 if first else 8, "contextTensors"),
            file_bytes=container.file_bytes,
            soc_version=info.text(4, "socVersion"),
            backend_id=HTP_BACKEND if is_htp else LPAI_BACKEND,
        )

    def _blob_version(self, info: Table, slot: int, *, is_htp: bool) -> Version:
        stated, actual = _triple(info, slot, "contextBlobVersion"), self._container.blob_version
        if is_htp and stated != actual:  # only HTP is known to begin its blob with the version
            raise Damaged(
                f"the blob has version {dotted(actual)}, but the metadata states {dotted(stated)}"
            )
        return stated

    def _blob_bytes(self, info: Table, slot: int) -> int:
        stated, actual = info.u64(slot, "contextBlobSize"), self._container.blob_bytes
        if stated != actual:
            raise Damaged(f"the blob has {actual:,} bytes, but the metadata states {stated:,}")
        return stated

    def _graphs(self, info: Table, slot: int, first: bool, *, is_htp: bool) -> tuple[HtpGraph, ...]:
        tables = info.tables(slot + 1, "graphs", MAX_GRAPHS)
        _agree(info.u32(slot, "numGraphs"), len(tables), "graphs")
        blob = info.octets(8, "hwInfoBlob", MAX_RECORD) if first and is_htp else None
        hardware = read_hardware(blob or b"")
        return tuple(self._graph(t, hardware.get(n), is_htp=is_htp) for n, t in enumerate(tables))

    def _graph(self, outer: Table, spill_fill: int | None, *, is_htp: bool) -> HtpGraph:
        version = _version_of(outer, known=(1, 2, 3))
        inner = _needed(outer.table(2, "value"), f"{outer.where}.value")
        if version == 1:
            return self._plain_graph(inner, {"spill_fill": spill_fill})
        if version == 2:
            return self._plain_graph(_first(inner), {})
        record = inner.octets(2, "graphBlobInfo", MAX_RECORD) or b""
        where = f"{outer.where}.graphBlobInfo"
        _agree(inner.u32(1, "graphBlobInfoSize"), len(record), where)
        fields = read_record(record, where) if is_htp else {}
        return self._plain_graph(_first(_first(inner)), fields)

    def _plain_graph(self, table: Table, fields: Mapping[str, Any]) -> HtpGraph:
        inputs = self._tensors(table, 2, "graphInputs")
        outputs = self._tensors(table, 4, "graphOutputs")
        _agree(table.u32(1, "numGraphInputs"), len(inputs), f"{table.where}.graphInputs")
        _agree(table.u32(3, "numGraphOutputs"), len(outputs), f"{table.where}.graphOutputs")
        return HtpGraph(table.text(0, "graphName"), inputs, outputs, **fields)

    def _tensors(self, table: Table, slot: int, name: str) -> tuple[TensorInfo, ...]:
        tables = table.tables(slot, name, self._tensors_left)
        self._tensors_left -= len(tables)
        return tuple(map(_tensor, tables))


def _tensor(table: Table) -> TensorInfo:
    dimensions = table.numbers(7, "dimensions", MAX_RANK)
    _agree(table.u32(6, "rank"), len(dimensions), f"{table.where}.dimensions")
    tensor = TensorInfo(
        id=table.u32(0, "id"),
        name=table.text(9, "name"),
        type=_member(TensorType, table.u32(1, "type")),
        data_type=_member(DataType, table.u32(3, "dataType", UNDEFINED)),
        dimensions=dimensions,
        quantization=_quantization(table),
        mem_type=_member(TensorMemType, table.u32(10, "memType", UNDEFINED)),
    )
    if tensor.nbytes > MAX_BYTES:
        raise Damaged(f"{table.where} is a tensor of more than {MAX_BYTES:,} bytes")
    return tensor


def _quantization(table: Table) -> Quantization | None:
    """Return the scale and offset of a per-tensor encoding; None for any other encoding."""
    if table.u32(4, "quantizeParams") != _DEFINED or table.u8(14, "encoding") != _SCALE_OFFSET:
        return None
    params = table.table(15, "scaleOffset")
    if params is None:
        return None
    scale = params.f32(0, "scale")
    if not math.isfinite(scale):
        raise Damaged(f"{params.where}.scale is not a finite number")
    return Quantization(SCALE_OFFSET, (scale,), (params.i32(1, "offset"),))


def _version_of(outer: Table, known: tuple[int, ...]) -> int:
    """Return a union's version; raise Damaged if it is unknown or not equal to the union's type."""
    version, kind = outer.u32(0, "version"), outer.u8(1, "type")
    if version not in known or kind != version:
        words = ", ".join(map(str, known))
        raise Damaged(f"{outer.where} has version {version:,} and type {kind}; supported: {words}")
    return version


def _first(table: Table) -> Table:
    """Return the nested table `graph`, which has the fields of the previous format version."""
    return _needed(table.table(0, "graph"), f"{table.where}.graph")


def _needed(table: Table | None, where: str) -> Table:
    if table is None:
        raise Damaged(f"{where} is missing")
    return table


def _triple(info: Table, slot: int, name: str) -> Version:
    version = info.record(_VERSION, slot, name) or (0, 0, 0)
    return version[0], version[1], version[2]


def _dsp_arch(info: Table) -> int | None:
    octets = info.octets(15, "contextMetadata", MAX_RECORD) or b""
    _agree(info.u32(14, "contextMetadataSize"), len(octets), "info.contextMetadata")
    if len(octets) < _METADATA.size:
        return None
    version, arch = _METADATA.unpack_from(octets)
    return arch if version == 1 else None


def _agree(stated: int, actual: int, where: str) -> None:
    if stated != actual:
        raise Damaged(f"{where} has {actual:,} entries instead of {stated:,}")


def _member(kind: type[E], value: int) -> E:
    """Return the enum member for a value; UNDEFINED for values of later SDKs."""
    try:
        return kind(value)
    except ValueError:
        return kind(UNDEFINED)


# --- The record about a graph: 40 or 112 bytes ----------------------------------------------------

# Version, spill/fill, VTCM, optimisation level, DLBC, HVX threads; aligned as in C.
_V1 = struct.Struct("<I4xQIIB7xQ")
# version, native K and V, safe-share IO, IO, op data, const, DDR tensors, shared weights.
_V2 = struct.Struct("<I4xQQI4xQQQQQ")
# Older files: version, graph number, spill/fill of each graph.
_HARDWARE = struct.Struct("<I4xI4xQ")

_SIZES_V2 = ("io", "op_data", "const", "ddr_tensors", "shared_weights")


def read_record(data: bytes, where: str) -> Mapping[str, Any]:
    """Return the fields of a graph's record by name; only the record's first two parts are read."""
    if not data:
        return {}
    if len(data) < _V1.size:
        raise Damaged(f"{where} has {len(data)} bytes; the shortest record has {_V1.size}")
    version, spill_fill, vtcm, level, dlbc, threads = _V1.unpack_from(data)
    if version != 1:
        raise Damaged(f"{where} has version {version:,} instead of 1")
    fields: dict[str, Any] = {
        "spill_fill": _size(spill_fill, where, "spill/fill"),
        "vtcm": vtcm,
        "optimization_level": level,
        "dlbc": bool(dlbc),
        "hvx_threads": threads,
    }
    return fields | _second(data, where)


def _second(data: bytes, where: str) -> dict[str, Any]:
    if len(data) == _V1.size:
        return {}
    if len(data) < _V1.size + _V2.size:
        both = _V1.size + _V2.size
        raise Damaged(f"{where} has {len(data)} bytes; a record has {_V1.size} or {both}")
    version, key, value, share, *sizes = _V2.unpack_from(data, _V1.size)
    if version != 2:
        raise Damaged(f"{where} has version {version:,} instead of 2")
    named = zip(_SIZES_V2, sizes, strict=True)
    checked = {name: _size(size, where, name.replace("_", " ")) for name, size in named}
    return {"native_k": key, "native_v": value, "safe_share_io": bool(share)} | checked


def read_hardware(data: bytes) -> Mapping[int, int]:
    """Return the spill/fill size by graph number, from a blob of SDK 2.25 or older."""
    if len(data) % _HARDWARE.size:
        raise Damaged(f"hwInfoBlob has {len(data)} bytes, not a multiple of {_HARDWARE.size}")
    records = (record for record in _HARDWARE.iter_unpack(data) if record[0] == 1)
    return {graph: _size(spill, "hwInfoBlob", "spill/fill") for _, graph, spill in records}


def _size(size: int, where: str, what: str) -> int:
    if size > MAX_BYTES:
        raise Damaged(f"{where} states {size:,} bytes of {what}, which is impossible")
    return size
