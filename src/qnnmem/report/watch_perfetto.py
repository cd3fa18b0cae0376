"""A watched program as a trace for Perfetto, in Chrome's JSON format of traces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from qnnmem.programs.watch.trace import CallSeen, Event, LibrarySeen, LogSeen, TraceHead
from qnnmem.qnn.codes import code_name
from qnnmem.results.programs import WatchResult
from qnnmem.results.result import TOOL
from qnnmem.text import shorten

_NAME = 200


def render_perfetto(report: WatchResult, lines: Iterable[TraceHead | Event]) -> Iterator[str]:
    """One JSON object, piece by piece: calls on their threads, log lines, what was alive."""
    yield '{"displayTimeUnit":"ms","otherData":'
    yield json.dumps({"tool": TOOL, "command": " ".join(report.command)[: 10 * _NAME]})
    yield ',"traceEvents":['
    separator = ""
    for event in _events(report, lines):
        yield separator + json.dumps(event, separators=(",", ":"))
        separator = ",\n"
    yield "]}\n"


def _events(report: WatchResult, lines: Iterable[TraceHead | Event]) -> Iterator[dict[str, Any]]:
    for row in report.timeline:
        alive = {"contexts": row.contexts, "graphs": row.graphs, "handles": row.memory_handles}
        yield _counter("alive", row.time_ns, alive)
        yield _counter("bytes registered", row.time_ns, {"bytes": row.memory_bytes})
    for line in lines:
        if isinstance(line, LibrarySeen):
            name = {"name": shorten(f"{line.name} in process {line.process}", _NAME)}
            yield {"ph": "M", "name": "process_name", "pid": line.process, "args": name}
        elif isinstance(line, CallSeen):
            yield _call(line)
        elif isinstance(line, LogSeen):
            said = {"level": line.level, "text": shorten(line.text, 10 * _NAME)}
            yield {
                **{"ph": "i", "s": "t", "name": shorten(line.text, 80), "cat": "log"},
                **{"pid": line.process, "tid": line.thread, "ts": line.time / 1000, "args": said},
            }


def _call(call: CallSeen) -> dict[str, Any]:
    said: dict[str, Any] = {"code": call.code}
    if call.code:
        said["error"] = code_name(call.code)
    for key, value in (("name", call.name), ("bytes", call.bytes), ("injected", call.injected)):
        if value:
            said[key] = value
    return {
        **{"ph": "X", "name": call.function, "cat": "failed" if call.code else "call"},
        **{"pid": call.process, "tid": call.thread, "args": said},
        **{"ts": call.begin / 1000, "dur": (call.end - call.begin) / 1000},
    }


def _counter(name: str, time: int, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 0, "ts": time / 1000, "args": values}
