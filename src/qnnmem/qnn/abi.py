"""Layout of the QNN structs and function tables that qnnmem uses, for 64-bit Linux.

Offsets follow the public headers of core API 2.37, and a test compares struct sizes. Fields that
qnnmem does not use are gaps.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_float,
    c_int32,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

UNDEFINED = 0x7FFFFFFF


class CVersion(Structure):
    """Layout of `Qnn_Version_t`."""

    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))

    @property
    def numbers(self) -> list[int]:
        """The version's major, minor and patch numbers."""
        return [self.major, self.minor, self.patch]


class CScaleOffset(Structure):
    """`Qnn_ScaleOffset_t`: real = (stored + offset) * scale."""

    _fields_ = (("scale", c_float), ("offset", c_int32))


class CQuantParams(Structure):
    """`Qnn_QuantizeParams_t`; its union declares only the per-tensor scale and offset."""

    _fields_ = (
        ("definition", c_uint32),
        ("encoding", c_uint32),
        ("scale_offset", CScaleOffset),
        ("_rest", c_uint64 * 3),
    )


class CTensorV1(Structure):
    """`Qnn_TensorV1_t`; version 2 starts with the same fields."""

    _fields_ = (
        ("id", c_uint32),
        ("name", c_char_p),
        ("type", c_uint32),
        ("data_format", c_uint32),
        ("data_type", c_uint32),
        ("quant", CQuantParams),
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("mem_type", c_uint32),
        ("memory", c_uint64 * 2),
    )


class CTensorV2(Structure):
    """Layout of `Qnn_TensorV2_t`."""

    _fields_ = (
        ("v1", CTensorV1),
        ("is_dynamic", c_void_p),
        ("sparse", c_uint32 * 3),
        ("is_produced", c_uint8),
    )


class _TensorUnion(Union):
    _fields_ = (("v1", CTensorV1), ("v2", CTensorV2))


class CTensor(Structure):
    """Layout of `Qnn_Tensor_t`."""

    _fields_ = (("version", c_uint32), ("of", _TensorUnion))


class CScalar(Structure):
    """`Qnn_Scalar_t`; `type` selects the field of the union."""

    _fields_ = (("data_type", c_uint32), ("value", c_uint64))


class _ParamUnion(Union):
    _fields_ = (("scalar", CScalar), ("tensor", CTensor))


class CParam(Structure):
    """Layout of `Qnn_Param_t`."""

    _fields_ = (("kind", c_uint32), ("name", c_char_p), ("of", _ParamUnion))


class COpConfig(Structure):
    """Layout of `Qnn_OpConfig_t`, version 1."""

    _fields_ = (
        ("version", c_uint32),
        ("name", c_char_p),
        ("package", c_char_p),
        ("type", c_char_p),
        ("param_count", c_uint32),
        ("params", POINTER(CParam)),
        ("input_count", c_uint32),
        ("inputs", POINTER(CTensor)),
        ("output_count", c_uint32),
        ("outputs", POINTER(CTensor)),
    )


class CMappingPair(Structure):
    """`Qnn_OpMappingPair_t`: a source tensor (type 0) or a source operator (type 1)."""

    _fields_ = (("name", c_char_p), ("type", c_uint32))


class CMapping(Structure):
    """`Qnn_Mapping_t`: a QNN operator or tensor, and the source objects that it represents."""

    _fields_ = (("name", c_char_p), ("pairs", POINTER(CMappingPair)), ("pair_count", c_uint32))


class COpMappingV1(Structure):
    """Layout of `Qnn_OpMappingV1_t`."""

    _fields_ = (
        ("graph", c_char_p),
        ("ops", POINTER(CMapping)),
        ("op_count", c_uint32),
        ("tensors", POINTER(CMapping)),
        ("tensor_count", c_uint32),
    )


class COpMapping(Structure):
    """Layout of `Qnn_OpMapping_t`."""

    _fields_ = (("version", c_uint32), ("v1", POINTER(COpMappingV1)))


class CGraphInfoV3(Structure):
    """`QnnSystemContext_GraphInfoV3_t`; older versions end earlier."""

    _fields_ = (
        ("name", c_char_p),
        ("input_count", c_uint32),
        ("inputs", POINTER(CTensor)),
        ("output_count", c_uint32),
        ("outputs", POINTER(CTensor)),
        ("updatable_count", c_uint32),
        ("updatable", POINTER(CTensor)),
        ("blob_size", c_uint32),
        ("blob", c_void_p),
        ("first_op", c_uint32),
        ("last_op", c_uint32),
    )


class CGraphInfo(Structure):
    """Layout of `QnnSystemContext_GraphInfo_t`."""

    _fields_ = (("version", c_uint32), ("v3", CGraphInfoV3))


class CBinaryInfoV1(Structure):
    """`QnnSystemContext_BinaryInfoV1_t`; version 2 adds a pointer at its end."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("build_id", c_char_p),
        ("core_api", CVersion),
        ("backend_api", CVersion),
        ("soc_version", c_char_p),
        ("hw_version", CVersion),
        ("blob_version", CVersion),
        ("hw_size", c_uint32),
        ("hw_blob", c_void_p),
        ("blob_size", c_uint64),
        ("context_tensor_count", c_uint32),
        ("context_tensors", POINTER(CTensor)),
        ("graph_count", c_uint32),
        ("graphs", POINTER(CGraphInfo)),
        ("platform", c_void_p),
    )


class CBinaryInfoV3(Structure):
    """Layout of `QnnSystemContext_BinaryInfoV3_t`."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("build_id", c_char_p),
        ("core_api", CVersion),
        ("backend_api", CVersion),
        ("soc_version", c_char_p),
        ("blob_version", CVersion),
        ("blob_size", c_uint64),
        ("context_tensor_count", c_uint32),
        ("context_tensors", POINTER(CTensor)),
        ("graph_count", c_uint32),
        ("graphs", POINTER(CGraphInfo)),
        ("platform", c_void_p),
        ("metadata_size", c_uint32),
        ("metadata", c_void_p),
        ("soc_model", c_uint32),
    )


class _BinaryUnion(Union):
    _fields_ = (("v1", CBinaryInfoV1), ("v3", CBinaryInfoV3))


class CBinaryInfo(Structure):
    """Layout of `QnnSystemContext_BinaryInfo_t`."""

    _fields_ = (("version", c_uint32), ("of", _BinaryUnion))


BINARY_INFO_BYTES = ctypes.sizeof(CBinaryInfo)


class CHtpMem(Structure):
    """`QnnMemHtp_Descriptor_t`: the location of a tensor in a shared buffer."""

    _fields_ = (
        ("type", c_uint32),
        ("size", c_uint64),
        ("fd", c_int32),
        ("offset", c_uint64),
    )


class CMemDescriptor(Structure):
    """`Qnn_MemDescriptor_t`; `place` holds the fd for ION, the struct's address for CUSTOM."""

    _fields_ = (
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("shape_config", c_void_p),
        ("data_type", c_uint32),
        ("mem_type", c_uint32),
        ("place", c_uint64 * 2),
    )


class CConfig(Structure):
    """Any `Qnn*_Config_t` whose option is `custom`; `value` points to the HTP config."""

    _fields_ = (("option", c_uint32), ("value", c_uint64))


class CHtpGraphConfig(Structure):
    """`QnnHtpGraph_CustomConfig_t`: an option and a union; two words of the union have names."""

    _fields_ = (
        ("option", c_uint32),
        ("_gap", c_uint32),
        ("first", c_uint32),
        ("second", c_uint32),
        ("_rest", c_uint64 * 5),
    )


class BackendInterface(Structure):
    """`QnnInterface_t`, which is passed by value."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("name", c_char_p),
        ("core_api", CVersion),
        ("backend_api", CVersion),
        ("table", c_void_p * 75),
    )


class SystemInterface(Structure):
    """`QnnSystemInterface_t` with the 13 entries of its table."""

    _fields_ = (
        ("backend_id", c_uint32),
        ("name", c_char_p),
        ("api", CVersion),
        ("table", c_void_p * 13),
    )


LogCallback = CFUNCTYPE(None, c_char_p, c_uint32, c_uint64, c_void_p)

_P = c_void_p
_OUT = POINTER(c_void_p)

# Position in the table and types of the arguments; every function returns an error handle.
BACKEND_CALLS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "backend_create": (1, (_P, _P, _OUT)),
    "backend_get_build_id": (4, (POINTER(c_char_p),)),
    "backend_free": (8, (_P,)),
    "context_create": (9, (_P, _P, _P, _OUT)),
    "context_get_binary_size": (11, (_P, POINTER(c_uint64))),
    "context_get_binary": (12, (_P, _P, c_uint64, POINTER(c_uint64))),
    "context_create_from_binary": (13, (_P, _P, _P, _P, c_uint64, _OUT, _P)),
    "context_free": (14, (_P, _P)),
    "backend_validate_op_config": (7, (_P, COpConfig)),
    "graph_create": (15, (_P, c_char_p, _P, _OUT)),
    "graph_add_node": (18, (_P, COpConfig)),
    "graph_finalize": (19, (_P, _P, _P)),
    "graph_retrieve": (20, (_P, c_char_p, _OUT)),
    "graph_execute": (21, (_P, _P, c_uint32, _P, c_uint32, _P, _P)),
    "tensor_create_graph_tensor": (24, (_P, POINTER(CTensor))),
    "log_create": (25, (LogCallback, c_uint32, _OUT)),
    "log_free": (27, (_P,)),
    "mem_register": (35, (_P, _P, c_uint32, _P)),
    "mem_deregister": (36, (_P, c_uint32)),
    "device_create": (40, (_P, _P, _OUT)),
    "device_free": (43, (_P,)),
}
SYSTEM_CALLS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "context_create": (0, (_OUT,)),
    "context_get_metadata": (2, (_P, _P, c_uint64, POINTER(POINTER(CBinaryInfo)))),
    "context_free": (3, (_P,)),
    "log_create": (5, (LogCallback, c_uint32, _OUT)),
    "log_free": (7, (_P,)),
    "dlc_create_from_file": (8, (_P, c_char_p, _OUT)),
    "dlc_compose_graphs": (
        *(10,),
        (_P, _P, c_uint32, _P, _P, BackendInterface, c_uint32, _OUT, POINTER(c_uint32)),
    ),
    "dlc_get_op_mappings": (11, (_P, POINTER(POINTER(COpMapping)), POINTER(c_uint32))),
    "dlc_free": (12, (_P,)),
}


def bind(table: Any, calls: dict[str, tuple[int, tuple[Any, ...]]]) -> dict[str, Any]:
    """Return the functions of an interface table as callables, by name."""
    return {
        name: CFUNCTYPE(c_uint64, *arguments)(table[position])
        for name, (position, arguments) in calls.items()
    }


def first_provider(library: Any, symbol: str, interface: type[Structure]) -> Any:
    """Return the first interface that a QNN library offers."""
    listed = POINTER(POINTER(interface))()
    count = c_uint32()
    getter = library[symbol]
    getter.restype = c_uint64
    code = getter(ctypes.byref(listed), ctypes.byref(count))
    if code != 0 or count.value == 0:
        raise OSError(f"{symbol} returned no provider (code {code & 65535})")
    return listed[0].contents
