"""`QnnContext` made from a binary: graphs, shared memory, and what must outlive them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from qnnmem.errors import QnnError, UsageError
from qnnmem.lpai.binary import check_device, unpack
from qnnmem.lpai.compiled import CompiledContext
from qnnmem.lpai.rules import finding
from qnnmem.lpai.runtime.backend import Backend, shown, until_null
from qnnmem.lpai.runtime.client_buffer import Lease
from qnnmem.lpai.runtime.descriptors import CUSTOM, Config, MemDescriptor
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.queue import ExecutionQueue
from qnnmem.lpai.runtime.rehearsal import rehearsed
from qnnmem.lpai.runtime.shared_memory import MemHandle, SharedMemory
from qnnmem.qnn.enums import (
    BinaryCompatibility,
    ContextCustomOption,
    ContextOption,
    MemType,
    Priority,
)

_CREATE = "QnnContext_createFromBinary"
_INVALID_CONFIG = 5010
# Enough to notice that a buffer holds something else now, cheap enough for every execution.
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What the configs of a context say."""

    priority: Priority = Priority.NORMAL
    queue_depth: int = 0
    enable_graphs: tuple[str, ...] | None = None
    persistent_binary: bool = False
    strict: bool = False
    model_mem_type: MemType = MemType.DDR
    island: tuple[str | None, ...] = ()  # None: every graph


class Context:
    """A context; everything handed to it must stay until `free`."""

    def __init__(
        self, backend: Backend, compiled: CompiledContext, settings: ContextSettings
    ) -> None:
        self.backend, self.compiled, self.settings = backend, compiled, settings
        self.constants = compiled.constants
        self.sanitize = True
        self.is_freed = False
        self.shared = SharedMemory(backend)
        self.queue = ExecutionQueue(backend, settings.queue_depth)
        self._graphs: dict[str, Graph] = {}
        self._in_order: dict[str, bool] = {}
        self._binary: Lease | None = None
        self._head_sum = self._whole_sum = 0

    @classmethod
    def create_from_binary(
        cls,
        backend: Backend,
        binary: Any,
        configs: Iterable[Config | None] | None = None,
        device: None = None,
        *,
        sanitize: bool = True,
        trusted: bool = False,
    ) -> Context:
        """`QnnContext_createFromBinary`.

        A program is first tried in a child process, once per process and binary; `trusted` skips
        that. Without persistent binary the bytes are copied and the buffer may go.
        """
        if not isinstance(backend, Backend):
            raise UsageError("a context needs the backend that Backend.create made")
        backend.check_alive(_CREATE)
        settings = _Settings(backend).read(configs)
        lease = Lease(binary)
        if lease.heap is not None and lease.heap.freed:
            sentence = "the buffer of the binary was freed before the context was made"
            found = finding("B1", sentence, call=_CREATE, buffer="binary", address=lease.address)
            backend.fail(5005, found)
        if not settings.persistent_binary:
            if backend.profile.require_persistent_binary:
                sentence = "this device reads the binary in place, PERSISTENT_BINARY must be set"
                backend.fail(_INVALID_CONFIG, finding("R10", sentence, call=_CREATE))
            content = _aligned_copy(lease).data
        else:
            content = lease.array.data
        try:
            compiled = unpack(content)
            check_device(compiled, backend.profile.hw_version.word, strict=settings.strict)
        except QnnError as exc:
            backend.fail(exc.code, exc.finding)
        _check_names(backend, compiled, settings)
        context = cls(backend, compiled, settings)
        context.sanitize = sanitize is not False
        context._in_order = rehearsed(backend, compiled, content, trusted=trusted)
        if settings.persistent_binary:
            context._watch(lease)
        return context

    def graph_retrieve(self, name: str | None) -> Graph:
        """`QnnGraph_retrieve`."""
        self._check_alive("QnnGraph_retrieve")
        if not isinstance(name, str) or not name:
            self._fail(6003, "R12", "the graph name is NULL or empty", "QnnGraph_retrieve")
        compiled = self.compiled.graph(name)
        if compiled is None:
            known = ", ".join(graph.name[:40] for graph in self.compiled.graphs[:8])
            sentence = f"the binary has no graph {name[:80]!r}; it has {known}"
            self._fail(6002, "R12", sentence, "QnnGraph_retrieve")
        if name not in self._graphs:
            self._graphs[name] = Graph(self, compiled, self._in_order.get(name, False))
        return self._graphs[name]

    def is_enabled(self, name: str) -> bool:
        """Whether ENABLE_GRAPHS leaves this graph in."""
        return self.settings.enable_graphs is None or name in self.settings.enable_graphs

    def get_binary(self) -> NoReturn:
        """`QnnContext_getBinary`: not from a context that came from one."""
        self._fail(1005, "R11", "a context from a binary gives no binary", "QnnContext_getBinary")

    def graph_create(self, name: str) -> NoReturn:
        """`QnnGraph_create`: not in a context that came from a binary."""
        sentence = f"graph {str(name)[:80]!r} cannot be added to a context from a binary"
        self._fail(1005, "R11", sentence, "QnnGraph_create")

    def mem_register(self, descriptors: Sequence[MemDescriptor]) -> list[MemHandle]:
        """`QnnMem_register`: all or none."""
        self._check_alive("QnnMem_register")
        return self.shared.register(descriptors)

    def mem_deregister(self, handles: Iterable[MemHandle]) -> None:
        """`QnnMem_deRegister`: every valid handle goes."""
        self._check_alive("QnnMem_deRegister")
        self.shared.deregister(handles)

    def check_binary(self, call: str) -> None:
        """The binary that was promised to stay is still there and still the same."""
        if self._binary is None:
            return
        if self._binary.is_released:
            what = "freed"
        elif self._head_sum != zlib.crc32(self._binary.array[:_HEAD_BYTES].data):
            what = "changed"
        else:
            return
        sentence = f"the persistent binary was {what} while the context lives"
        address = self._binary.address
        found = finding("R10", sentence, call=call, buffer="binary", address=address)
        self.backend.fail(6039, found)

    def free(self) -> None:
        """`QnnContext_free`: from here on the application may free everything it handed over."""
        self._check_alive("QnnContext_free")
        for graph in self._graphs.values():
            graph.resume()  # a paused execution would never come to its end
        self.queue.close()
        self.queue.run(self._end)  # an execution of another thread comes to its end first

    def _end(self) -> None:
        self._check_alive("QnnContext_free")
        self.is_freed = True
        binary, self._binary = self._binary, None
        if binary is not None and self.sanitize and _sum(binary) != self._whole_sum:
            sentence = "the persistent binary was changed while the context lived"
            found = finding("R10", sentence, call="QnnContext_free", buffer="binary")
            self.backend.note(found)

    def _watch(self, lease: Lease) -> None:
        self._binary = lease.watch()
        self._head_sum = zlib.crc32(lease.array[:_HEAD_BYTES].data)
        self._whole_sum = _sum(lease) if self.sanitize else 0

    def _check_alive(self, call: str) -> None:
        if self.is_freed:
            self._fail(5002, "R16", "the context was freed", call)

    def _fail(self, code: int, rule: str, sentence: str, call: str) -> NoReturn:
        self.backend.fail(code, finding(rule, sentence, call=call))


class _Settings:
    """Reads a NULL-terminated list of context configs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._found: dict[str, Any] = {}
        self._island: list[str | None] = []

    def read(self, configs: Iterable[Config | None] | None) -> ContextSettings:
        for config in until_null(configs, Config):
            if config.option == CUSTOM and isinstance(config.value, Config):
                self._custom(config.value)
            else:
                self._plain(config)
        if None in self._island and len(set(self._island)) > 1:
            sentence = "island is asked for the whole context and for single graphs"
            self._fail(_INVALID_CONFIG, "R15", sentence)
        if self._island and not self._backend.profile.island_allowed:
            mode = self._backend.profile.mode.value
            self._fail(1000, "R14", f"{mode} mode has no island")
        return ContextSettings(**self._found, island=tuple(self._island))

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
                self._fail(_INVALID_CONFIG, "R14", "island is for a graph by name, or NULL for all")
            self._island.append(config.value)
        else:
            self._fail(5000, "R14", f"LPAI context option {config.option} is unknown")

    def _one_of(self, value: Any, kind: type, what: str) -> int:
        known = {int(item) for item in kind if item.name != "UNDEFINED"}  # type: ignore[attr-defined]  # an IntEnum
        if not isinstance(value, int) or value not in known:
            self._fail(_INVALID_CONFIG, "R14", f"{shown(value)} is not a {what}")
        return int(value)

    def _number(self, value: Any, what: str) -> int:
        if not isinstance(value, int) or not 0 <= value <= 1 << 20:
            self._fail(_INVALID_CONFIG, "R14", f"{what} cannot be {shown(value)}")
        return value

    def _fail(self, code: int, rule: str, sentence: str) -> NoReturn:
        self._backend.fail(code, finding(rule, sentence, call=_CREATE))


def _check_names(backend: Backend, compiled: CompiledContext, settings: ContextSettings) -> None:
    names = {graph.name for graph in compiled.graphs}
    islands = [name for name in settings.island if name is not None]
    for name in (*(settings.enable_graphs or ()), *islands):
        if name not in names:
            sentence = f"a config names graph {name!r:.90}, which the binary does not have"
            backend.fail(_INVALID_CONFIG, finding("R13", sentence, call=_CREATE))


def _sum(lease: Lease) -> int:
    return zlib.crc32(lease.array.data)


def _aligned_copy(lease: Lease) -> Any:
    """The binary's bytes at an address that suits its constants."""
    import numpy

    block = numpy.empty(lease.size + 256, numpy.uint8)
    start = -block.__array_interface__["data"][0] % 256
    copy = block[start : start + lease.size]
    copy[:] = lease.array
    return copy
