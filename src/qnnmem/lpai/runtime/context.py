"""A `QnnContext` created from a binary: its graphs, and the memory that they use."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, NoReturn

from qnnmem.arguments import expect
from qnnmem.contract.leaks import Resource
from qnnmem.contract.regions import ClientBuffer, Holding, holders
from qnnmem.contract.rules import finding
from qnnmem.errors import ProgramError, QnnError
from qnnmem.finding import Finding
from qnnmem.lpai.binary import check_device, unpack
from qnnmem.lpai.compiled import CONSTANT_ALIGN, CompiledContext
from qnnmem.lpai.program.run import Parts, runs_in_order
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.configs import (
    CREATE,
    INVALID_CONFIG,
    ContextConfig,
    check_names,
    read_configs,
)
from qnnmem.lpai.runtime.descriptors import Config, MemDescriptor
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.heap import aligned_array, checksum
from qnnmem.lpai.runtime.memory_checks import SharedMemory, check_binary_memory
from qnnmem.lpai.runtime.queue import ExecutionQueue
from qnnmem.qnn.enums import MemType
from qnnmem.qnn.shared_memory import MemHandle

# Enough bytes to detect that a buffer was reused, and few enough to compare in every execution.
_HEAD_BYTES = 4096
_WHOLE_CHECKS = 64  # checks of the whole binary; later checks compare only its head

_MAX_KNOWN = 1024
_known: dict[bytes, dict[str, bool]] = {}
_lock = threading.Lock()


class Context:
    """A context from a binary; memory that is passed to it must stay valid until `free`."""

    shares_scratch = is_executing = False

    def __init__(self, backend: Backend, compiled: CompiledContext, config: ContextConfig) -> None:
        expect(backend, Backend, "a context needs a backend from Backend.create")
        expect(compiled, CompiledContext, "use create_from_binary to make a context from a binary")
        expect(config, ContextConfig, "pass configs to create_from_binary")
        self.backend, self.compiled, self.config = backend, compiled, config
        self.constants = compiled.constants
        self.sanitize = True
        self.is_freed = False
        self.shared = SharedMemory(backend)
        self.queue = ExecutionQueue(backend, config.queue_depth)
        self._graphs: dict[str, Graph] = {}
        self._retrieving = Lock()
        self._in_order: dict[str, bool] = {}
        self._registered: dict[int, Resource] = {}  # by id of the handle
        self._binary: ClientBuffer | None = None
        self._checks = 0  # number of checks of the whole binary
        self._binary_reported = False  # whether its loss was reported
        self.model_mem_type = config.model_mem_type or MemType.DDR
        self._resource: Resource | None = None
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
        limited: bool = False,
    ) -> Context:
        """Return a context for a binary (`QnnContext_createFromBinary`).

        A child process first tries each program, once per process and binary. `trusted` skips this
        trial. If `limited` is true, this process tries the programs, because it is itself a limited
        child. Unless the binary is persistent, its bytes are copied and its buffer may be freed.
        """
        expect(backend, Backend, "a context needs a backend from Backend.create")
        backend.check_alive(CREATE)
        config = read_configs(backend, configs)
        buffer = ClientBuffer(binary)
        mem_type = check_binary_memory(backend, buffer, config)
        if not config.persistent_binary:
            if backend.profile.require_persistent_binary:
                sentence = "this device reads the binary in place, so PERSISTENT_BINARY must be set"
                backend.refuse(INVALID_CONFIG, "R10", sentence, CREATE)
            copy = aligned_array(buffer.size, CONSTANT_ALIGN)
            copy[:] = buffer.array
            content = copy.data
        else:
            content = buffer.array.data
        try:
            compiled = unpack(content)
            check_device(compiled, backend.profile.hw_version.word, strict=config.strict)
        except QnnError as exc:
            backend.fail(exc.code, exc.finding)
        check_names(backend, compiled, config)
        context = cls(backend, compiled, config)
        context.model_mem_type = mem_type
        context.sanitize = sanitize is not False
        context._in_order = try_programs(
            backend, compiled, content, trusted=trusted, limited=limited
        )
        if config.persistent_binary:
            context._watch(buffer)
        context._resource = backend.makes("context", "L2", "the context made at {at}")
        return context

    def graph_retrieve(self, name: str | None) -> Graph:
        """Return the graph with this name (`QnnGraph_retrieve`)."""
        self._check_alive("QnnGraph_retrieve")
        if not isinstance(name, str) or not name:
            self._fail(6003, "R12", "the graph name is NULL or empty", "QnnGraph_retrieve")
        compiled = self.compiled.graph(name)
        if compiled is None:
            known = ", ".join(graph.name[:40] for graph in self.compiled.graphs[:8])
            sentence = f"the binary has no graph {name[:80]!r}; it has {known}"
            self._fail(6002, "R12", sentence, "QnnGraph_retrieve")
        with self._retrieving:  # two threads get the same graph, because its memory exists once
            if name not in self._graphs:
                self._graphs[name] = Graph(self, compiled, self._in_order.get(name, False))
                self._make("graph", "L2", f"graph {name[:80]!r}, retrieved at {{at}},")
            return self._graphs[name]

    def get_binary(self) -> NoReturn:
        """Always fail (`QnnContext_getBinary`): a context from a binary cannot be serialized."""
        sentence = "a context created from a binary cannot return a binary"
        self._fail(1005, "R11", sentence, "QnnContext_getBinary")

    def graph_create(self, name: str) -> NoReturn:
        """Always fail (`QnnGraph_create`): a context from a binary cannot get further graphs."""
        sentence = f"graph {str(name)[:80]!r} cannot be added to a context from a binary"
        self._fail(1005, "R11", sentence, "QnnGraph_create")

    def mem_register(self, descriptors: Sequence[MemDescriptor]) -> list[MemHandle]:
        """Return a handle for each descriptor (`QnnMem_register`); on failure, register none."""
        self._check_alive("QnnMem_register")
        handles = self.shared.register(descriptors)
        for handle in handles:
            what = f"memory of {handle.size:,} bytes, registered at {{at}},"
            self._registered[id(handle)] = self._make("memory", "L3", what)
        return handles

    def mem_deregister(self, handles: Iterable[MemHandle]) -> None:
        """Deregister all valid handles (`QnnMem_deRegister`); fail if any handle is invalid."""
        self._check_alive("QnnMem_deRegister")
        for handle in handles if isinstance(handles, list | tuple) else ():
            resource = self._registered.pop(id(handle), None)
            if resource is not None:
                resource.freed()
        self.shared.deregister(handles)

    @property
    def binary_memory(self) -> ClientBuffer | None:
        """The buffer of the binary if the binary is read in place, otherwise None."""
        return self._binary

    @property
    def compared_bytes(self) -> int | None:
        """Number of leading bytes that the next execution checks for changes; None for all."""
        return None if self._checks < _WHOLE_CHECKS else _HEAD_BYTES

    def check_binary(self, call: str) -> None:
        """Fail the call if the persistent binary was freed or changed."""
        if self._binary is None:
            return
        if self._binary.is_released:
            what = self._binary.loss
        elif self._checks < _WHOLE_CHECKS and self.sanitize:
            if self._whole_sum == checksum(self._binary.array):
                self._checks += 1
                return
            what = "changed"
        elif self._head_sum != checksum(self._binary.array[:_HEAD_BYTES]):
            what = "changed"
        else:
            return
        self._binary_reported = True
        self.backend.fail(6039, self._binary_finding(what, call))

    def free(self) -> None:
        """Free the context (`QnnContext_free`); the application may then free its memory."""
        self._check_alive("QnnContext_free")
        self.queue.refuse()
        with self._retrieving:
            graphs = tuple(self._graphs.values())
        for graph in graphs:
            graph.resume()  # a paused execution would never finish
        self.queue.close()
        self.queue.run(self._end)  # an execution in another thread finishes first

    def _end(self) -> None:
        self._check_alive("QnnContext_free")
        with self._retrieving:
            graphs = tuple(self._graphs.values())
        for graph in graphs:
            graph.note_freed("QnnContext_free")
        self._note_binary("QnnContext_free")
        self.is_freed = True
        self._release(graphs)
        self._note_registered()

    def _release(self, graphs: Iterable[Graph]) -> None:
        """Drop all references to the application's memory, so that mappings can be closed."""
        for graph in graphs:
            graph.release()
        self._binary = None
        self.constants = memoryview(b"")
        self.compiled = replace(self.compiled, constants=self.constants)

    def _note_binary(self, call: str) -> None:
        """Report a binary that was freed or changed, unless an execution already reported it."""
        binary = self._binary
        if binary is None or self._binary_reported:
            return
        if binary.is_released:
            self.backend.note(self._binary_finding(binary.loss, call))
        elif self.sanitize and checksum(binary.array) != self._whole_sum:
            self.backend.note(self._binary_finding("changed", call))

    def _note_registered(self) -> None:
        for resource in self._registered.values():
            how = "was not deregistered before its context was freed"
            self.backend.note(resource.leaked(how, call="QnnContext_free"))
        self._registered.clear()
        if self._resource is not None:
            self._resource.freed()

    def _binary_finding(self, what: str, call: str) -> Finding:
        sentence = f"the persistent binary was {what} before its context was freed"
        address = None if self._binary is None else self._binary.address
        return finding("R10", sentence, call=call, buffer="binary", address=address)

    def _make(self, kind: str, rule: str, what: str) -> Resource:
        if self._resource is None:
            return Resource(kind, rule, what)
        return self._resource.part(kind, rule, what)

    def holdings(self) -> Iterable[Holding]:
        """Return the persistent binary, if any; the application must not free it."""
        if self._binary is None or self.is_freed or self.backend.is_freed:
            return ()
        return (Holding("binary", "", self._binary, self),)

    def lends(self, _start: int, _end: int) -> bool:
        """Return False: a binary has no inputs or outputs."""
        return False

    def _watch(self, buffer: ClientBuffer) -> None:
        self._binary = buffer.watch()
        self._head_sum = checksum(buffer.array[:_HEAD_BYTES])
        self._whole_sum = checksum(buffer.array) if self.sanitize else 0
        holders.changed(self)

    def _check_alive(self, call: str) -> None:
        if self.is_freed:
            self._fail(5002, "R16", "the context was freed", call)

    def _fail(self, code: int, rule: str, sentence: str, call: str) -> NoReturn:
        self.backend.refuse(code, rule, sentence, call)


def try_programs(
    backend: Backend,
    compiled: CompiledContext,
    content: memoryview,
    *,
    trusted: bool,
    limited: bool,
) -> dict[str, bool]:
    """Return for each graph whether its ops run in the planned order.

    Fail with 5005 if the program of a graph cannot run.

    If `trusted` is true, no program is run. If `limited` is true, this process runs the programs,
    because it is itself a limited child.
    """
    if trusted:
        return {graph.name: graph.in_order for graph in compiled.graphs}
    digest = hashlib.sha256(content).digest()
    with _lock:
        if digest not in _known:
            order = {
                graph.name: _try(backend, Parts(graph, compiled.constants), limited)
                for graph in compiled.graphs
            }
            if len(_known) >= _MAX_KNOWN:
                _known.pop(next(iter(_known)))
            _known[digest] = order
        return _known[digest]


def _try(backend: Backend, parts: Parts, limited: bool) -> bool:
    if not parts.graph.program:
        return False
    try:
        return runs_in_order(parts, here=limited)
    except ProgramError as exc:
        backend.refuse(5005, "B1", str(exc), CREATE)
