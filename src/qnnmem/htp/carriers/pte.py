"""ExecuTorch programs (.pte): the context binaries of their QNN delegates, read in place.

A program is a FlatBuffer, followed by segments with most of the bytes. A delegate's blob is inline
or in a segment, and several methods can use the same blob. The compile spec is a separate
FlatBuffer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from qnnmem.errors import Damaged
from qnnmem.htp.binary.flatbuffer import FlatBuffer, Table
from qnnmem.htp.binary.pieces import Piece, PieceBytes, check_apart
from qnnmem.htp.carriers.carrier import MAX_PARTS, Claim, Gathered, is_binary
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.carrier import HostPart
from qnnmem.text import quote

_IDENTIFIER = re.compile(rb"ET(\d\d)")
_KNOWN = b"12"
_EXTENDED = struct.Struct("<4sIQQ")  # magic, its size, bytes of the program, offset of the segments
_SEGMENTS = struct.Struct("<Q")  # bytes of all segments, in longer headers
_MOST = 24 << 20  # bytes of tables and vectors that are read
_PLANS, _SEGMENTS_MOST = 4096, 1 << 16
_SPEC = 1 << 16
_QNN = "QnnBackend"
_SPEC_KEY = "qnn_compile_spec"
_WRAPPER = struct.Struct("<IqQ")  # magic, signature, bytes that follow
_MAGIC, _OLD_MAGIC = 0x5678ABCD, 0x1234ABCD
_PADDINGS = (256, _WRAPPER.size)  # of ExecuTorch 1.2 and later, and before
_DLC = b"PK\x03\x04"
_BACKENDS = {1: "GPU", 3: "DSP", 4: "LPAI"}
_HTP = 2
_INT = 2  # tag in the union of values
_MIB = 1 << 20


def read_pte(piece: Piece, gathered: Gathered) -> None:
    """Add a program's binaries to `gathered`; raise Damaged unless it is an ExecuTorch program."""
    size, segments = _header(piece, gathered)
    with PieceBytes(piece.part(0, size, piece.name)) as tables:
        root = FlatBuffer(tables, _MOST, sizes=False).root("program")
        _Program(piece, root, segments, gathered).read()


def _header(piece: Piece, gathered: Gathered) -> tuple[int, int]:
    """Return the size of the FlatBuffer and the offset of the segments."""
    head = piece.head(64)
    identifier = _IDENTIFIER.fullmatch(head[4:8])
    if identifier is None:
        raise Damaged("the file does not start like an ExecuTorch program")
    if identifier[1] != _KNOWN:
        version = head[4:8].decode("ascii")
        gathered.notes.append(f"format {version} is unknown; the file was read as ET12")
    if head[8:12] != b"eh00" or len(head) < 8 + _EXTENDED.size:
        return piece.size, 0
    _, length, size, segments = _EXTENDED.unpack_from(head, 8)
    if size < 8 or size > piece.size or (segments and segments > piece.size):
        raise Damaged(
            f"the header states a program of {size:,} bytes and segments at offset "
            f"{segments:,}, which does not match a file of {piece.size:,} bytes"
        )
    if length >= 32 and len(head) >= 40:
        end = segments + _SEGMENTS.unpack_from(head, 32)[0]
        if end > piece.size:
            raise Damaged(f"{end - piece.size:,} bytes are missing at the end of the file")
    return size, segments


class _Program:
    """Reader of one program."""

    def __init__(self, piece: Piece, root: Table, segments: int, gathered: Gathered) -> None:
        self._piece, self._root, self._gathered = piece, root, gathered
        self._segments = tuple(self._segment_pieces(segments))
        self._inline: tuple[Table, ...] | None = None

    def _segment_pieces(self, offset: int) -> Iterator[Piece]:
        for number, row in enumerate(self._root.tables(4, "segments", _SEGMENTS_MOST)):
            start = offset + row.u64(0, "offset")
            name = f"segment {number} of {self._piece.name}"
            yield self._piece.part(start, row.u64(1, "size"), name)

    def read(self) -> None:
        """Gather all delegates, buffers and constants of the program that take memory."""
        check_apart(self._segments)
        delegates = 0
        for plan in self._root.tables(1, "execution_plan", _PLANS):
            method = plan.text(0, "name")
            rows = plan.tables(7, "delegates", MAX_PARTS)
            delegates += len(rows)
            if delegates > MAX_PARTS:
                raise Damaged(f"the program has more than {MAX_PARTS:,} delegates")
            for number, row in enumerate(rows):
                self._delegate(row, method, number)
            self._buffers(plan, method)
            for row in plan.tables(6, "operators", MAX_PARTS):
                self._gathered.cpu_operators.append(row.text(0, "name"))
            self._constant_method(plan, method, bool(rows))
        self._data()

    def _delegate(self, row: Table, method: str, number: int) -> None:
        name, kind = f"delegate {number} of {method}", row.text(0, "id")
        blob = self._blob(row, name)
        if kind != _QNN:
            why = f"delegate {quote(kind)} plans its own memory"
            self._gathered.add_unread(name, why, blob.size)
            return
        spec = self._spec(row)
        backend = _HTP if spec is None else _backend(spec)
        if backend in _BACKENDS:
            why = f"the part is for {_BACKENDS[backend]}, not for HTP"
            self._gathered.add_unread(name, why, blob.size)
            return
        self._unwrap(blob, method, name, spec)

    def _blob(self, row: Table, name: str) -> Piece:
        place = row.table(1, "processed")
        location = 0 if place is None else place.u8(0, "location")
        index = 0 if place is None else place.u32(1, "index")
        if location == 1:
            return self._segment(index, name)
        if self._inline is None:
            self._inline = self._root.tables(3, "backend_delegate_data", MAX_PARTS)
        if location or index >= len(self._inline):
            raise Damaged(
                f"{name} refers to data {index:,} at location {location}, which does not exist"
            )
        extent = self._inline[index].extent(0, "data") or (0, 0)
        return self._piece.part(*extent, f"inline data {index} of {self._piece.name}")

    def _segment(self, index: int, name: str) -> Piece:
        if index >= len(self._segments):
            raise Damaged(
                f"{name} refers to segment {index:,}, but the program has {len(self._segments):,}"
            )
        return self._segments[index]

    def _spec(self, row: Table) -> Table | None:
        for spec in row.tables(2, "compile_specs", MAX_PARTS):
            if spec.text(0, "key") == _SPEC_KEY:
                octets = spec.octets(1, "value", _SPEC)
                return FlatBuffer(octets, sizes=False).root("compile spec") if octets else None
        return None

    def _unwrap(self, blob: Piece, method: str, name: str, spec: Table | None) -> None:
        """Gather the binary in ExecuTorch's wrapper, or the reason why there is no bill for it."""
        head = blob.head(_WRAPPER.size)
        magic, size = 0, 0
        if len(head) == _WRAPPER.size:
            magic, _, size = _WRAPPER.unpack(head)
        if magic == _OLD_MAGIC:
            why = (
                "the part has the graph description that ExecuTorch wrote before August "
                "2025, which qnnmem does not read; export the model again"
            )
            self._gathered.add_unread(name, why, blob.size)
            return
        inner = [blob]
        if magic == _MAGIC:
            if size > blob.size:
                raise Damaged(f"{blob.name} states {size:,} bytes but has {blob.size:,}")
            inner = [
                blob.part(start, size, blob.name)
                for start in _PADDINGS
                if start + size <= blob.size
            ]
        for candidate in inner:
            if is_binary(candidate):
                self._gathered.add(candidate, method)
                self._gathered.claims.extend(_claims(spec, len(self._gathered.payloads) - 1))
                options = None if spec is None else _htp_options(spec)
                if options is not None and options.u8(7, "use_multi_contexts"):
                    self._gathered.shares_spill_fill = True
                return
            if candidate.head(4) == _DLC:
                self._gathered.dlcs.append(candidate)
                self._gathered.add_unread(
                    name,
                    "a DLC is compiled on the device, so its memory is not known here",
                    candidate.size,
                )
                return
        self._gathered.add_unread(name, "the content is unknown", blob.size)

    def _buffers(self, plan: Table, method: str) -> None:
        sizes = plan.numbers(8, "non_const_buffer_sizes", MAX_PARTS, "q")[1:]  # the first is unused
        if any(size < 0 or size > 1 << 50 for size in sizes):
            raise Damaged(f"method {quote(method)} plans a buffer of an impossible size")
        if sum(sizes):
            source = "buffers that the program asks the runtime to allocate"
            size = Sourced(sum(sizes), Origin.MEASURED, source)
            self._gathered.host.append(HostPart(f"planned buffers of {method}", size))

    def _constant_method(self, plan: Table, method: str, has_delegates: bool) -> None:
        """Gather the context length as a claim if the method `get_max_context_len` returns it."""
        if has_delegates or method != "get_max_context_len":
            return
        outputs = plan.numbers(4, "outputs", MAX_PARTS)
        values = plan.tables(2, "values", 64) if outputs else ()
        if not outputs or outputs[0] >= len(values):
            return
        value = values[outputs[0]]
        number = value.table(1, "val") if value.u8(0, "val_type") == _INT else None
        if number is not None:
            length = number.u64(0, "int_val")
            self._gathered.claims.append(Claim("context length", length, f"{method} {length:,}"))

    def _data(self) -> None:
        """Gather the host memory of constants and other data, which are in segments or inline."""
        used: set[int] = set()
        constants = self._root.table(5, "constant_segment")
        # The first offset means "no constant", whatever segment the table names.
        if constants is not None and (constants.extent(1, "offsets") or (0, 0))[1] > 1:
            index = constants.u32(0, "segment_index")
            used.add(index)
            self._host("constants", self._segment(index, "the constants").size)
        inline = self._root.tables(2, "constant_buffer", _SEGMENTS_MOST)
        self._host("constants", sum((row.extent(0, "storage") or (0, 0))[1] for row in inline))
        for name, rows, slot in (
            ("initial state", self._root.tables(6, "mutable_data_segments", MAX_PARTS), 0),
            ("named data", self._root.tables(7, "named_data", _SEGMENTS_MOST), 1),
        ):
            numbers = {row.u32(slot, "segment_index") for row in rows} - used
            used |= numbers
            self._host(name, sum(self._segment(segment, name).size for segment in numbers))

    def _host(self, name: str, size: int) -> None:
        if size:
            source = f"size in {self._piece.name}"
            self._gathered.host.append(HostPart(name, Sourced(size, Origin.MEASURED, source)))


def _backend(spec: Table) -> int:
    options = spec.table(1, "backend_options")
    return _HTP if options is None else options.u32(0, "backend_type")


def _htp_options(spec: Table) -> Table | None:
    options = spec.table(1, "backend_options")
    return None if options is None else options.table(1, "htp_options")


def _claims(spec: Table | None, binary: int) -> Iterator[Claim]:
    """Yield the claims that the compile spec makes about a binary."""
    if spec is None:
        return
    soc = spec.table(0, "soc_info")
    if soc is not None:
        model = soc.u32(0, "soc_model")
        if model:
            yield Claim("SoC", model, f"soc_model {model}", (binary,))
        htp = soc.table(1, "htp_info")
        if htp is not None and htp.u32(0, "htp_arch"):
            arch = htp.u32(0, "htp_arch")
            yield Claim("Hexagon", arch, f"v{arch}", (binary,))
        if htp is not None and htp.u32(1, "vtcm_size_in_mb"):
            size = htp.u32(1, "vtcm_size_in_mb")
            yield Claim("VTCM", size * _MIB, f"{size} MiB", (binary,))
    options = _htp_options(spec)
    if options is not None and options.u8(7, "use_multi_contexts"):
        largest = options.u32(0, "max_sf_buf_size")
        yield Claim("largest spill/fill", largest, f"max_sf_buf_size {largest:,}")
