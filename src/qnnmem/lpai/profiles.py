"""Profiles of the simulated platform: mode, hardware version, alignment and permissions.

`choices` lists how the runtime behaves where public material about LPAI is silent.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from qnnmem.errors import UsageError
from qnnmem.qnn.enums import HwVersion, MemRegisterType, MemType, Target
from qnnmem.text import quote

if TYPE_CHECKING:
    from qnnmem.results.lpai import Choice

# Start and size alignment by name. The values that devices report are not public; see
# `choices.toml`.
ALIGNMENTS = {"default": (64, 64), "conservative": (256, 64), "v4-era": (16, 16)}

# Qualcomm's sample allocator rejects alignments above 256; an alignment above a page has no effect
# in the simulation.
_MAX_ALIGNMENT = 4096
_MAX_CORES = 32  # core selection is a mask of 32 bits


_Kind = TypeVar("_Kind", MemType, MemRegisterType)


class Mode(Enum):
    """The processor that calls QNN; the values are those of `target_env`."""

    X86 = "x86"
    ARM = "arm"
    ADSP = "adsp"


@dataclass(frozen=True, slots=True)
class Profile:
    """A simulated platform: what it requires of buffers and clients, and what it permits."""

    mode: Mode
    hw_version: HwVersion
    alignment: str  # name of the following pair, or "custom"
    start_alignment: int
    size_alignment: int
    lenient_scratch: bool  # misaligned scratch or persistent memory is a finding, not an error
    mem_types: tuple[MemType, ...]  # for scratch, persistent and the model buffer
    register_types: tuple[MemRegisterType, ...]  # accepted by QnnMem_register
    require_persistent_binary: bool
    client_brings_pools: bool  # False: the runtime allocates pools that the client does not pass
    island_allowed: bool
    device_create: bool = False
    core_count: int = 2
    inference_us: int | None = None  # duration of an inference; None: finalize does not check it
    async_blocks: bool = True  # a full queue makes execute_async wait
    shared_scratch: bool = True  # graphs may share scratch if they execute one after the other

    @property
    def tcm_allowed(self) -> bool:
        """True if `mem_type: tcm` is possible, which needs aDSP direct mode and v6 or later."""
        return self.mode is Mode.ADSP and self.hw_version >= HwVersion.V6

    @property
    def target(self) -> Target:
        """QNN's number for the mode."""
        return Target[self.mode.name]


def profile(
    mode: Mode | str = "x86",
    hw_version: HwVersion | str = "v6",
    alignment: str = "default",
    lenient_scratch: bool = False,
    **overrides: Any,
) -> Profile:
    """Return the profile of a mode; `overrides` replace fields of `Profile`."""
    if not isinstance(alignment, str) or alignment not in ALIGNMENTS:
        known = ", ".join(ALIGNMENTS)
        raise UsageError(f"{quote(alignment)} is not an alignment profile; choose one of {known}")
    start, size = ALIGNMENTS[alignment]
    base = replace(
        _of_mode(_mode(mode)),
        hw_version=_hw_version(hw_version),
        alignment=alignment,
        start_alignment=start,
        size_alignment=size,
        lenient_scratch=_flag("lenient_scratch", lenient_scratch),
    )
    return _override(base, overrides)


def _of_mode(mode: Mode) -> Profile:
    heaps = (MemType.DDR, MemType.LLC, MemType.TCM, MemType.PSRAM)
    return Profile(
        mode=mode,
        hw_version=HwVersion.V6,
        alignment="default",
        start_alignment=64,
        size_alignment=64,
        lenient_scratch=False,
        mem_types=heaps if mode is Mode.ADSP else (MemType.DDR,),
        register_types=tuple(
            kind
            for kind in (MemRegisterType.ION, MemRegisterType.CUSTOM, MemRegisterType.DMA_BUF)
            if mode is Mode.ARM or kind is MemRegisterType.CUSTOM
        ),
        require_persistent_binary=mode is Mode.ADSP,
        client_brings_pools=True,
        island_allowed=mode is Mode.ARM,
    )


def _override(base: Profile, overrides: dict[str, Any]) -> Profile:
    unknown = [name for name in overrides if name not in _CHECKS]
    if unknown:
        known = ", ".join(sorted(_CHECKS))
        raise UsageError(f"'{unknown[0][:40]}' is not a field of a profile; the fields are {known}")
    changes = {name: _CHECKS[name](name, value) for name, value in overrides.items()}
    if changes.keys() & {"start_alignment", "size_alignment"}:
        changes["alignment"] = "custom"
    return replace(base, **changes)


def _mode(value: Mode | str) -> Mode:
    try:
        return Mode(value)
    except ValueError:
        raise UsageError(f"{quote(value)} is not an LPAI mode; choose x86, arm or adsp") from None


def _hw_version(value: HwVersion | str) -> HwVersion:
    version = value if isinstance(value, HwVersion) else HwVersion.parse(str(value))
    if version < HwVersion.V4:
        raise UsageError(f"LPAI {version.word} is not supported by QNN; use v4, v5, v5_1, v6 or v7")
    return version


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {value!r:.40}")
    return value


def power_of_two(name: str, value: Any) -> int:
    """Return a value that is a valid alignment; raise UsageError for any other value.

    The error message calls the value `name`.
    """
    if not _is_whole(value) or not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise UsageError(f"{name} must be a power of two up to {_MAX_ALIGNMENT}, not {value!r:.40}")
    return int(value)


def _cores(name: str, value: Any) -> int:
    if not _is_whole(value) or not 1 <= value <= _MAX_CORES:
        raise UsageError(f"{name} must be a number from 1 to {_MAX_CORES}, not {value!r:.40}")
    return int(value)


def _microseconds(name: str, value: Any) -> int | None:
    if value is not None and not (_is_whole(value) and value > 0):
        raise UsageError(f"{name} must be a number of microseconds or None, not {value!r:.40}")
    return None if value is None else int(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _members(name: str, value: Any, kind: type[_Kind]) -> tuple[_Kind, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"{name} must be a list of types, not {value!r:.40}")
    return tuple(_member(name, kind, item) for item in value)


def _member(name: str, kind: type[_Kind], item: Any) -> _Kind:
    word = item.upper() if isinstance(item, str) else getattr(item, "name", "")
    if word == "UNDEFINED" or word not in kind.__members__:
        known = ", ".join(member for member in kind.__members__ if member != "UNDEFINED")
        raise UsageError(f"{name} contains {item!r:.40}; choose from {known}")
    return kind[word]


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "start_alignment": power_of_two,
    "size_alignment": power_of_two,
    "mem_types": partial(_members, kind=MemType),
    "register_types": partial(_members, kind=MemRegisterType),
    "require_persistent_binary": _flag,
    "client_brings_pools": _flag,
    "island_allowed": _flag,
    "device_create": _flag,
    "core_count": _cores,
    "inference_us": _microseconds,
    "async_blocks": _flag,
    "shared_scratch": _flag,
}


@cache
def choices() -> Mapping[str, Choice]:
    """Return all choices by id, in the order of `choices.toml`."""
    # Imported here because profiles do not need it, and msgspec takes longer to import than the
    # rest of this module.
    from qnnmem.results.lpai import Choice

    table = tomllib.loads(files(__package__).joinpath("choices.toml").read_text("utf-8"))
    return MappingProxyType({key: Choice(id=key, **row) for key, row in table.items()})
