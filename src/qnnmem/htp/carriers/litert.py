"""LiteRT models compiled for an NPU (.tflite with DISPATCH_OP), also inside .litertlm files."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from qnnmem.errors import Damaged, UsageError
from qnnmem.htp.binary.flatbuffer import FlatBuffer, Table
from qnnmem.htp.binary.pieces import Piece, PieceBytes, check_apart
from qnnmem.htp.carriers.carrier import MAX_PARTS, Claim, Gathered, is_binary
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.carrier import HostPart
from qnnmem.targets.socs import find_soc
from qnnmem.text import quote

_MOST = 24 << 20  # bytes of tables and vectors that are read
_TENSORS = 100_000
_DISPATCH = "DISPATCH_OP"
_STAMP = "LiteRtStamp"
_STAMP_FIELD = 125  # bytes of each of its two strings
_QUALCOMM = "Qualcomm"
# Bytes of an element by TFLite's type number.
_WIDTHS = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 12: 8, 15: 4, 16: 2}
_LM_HEAD = struct.Struct("<8sIII4xQ")  # magic, version, end of the header
_LM_BEGIN = 32
_LM_MODEL, _LM_WEIGHTS = 3, 7
_LM_MOST = 16 << 20
_MAX_KEYS = 64


def read_litert(piece: Piece, gathered: Gathered) -> bool:
    """Add the binaries of a model to `gathered`; return False if the model runs no binary."""
    with PieceBytes(piece) as data:
        if data[4:8] != b"TFL3":
            raise Damaged(f"{piece.name} does not start like a TFLite model")
        return _Model(piece, FlatBuffer(data, _MOST, sizes=False), gathered).read()


class _Model:
    """Reader of one model."""

    def __init__(self, piece: Piece, flat: FlatBuffer, gathered: Gathered) -> None:
        self._piece, self._flat, self._gathered = piece, flat, gathered
        self._root = flat.root("model")
        self._codes = [_code(row) for row in self._root.tables(1, "operator_codes", MAX_PARTS)]
        self._pieces: list[Piece] = []

    def read(self) -> bool:
        """Gather the binaries that operators run, and the operators that run on the CPU.

        Return False, and gather nothing, if no operator runs a binary.
        """
        if _DISPATCH not in self._codes:
            return False
        maker, model = self._stamp()
        for number, graph in enumerate(self._root.tables(2, "subgraphs", MAX_PARTS)):
            self._tensors(graph, number)
            for row in graph.tables(3, "operators", _TENSORS):
                index = row.u32(0, "opcode_index")
                if index >= len(self._codes):
                    raise Damaged(f"{row.where} has operator code {index:,}, which does not exist")
                if self._codes[index] == _DISPATCH:
                    self._dispatch(row, maker, model)
                else:
                    self._gathered.cpu_operators.append(self._codes[index])
        check_apart(self._pieces)
        return True

    def _dispatch(self, row: Table, maker: str, model: str) -> None:
        place = row.octets(5, "custom_options", 1 << 16)
        options = flex_map(place or b"", row.where)
        start, size = options.get("bytecode_offset"), options.get("bytecode_size")
        name = str(options.get("name", ""))
        if not isinstance(start, int) or not isinstance(size, int) or not size:
            raise Damaged(f"{row.where} does not state where its binary is")
        piece = self._piece.part(start, size, f"offset {start:,} in {self._piece.name}")
        self._pieces.append(piece)
        if maker and maker != _QUALCOMM:
            self._gathered.add_unread(
                piece.name, f"the part is for {quote(maker)} {quote(model)}", size
            )
        elif is_binary(piece):
            number = self._gathered.add(piece, name)
            self._gathered.claims.extend(_soc_claim(model, number))
        else:
            self._gathered.add_unread(piece.name, "the part is not a QNN context binary", size)

    def _stamp(self) -> tuple[str, str]:
        """Return SoC manufacturer and model from the compiler's stamp; empty if there is none."""
        buffers = self._root.tables(4, "buffers", _TENSORS)
        for row in self._root.tables(6, "metadata", MAX_PARTS):
            if row.text(0, "name") != _STAMP:
                continue
            index = row.u32(1, "buffer")
            if index >= len(buffers):
                raise Damaged(
                    f"the compiler's stamp is in buffer {index:,}, but the file has "
                    f"{len(buffers):,} buffers"
                )
            data = buffers[index].octets(0, "data", 1 << 12) or b""
            halves = data[:_STAMP_FIELD], data[_STAMP_FIELD : 2 * _STAMP_FIELD]
            maker, model = (half.split(b"\0")[0].decode("utf-8", "replace") for half in halves)
            return maker.strip(), model.strip()
        return "", ""

    def _tensors(self, graph: Table, number: int) -> None:
        """Gather the size of a subgraph's non-constant tensors as host memory."""
        total, buffers = 0, self._root.tables(4, "buffers", _TENSORS)
        for row in graph.tables(0, "tensors", _TENSORS):
            index = row.u32(2, "buffer")
            stored = buffers[index] if index < len(buffers) else None
            if stored is not None and (stored.extent(0, "data") or stored.u64(2, "size")):
                continue
            total += _bytes_of(row)
        if total:
            name = f"tensors of subgraph {number} (upper bound)"
            source = "sum of all tensors except constants; in the interpreter some share memory"
            self._gathered.host.append(HostPart(name, Sourced(total, Origin.COMPUTED, source)))


def _bytes_of(tensor: Table) -> int:
    size = _WIDTHS.get(tensor.u8(1, "type"), 1)
    for dimension in tensor.numbers(0, "shape", 32, "i"):
        size *= max(dimension, 1)
    if size > 1 << 50:
        raise Damaged(f"{tensor.where} has an impossible size")
    return size


def _code(row: Table) -> str:
    custom = row.text(1, "custom_code")
    if custom:
        return custom
    return _builtin(row.u32(3, "builtin_code") or row.u8(0, "deprecated_builtin_code"))


def _builtin(code: int) -> str:
    from qnnmem.loader.tflite.raw_graph import builtin_names

    return builtin_names().get(code, f"BUILTIN_{code}")


def _soc_claim(model: str, binary: int) -> Iterator[Claim]:
    if not model:
        return
    try:
        soc = find_soc(model)
    except UsageError:  # an unknown name is ignored
        return
    yield Claim("SoC", soc.model_id, f"stamp {model}", (binary,))


def read_litertlm(piece: Piece, gathered: Gathered) -> None:
    """Add the binaries of all TFLite models in a .litertlm file to `gathered`."""
    head = piece.head(_LM_BEGIN)
    if len(head) < _LM_BEGIN or head[:8] != b"LITERTLM":
        raise Damaged(f"{piece.name} does not start like a LiteRT-LM file")
    end = _LM_HEAD.unpack(head)[4]
    if not _LM_BEGIN < end <= min(piece.size, _LM_MOST):
        problem = f"its header states an impossible end, {end:,}; the file has {piece.size:,} bytes"
        raise Damaged(problem)
    root = FlatBuffer(piece.part(_LM_BEGIN, end - _LM_BEGIN, "header").head(end), sizes=False).root(
        "header"
    )
    sections = root.table(1, "section_metadata")
    pieces, models = [], 0
    for number, row in enumerate(sections.tables(0, "objects", MAX_PARTS) if sections else ()):
        first, last = row.u64(1, "begin_offset"), row.u64(2, "end_offset")
        section = piece.part(first, last - first, f"section {number} of {piece.name}")
        pieces.append(section)
        kind = row.u8(3, "data_type")
        if kind == _LM_MODEL:
            models += 1
            inner = Gathered()
            if read_litert(section, inner):
                gathered.merge(inner, f"section {number}")
            else:
                gathered.add_unread(
                    section.name,
                    "the memory of a TFLite model is known only after it is compiled",
                    section.size,
                )
        elif kind == _LM_WEIGHTS:
            size = Sourced(section.size, Origin.MEASURED, "size of the section")
            gathered.host.append(HostPart(f"weights in section {number}", size))
    check_apart(pieces)
    if not models:
        raise Damaged(f"{piece.name} contains no model")


# --- FlexBuffers: the options of a custom operator, a map of numbers and strings ------------------


_SIGNED, _UNSIGNED, _KEY, _STRING = 1, 2, 4, 5
_MAP = 9
_SIGNED_INDIRECT, _UNSIGNED_INDIRECT = 6, 7
_LONGEST_NAME = 4096


def flex_map(data: bytes, where: str) -> dict[str, int | str]:
    """Return the numbers and strings of a map by key; raise Damaged if the data is not a map."""
    try:
        return _flex_map(data)
    except (IndexError, ValueError, struct.error) as exc:
        raise Damaged(f"the options of {where} are not a map") from exc


def _flex_map(data: bytes) -> dict[str, int | str]:
    width, packed = data[-1], data[-2]
    if width not in (1, 2, 4, 8) or packed >> 2 != _MAP:
        raise ValueError(packed)
    root = len(data) - 2 - width
    start = root - _word(data, root, width)
    inner = 1 << (packed & 3)
    keys = _word(data, start - 3 * inner, inner)
    key_width = _word(data, start - 2 * inner, inner)
    count = _word(data, start - inner, inner)
    if count > _MAX_KEYS or key_width not in (1, 2, 4, 8):
        raise ValueError(count)
    keys_at = start - 3 * inner - keys
    entries: dict[str, int | str] = {}
    for number in range(count):
        offset = keys_at + number * key_width
        key = _text(data, offset - _word(data, offset, key_width))
        packed = data[_inside(data, start + count * inner + number)]
        value = _value(data, start + number * inner, inner, packed)
        if value is not None:
            entries[key] = value
    return entries


def _value(data: bytes, offset: int, width: int, packed: int) -> int | str | None:
    kind, own = packed >> 2, 1 << (packed & 3)
    if kind in (_SIGNED, _UNSIGNED):
        return _word(data, offset, width)
    if kind in (_SIGNED_INDIRECT, _UNSIGNED_INDIRECT):
        return _word(data, offset - _word(data, offset, width), own)
    if kind in (_KEY, _STRING):
        return _text(data, offset - _word(data, offset, width))
    return None


def _word(data: bytes, offset: int, width: int) -> int:
    if offset < 0 or offset + width > len(data):
        raise ValueError(offset)
    return int.from_bytes(data[offset : offset + width], "little")


def _inside(data: bytes, offset: int) -> int:
    if not 0 <= offset < len(data):
        raise ValueError(offset)
    return offset


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", _inside(data, offset), offset + _LONGEST_NAME)
    return data[offset : max(offset, end)].decode("utf-8", "replace")
