"""A client of the HTP backend, call by call: contexts, registered memory, executions.

    backend = HtpBackend.create()
    context = HtpClientContext.create_from_binary(backend, "model.bin")
    handles = context.mem_register([...])
    graph = context.graph_retrieve("graph")
    graph.execute(inputs, outputs)
    context.mem_deregister(handles)
    context.free()
    backend.free()

Results are the real library's. Its build for x86 registers no memory and checks little of what an
execution gets, so registration and the checks are ours; the codes are QNN's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from qnnmem.arguments import expect, expect_items
from qnnmem.contract.leaks import of_process
from qnnmem.contract.rules import MEASURED, FindingLog, finding
from qnnmem.errors import CannotTell, UsageError
from qnnmem.finding import Finding
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.qmem.layer import Compute, Given, IoLayer
from qnnmem.htp.qmem.library import LibraryGraph
from qnnmem.htp.qmem.memory import HtpMemDescriptor, MemRegistry
from qnnmem.htp.qmem.rpcmem import HEAP
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.qnn.tensor import QnnTensor, TensorInfo
from qnnmem.results.qmem import Inference
from qnnmem.targets.socs import find_soc
from qnnmem.text import quote

_CREATE, _FREE = "QnnContext_createFromBinary", "QnnContext_free"
_RETRIEVE, _EXECUTE = "QnnGraph_retrieve", "QnnGraph_execute"
_BACKEND_FREE = "QnnBackend_free"
_SHOWN = 8


class HtpBackend:
    """`Qnn_BackendHandle_t` of the HTP; `findings` holds every rule that was broken.

    `compute` executes instead of the real library, e.g. where that is not installed.
    """

    def __init__(self, compute: Compute | None = None, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.compute, self.time_limit_s = compute, time_limit_s
        self.registries: list[MemRegistry] = []
        self.is_freed = False
        self._own = FindingLog()
        self._contexts: list[HtpClientContext] = []
        self._worker: Worker | None = None
        HEAP.tell(self)

    @classmethod
    def create(
        cls, *, compute: Compute | None = None, time_limit_s: float = TIME_LIMIT_S
    ) -> HtpBackend:
        """`QnnBackend_create`."""
        return cls(compute, time_limit_s)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far: those of each context in order, then those of the backend itself."""
        return (*(f for one in self.registries for f in one.findings), *self._own)

    @property
    def worker(self) -> Worker:
        """The child process with the library, started when it is first needed."""
        if self._worker is None:
            self._worker = Worker()
        return self._worker

    def adopt(self, context: HtpClientContext) -> None:
        """Remember a context, which must be freed before the backend."""
        self._contexts.append(context)

    def note(self, found: Finding) -> None:
        """Keep a finding that belongs to no context."""
        self._own.note(found)

    def fail(self, code: int, found: Finding) -> NoReturn:
        """Fail a call that belongs to no context."""
        self._own.append(found)
        raise qnn_error(code, found)

    def check_alive(self, call: str) -> None:
        """Fail a call after `free`."""
        if self.is_freed:
            self.fail(4011, finding("Q13", "the backend was freed", call))

    def free(self) -> tuple[Finding, ...]:
        """`QnnBackend_free`: contexts that were not freed are findings, and so is their memory."""
        if self.is_freed:
            self.fail(4011, finding("Q13", "the backend was freed already", _BACKEND_FREE))
        self.is_freed = True
        for context in self._contexts:
            if not context.is_freed:
                self._own.append(context.not_freed())
                context.free()
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        return self.findings


class HtpClientContext:
    """`Qnn_ContextHandle_t` of a context binary of the HTP."""

    def __init__(
        self,
        backend: HtpBackend,
        path: Path,
        graphs: Sequence[HtpGraph],
        soc_id: int | None,
        room: int | None,
    ) -> None:
        self.backend, self.path, self.soc_id = backend, path, soc_id
        self.described = tuple(graphs)
        what = f"the context of {quote(path.name)}"
        never = "is not freed before the process ends"
        self._made = of_process().part("context", "Q13", what, never=never)
        self.registry = MemRegistry(room, siblings=backend.registries, owner=self._made)
        self.is_freed = False
        self._graphs: dict[str, HtpClientGraph] = {}
        backend.adopt(self)

    @classmethod
    def create_from_binary(
        cls,
        backend: HtpBackend,
        binary: str | Path,
        *,
        soc: str | None = None,
        room: int | None = None,
    ) -> HtpClientContext:
        """`QnnContext_createFromBinary` of a file.

        `soc` is needed for files that do not name theirs; `room` is what the process domain has
        left for registered memory, in bytes.
        """
        expect(backend, HtpBackend, "a context needs the backend that HtpBackend.create made")
        expect(binary, (str, Path), "a context binary is given by its path")
        backend.check_alive(_CREATE)
        path = Path(binary)
        if path.suffix.lower() == ".onnx":
            raise UsageError(f"{path}: a context is made from the binary, not from a model of it")
        found = read_context(path)
        soc_id = found.soc_model if soc is None else find_soc(soc).model_id
        return cls(backend, path, found.graphs, soc_id, room)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of this context."""
        return tuple(self.registry.findings)

    def graph_retrieve(self, name: str | None = None) -> HtpClientGraph:
        """`QnnGraph_retrieve`; without a name, the only graph of the binary."""
        self._check_alive(_RETRIEVE)
        graphs = {graph.name: graph for graph in self.described}
        if name is None and len(graphs) == 1:
            (name,) = graphs
        if not isinstance(name, str) or name not in graphs:
            known = ", ".join(map(quote, list(graphs)[:_SHOWN])) or "none"
            what = f"the binary has no graph {quote(name)}; it has {known}"
            self.registry.fail(6002, finding("Q14", what, _RETRIEVE))
        if name not in self._graphs:
            self._graphs[name] = HtpClientGraph(self, graphs[name])
        return self._graphs[name]

    def mem_register(self, descriptors: Sequence[HtpMemDescriptor]) -> list[MemHandle]:
        """`QnnMem_register`: all or none."""
        given = expect_items(descriptors, object, "memory descriptors are given as a list")
        return self.registry.register(given)

    def mem_deregister(self, handles: Sequence[MemHandle]) -> None:
        """`QnnMem_deRegister`: deregister every valid handle, of any context of this backend."""
        self.registry.deregister(expect_items(handles, object, "handles are given as a list"))

    def free(self) -> None:
        """`QnnContext_free`: handles that are still registered are findings."""
        self._check_alive(_FREE)
        self.is_freed = True
        for graph in self._graphs.values():
            graph.close()
        self.registry.free()
        self._made.freed()

    def not_freed(self) -> Finding:
        """Return the finding of a context whose backend is freed before it."""
        return self._made.leaked("is not freed before its backend", call=_BACKEND_FREE)

    def _check_alive(self, call: str) -> None:
        if self.is_freed:
            self.registry.fail(5002, finding("Q13", "the context was freed", call, source=MEASURED))


class HtpClientGraph:
    """`Qnn_GraphHandle_t`: a graph of a context, ready to execute."""

    def __init__(self, context: HtpClientContext, described: HtpGraph) -> None:
        self.context, self.described = context, described
        names = [tensor.name for tensor in described.tensors]
        if len(set(names)) < len(names):
            what = f"graph {quote(described.name)} has two inputs or outputs of one name"
            raise UsageError(f"{what}, which cannot be told apart here")
        self._layer = IoLayer(described, self._compute(), context.registry)

    def tensors(self) -> tuple[list[QnnTensor], list[QnnTensor]]:
        """Return inputs and outputs as the binary describes them, to be filled in."""
        sides = (self.described.inputs, self.described.outputs)
        inputs, outputs = (list(map(QnnTensor.of, side)) for side in sides)
        return inputs, outputs

    def execute(self, inputs: Sequence[QnnTensor], outputs: Sequence[QnnTensor]) -> Inference:
        """`QnnGraph_execute`; return what was reserved and copied."""
        if self.context.is_freed:
            what = f"the context of graph {quote(self.described.name)} was freed"
            self._fail(6001, "Q13", what, MEASURED)
        return self._layer.execute(
            self._given(inputs, self.described.inputs, "input"),
            self._given(outputs, self.described.outputs, "output"),
        )

    @property
    def reserved(self) -> int:
        """Bytes of internal memory for raw inputs and outputs now."""
        return self._layer.reserved

    def close(self) -> None:
        """Free the internal memory; called by the context."""
        self._layer.close()

    def _compute(self) -> Compute:
        context, backend = self.context, self.context.backend
        if backend.compute is not None:
            return backend.compute

        def run(inputs: Any, outputs: Any) -> None:
            if context.soc_id is None:
                raise CannotTell("the binary does not say for which SoC it is", cure="name one")
            LibraryGraph(
                context.path, self.described, context.soc_id, backend.worker, backend.time_limit_s
            )(inputs, outputs)

        return run

    def _given(self, tensors: Sequence[QnnTensor], known: Sequence[TensorInfo], side: str) -> Given:
        """Return the memory of each tensor of a side; QNN matches tensors by id."""
        listed = expect_items(tensors, QnnTensor, f"{side}s are given as a list of QnnTensor")
        by_id = {tensor.id: tensor for tensor in listed}
        for number in by_id.keys() - {tensor.id for tensor in known}:
            self._fail(6004, "Q7", f"the graph has no {side} with id {number}", MEASURED)
        for tensor in known:
            if tensor.id not in by_id:
                self._fail(6000, "Q7", f"{side} {quote(tensor.name)} is missing", MEASURED)
        return {tensor.name: self._memory(by_id[tensor.id], tensor) for tensor in known}

    def _memory(self, given: QnnTensor, tensor: TensorInfo) -> Any:
        name = quote(tensor.name)
        if given.mem_type == TensorMemType.MEMHANDLE:
            if given.mem_handle is None:
                but = "" if given.client_buf is None else ", only a raw buffer"
                what = f"tensor {name} is of type MEMHANDLE and has no handle{but}"
                self._fail(6004, "Q7", what, MEASURED)
            if not isinstance(given.mem_handle, MemHandle):
                fate = self.context.registry.fate(given.mem_handle)
                self._fail(6004, "Q7", f"the handle of tensor {name} {fate}")
            return given.mem_handle
        if given.mem_type != TensorMemType.RAW:
            what = f"tensor {name} has memory type {quote(given.mem_type)}, which is taken as RAW"
            self.context.registry.note(finding("Q12", what, _EXECUTE))
        if given.client_buf is None and given.mem_handle is not None:
            # In C both are one union: the library would take the handle for an address.
            self._fail(
                6004, "Q7", f"tensor {name} has a handle, but its memory type is not MEMHANDLE"
            )
        if given.data_size is None or given.client_buf is None:
            return given.client_buf
        return self._sized(given, tensor)

    def _sized(self, given: QnnTensor, tensor: TensorInfo) -> Any:
        """Return the client's buffer if `data_size` is large enough."""
        name, size = quote(tensor.name), given.data_size
        if size == 0:
            self._fail(6004, "Q7", f"the buffer of tensor {name} has size 0", MEASURED)
        if not isinstance(size, int) or not tensor.nbytes <= size:
            what = f"tensor {name} needs {tensor.nbytes:,} bytes, its dataSize says {quote(size)}"
            self._fail(6004, "Q7", what)
        return given.client_buf

    def _fail(self, code: int, rule: str, sentence: str, source: str = "") -> NoReturn:
        self.context.registry.fail(code, finding(rule, sentence, _EXECUTE, source=source))
