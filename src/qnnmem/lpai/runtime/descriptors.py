"""The structs of the LPAI headers as values: options, configs, properties, memory."""

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
    """An option and its value, as in `QnnGraph_Config_t`; LPAI's own go inside `custom(…)`."""

    option: int
    value: Any = None


@dataclass(slots=True)
class Property:
    """A question, as in `QnnGraph_Property_t`; the call fills in the value."""

    option: int
    value: Any = None


def custom(option: int, value: Any = None) -> Config:
    """Return a config whose `customConfig` is an LPAI option."""
    return Config(CUSTOM, Config(option, value))


def custom_property(option: int) -> Property:
    """Return a property whose `customProperty` is LPAI's; its answer is `.value.value`."""
    return Property(CUSTOM, Property(option))


def ask(get_property: Callable[[list[Property | None]], None], option: int) -> Any:
    """Query one LPAI property through getProperty of a backend or graph."""
    question = custom_property(option)
    get_property([question, None])
    return question.value.value


@dataclass(frozen=True, slots=True)
class AlignmentReq:
    """`QnnLpaiBackend_BufferAlignmentReq_t`."""

    start_addr_alignment: int
    size_alignment: int


@dataclass(frozen=True, slots=True)
class HwInfo:
    """`QnnLpaiBackend_CustomConfigHwInfo_t`."""

    target: Target = Target.ADSP
    hw_version: HwVersion = HwVersion.V5


@dataclass(frozen=True, slots=True)
class Mem:
    """`QnnLpaiGraph_Mem_t`: memory handed to a graph; `addr` has the buffer protocol or is None."""

    mem_type: int = MemType.UNDEFINED
    size: int = 0
    addr: Any = None


@dataclass(frozen=True, slots=True)
class PerfCfg:
    """`QnnLpaiGraph_PerfCfg_t`: how often an inference must complete and how fast."""

    fps: int = 1
    ftrt_ratio: int = 10  # tenths: 10 is real time
    client_type: int = ClientPerfType.REAL_TIME


@dataclass(frozen=True, slots=True)
class CoreAffinityCfg:
    """`QnnLpaiGraph_CoreAffinity_t`: bit i of the selection is core i, 0 is any core."""

    affinity: int = CoreAffinity.SOFT
    core_selection: int = 0


@dataclass(frozen=True, slots=True)
class MemInfoCustom:
    """`QnnLpaiMem_MemInfoCustom_t`: a place inside a shared buffer."""

    fd: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class MemDescriptor:
    """`Qnn_MemDescriptor_t`: memory to be registered for one tensor."""

    dimensions: tuple[int, ...]
    data_type: int
    mem_type: int = MemRegisterType.CUSTOM
    custom_info: MemInfoCustom = MemInfoCustom()
