"""Python counterparts of the structs in the LPAI headers: options, configs, properties, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qnnmem.qnn.enums import (
    ClientPerfType,
    CoreAffinity,
    HwVersion,
    MemRegisterType,
    MemType,
    Target,
)

# Option number of every `customConfig` and `customProperty`.
CUSTOM = 0


@dataclass(frozen=True, slots=True)
class Config:
    """An option and its value, as in `QnnGraph_Config_t`; use `custom(…)` for LPAI's options."""

    option: int
    value: Any = None


@dataclass(slots=True)
class Property:
    """A property to query, as in `QnnGraph_Property_t`; the call fills in the value."""

    option: int
    value: Any = None


def custom(option: int, value: Any = None) -> Config:
    """Return a config whose `customConfig` is an LPAI option."""
    return Config(CUSTOM, Config(option, value))


def custom_property(option: int) -> Property:
    """Return a property that wraps an LPAI property; the answer is in `.value.value`."""
    return Property(CUSTOM, Property(option))


def ask(get_property: Callable[[list[Property | None]], None], option: int) -> Any:
    """Query an LPAI property with getProperty of a backend or graph, and return its value."""
    query = custom_property(option)
    get_property([query, None])
    return query.value.value


@dataclass(frozen=True, slots=True)
class AlignmentReq:
    """Alignment of buffers (`QnnLpaiBackend_BufferAlignmentReq_t`)."""

    start_addr_alignment: int
    size_alignment: int


@dataclass(frozen=True, slots=True)
class HwInfo:
    """Target and hardware version (`QnnLpaiBackend_CustomConfigHwInfo_t`)."""

    target: Target = Target.ADSP
    hw_version: HwVersion = HwVersion.V5


@dataclass(frozen=True, slots=True)
class Mem:
    """Memory for a graph (`QnnLpaiGraph_Mem_t`); `addr` has the buffer protocol or is None."""

    mem_type: int = MemType.UNDEFINED
    size: int = 0
    addr: Any = None


@dataclass(frozen=True, slots=True)
class PerfCfg:
    """Required rate and speed of inferences (`QnnLpaiGraph_PerfCfg_t`)."""

    fps: int = 1
    ftrt_ratio: int = 10  # tenths: 10 is real time
    client_type: int = ClientPerfType.REAL_TIME


@dataclass(frozen=True, slots=True)
class CoreAffinityCfg:
    """Cores for a graph (`QnnLpaiGraph_CoreAffinity_t`): bit i selects core i, 0 any core."""

    affinity: int = CoreAffinity.SOFT
    core_selection: int = 0


@dataclass(frozen=True, slots=True)
class MemInfoCustom:
    """Position inside a shared buffer (`QnnLpaiMem_MemInfoCustom_t`)."""

    fd: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class MemDescriptor:
    """Memory to register for a tensor (`Qnn_MemDescriptor_t`)."""

    dimensions: tuple[int, ...]
    data_type: int
    mem_type: int = MemRegisterType.CUSTOM
    custom_info: MemInfoCustom = MemInfoCustom()
