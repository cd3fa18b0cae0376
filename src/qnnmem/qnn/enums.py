"""QNN's names and numbers for options, types and versions.

Each class states how the C headers spell its members. `c_names` is generated from these classes, so
the two spellings cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import ClassVar

from qnnmem.errors import UsageError
from qnnmem.text import quote

UNDEFINED = 0x7FFFFFFF

PROVIDER_NAME = "LPAI_QTI_AISW"


class CEnum(IntEnum):
    """Base of enums whose members have longer names in C.

    A name in C is `prefix` plus the member's name, or plus the member's entry in `ends`. An entry
    None marks a member that the QNN headers do not have.
    """

    _prefix: ClassVar[str]
    _ends: ClassVar[Mapping[str, str | None]]

    def __init_subclass__(cls, prefix: str, ends: Mapping[str, str | None] | None = None) -> None:
        cls._prefix, cls._ends = prefix, MappingProxyType(dict(ends or {}))

    @property
    def c_name(self) -> str:
        """The name in C, e.g. `QNN_LPAI_MEM_TYPE_DDR`."""
        return f"{self._prefix}{self._ends.get(self.name, self.name)}"

    @classmethod
    def c_names(cls) -> dict[str, CEnum]:
        """Return all members, including aliases, by their names in C."""
        ends = {name: cls._ends.get(name, name) for name in cls.__members__}
        return {f"{cls._prefix}{end}": cls[name] for name, end in ends.items() if end is not None}


class BackendId(CEnum, prefix="QNN_BACKEND_ID_"):
    """`QNN_BACKEND_ID_*`: the backend of a provider."""

    LPAI = 12
    LPAI_ISLAND = 16


class Target(CEnum, prefix="QNN_LPAI_BACKEND_TARGET_"):
    """`QnnLpaiBackend_Target_t`: the processor that runs a graph."""

    X86 = 0
    ARM = 1
    ADSP = 2
    TENSILICA = 3
    UNKNOWN = UNDEFINED


class HwVersion(CEnum, prefix="QNN_LPAI_BACKEND_HW_VERSION_", ends={"UNDEFINED": None}):
    """`QnnLpaiBackend_HwVersion_t`: the hardware version of the eNPU.

    The minor version is in the upper half-word, so the numbers are not in order of age, but members
    compare by age. `UNKNOWN` sorts before all others.
    """

    NA = 0
    V1 = 1
    V2 = 2
    V3 = 3
    V4 = 4
    V5 = 5
    V5_1 = 0x00010005
    V6 = 6
    V7 = 7
    UNKNOWN = UNDEFINED
    UNDEFINED = UNDEFINED

    @classmethod
    def parse(cls, text: str) -> HwVersion:
        """Return the version that is spelled this way in configuration files, e.g. `v5_1`."""
        version = _HW_BY_WORD.get(text.strip().lower())
        if version is None:
            known = ", ".join(_HW_BY_WORD)
            raise UsageError(
                f"{quote(text)} is not an LPAI hardware version; choose one of {known}"
            )
        return version

    @property
    def word(self) -> str:
        """The spelling of the version in configuration files, e.g. `v5_1`."""
        return self.name.lower()

    @property
    def age(self) -> tuple[int, int]:
        """Major and minor version as a sort key."""
        return (-1, 0) if self is HwVersion.UNKNOWN else (self & 0xFFFF, self >> 16)

    def __lt__(self, other: int) -> bool:
        if isinstance(other, HwVersion):
            return self.age < other.age
        return int(self) < other

    def __le__(self, other: int) -> bool:
        return self == other or self < other

    def __gt__(self, other: int) -> bool:
        return not self <= other

    def __ge__(self, other: int) -> bool:
        return not self < other


_HW_BY_WORD = {v.word: v for v in HwVersion if v not in (HwVersion.NA, HwVersion.UNKNOWN)}


class BackendConfigOption(CEnum, prefix="QNN_BACKEND_CONFIG_OPTION_"):
    """`QnnBackend_ConfigOption_t`: config options for a new backend."""

    CUSTOM = 0
    ERROR_REPORTING = 1
    PLATFORM = 2
    UNDEFINED = UNDEFINED


class BackendPropertyOption(CEnum, prefix="QNN_BACKEND_PROPERTY_OPTION_"):
    """`QnnBackend_PropertyOption_t`: properties of a backend."""

    CUSTOM = 0
    UNDEFINED = UNDEFINED


class BackendOption(CEnum, prefix="QNN_LPAI_BACKEND_", ends={"UNDEFINED": "CUSTOM_CFG_UNDEFINED"}):
    """LPAI's custom options of `QnnBackend_create`."""

    CUSTOM_CFG_HW_INFO = 0
    UNDEFINED = UNDEFINED


class BackendProperty(CEnum, prefix="QNN_LPAI_BACKEND_", ends={"UNDEFINED": "GET_PROP_UNDEFINED"}):
    """LPAI's custom options of `QnnBackend_getProperty`."""

    GET_PROP_ALIGNMENT_REQ = 0
    GET_PROP_REQUIRE_PERSISTENT_BINARY = 1
    GET_PROP_ENPU_CORE_NUM = 200
    GET_PROP_ENPU_CORE_INFO = 300
    UNDEFINED = UNDEFINED


# The header spells some context options with the word OPTION, others without.
_WITH_OPTION = {
    name: f"OPTION_{name}"
    for name in ("CUSTOM", "PRIORITY", "ERROR_REPORTING", "OEM_STRING", "DEFER_GRAPH_INIT")
}


class ContextOption(CEnum, prefix="QNN_CONTEXT_CONFIG_", ends=_WITH_OPTION):
    """`QnnContext_ConfigOption_t`: config options for a new context."""

    CUSTOM = 0
    PRIORITY = 1
    ERROR_REPORTING = 2
    OEM_STRING = 3
    ASYNC_EXECUTION_QUEUE_DEPTH = 4
    ENABLE_GRAPHS = 5
    MEMORY_LIMIT_HINT = 6
    PERSISTENT_BINARY = 7
    BINARY_COMPATIBILITY = 8
    DEFER_GRAPH_INIT = 9
    UNDEFINED = UNDEFINED


class BinaryCompatibility(CEnum, prefix="QNN_CONTEXT_BINARY_COMPATIBILITY_"):
    """How strictly a context binary is checked against the device."""

    PERMISSIVE = 0
    STRICT = 1


class ContextCustomOption(CEnum, prefix="QNN_LPAI_CONTEXT_SET_CFG_"):
    """LPAI's custom options of a context."""

    MODEL_BUFFER_MEM_TYPE = 1
    ENABLE_ISLAND = 11
    UNDEFINED = UNDEFINED


class GraphConfigOption(CEnum, prefix="QNN_GRAPH_CONFIG_OPTION_"):
    """`QnnGraph_ConfigOption_t`: config options for a graph."""

    CUSTOM = 0
    PRIORITY = 3
    PROFILE_HANDLE = 4
    SET_PROFILING_STATE = 5
    SET_PROFILING_NUM_EXECUTIONS = 6
    UNDEFINED = UNDEFINED


class GraphPropertyOption(CEnum, prefix="QNN_GRAPH_PROPERTY_OPTION_"):
    """`QnnGraph_PropertyOption_t`: properties of a graph."""

    CUSTOM = 0
    UNDEFINED = UNDEFINED


class GraphOption(CEnum, prefix="QNN_LPAI_GRAPH_", ends={"UNDEFINED": "SET_CFG_UNDEFINED"}):
    """LPAI's custom options of `QnnGraph_setConfig`."""

    SET_CFG_SCRATCH_MEM = 1
    SET_CFG_PERSISTENT_MEM = 101
    SET_CFG_PERF_CFG = 201
    SET_CFG_CORE_AFFINITY = 301
    SET_CFG_PREPARE = 10001
    UNDEFINED = UNDEFINED


class GraphProperty(CEnum, prefix="QNN_LPAI_GRAPH_", ends={"UNDEFINED": "GET_PROP_UNDEFINED"}):
    """LPAI's custom options of `QnnGraph_getProperty`."""

    GET_PROP_SCRATCH_MEM_SIZE = 1
    GET_PROP_PERSISTENT_MEM_SIZE = 101
    UNDEFINED = UNDEFINED


class MemType(CEnum, prefix="QNN_LPAI_MEM_TYPE_"):
    """`QnnLpaiMem_MemType_t`: the heap that a buffer comes from."""

    DDR = 1
    LLC = 2
    TCM = 3
    PSRAM = 4
    UNDEFINED = UNDEFINED


class ClientPerfType(CEnum, prefix="QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_"):
    """The client type: real-time clients need a guaranteed frame rate, others do not."""

    REAL_TIME = 1
    NON_REAL_TIME = 2
    UNDEFINED = UNDEFINED


class CoreAffinity(CEnum, prefix="QNN_LPAI_GRAPH_CORE_AFFINITY_"):
    """How strictly a client requires its chosen core."""

    SOFT = 1
    HARD = 2
    UNDEFINED = UNDEFINED


class Priority(CEnum, prefix="QNN_PRIORITY_"):
    """`Qnn_Priority_t`; a backend can silently treat the two highest priorities as normal."""

    LOW = 0
    NORMAL = 100
    DEFAULT = 100
    NORMAL_HIGH = 150
    HIGH = 200
    UNDEFINED = UNDEFINED


class TensorMemType(CEnum, prefix="QNN_TENSORMEMTYPE_"):
    """`Qnn_TensorMemType_t`: the kind of memory that holds a tensor's bytes."""

    RAW = 0
    MEMHANDLE = 1
    RETRIEVE_RAW = 2
    UNDEFINED = UNDEFINED


class TensorType(CEnum, prefix="QNN_TENSOR_TYPE_"):
    """`Qnn_TensorType_t`: an input is `APP_WRITE`, an output is `APP_READ`."""

    APP_WRITE = 0
    APP_READ = 1
    APP_READWRITE = 2
    NATIVE = 3
    STATIC = 4
    NULL = 5
    UPDATEABLE_STATIC = 6
    UPDATEABLE_NATIVE = 7
    UPDATEABLE_APP_WRITE = 8
    UPDATEABLE_APP_READ = 9
    UPDATEABLE_APP_READWRITE = 10
    OPTIONAL_APP_WRITE = 11
    OPTIONAL_APP_READ = 12
    OPTIONAL_APP_READWRITE = 13
    UNDEFINED = UNDEFINED


class MemRegisterType(CEnum, prefix="QNN_MEM_TYPE_"):
    """`Qnn_MemType_t`: the kind of memory passed to `QnnMem_register`."""

    ION = 1
    CUSTOM = 2
    DMA_BUF = 3
    UNDEFINED = UNDEFINED


class HtpMemType(CEnum, prefix="QNN_HTP_MEM_"):
    """`QnnHtpMem_Type_t`: the purpose of a custom descriptor of the HTP backend."""

    QURT = 0
    SHARED_BUFFER = 1
    WEIGHTS_BUFFER = 2
    SHARED_SPILLFILL_BUFFER = 3
    SHARED_VTCMBACKUP_BUFFER = 4
    UNDEFINED = UNDEFINED


class BinaryInfoVersion(CEnum, prefix="QNN_SYSTEM_CONTEXT_BINARY_INFO_"):
    """`QnnSystemContext_BinaryInfoVersion_t`: the struct that describes a context binary."""

    VERSION_1 = 1
    VERSION_2 = 2
    VERSION_3 = 3
    UNDEFINED = UNDEFINED


class GraphInfoVersion(CEnum, prefix="QNN_SYSTEM_CONTEXT_GRAPH_INFO_"):
    """`QnnSystemContext_GraphInfoVersion_t`: the struct that describes a graph of a binary."""

    VERSION_1 = 1
    VERSION_2 = 2
    VERSION_3 = 3
    UNDEFINED = UNDEFINED


class LogLevel(CEnum, prefix="QNN_LOG_LEVEL_"):
    """`QnnLog_Level_t`: severity of a log message."""

    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5


class DataType(CEnum, prefix="QNN_DATATYPE_"):
    """`Qnn_DataType_t`: the last two hexadecimal digits, read as a decimal, are the bit width."""

    INT_8 = 0x0008
    INT_16 = 0x0016
    INT_32 = 0x0032
    INT_64 = 0x0064
    UINT_8 = 0x0108
    UINT_16 = 0x0116
    UINT_32 = 0x0132
    UINT_64 = 0x0164
    FLOAT_16 = 0x0216
    FLOAT_32 = 0x0232
    FLOAT_64 = 0x0264
    SFIXED_POINT_4 = 0x0304
    SFIXED_POINT_8 = 0x0308
    SFIXED_POINT_16 = 0x0316
    SFIXED_POINT_32 = 0x0332
    UFIXED_POINT_4 = 0x0404
    UFIXED_POINT_8 = 0x0408
    UFIXED_POINT_16 = 0x0416
    UFIXED_POINT_32 = 0x0432
    BOOL_8 = 0x0508
    STRING = 0x0608
    UNDEFINED = UNDEFINED

    @property
    def bits(self) -> int:
        """Width of one element in bits; 0 for a type without a width."""
        if self in (DataType.STRING, DataType.UNDEFINED):
            return 0
        return int(f"{self & 0xFF:x}")

    @property
    def is_float(self) -> bool:
        """True if elements are floating-point numbers."""
        return self.name.startswith("FLOAT")

    @property
    def is_quantized(self) -> bool:
        """True if elements represent real numbers by a scale and an offset."""
        return "FIXED" in self.name

    @property
    def numpy_name(self) -> str:
        """The NumPy type with the same element bytes, e.g. `int8` for `SFIXED_POINT_8`."""
        name = _NUMPY.get(self)
        if name is None:
            raise UsageError(f"{self.c_name} has no numpy type")
        return name

    def nbytes(self, elements: int) -> int:
        """Return the size of elements in bytes; elements smaller than a byte are packed."""
        return -(-elements * self.bits // 8)

    @classmethod
    def from_numpy(cls, name: str, quantized: bool = False) -> DataType:
        """Return the type for a NumPy type name; `quantized` selects the fixed-point type."""
        types = _FIXED_BY_NUMPY if quantized else _PLAIN_BY_NUMPY
        data_type = types.get(name)
        if data_type is None:
            kind = "quantized tensor" if quantized else "tensor"
            raise UsageError(f"a {kind} of '{name[:40]}' has no QNN data type")
        return data_type


def _numpy_of(data: DataType) -> str | None:
    family = {"INT": "int", "UINT": "uint", "FLOAT": "float", "SFIXED": "int", "UFIXED": "uint"}
    if data is DataType.BOOL_8:
        return "bool"
    prefix = family.get(data.name.split("_")[0])
    return None if prefix is None or data.bits < 8 else f"{prefix}{data.bits}"


_NUMPY = {data: name for data in DataType if (name := _numpy_of(data)) is not None}
_PLAIN_BY_NUMPY = {name: data for data, name in _NUMPY.items() if not data.is_quantized}
_FIXED_BY_NUMPY = {name: data for data, name in _NUMPY.items() if data.is_quantized}
