"""What `QnnContext_createFromBinary` accepts: every option of a context checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from qnnmem.contract.rules import finding
from qnnmem.lpai.compiled import CompiledContext
from qnnmem.lpai.runtime.backend import Backend, shown, until_null
from qnnmem.lpai.runtime.descriptors import CUSTOM, Config
from qnnmem.qnn.enums import (
    BinaryCompatibility,
    ContextCustomOption,
    ContextOption,
    MemType,
    Priority,
)

CREATE = "QnnContext_createFromBinary"
INVALID_CONFIG = 5010


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """What the configs of a context say."""

    priority: Priority = Priority.NORMAL
    queue_depth: int = 0
    enable_graphs: tuple[str, ...] | None = None
    persistent_binary: bool = False
    strict: bool = False
    model_mem_type: MemType | None = None  # None: the client does not say
    island: tuple[str | None, ...] = ()  # None: every graph

    def enables(self, graph: str) -> bool:
        """Whether ENABLE_GRAPHS leaves a graph in."""
        return self.enable_graphs is None or graph in self.enable_graphs


def read_configs(backend: Backend, configs: Iterable[Config | None] | None) -> ContextConfig:
    """The meaning of a NULL-terminated list of context configs."""
    return _Reader(backend).read(configs)


class _Reader:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._found: dict[str, Any] = {}
        self._island: list[str | None] = []

    def read(self, configs: Iterable[Config | None] | None) -> ContextConfig:
        for config in until_null(configs, Config):
            if config.option == CUSTOM and isinstance(config.value, Config):
                self._custom(config.value)
            else:
                self._plain(config)
        if None in self._island and len(set(self._island)) > 1:
            sentence = "island is asked for the whole context and for single graphs"
            self._fail(INVALID_CONFIG, "R15", sentence)
        if self._island and not self._backend.profile.island_allowed:
            mode = self._backend.profile.mode.value
            self._fail(1000, "R14", f"{mode} mode has no island")
        return ContextConfig(**self._found, island=tuple(self._island))

    def _plain(self, config: Config) -> None:
        option, value = config.option, config.value
        if option == ContextOption.PRIORITY:
            self._found["priority"] = Priority(self._one_of(value, Priority, "priority"))
        elif option == ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH:
            self._found["queue_depth"] = self._number(value, "queue depth")
        elif option == ContextOption.ENABLE_GRAPHS:
            self._found["enable_graphs"] = tuple(until_null(value, str))
        elif option == ContextOption.PERSISTENT_BINARY:
            self._found["persistent_binary"] = bool(self._number(value, "PERSISTENT_BINARY"))
        elif option == ContextOption.BINARY_COMPATIBILITY:
            chosen = self._one_of(value, BinaryCompatibility, "binary compatibility")
            self._found["strict"] = chosen == BinaryCompatibility.STRICT
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
            self._found["model_mem_type"] = kind
        elif config.option == ContextCustomOption.ENABLE_ISLAND:
            if not isinstance(config.value, str | None):
                self._fail(INVALID_CONFIG, "R14", "island is for a graph by name, or NULL for all")
            self._island.append(config.value)
        else:
            self._fail(5000, "R14", f"LPAI context option {config.option} is unknown")

    def _one_of(self, value: Any, kind: type, what: str) -> int:
        known = {int(item) for item in kind if item.name != "UNDEFINED"}  # type: ignore[attr-defined]  # an IntEnum
        if not isinstance(value, int) or value not in known:
            self._fail(INVALID_CONFIG, "R14", f"{shown(value)} is not a {what}")
        return int(value)

    def _number(self, value: Any, what: str) -> int:
        if not isinstance(value, int) or not 0 <= value <= 1 << 20:
            self._fail(INVALID_CONFIG, "R14", f"{what} cannot be {shown(value)}")
        return value

    def _fail(self, code: int, rule: str, sentence: str) -> NoReturn:
        self._backend.fail(code, finding(rule, sentence, call=CREATE))


def check_names(backend: Backend, compiled: CompiledContext, config: ContextConfig) -> None:
    """Every graph that a config names is in the binary."""
    names = {graph.name for graph in compiled.graphs}
    islands = [name for name in config.island if name is not None]
    for name in (*(config.enable_graphs or ()), *islands):
        if name not in names:
            sentence = f"a config names graph {name!r:.90}, which the binary does not have"
            backend.fail(INVALID_CONFIG, finding("R13", sentence, call=CREATE))
