"""A binary's programs tried in a child process before they run here, once for each binary."""

from __future__ import annotations

import hashlib
import threading

from qnnmem.contract.rules import finding
from qnnmem.errors import ProgramError
from qnnmem.lpai.compiled import CompiledContext
from qnnmem.lpai.program.run import Parts, runs_in_order
from qnnmem.lpai.runtime.backend import Backend

_MAX_KNOWN = 1024
_known: dict[bytes, dict[str, bool]] = {}
_lock = threading.Lock()


def try_programs(
    backend: Backend,
    compiled: CompiledContext,
    content: memoryview,
    *,
    trusted: bool = False,
    limited: bool = False,
) -> dict[str, bool]:
    """Whether each graph runs in the planned order; a program that cannot run is 5005.

    `limited` says that this process is a limited child, which needs no other for the trial.
    """
    if trusted:
        return {graph.name: graph.in_order for graph in compiled.graphs}
    digest = hashlib.sha256(content).digest()
    with _lock:
        if digest not in _known:
            order = {g.name: _try(backend, compiled, g.name, limited) for g in compiled.graphs}
            _store(digest, order)
        return _known[digest]


def _store(digest: bytes, order: dict[str, bool]) -> None:
    if len(_known) >= _MAX_KNOWN:
        _known.pop(next(iter(_known)))
    _known[digest] = order


def _try(backend: Backend, compiled: CompiledContext, name: str, limited: bool) -> bool:
    graph = compiled.graph(name)
    if graph is None or not graph.program:
        return False
    try:
        return runs_in_order(Parts(graph, compiled.constants), here=limited)
    except ProgramError as exc:
        found = finding("B1", str(exc), call="QnnContext_createFromBinary")
        backend.fail(5005, found)
