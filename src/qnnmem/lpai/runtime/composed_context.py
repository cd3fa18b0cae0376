"""`QnnContext_create`: a context in which a client composes graphs to get a binary.

context = ComposedContext.create(backend)
graph = context.create_graph("graph")
x = graph.create_tensor("x", DataType.UFIXED_POINT_8, (1, 8), TensorType.APP_WRITE, ...)
graph.add_node("qti.aisw", "Relu", {}, [x], [y])
graph.finalize()
binary = context.get_binary()  # for Context.create_from_binary
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from qnnmem.arguments import expect
from qnnmem.caller import caller_line
from qnnmem.errors import QnnMemError
from qnnmem.finding import Finding
from qnnmem.lpai.binary import pack
from qnnmem.lpai.preparation import prepare_composed
from qnnmem.lpai.prepare_options import PrepareOptions, as_prepare_options
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.qnn.graph import PACKAGE, GraphDraft, check_finalized, check_graph_name
from qnnmem.text import quote

if TYPE_CHECKING:
    from qnnmem.lpai.preparation import Prepared

_CREATE, _ADD, _FINALIZE = "QnnGraph_create", "QnnGraph_addNode", "QnnGraph_finalize"
_BINARY, _FREE = "QnnContext_getBinary", "QnnContext_free"
_INVALID_HANDLE = 5002
_BAD_OP, _FAILED = 6005, 6022
_SOURCE = "QNN headers"


class ComposedContext:
    """A context that starts without graphs; its graphs can be prepared but not executed."""

    def __init__(self, backend: Backend, options: PrepareOptions) -> None:
        expect(backend, Backend, "a context needs a backend from Backend.create")
        expect(options, PrepareOptions, "options must be a PrepareOptions object")
        self.backend, self.is_freed = backend, False
        self._options = options
        self._drafts: dict[str, ComposedLpaiGraph] = {}

    @classmethod
    def create(
        cls, backend: Backend, options: PrepareOptions | Mapping[str, Any] | None = None
    ) -> ComposedContext:
        """Return a context (`QnnContext_create`); the options are those of `prepare`."""
        expect(backend, Backend, "a context needs a backend from Backend.create")
        backend.check_alive("QnnContext_create")
        return cls(backend, as_prepare_options(options))

    def create_graph(self, name: str) -> ComposedLpaiGraph:
        """Return a new graph to compose (`QnnGraph_create`)."""
        self.check_alive(_CREATE)
        check_graph_name(name, self._drafts, self.refuse)
        self._drafts[name] = ComposedLpaiGraph(self, name)
        return self._drafts[name]

    def get_binary(self) -> bytes:
        """Return the context binary (`QnnContext_getBinary`); all graphs must be finalized."""
        self.check_alive(_BINARY)
        check_finalized(self._drafts, self.refuse)
        return b"".join(pack(self.prepare(tuple(self._drafts.values())).context))

    def prepare(self, drafts: Sequence[ComposedLpaiGraph]) -> Prepared:
        """Return compiled graphs with their plans and programs."""
        return prepare_composed([draft.composed for draft in drafts], self._options)

    def free(self) -> None:
        """Free the context (`QnnContext_free`)."""
        self.check_alive(_FREE)
        self.is_freed = True

    def check_alive(self, call: str) -> None:
        """Fail a call if the context was freed."""
        if self.is_freed:
            self.refuse(_INVALID_HANDLE, "the context was freed", call)

    def refuse(self, code: int, sentence: str, call: str) -> NoReturn:
        """Fail a call with a QNN error code."""
        found = Finding("", sentence, call, source=_SOURCE, line=caller_line())
        self.backend.fail(code, found)


class ComposedLpaiGraph(GraphDraft):
    """Handle of a graph that a client composes (`Qnn_GraphHandle_t`)."""

    def __init__(self, context: ComposedContext, name: str) -> None:
        super().__init__(name, context.refuse)
        self.context = context
        self.prepared: Prepared | None = None  # set once the graph is finalized

    def _check_operator(self, package: str, type: str) -> None:
        """Fail the call for an operator that this runtime cannot execute."""
        from qnnmem.loader.dlc.operators import OPERATORS

        if package != PACKAGE or type not in OPERATORS:
            what = f"operator {quote(type)} of package {quote(package)} cannot be executed here"
            self.context.refuse(_BAD_OP, what, _ADD)

    def finalize(self) -> None:
        """Plan the graph and try its program (`QnnGraph_finalize`)."""
        self.context.check_alive(_FINALIZE)
        self.check_complete()
        try:
            self.prepared = self.context.prepare((self,))
        except QnnMemError as exc:  # errors about files refer to this graph
            self.context.refuse(_FAILED, f"graph {quote(self.name)}: {exc}", _FINALIZE)
        self.is_finalized = True
