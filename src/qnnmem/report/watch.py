"""A program that was watched: text with the verdict first, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qnnmem.programs.ledger import in_words, listed
from qnnmem.programs.stacks import Stack
from qnnmem.programs.watch.summary import (
    AliveAt,
    FailedCall,
    LiveHandle,
    WatchReport,
    of_programmer,
)
from qnnmem.qnn.codes import code_name
from qnnmem.results.schema import write_json
from qnnmem.text import counted, printable, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.watch/1"
_WIDE = 300
_FRAMES = 6  # of a stack that the text shows
_ROWS = 20  # of a list in the text
_LISTED = 200  # of a list in the JSON
_MOMENTS = 10_000  # of the timeline in the JSON
_JSON_FRAMES = 64  # of a stack there
_RULES = 3  # that no call matched, in the verdict
_LOG = 8  # lines of a call in the text
_WARNING = 2  # the level; errors are below
_STEPS = 24  # of the timeline in the text


def verdict(report: WatchReport) -> str:
    """One line: what there is to say about the program."""
    return printable(_verdict(report))  # a trace may hold anything


def _verdict(report: WatchReport) -> str:
    program = shorten(report.command[0], 200)
    missed = in_words(report.not_checked)
    if not report.called and not missed:
        return f"cannot tell: {program} never called QNN ({_end(report)})"
    calls = counted(sum(one.count for one in report.totals.values()), "call")
    after = f"({calls} of QNN, {_end(report)})"
    said = list(_said(report))
    made = sum(one.count for one in report.failures if one.injected)
    if made:
        said.append(f"{counted(made, 'call')} failed on purpose")
    if missed and not report.findings:
        return f"not watched: {missed}; nothing to say about the rest of {program} {after}"
    if missed:
        return f"{', '.join(said)} in {program} {after}; not watched: {missed}"
    if not report.findings:
        return f"nothing to say about {program}{''.join(f', {one}' for one in said)} {after}"
    return f"{', '.join(said)} in {program} {after}"


def _said(report: WatchReport) -> Iterator[str]:
    kinds = Counter(one.kind for one in report.unreleased)
    if kinds:
        yield f"{', '.join(_amount(kind, n) for kind, n in kinds.items())} never released"
    if report.early:
        yield f"{_amount('context', len(report.early))} alive when the backend was freed"
    failed = sum(one.is_finding for one in report.failures)
    if failed:
        yield counted(failed, "failed call")
    for rule in report.unmatched[:_RULES]:
        yield f"no call matched {shorten(rule)}"
    if len(report.unmatched) > _RULES:
        yield f"nor {len(report.unmatched) - _RULES:,} other rules"
    if report.end.timed_out:
        yield "no end in time"
    elif report.end.ended_by:
        yield f"an end by {report.end.ended_by}"


def _amount(kind: str, number: int) -> str:
    return counted(number, "memory handle" if kind == "memory" else kind)


def _end(report: WatchReport) -> str:
    if report.end.timed_out:
        return "it did not end in time"
    ended = report.end.ended_by
    return f"ended by {ended}" if ended else f"exit code {report.end.exit_code}"


def render_text(report: WatchReport) -> str:
    """Verdict, then what is left, what failed, who was alive when, and the time in each."""
    # Every line is made printable as a whole: no name of a trace can steer the terminal.
    return "\n".join(map(printable, (verdict(report), *_lines(report)))) + "\n"


def _lines(report: WatchReport) -> Iterator[str]:
    yield from listed(report.not_checked)
    if not report.called:
        if report.not_checked:
            return
        yield "nobody in it called QnnInterface_getProviders: it opens no library of QNN or asks "
        yield "it for nothing, or it is a program that nothing can be put into (static, 32 bit)"
        return
    for library in report.libraries[:_ROWS]:
        version = ", ".join(filter(None, (f"API {library.api}", library.version)))
        name = shorten(f"{library.name} ({version})", 200)
        yield f"library    {name} {shorten(library.path, 200)}"
    if len(report.libraries) > _ROWS:
        yield f"           and {len(report.libraries) - _ROWS:,} more"
    if report.injected:
        yield f"injected   {shorten(', '.join(report.injected), 2 * _WIDE)}"
    yield from _left("never released", report.unreleased)
    yield from _left("alive when their backend was freed", report.early)
    yield from _failures(report)
    yield from _timeline(report)
    yield from _functions(report)
    if not report.end.has_lines:
        yield "note: addr2line (binutils) is not here, so places are functions and offsets"


def _left(title: str, things: tuple[LiveHandle, ...]) -> Iterator[str]:
    if not things:
        return
    yield ""
    yield f"{title}:"
    for one in things[:_ROWS]:
        size = f", {format_size(one.bytes)}" if one.bytes else ""
        name = f" {one.name!r}" if one.name else ""
        where = f" at {one.place}" if one.place else ""
        yield shorten(f"  {one.kind}{name}{size}, made by {one.maker}{where}", _WIDE)
        yield from _stack(one.stack)
    if len(things) > _ROWS:
        yield f"  and {len(things) - _ROWS:,} more"


def _failures(report: WatchReport) -> Iterator[str]:
    if not report.failures:
        return
    yield ""
    yield "failed calls:"
    first = sorted(report.failures, key=lambda one: not one.is_finding)  # stays in order otherwise
    for one in first[:_ROWS]:
        yield from _failure(one)
    if len(first) > _ROWS:
        yield f"  and {len(first) - _ROWS:,} more"


def _failure(one: FailedCall) -> Iterator[str]:
    how = " on purpose" if one.injected else ""
    often = f", {one.count:,} times" if one.count > 1 else ""
    where = f" at {one.place}" if one.place else ""
    said = f"{one.code} {code_name(one.code)}{how}{often}"
    yield f"  {shorten(f'{one.function}{where}', _WIDE)}: {said}"
    if one.is_finding or one.injected:
        yield from _stack(one.stack)
    serious = [text for level, text in one.log if level <= _WARNING]
    shown = serious[-_LOG:] or [text for _, text in one.log[-_LOG:]]
    for line in shown:
        yield f"    log      {printable(shorten(line, _WIDE))}"
    if len(one.log) > len(shown):
        yield f"    log      of {len(one.log):,} lines"
    if one.diagnosis:
        yield f"    doctor   {shorten(one.diagnosis, 2 * _WIDE)}"


def _stack(stack: Stack) -> Iterator[str]:
    own = [frame for frame in of_programmer(stack) if frame.line]
    for frame in own[1:_FRAMES]:  # the first stands in the line above
        source = f"  {frame.source}" if frame.source else ""
        yield f"    from     {printable(shorten(f'{frame.function} {frame.place}{source}', 200))}"


def _timeline(report: WatchReport) -> Iterator[str]:
    peak = report.peak
    yield ""
    most = counted(peak.contexts, "context")
    registered = (
        f"{counted(peak.memory_handles, 'memory handle')}, {format_size(peak.memory_bytes)}"
    )
    yield f"alive together at most: {most}, {counted(peak.graphs, 'graph')}, {registered}"
    rows = _thinned(report.timeline, _STEPS)
    if rows:
        yield f"{'ms':>12} {'contexts':>9} {'graphs':>7} {'handles':>8} {'registered':>12}"
    for row in rows:
        yield (
            f"{row.time / 1e6:>12,.1f} {row.contexts:>9,} {row.graphs:>7,} "
            f"{row.memory_handles:>8,} {format_size(row.memory_bytes):>12}"
        )


def _thinned(rows: tuple[AliveAt, ...], most: int) -> tuple[AliveAt, ...]:
    """Some rows of many: the peak of each stretch of them, the last one always."""
    if len(rows) <= most:
        return rows
    step = -(-len(rows) // (most - 1))
    parts = [rows[at : at + step] for at in range(0, len(rows) - 1, step)]
    return (
        *(max(part, key=lambda row: (row.contexts, row.memory_bytes)) for part in parts),
        rows[-1],
    )


def _functions(report: WatchReport) -> Iterator[str]:
    rows = sorted(report.totals.items(), key=lambda row: -row[1].ns)
    if not rows:
        return
    seconds = report.end.time / 1e9 or 1.0
    yield ""
    yield f"{'function':<44} {'calls':>9} {'a second':>9} {'ms':>12} {'failed':>7}"
    for name, one in rows[:_ROWS]:
        rate = one.count / seconds
        numbers = f"{one.count:>9,} {rate:>9,.1f} {one.ns / 1e6:>12,.2f} {one.failed:>7,}"
        yield f"{shorten(name, 44):<44} {numbers}"
    if len(rows) > _ROWS:
        yield f"and {counted(len(rows) - _ROWS, 'function')} more"


def render_json(report: WatchReport) -> str:
    """One JSON object of `qnnmem.watch/1`."""
    peak = report.peak
    return write_json(
        {
            "schema": SCHEMA,
            "verdict": verdict(report),
            "passes": report.passes,
            "command": list(report.command),
            "injected": list(report.injected),
            "unmatched": list(report.unmatched),
            "exit_code": report.end.exit_code,
            "ended_by": report.end.ended_by or None,
            "timed_out": report.end.timed_out,
            "duration_ns": report.end.time,
            "left_out": report.end.left_out,
            "not_checked": [asdict(one) for one in report.not_checked],
            "log_lines": report.log_lines,
            "libraries": [
                {
                    **{"process": one.process, "name": one.name, "backend": one.backend},
                    **{"api": one.api, "version": one.version or None, "path": one.path},
                }
                for one in report.libraries[:_LISTED]
            ],
            "peak": _moment(peak),
            "timeline": [_moment(one) for one in _thinned(report.timeline, _MOMENTS)],
            "functions": {
                name: {"count": one.count, "ns": one.ns, "failed": one.failed}
                for name, one in sorted(report.totals.items())
            },
            "unreleased": [_thing(one) for one in report.unreleased[:_LISTED]],
            "freed_after_backend": [_thing(one) for one in report.early[:_LISTED]],
            "findings": report.findings,
            "failed_calls": [_failed(one) for one in report.failures],
        }
    )


def _moment(one: AliveAt) -> dict[str, int]:
    return {
        "time_ns": one.time,
        "contexts": one.contexts,
        "graphs": one.graphs,
        "memory_handles": one.memory_handles,
        "memory_bytes": one.memory_bytes,
    }


def _thing(one: LiveHandle) -> dict[str, Any]:
    return {
        **{"kind": one.kind, "process": one.process, "handle": one.handle, "name": one.name},
        **{"bytes": one.bytes, "made_by": one.maker, "time_ns": one.time},
        **{"place": one.place, "stack": _frames(one.stack)},
    }


def _failed(one: FailedCall) -> dict[str, Any]:
    return {
        **{"function": one.function, "code": one.code, "name": code_name(one.code)},
        **{"count": one.count, "injected": one.injected, "finding": one.is_finding},
        **{"time_ns": one.time, "place": one.place, "stack": _frames(one.stack)},
        "log": [{"level": level, "text": text} for level, text in one.log],
        "diagnosis": one.diagnosis or None,
    }


def _frames(stack: Stack) -> list[dict[str, Any]]:
    return [
        {
            **{"function": frame.function, "file": frame.file, "line": frame.line},
            **{"module": frame.module, "offset": frame.offset},
        }
        for frame in stack[:_JSON_FRAMES]
    ]
