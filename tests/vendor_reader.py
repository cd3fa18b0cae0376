"""Fields of a context binary as read by the vendor's own reader, libQnnSystem."""

from __future__ import annotations

import ctypes  # noqa: TID251 - structs of the vendor's reader
from pathlib import Path
from typing import Any

from qnnmem.htp.installed import installed_library
from qnnmem.htp.native.qnn_calls import file_view, opened_info
from qnnmem.qnn.abi import CBinaryInfo, CTensor, CTensorV1

_DEFINED = 1
_SCALE_OFFSET = 0
_INFO_V3 = 3


class CGraphBlobV1(ctypes.Structure):
    """A version number, then `QnnHtpSystemContext_GraphBlobInfoV1_t`."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("spill_fill", ctypes.c_uint64),
        ("vtcm", ctypes.c_uint32),
        ("optimization_level", ctypes.c_uint32),
        ("dlbc", ctypes.c_uint8),
        ("hvx_threads", ctypes.c_uint64),
    )


class CGraphBlobV2(ctypes.Structure):
    """A version number, then `QnnHtpSystemContext_GraphBlobInfoV2_t`."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("native_k", ctypes.c_uint64),
        ("native_v", ctypes.c_uint64),
        ("safe_share_io", ctypes.c_uint32),
        ("io", ctypes.c_uint64),
        ("op_data", ctypes.c_uint64),
        ("const", ctypes.c_uint64),
        ("ddr_tensors", ctypes.c_uint64),
        ("shared_weights", ctypes.c_uint64),
    )


BLOB_SIZES = (ctypes.sizeof(CGraphBlobV1), ctypes.sizeof(CGraphBlobV2))


def vendor_reading(binary: Path) -> dict[str, Any]:
    """Return the fields of `HtpContext`; raise Refused with the code for an invalid binary."""
    folder = installed_library().folder
    with file_view(binary) as (address, size), opened_info(folder, address, size) as info:
        return {**_binary(info), "file_bytes": size}


def _binary(info: CBinaryInfo) -> dict[str, Any]:
    is_v3 = info.version >= _INFO_V3
    body = info.of.v3 if is_v3 else info.of.v1
    return {
        "info_version": info.version,
        "build_id": _text(body.build_id),
        "core_api": body.core_api.numbers,
        "backend_api": body.backend_api.numbers,
        "soc_model": body.soc_model if is_v3 else None,
        "dsp_arch": _arch(body) if is_v3 else None,
        "blob_version": body.blob_version.numbers,
        "blob_bytes": body.blob_size,
        "context_tensors": _tensors(body.context_tensor_count, body.context_tensors),
        "graphs": [_graph(body.graphs[k]) for k in range(body.graph_count)],
    }


def _arch(body: Any) -> int | None:
    """Return the architecture: the second word of the HTP metadata, after its version."""
    if body.metadata_size < 8 or not body.metadata:
        return None
    words = ctypes.cast(body.metadata, ctypes.POINTER(ctypes.c_uint32))
    return int(words[1])


def _graph(info: Any) -> dict[str, Any]:
    body = info.v3  # versions 1 and 2 are its beginning
    found: dict[str, Any] = {
        "name": _text(body.name),
        "inputs": _tensors(body.input_count, body.inputs),
        "outputs": _tensors(body.output_count, body.outputs),
    }
    size = body.blob_size if info.version >= _INFO_V3 and body.blob else 0
    first = ctypes.sizeof(CGraphBlobV1)
    if size >= first:
        found |= _fields(CGraphBlobV1.from_address(body.blob))
    if size >= first + ctypes.sizeof(CGraphBlobV2):
        found |= _fields(CGraphBlobV2.from_address(body.blob + first))
    return found


def _fields(record: Any) -> dict[str, int]:
    return {name: getattr(record, name) for name, _ in record._fields_ if name != "version"}


def _tensors(count: int, tensors: Any) -> list[dict[str, Any]]:
    return [_tensor(tensors[k]) for k in range(count)]


def _tensor(tensor: CTensor) -> dict[str, Any]:
    body: CTensorV1 = tensor.of.v1
    quant, pair = body.quant, body.quant.scale_offset
    known = quant.definition == _DEFINED and quant.encoding == _SCALE_OFFSET
    return {
        "id": body.id,
        "name": _text(body.name),
        "type": body.type,
        "data_type": body.data_type,
        "dimensions": [body.dimensions[k] for k in range(body.rank)],
        "mem_type": body.mem_type,
        "quantization": {"scales": [pair.scale], "offsets": [pair.offset]} if known else None,
    }


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
