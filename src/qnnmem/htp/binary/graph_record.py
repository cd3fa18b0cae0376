"""The record about a graph that the HTP backend keeps in a context binary: 40 or 112 bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from qnnmem.errors import Damaged
from qnnmem.units import MAX_BYTES

MAX_RECORD = 1 << 16
# version, spill/fill, VTCM, optimisation level, DLBC, HVX threads; in the alignment of C.
_V1 = struct.Struct("<I4xQIIB7xQ")
# version, native K and V, safe-share IO, IO, op data, const, DDR tensors, shared weights.
_V2 = struct.Struct("<I4xQQI4xQQQQQ")
# Older files: version, graph number, spill/fill of each graph.
_HARDWARE = struct.Struct("<I4xI4xQ")

_SIZES_V2 = ("io", "op_data", "const", "ddr_tensors", "shared_weights")


def read_record(data: bytes, where: str) -> Mapping[str, Any]:
    """Fields of a graph by the names they have there; later records than the second are skipped."""
    if not data:
        return {}
    if len(data) < _V1.size:
        raise Damaged(f"{where} has {len(data)} bytes; the shortest record has {_V1.size}")
    version, spill_fill, vtcm, level, dlbc, threads = _V1.unpack_from(data)
    if version != 1:
        raise Damaged(f"{where} has version {version:,} where 1 belongs")
    found: dict[str, Any] = {
        "spill_fill": _size(spill_fill, where, "spill/fill"),
        "vtcm": vtcm,
        "optimization_level": level,
        "dlbc": bool(dlbc),
        "hvx_threads": threads,
    }
    return found | _second(data, where)


def _second(data: bytes, where: str) -> dict[str, Any]:
    if len(data) == _V1.size:
        return {}
    if len(data) < _V1.size + _V2.size:
        both = _V1.size + _V2.size
        raise Damaged(f"{where} has {len(data)} bytes; records have {_V1.size} or {both}")
    version, key, value, share, *sizes = _V2.unpack_from(data, _V1.size)
    if version != 2:
        raise Damaged(f"{where} has version {version:,} where 2 belongs")
    named = zip(_SIZES_V2, sizes, strict=True)
    checked = {name: _size(size, where, name.replace("_", " ")) for name, size in named}
    return {"native_k": key, "native_v": value, "safe_share_io": bool(share)} | checked


def read_hardware(data: bytes) -> Mapping[int, int]:
    """Spill/fill by graph number, as files of SDK 2.25 and before store it."""
    if len(data) % _HARDWARE.size:
        raise Damaged(f"hwInfoBlob has {len(data)} bytes, not a multiple of {_HARDWARE.size}")
    records = (record for record in _HARDWARE.iter_unpack(data) if record[0] == 1)
    return {graph: _size(spill, "hwInfoBlob", "spill/fill") for _, graph, spill in records}


def _size(size: int, where: str, what: str) -> int:
    if size > MAX_BYTES:
        raise Damaged(f"{where} states {size:,} bytes of {what}, which is impossible")
    return size
