"""libQnnSystem: what the vendor's own reader says about a context binary."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

from qnnmem.errors import Refused
from qnnmem.htp.native.backend import file_view
from qnnmem.htp.requests import SystemInfoReply, SystemInfoRequest
from qnnmem.qnn.abi import (
    SYSTEM_CALLS,
    CBinaryInfo,
    CGraphBlobV1,
    CGraphBlobV2,
    CGraphInfoV3,
    CTensor,
    CTensorV1,
    SystemInterface,
    bind,
    first_provider,
)

_DEFINED = 1
_SCALE_OFFSET = 0
_INFO_V3 = 3


def system_info(folder: Path, request: SystemInfoRequest) -> SystemInfoReply:
    """Fields of `HtpContext` for a binary, as libQnnSystem reads them."""
    with (
        file_view(request.binary) as (address, size),
        opened_info(folder, address, size) as info,
    ):
        return SystemInfoReply({**_binary(info), "file_bytes": size})


@contextmanager
def opened_info(folder: Path, address: int, size: int) -> Iterator[CBinaryInfo]:
    """What libQnnSystem says of a binary in memory; it belongs to a handle that is freed then."""
    library = ctypes.CDLL(str(folder / "libQnnSystem.so"))
    interface = first_provider(library, "QnnSystemInterface_getProviders", SystemInterface)
    calls = bind(interface.table, SYSTEM_CALLS)
    handle, info = c_void_p(), ctypes.POINTER(CBinaryInfo)()
    _check(calls["context_create"](byref(handle)), "context_create")
    try:
        _check(calls["context_get_metadata"](handle, address, size, byref(info)), "get_metadata")
        yield info.contents
    finally:
        calls["context_free"](handle)


def _check(handle: int, call: str) -> None:
    code = handle & 0xFFFF
    if code:
        raise Refused("read", f"libQnnSystem answered {call} with code {code}", code)


def graphs_of(info: CBinaryInfo) -> dict[str, CGraphInfoV3]:
    """The graphs of a binary by name."""
    body = info.of.v3 if info.version >= _INFO_V3 else info.of.v1
    listed = (body.graphs[k].v3 for k in range(body.graph_count))
    return {_text(graph.name): graph for graph in listed}


def _binary(info: CBinaryInfo) -> dict[str, Any]:
    is_v3 = info.version >= _INFO_V3
    body = info.of.v3 if is_v3 else info.of.v1
    return {
        "info_version": info.version,
        "backend_id": body.backend_id,
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
    """The second word of the HTP context metadata; the first is its version."""
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
