"""Checks the configs for `QnnContext_createFromBinary` and `QnnGraph_setConfig`.

All options are checked before any of them takes effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from qnnmem.contract.regions import ClientBuffer
from qnnmem.contract.rules import finding
from qnnmem.errors import UsageError
from qnnmem.lpai.compiled import CompiledContext
from qnnmem.lpai.runtime.backend import Backend, shown, until_null
from qnnmem.lpai.runtime.descriptors import CUSTOM, Config, CoreAffinityCfg, Mem, PerfCfg
from qnnmem.qnn.enums import (
    BinaryCompatibility,
    CEnum,
    ClientPerfType,
    ContextCustomOption,
    ContextOption,
    CoreAffinity,
    GraphConfigOption,
    GraphOption,
    MemType,
    Priority,
)

CREATE = "QnnContext_createFromBinary"
INVALID_CONFIG = 5010

_CALL = "QnnGraph_setConfig"
_INVALID = 6000
_UINT32 = (1 << 32) - 1
_WRITE = "pass writable memory"


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """The settings in the configs of a context."""

    priority: Priority = Priority.NORMAL
    queue_depth: int = 0
    enable_graphs: tuple[str, ...] | None = None
    persistent_binary: bool = False
    strict: bool = False
    model_mem_type: MemType | None = None  # None: not set by the client
    island: tuple[str | None, ...] = ()  # graphs in island mode; None means every graph

    def enables(self, graph: str) -> bool:
        """Return whether ENABLE_GRAPHS includes a graph."""
        return self.enable_graphs is None or graph in self.enable_graphs


def read_configs(backend: Backend, configs: Iterable[Config | None] | None) -> ContextConfig:
    """Return the settings in a NULL-terminated list of context configs."""
    return _Reader(backend).read(configs)


class _Reader:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._settings: dict[str, Any] = {}
        self._island: list[str | None] = []

    def read(self, configs: Iterable[Config | None] | None) -> ContextConfig:
        for config in until_null(configs, Config):
            if config.option == CUSTOM and isinstance(config.value, Config):
                self._custom(config.value)
            else:
                self._plain(config)
        if None in self._island and len(set(self._island)) > 1:
            sentence = "island is set for the whole context and for single graphs"
            self._fail(INVALID_CONFIG, "R15", sentence)
        if self._island and not self._backend.profile.island_allowed:
            mode = self._backend.profile.mode.value
            self._fail(1000, "R14", f"{mode} mode has no island")
        return ContextConfig(**self._settings, island=tuple(self._island))

    def _plain(self, config: Config) -> None:
        option, value = config.option, config.value
        if option == ContextOption.PRIORITY:
            self._settings["priority"] = Priority(self._one_of(value, Priority, "priority"))
        elif option == ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH:
            self._settings["queue_depth"] = self._number(value, "queue depth")
        elif option == ContextOption.ENABLE_GRAPHS:
            self._settings["enable_graphs"] = tuple(until_null(value, str))
        elif option == ContextOption.PERSISTENT_BINARY:
            self._settings["persistent_binary"] = bool(self._number(value, "PERSISTENT_BINARY"))
        elif option == ContextOption.BINARY_COMPATIBILITY:
            chosen = self._one_of(value, BinaryCompatibility, "binary compatibility")
            self._settings["strict"] = chosen == BinaryCompatibility.STRICT
        elif option in (ContextOption.MEMORY_LIMIT_HINT, ContextOption.DEFER_GRAPH_INIT):
            self._number(value, ContextOption(option).name)
        elif option in (ContextOption.ERROR_REPORTING, ContextOption.OEM_STRING):
            self._fail(1000, "R14", f"{ContextOption(option).name} is not supported by LPAI")
        else:
            self._fail(5000, "R14", f"context config option {option} is unknown to this backend")

    def _custom(self, config: Config) -> None:
        if config.option == ContextCustomOption.MODEL_BUFFER_MEM_TYPE:
            kind = MemType(self._one_of(config.value, MemType, "model buffer memory type"))
            if kind not in self._backend.profile.mem_types:
                mode = self._backend.profile.mode.value
                self._fail(1000, "R14", f"{mode} mode has no {kind.name} for the model buffer")
            self._settings["model_mem_type"] = kind
        elif config.option == ContextCustomOption.ENABLE_ISLAND:
            if not isinstance(config.value, str | None):
                sentence = "island takes a graph name, or NULL for all graphs"
                self._fail(INVALID_CONFIG, "R14", sentence)
            self._island.append(config.value)
        else:
            self._fail(5000, "R14", f"LPAI context option {config.option} is unknown")

    def _one_of(self, value: Any, kind: type[CEnum], what: str) -> int:
        if not _is_member(value, kind):
            self._fail(INVALID_CONFIG, "R14", f"{shown(value)} is not a {what}")
        return int(value)

    def _number(self, value: Any, what: str) -> int:
        if not isinstance(value, int) or not 0 <= value <= 1 << 20:
            self._fail(INVALID_CONFIG, "R14", f"{what} cannot be {shown(value)}")
        return value

    def _fail(self, code: int, rule: str, sentence: str) -> NoReturn:
        self._backend.refuse(code, rule, sentence, CREATE)


def check_names(backend: Backend, compiled: CompiledContext, config: ContextConfig) -> None:
    """Report R13 if a config names a graph that the binary does not have."""
    names = {graph.name for graph in compiled.graphs}
    islands = [name for name in config.island if name is not None]
    for name in (*(config.enable_graphs or ()), *islands):
        if name not in names:
            sentence = f"a config names graph {name!r:.90}, which the binary does not have"
            backend.refuse(INVALID_CONFIG, "R13", sentence, CREATE)


@dataclass(frozen=True, slots=True)
class GraphState:
    """The state of a graph, as far as the validity of configs depends on it."""

    scratch_bytes: int
    persistent_bytes: int
    is_finalized: bool
    is_busy: bool


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """The settings that a call changes, after checks; None means unchanged."""

    scratch: ClientBuffer | None = None
    persistent: ClientBuffer | None = None
    perf: PerfCfg | None = None
    affinity: CoreAffinityCfg | None = None
    priority: Priority | None = None


def check_configs(
    backend: Backend, state: GraphState, configs: Iterable[Config | None]
) -> GraphChanges:
    """Return the settings in a NULL-terminated list; if an option repeats, the last one counts."""
    last = {}
    for config in until_null(configs, Config):
        is_custom = config.option == CUSTOM and isinstance(config.value, Config)
        key = (config.option, config.value.option if is_custom else None)
        last[key] = config.value if is_custom else config
    check = _Check(backend, state)
    changes: dict[str, object] = {}
    for (option, inner), config in last.items():
        name, value = check.custom(config) if inner is not None else check.plain(option, config)
        changes[name] = value
    return GraphChanges(**changes)  # type: ignore[arg-type]  # each name comes with a value of its type


def check_frame_rate(backend: Backend, perf: PerfCfg) -> None:
    """Report P1 if a real-time client requests a frame rate that the platform cannot reach."""
    takes = backend.profile.inference_us
    if takes is None or perf.client_type != ClientPerfType.REAL_TIME or not perf.fps:
        return
    budget = 1_000_000 // perf.fps
    if takes > budget:
        sentence = f"an inference takes {takes:,} us, but {perf.fps} fps leave only {budget:,} us"
        cure = "use fewer frames per second, or set the client type to non-real-time"
        call = "QnnGraph_finalize"
        backend.refuse(6022, "P1", sentence, call, need=takes, given=budget, cure=cure)


class _Check:
    def __init__(self, backend: Backend, state: GraphState) -> None:
        self._backend, self._state = backend, state

    def plain(self, option: int, config: Config) -> tuple[str, object]:
        if option == GraphConfigOption.PRIORITY:
            if not _is_member(config.value, Priority):
                self._fail(_INVALID, "R14", f"{shown(config.value)} is not a priority")
            return "priority", Priority(config.value)
        is_known = _is_member(option, GraphConfigOption) and option != CUSTOM
        self._unknown(option, 1000 if is_known else _INVALID)

    def custom(self, config: Config) -> tuple[str, object]:
        option, value = config.option, config.value
        if option == GraphOption.SET_CFG_SCRATCH_MEM:
            if self._state.is_busy:
                sentence = "scratch cannot be replaced during an execution"
                self._fail(1005, "R7", sentence, "scratch")
            return "scratch", self._memory(value, "scratch", self._state.scratch_bytes)
        if option in (GraphOption.SET_CFG_PERSISTENT_MEM, GraphOption.SET_CFG_PREPARE):
            what = "prepare options" if option == GraphOption.SET_CFG_PREPARE else "persistent"
            if self._state.is_finalized:
                self._fail(6024, "R6", f"{what} cannot be set after finalize", what)
            if option == GraphOption.SET_CFG_PREPARE:
                sentence = "prepare options are for the compiler and have no effect on a binary"
                self._fail(1000, "R14", sentence)
            return what, self._memory(value, what, self._state.persistent_bytes)
        if option == GraphOption.SET_CFG_PERF_CFG:
            return "perf", self._perf(value)
        if option == GraphOption.SET_CFG_CORE_AFFINITY:
            return "affinity", self._affinity(value)
        self._unknown(option, _INVALID)

    def _memory(self, mem: object, what: str, need: int) -> ClientBuffer | None:
        if not (isinstance(mem, Mem) and _whole(mem.size) and isinstance(mem.mem_type, int)):
            sentence = f"{what} must be a memory descriptor {{type, size, address}}"
            self._fail(_INVALID, "R14", sentence, what)
        if need == 0 and not mem.size:
            return None  # a model without state: public clients pass a NULL descriptor
        self._memory_type(mem.mem_type, what)
        if mem.addr is None or mem.size == 0:
            sentence = f"{what} needs {need:,} bytes, but is NULL or has size 0"
            rule = "R7" if what == "scratch" else "R4"
            self._fail(_INVALID, rule, sentence, what, need=need, given=mem.size)
        buffer = self._client_buffer(mem.addr, what)
        self._origin(mem.mem_type, buffer, what)
        self._size(mem, buffer, what, need)
        self._alignment(mem, buffer, what)
        return _shortened(buffer, mem.size).watch()

    def _client_buffer(self, memory: object, what: str) -> ClientBuffer:
        try:
            buffer = ClientBuffer(memory)
        except UsageError as exc:
            self._fail(_INVALID, "R4", f"{what} is not usable memory: {exc}", what)
        if buffer.is_freed:
            rule = "R7" if what == "scratch" else "R8"
            sentence = f"{what} was {buffer.loss} before it was passed to QNN"
            self._fail(_INVALID, rule, sentence, what, buffer.address)
        return buffer

    def _memory_type(self, mem_type: int, what: str) -> None:
        if not _is_member(mem_type, MemType):
            sentence = f"the memory type of {what}, {mem_type:#x}, does not exist"
            self._fail(_INVALID, "R14", sentence, what)
        profile = self._backend.profile
        if mem_type not in profile.mem_types:
            name = MemType(mem_type).name
            sentence = f"{what} is in {name}, which does not exist in {profile.mode.value} mode"
            self._fail(1000, "R14", sentence, what)

    def _origin(self, mem_type: int, buffer: ClientBuffer, what: str) -> None:
        """Report T5 if a descriptor names a heap other than that of the buffer."""
        if buffer.mem_type is not None and buffer.mem_type != mem_type:
            declared, actual = MemType(mem_type).name, buffer.mem_type.name
            sentence = (
                f"{what} is declared as {declared}, but its memory came from the {actual} heap"
            )
            self._fail(_INVALID, "T5", sentence, what, buffer.address)

    def _size(self, mem: Mem, buffer: ClientBuffer, what: str, need: int) -> None:
        if mem.size < need:
            sentence = (
                f"{what} needs {need:,} bytes but has {mem.size:,}, {need - mem.size:,} missing"
            )
            self._fail(_INVALID, "R4", sentence, what, buffer.address, need=need, given=mem.size)
        if mem.size > buffer.size or mem.size > _UINT32:
            sentence = (
                f"the descriptor of {what} states {mem.size:,} bytes, but the buffer has "
                f"{buffer.size:,}"
            )
            self._fail(
                _INVALID, "R4", sentence, what, buffer.address, need=mem.size, given=buffer.size
            )
        if buffer.readonly:
            sentence = f"{what} is read-only memory"
            self._fail(_INVALID, "R4", sentence, what, buffer.address, cure=_WRITE)

    def _alignment(self, mem: Mem, buffer: ClientBuffer, what: str) -> None:
        self._backend.check_alignment_query(buffer, what, _CALL)
        profile = self._backend.profile
        off = buffer.address % profile.start_alignment
        if off:
            sentence = (
                f"{what} starts at {buffer.address:#x}, {off} bytes past a multiple of "
                f"{profile.start_alignment}"
            )
            self._misaligned(sentence, what, buffer.address, profile.start_alignment, off)
        off = mem.size % profile.size_alignment
        if off:
            sentence = (
                f"the size of {what}, {mem.size:,} bytes, is {off} past a multiple of "
                f"{profile.size_alignment}"
            )
            self._misaligned(sentence, what, buffer.address, profile.size_alignment, off)

    def _misaligned(self, sentence: str, what: str, address: int, need: int, off: int) -> None:
        found = finding(
            "R3", sentence, call=_CALL, buffer=what, address=address, need=need, given=off
        )
        if self._backend.profile.lenient_scratch:
            self._backend.note(found)
        else:
            self._backend.fail(_INVALID, found)

    def _perf(self, value: object) -> PerfCfg:
        if not isinstance(value, PerfCfg) or not _whole(value.fps, value.ftrt_ratio):
            self._fail(_INVALID, "R14", "the performance config must be {fps, ftrt_ratio, client}")
        if not _is_member(value.client_type, ClientPerfType):
            self._fail(_INVALID, "R14", f"{shown(value.client_type)} is not a client type")
        return value

    def _affinity(self, value: object) -> CoreAffinityCfg:
        if not isinstance(value, CoreAffinityCfg) or not _whole(value.core_selection):
            self._fail(_INVALID, "R14", "the core affinity must be {affinity, core_selection}")
        if not _is_member(value.affinity, CoreAffinity):
            self._fail(_INVALID, "R14", f"{shown(value.affinity)} is not an affinity")
        cores = self._backend.profile.core_count
        mask, all_cores = value.core_selection, (1 << cores) - 1
        if mask not in (0, all_cores, _UINT32) and (mask & (mask - 1) or mask > all_cores):
            sentence = f"core selection {mask:#x} must select none, one or all of the {cores} cores"
            self._fail(_INVALID, "R14", sentence)
        return value

    def _unknown(self, option: int, code: int) -> NoReturn:
        why = "not supported by LPAI" if code == 1000 else "unknown to this backend"
        self._fail(code, "R14", f"graph config option {option} is {why}")

    def _fail(
        self,
        code: int,
        rule: str,
        sentence: str,
        what: str = "",
        address: int | None = None,
        **details: Any,
    ) -> NoReturn:
        self._backend.refuse(code, rule, sentence, _CALL, buffer=what, address=address, **details)


def _whole(*values: object) -> bool:
    return all(type(v) is int and 0 <= v <= _UINT32 for v in values)


def _is_member(value: object, kind: type[CEnum]) -> bool:
    """Return whether a number is one of QNN's values for an enum, other than UNDEFINED."""
    return isinstance(value, int) and value in {m.value for m in kind if m.name != "UNDEFINED"}


def _shortened(buffer: ClientBuffer, size: int) -> ClientBuffer:
    """Shorten a buffer to the size in its descriptor, and return the buffer."""
    buffer.size = size
    buffer.array = buffer.array[:size]
    return buffer
