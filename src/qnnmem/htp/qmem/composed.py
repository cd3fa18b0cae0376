"""Online preparation: a context whose graphs are composed call by call, then finalized.

    context = HtpComposedContext.create(backend, soc="SM8650")
    graph = context.create_graph("graph")
    x = graph.create_tensor("x", DataType.FLOAT_32, (1, 8), TensorType.APP_WRITE)
    ...
    graph.add_node("qti.aisw", "ElementWiseNeuron", {"operation": 4}, [x], [y])
    graph.finalize()
    graph.execute(inputs, outputs)

Calls are kept, and made in the real library when a graph is finalized, in a child process. What the
library refuses then is said with its code and the name of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from qnnmem.arguments import expect
from qnnmem.caller import caller_line
from qnnmem.errors import CannotTell
from qnnmem.finding import Finding
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileOptions, check_options
from qnnmem.htp.compile.refused import decisive_line
from qnnmem.htp.log import parse_log
from qnnmem.htp.qmem.client import HtpBackend, HtpClientContext, HtpClientGraph
from qnnmem.htp.requests import ComposeRequest, HtpSettings
from qnnmem.htp.start import check_started
from qnnmem.htp.worker import RequestOutcome
from qnnmem.qnn.graph import CallFile, ComposedOp, recorded_calls
from qnnmem.qnn.graph_draft import GraphDraft
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.results.qmem import Inference
from qnnmem.targets.socs import Soc, find_soc
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import quote
from qnnmem.wire import write_frame

_FINALIZE, _CREATE, _BINARY = "QnnGraph_finalize", "QnnGraph_create", "QnnContext_getBinary"
_NOT_FINALIZED, _GRAPH_NOT_FINALIZED, _INVALID_NAME, _FAILED = 5003, 6023, 6003, 6022
_SOURCE = "QNN headers; graphs are composed in libQnnHtp for x86"


class HtpComposedContext(HtpClientContext):
    """`Qnn_ContextHandle_t` of a context that begins without graphs."""

    def __init__(
        self, backend: HtpBackend, soc: Soc, options: CompileOptions, room: int | None
    ) -> None:
        self._soc, self._options = soc, options
        self._folder = temporary_folder()
        self._drafts: dict[str, HtpComposedGraph] = {}
        path = Path(self._folder.name, "composed.bin")
        super().__init__(backend, path, (), soc.model_id, room)

    @classmethod
    def create(
        cls,
        backend: HtpBackend,
        *,
        soc: str,
        vtcm_mb: int | None = None,
        opt_level: int | None = None,
        room: int | None = None,
    ) -> HtpComposedContext:
        """`QnnContext_create` for a SoC; the settings are those of all its graphs.

        `room` is what the process domain has left for registered memory, in bytes.
        """
        expect(backend, HtpBackend, "a context needs the backend that HtpBackend.create made")
        expect(soc, str, "a SoC is given by its name")
        target, options = find_soc(soc), CompileOptions(vtcm_mb=vtcm_mb, opt_level=opt_level)
        check_options(target, options)
        backend.check_alive("QnnContext_create")
        return cls(backend, target, options, room)

    def create_graph(self, name: str) -> HtpComposedGraph:
        """`QnnGraph_create`."""
        self._check_alive(_CREATE)
        if not isinstance(name, str) or not name or name in self._drafts:
            known = isinstance(name, str) and name in self._drafts
            why = f"there is a graph {quote(name)}" if known else "a graph has a name"
            self.refuse(_INVALID_NAME, why, _CREATE)
        self._drafts[name] = HtpComposedGraph(self, name)
        return self._drafts[name]

    def get_binary(self) -> bytes:
        """`QnnContext_getBinary`: the context binary of all graphs, which are finalized."""
        self._check_alive(_BINARY)
        waits = [name for name, draft in self._drafts.items() if not draft.is_finalized]
        if waits or not self._drafts:
            why = f"graph {quote(waits[0])} is not finalized" if waits else "there is no graph"
            self.refuse(_NOT_FINALIZED, why, _BINARY)
        return self.path.read_bytes()

    def free(self) -> None:
        """`QnnContext_free`."""
        super().free()
        self._folder.cleanup()

    def refuse(self, code: int, sentence: str, call: str) -> NoReturn:
        """Fail as the library would."""
        found = Finding("", sentence, call, source=_SOURCE, line=caller_line())
        self.registry.fail(code, found)

    def finalize(self, graph: HtpComposedGraph) -> HtpClientGraph:
        """Have the library make all finalized graphs and one more."""
        drafts = [one for one in self._drafts.values() if one.is_finalized or one is graph]
        calls, made = Path(self._folder.name, "calls"), Path(self._folder.name, "made.bin")
        _write_calls(drafts, calls)
        # Each tensor says itself whether it is a memhandle.
        wanted = self._options
        settings = HtpSettings(self._soc.model_id, wanted.vtcm_mb, wanted.opt_level, log="info")
        request = ComposeRequest("calls", calls, made, settings)
        backend = self.backend
        outcome = backend.worker.ask(request, time_limit_s=backend.time_limit_s)
        calls.unlink()
        check_started(outcome)
        if not outcome.is_done:
            self._not_made(outcome, graph.name)
        made.replace(self.path)
        self.described = read_context(self.path).graphs
        return self.graph_retrieve(graph.name)

    def _not_made(self, outcome: RequestOutcome, name: str) -> NoReturn:
        if outcome.kind != "refused" or outcome.code is None:
            why = outcome.sentence[:300]
            raise CannotTell(f"the library did not finalize graph {quote(name)}: {why}")
        cause = parse_log(outcome.log).cause
        line = decisive_line(outcome.log) if cause is None else cause.line
        said = f"{outcome.sentence}: {line}" if line else outcome.sentence
        self.refuse(outcome.code, f"graph {quote(name)}: {said}", _FINALIZE)


class HtpComposedGraph(GraphDraft):
    """`Qnn_GraphHandle_t`: composed first, finalized, then executed."""

    def __init__(self, context: HtpComposedContext, name: str) -> None:
        super().__init__(name, context.refuse)
        self.context = context
        self._ready: HtpClientGraph | None = None

    def finalize(self) -> None:
        """`QnnGraph_finalize`: the real library compiles the graph."""
        self._check_open(_FINALIZE)
        if not any(isinstance(one, ComposedOp) for one in self.calls):
            self.context.refuse(_FAILED, f"graph {quote(self.name)} has no node", _FINALIZE)
        self._ready = self.context.finalize(self)
        self.is_finalized = True

    def tensors(self) -> tuple[list[QnnTensor], list[QnnTensor]]:
        """Inputs and outputs to be filled in for an execution."""
        return self._finalized("QnnGraph_execute").tensors()

    def execute(self, inputs: Sequence[QnnTensor], outputs: Sequence[QnnTensor]) -> Inference:
        """`QnnGraph_execute`; gives what was reserved and copied on the way."""
        return self._finalized("QnnGraph_execute").execute(inputs, outputs)

    @property
    def reserved(self) -> int:
        """Bytes of internal memory for raw inputs and outputs now."""
        return 0 if self._ready is None else self._ready.reserved

    def _finalized(self, call: str) -> HtpClientGraph:
        if self._ready is None:
            why = f"graph {quote(self.name)} is not finalized"
            self.context.refuse(_GRAPH_NOT_FINALIZED, why, call)
        return self._ready


def _write_calls(drafts: Sequence[GraphDraft], path: Path) -> None:
    """Write the calls of graphs as the child makes them again."""
    data = bytearray()
    graphs = [recorded_calls(draft.name, draft.calls, data) for draft in drafts]
    with path.open("wb") as stream:
        write_frame(stream, CallFile(graphs), data)
