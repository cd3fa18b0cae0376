"""Sessions that continued without QNN: a call failed, and none of their graphs ran afterwards.

A session is a context with its graphs, or a failed call that should have created a context. It is
lost if a call for it failed, none of its graphs was executed later, no replacement was created and
executed, and the program ended normally. An ONNX Runtime session is also lost if it never created a
graph: QNN got none of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qnnmem.programs.functions import BEGINS, MAKES, READS_BINARY
from qnnmem.programs.stacks import is_runtime, place_of
from qnnmem.programs.watch.trace import CallSeen, ProgramEnd
from qnnmem.qnn.codes import code_name
from qnnmem.results.programs import LostSession, Stack

_MOST = 20_000  # sessions that are tracked
_Key = tuple[int, int, int]  # process, slot and handle


@dataclass(slots=True)
class _Session:
    made: CallSeen
    graphs: dict[str, None] = field(default_factory=dict)
    executions: int = 0
    last: int = 0  # end of the last successful execution
    spent_ns: int = 0
    failed: CallSeen | None = None
    has_graph: bool = False

    @property
    def name(self) -> str:
        """Name of the session's model, else the names of its graphs."""
        return self.made.name or ", ".join(self.graphs)

    @property
    def is_lost(self) -> bool:
        """True if a call failed and no graph of the session was executed afterwards."""
        return self.failed is not None and self.last <= self.failed.begin


class Sessions:
    """Tracks the sessions of one trace, call by call."""

    def __init__(self) -> None:
        self._all: list[_Session] = []
        self._contexts: dict[_Key, _Session] = {}
        self._graphs: dict[_Key, _Session] = {}

    def take(self, call: CallSeen) -> None:
        """Process one call."""
        session: _Session | None
        kind = MAKES.get(call.function)
        on = call.process, call.slot, call.on
        if call.function in BEGINS:
            session = _Session(call, failed=call if call.code else None)
            if (call.code or kind == "context") and len(self._all) < _MOST:
                self._all.append(session)
                self._contexts.update(
                    {(call.process, call.slot, one): session for one in call.handles}
                )
        elif kind == "graph":
            session = self._contexts.get(on)
            if session is not None:
                self._graph(session, call)
        elif (session := self._graphs.get(on)) is not None:
            _graph_used(session, call)
        else:
            return
        if session is not None:
            session.spent_ns += call.end - call.begin

    def _graph(self, session: _Session, call: CallSeen) -> None:
        if call.name and len(session.graphs) < 8:
            session.graphs[call.name] = None
        if call.code:
            session.failed = session.failed or call
            return
        session.has_graph = True
        if session.failed is not None and MAKES.get(session.failed.function) == "graph":
            session.failed = None  # a retrieve failed before the graph was created
        for one in call.handles:
            self._graphs[call.process, call.slot, one] = session

    def name_of(self, call: CallSeen) -> str:
        """Return the name of the session that a call belongs to; empty if unknown."""
        on = call.process, call.slot, call.on
        is_graph = call.function not in BEGINS and MAKES.get(call.function) != "graph"
        session = (self._graphs if is_graph else self._contexts).get(on)
        return call.name or (session.name if session is not None else "")

    def lost(self, end: ProgramEnd, stacks: dict[int, Stack]) -> Iterator[LostSession]:
        """Yield the sessions that failed and were not replaced, in order of creation."""
        if not end.timed_out and (end.exit_code or end.ended_by):
            return  # the program itself reported a failure
        again = {
            _identity(session): session.made.begin  # creation time of the last executed replacement
            for session in sorted(self._all, key=lambda session: session.made.begin)
            if session.executions
        }
        for session in self._all:
            stack = stacks.get(session.made.place, ())
            is_of_runtime = any(map(is_runtime, stack))
            if session.failed and session.failed.function in READS_BINARY and not is_of_runtime:
                continue
            is_without = not session.failed and not session.has_graph and is_of_runtime
            was_made_again = again.get(_identity(session), 0) > session.made.begin
            if (session.is_lost or is_without) and not was_made_again:
                yield _described(session, end, stack)


def _identity(session: _Session) -> tuple[int, str, int]:
    """Return a key that is equal for a session and its replacement."""
    return session.made.process, session.name, 0 if session.name else session.made.place


def _graph_used(session: _Session, call: CallSeen) -> None:
    if call.code:
        session.failed = call if not session.is_lost else session.failed
    elif call.function.startswith("QnnGraph_execute"):
        session.executions += 1
        session.last = max(session.last, call.end)


def _described(session: _Session, end: ProgramEnd, stack: Stack) -> LostSession:
    call = session.failed
    since = call.end if call else session.made.end
    return LostSession(
        name=session.made.name,
        graphs=tuple(session.graphs),
        function=call.function if call else "",
        code=call.code if call else 0,
        code_name=code_name(call.code) if call else "",
        injected=bool(call and call.injected),
        executions=session.executions,
        spent_ns=session.spent_ns,
        after_ns=max(0, end.time - since),
        time_ns=since,
        process=session.made.process,
        place=place_of(stack),
        stack=stack,
    )
