"""A broken rule: the problem, the call, the buffer, and the cure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule of the contract, with the call or buffer that broke it."""

    rule: str  # stable id, e.g. "R3"
    sentence: str  # what happened, to which thing, by how much
    call: str = ""  # QNN function that noticed, e.g. "QnnGraph_setConfig"
    buffer: str = ""  # e.g. "scratch", "input 'x'"
    address: int | None = None
    need: int | None = None
    given: int | None = None
    cure: str = ""
    source: str = ""
    line: str = ""  # of the client's own Python, e.g. "client.py:12: context.free()"
    trace: tuple[tuple[str, int], ...] = ()  # call stack of a program: files and offsets
    handle: str = ""  # kind of the handle that was not freed, e.g. "context"; empty: no leak
