"""Render plans and watched programs as traces for Perfetto, in Chrome's JSON trace format.

A plan has steps instead of time, but the format needs microseconds. One microsecond is one step, as
the track names explain, and an op is an instant event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from qnnmem.planner import MemoryPlan, PlacedBuffer, Pool
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.programs.watch.trace import CallSeen, Event, LibrarySeen, LogSeen, TraceHead
from qnnmem.qnn.codes import code_name
from qnnmem.results.programs import WatchResult
from qnnmem.results.result import TOOL
from qnnmem.text import counted, shorten

_PROCESS, _OPS = 1, 1
_NAME = 200


def render_perfetto(planned: PlannedFile) -> str:
    """Return a JSON trace of a plan: live bytes and size of each pool, and the ops."""
    name = shorten(PurePath(planned.input).name or planned.input, _NAME)
    first = min((buffer.live.lower for buffer in planned.plan.buffers), default=0)
    events = [
        *_names(name, first),
        *_counters(planned.plan, first),
        *_marks(planned.plan, first),
    ]
    about = {"tool": TOOL, "input": name, "time": "steps: 1 us is one step of the plan"}
    values = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}
    return json.dumps(values, separators=(",", ":")) + "\n"


def _names(name: str, first: int) -> Iterator[dict[str, Any]]:
    shift = f", 0 us = step {first}" if first else ""
    title = f"{name}: bytes by step (1 us = 1 step{shift}; no time was measured)"
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": title}}
    yield {
        **{"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": _OPS},
        "args": {"name": "ops in order"},
    }


def _counters(plan: MemoryPlan, first: int) -> Iterator[dict[str, Any]]:
    """Yield counters: the live bytes of each pool, whenever they change, and the pool's size."""
    for pool in (Pool.SCRATCH, Pool.PERSISTENT, Pool.IO):
        buffers = [buffer for buffer in plan.buffers if buffer.pool is pool]
        if not buffers:
            continue
        for step, alive in _alive(buffers):
            yield _counter(f"{pool.value} alive", step - first, alive)
        last = max(buffer.live.upper for buffer in buffers)
        yield _counter(f"{pool.value} size", 0, plan.pool_bytes(pool))
        yield _counter(f"{pool.value} size", last - first, plan.pool_bytes(pool))


def _alive(buffers: Sequence[PlacedBuffer]) -> Iterator[tuple[int, int]]:
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.live.lower] = changes.get(buffer.live.lower, 0) + buffer.size
        changes[buffer.live.upper] = changes.get(buffer.live.upper, 0) - buffer.size
    total = 0
    for step in sorted(changes):
        total += changes[step]
        yield step, total


def _counter(name: str, step: int, value: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": _PROCESS, "ts": step, "args": {"bytes": value}}


def _marks(plan: MemoryPlan, first: int) -> Iterator[dict[str, Any]]:
    """Yield an instant event for each op, and a global event at the peak step."""
    for step, op in enumerate(plan.model.ops):
        yield {
            **{"ph": "i", "s": "t", "pid": _PROCESS, "tid": _OPS, "ts": step - first},
            **{"name": shorten(op.name, _NAME), "args": {"step": step, "type": op.type}},
        }
    if plan.peak is not None:
        live = {shorten(buffer.name, _NAME): buffer.size for buffer in plan.peak.live}
        yield {
            **{"ph": "i", "s": "p", "pid": _PROCESS, "tid": _OPS, "ts": plan.peak.step - first},
            "name": f"peak: {counted(plan.peak.size, 'byte')} alive",
            "args": {"step": plan.peak.step, **live},
        }


def render_watch(report: WatchResult, lines: Iterable[TraceHead | Event]) -> Iterator[str]:
    """Yield a JSON trace of a watched program: calls by thread, log lines, live objects."""
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
        yield _timed_counter("alive", row.time_ns, alive)
        yield _timed_counter("bytes registered", row.time_ns, {"bytes": row.memory_bytes})
    for line in lines:
        if isinstance(line, LibrarySeen):
            name = {"name": shorten(f"{line.name} in process {line.process}", _NAME)}
            yield {"ph": "M", "name": "process_name", "pid": line.process, "args": name}
        elif isinstance(line, CallSeen):
            yield _call(line)
        elif isinstance(line, LogSeen):
            args = {"level": line.level, "text": shorten(line.text, 10 * _NAME)}
            yield {
                **{"ph": "i", "s": "t", "name": shorten(line.text, 80), "cat": "log"},
                **{"pid": line.process, "tid": line.thread, "ts": line.time / 1000, "args": args},
            }


def _call(call: CallSeen) -> dict[str, Any]:
    args: dict[str, Any] = {"code": call.code}
    if call.code:
        args["error"] = code_name(call.code)
    for key, value in (("name", call.name), ("bytes", call.bytes), ("injected", call.injected)):
        if value:
            args[key] = value
    return {
        **{"ph": "X", "name": call.function, "cat": "failed" if call.code else "call"},
        **{"pid": call.process, "tid": call.thread, "args": args},
        **{"ts": call.begin / 1000, "dur": (call.end - call.begin) / 1000},
    }


def _timed_counter(name: str, time: int, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 0, "ts": time / 1000, "args": values}
