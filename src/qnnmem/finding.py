"""The record of a broken rule: the problem, the call, the buffer, and the cure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule of the contract, with the call or buffer that broke it."""

    rule: str  # stable id, e.g. "R3"
    sentence: str  # what happened, to which object, by how much
    call: str = ""  # QNN function that found it, e.g. "QnnGraph_setConfig"
    buffer: str = ""  # e.g. "scratch", "input 'x'"
    address: int | None = None
    need: int | None = None
    given: int | None = None
    cure: str = ""
    source: str = ""
    line: str = ""  # source line of the client, e.g. "client.py:12: context.free()"
    trace: tuple[tuple[str, int], ...] = ()  # call stack of a program: files and offsets
    handle: str = ""  # kind of a leaked handle, e.g. "context"; empty if nothing leaked
