"""Render a watched program, the verdict first: one run, or one run per injected failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from qnnmem.programs.ledger import listed
from qnnmem.programs.stacks import own_stack
from qnnmem.programs.watch.summary import amount
from qnnmem.qnn.codes import code_name
from qnnmem.report.check_client import NO_LINES
from qnnmem.report.table import Column, text_table
from qnnmem.results.programs import (
    FailEachResult,
    FailedCall,
    FailedRun,
    LiveHandle,
    LostSession,
    MadeHandle,
    MixedIo,
    Stack,
    WatchResult,
    thinned,
)
from qnnmem.text import counted, printable, shorten
from qnnmem.units import format_size

Row = TypeVar("Row")
_WIDE = 300
_FRAMES = 6  # stack frames in the text
_ROWS = 20  # rows of a list in the text
_LOG = 8  # log lines of a call in the text
_MIXED_IO = "graphs executed with a memory type that they were not prepared for"
_WARNING = 2  # log level; errors have lower numbers
_STEPS = 24  # steps of the timeline in the text
_TIMELINE = (
    Column("ms", ">", 12),
    Column("contexts", ">", 9, gap=1),
    Column("graphs", ">", 7, gap=1),
    Column("handles", ">", 8, gap=1),
    Column("registered", ">", 12, gap=1),
)
_FUNCTIONS = (
    Column("function", "<", 44),
    Column("calls", ">", 9, gap=1),
    Column("a second", ">", 9, gap=1),
    Column("ms", ">", 12, gap=1),
    Column("failed", ">", 7, gap=1),
)


def render_text(report: WatchResult) -> str:
    """Render the verdict, leaks, failures, live objects over time, and the time per function."""
    # Every line is made printable as a whole: a name in a trace cannot control the terminal.
    return "\n".join(map(printable, (report.verdict, *_lines(report)))) + "\n"


def _lines(report: WatchResult) -> Iterator[str]:
    yield from listed(report.not_checked)
    if not report.called:
        if report.not_checked:
            return
        yield "the program never called QnnInterface_getProviders: it loads no QNN library, asks "
        yield "the library for nothing, or cannot load the watcher (a static or 32-bit program)"
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
    yield from _left(
        "contexts that were alive when their backend was freed", report.freed_after_backend
    )
    yield from _listed("continued without QNN", report.lost, _lost)
    unexpected_first = sorted(report.failed_calls, key=lambda call: not call.finding)
    yield from _listed("failed calls", unexpected_first, _failure)
    yield from _listed(_MIXED_IO, report.mixed_io, _mixed_io)
    yield from _listed("made", report.made, _made)
    yield from _timeline(report)
    yield from _functions(report)
    if not report.has_lines:
        yield NO_LINES


def _listed(
    title: str, rows: Sequence[Row], lines: Callable[[Row], Iterator[str]]
) -> Iterator[str]:
    """Yield a title, then the lines of each row; yield nothing if there are no rows."""
    if not rows:
        return
    yield from ("", f"{title}:")
    for row in rows[:_ROWS]:
        yield from lines(row)
    if len(rows) > _ROWS:
        yield f"  and {len(rows) - _ROWS:,} more"


def _left(title: str, handles: Sequence[LiveHandle]) -> Iterator[str]:
    return _listed(title, list(by_session(handles).values()), _left_by_session)


def _left_by_session(handles: Sequence[LiveHandle]) -> Iterator[str]:
    first = handles[0]
    yield shorten(f"  {amounts(handles)}{_of(first.name, first.place)}", _WIDE)
    makers = ", ".join(dict.fromkeys(handle.made_by for handle in handles))
    yield shorten(f"    made by  {makers}", _WIDE)
    yield from _stack(first.stack)


def by_session(handles: Sequence[LiveHandle]) -> dict[tuple[str, str], list[LiveHandle]]:
    """Group live objects by name and place of creation."""
    groups: dict[tuple[str, str], list[LiveHandle]] = {}
    for handle in handles:
        groups.setdefault((handle.name, handle.place), []).append(handle)
    return groups


def amounts(handles: Sequence[LiveHandle]) -> str:
    """Return how many objects of each kind there are, with their known sizes."""
    counts, sizes = Counter(handle.kind for handle in handles), Counter[str]()
    for handle in handles:
        sizes[handle.kind] += handle.bytes
    return ", ".join(
        amount(kind, number) + (f" ({format_size(sizes[kind])})" if sizes[kind] else "")
        for kind, number in counts.items()
    )


def _of(name: str, place: str) -> str:
    return f"{f' of {shorten(name, 100)!r}' if name else ''}{f' at {place}' if place else ''}"


def _lost(session: LostSession) -> Iterator[str]:
    name = session.name or ", ".join(session.graphs)
    yield shorten(f"  session{_of(name, session.place)}", _WIDE)
    yield f"    call     {lost_call(session)}"
    yield f"    cost     {lost_cost(session)}"
    yield from _stack(session.stack)


def lost_call(session: LostSession) -> str:
    """Describe why a session ran without QNN: which call failed, or that no call failed."""
    if not session.function:
        return "no call failed: ONNX Runtime gave no node to QNN"
    how = " on purpose" if session.injected else ""
    return f"{shorten(session.function)} answered {session.code} {session.code_name}{how}"


def lost_cost(session: LostSession) -> str:
    """Describe the cost of continuing without QNN: lost executions and wasted time."""
    after = f"in the {session.after_ns / 1e9:,.1f} s until the program ended"
    if session.executions:
        before = counted(session.executions, "execution")
        return f"QNN did {before} before the failure, none {after}"
    wasted = f"{session.spent_ns / 1e6:,.1f} ms were spent in QNN calls to no effect"
    return f"QNN executed nothing {after}; {wasted}"


def _mixed_io(graph: MixedIo) -> Iterator[str]:
    where = f" at {graph.place}" if graph.place else ""
    yield shorten(f"  {graph.sentence}{where}", 2 * _WIDE)


def _made(handle: MadeHandle) -> Iterator[str]:
    size = f", {format_size(handle.bytes)}" if handle.bytes else ""
    often = f", {handle.count:,} times" if handle.count > 1 else ""
    yield shorten(f"  {handle.kind}{_of(handle.name, handle.place)}{size}{often}", _WIDE)


def _failure(call: FailedCall) -> Iterator[str]:
    how = " on purpose" if call.injected else ""
    often = f", {call.count:,} times" if call.count > 1 else ""
    where = _of(call.of, call.place)
    outcome = f"{call.code} {call.name}{how}{often}"
    yield f"  {shorten(f'{call.function}{where}', _WIDE)}: {outcome}"
    if call.finding or call.injected:
        yield from _stack(call.stack)
    serious = [line.text for line in call.log if line.level <= _WARNING]
    shown = serious[-_LOG:] or [line.text for line in call.log[-_LOG:]]
    for line in shown:
        yield f"    log      {printable(shorten(line, _WIDE))}"
    if len(call.log) > len(shown):
        yield f"    log      {len(call.log):,} lines in all"
    if call.diagnosis:
        yield f"    doctor   {shorten(call.diagnosis, 2 * _WIDE)}"


def _stack(stack: Stack) -> Iterator[str]:
    own = [frame for frame in own_stack(stack) if frame.line]
    for frame in own[1:_FRAMES]:  # the line above shows the first frame
        source = f"  {frame.source}" if frame.source else ""
        yield f"    from     {printable(shorten(f'{frame.function} {frame.place}{source}', 200))}"


def _timeline(report: WatchResult) -> Iterator[str]:
    peak = report.peak
    yield ""
    contexts = counted(peak.contexts, "context")
    registered = (
        f"{counted(peak.memory_handles, 'memory handle')}, {format_size(peak.memory_bytes)}"
    )
    yield f"peak: {contexts}, {counted(peak.graphs, 'graph')}, {registered}"
    rows = [
        (
            f"{row.time_ns / 1e6:,.1f}",
            *(f"{number:,}" for number in (row.contexts, row.graphs, row.memory_handles)),
            format_size(row.memory_bytes),
        )
        for row in thinned(report.timeline, _STEPS)
    ]
    if rows:
        yield from text_table(_TIMELINE, rows)


def _functions(report: WatchResult) -> Iterator[str]:
    rows = sorted(report.functions.items(), key=lambda row: -row[1].ns)
    if not rows:
        return
    seconds = report.duration_ns / 1e9 or 1.0
    yield ""
    cells = (
        (
            shorten(name, 44),
            f"{total.count:,}",
            f"{total.count / seconds:,.1f}",
            f"{total.ns / 1e6:,.2f}",
            f"{total.failed:,}",
        )
        for name, total in rows[:_ROWS]
    )
    yield from text_table(_FUNCTIONS, cells)
    if len(rows) > _ROWS:
        yield f"and {counted(len(rows) - _ROWS, 'more function')}"


def run_headline(run: FailedRun) -> str:
    """Return one line about a run: the failed call, its place, and how the run ended."""
    where = f" at {run.place}" if run.place else ""
    return shorten(f"call {run.call}{where}: {_end(run)}", 400)


def _end(run: FailedRun) -> str:
    if run.outcome == "crashed":
        return f"crashed ({run.ended_by})"
    if run.outcome == "leaked":
        kinds = Counter(handle.kind for handle in run.leaked)
        left = ", ".join(amount(kind, number) for kind, number in kinds.items())
        return f"leaked {left} (exit code {run.exit_code})"
    if run.outcome == "failed":
        return f"failed with exit code {run.exit_code}"
    return run.outcome


def render_fail_each(report: FailEachResult) -> str:
    """Render the verdict, then every run."""
    return "\n".join([report.verdict, *_fail_each_lines(report)]) + "\n"


def _fail_each_lines(report: FailEachResult) -> Iterator[str]:
    yield f"code       {report.code} {code_name(report.code)}"
    yield f"normally   exit code {report.exit_code}, {counted(report.calls, 'call')}"
    if report.calls > len(report.runs):
        of = f"{len(report.runs):,} of {report.calls:,} calls"
        yield f"note: only the first {of} were made to fail, one in each run"
    for run in report.runs:
        yield run_headline(run)
        for handle in run.leaked[:5]:
            where = f" at {handle.place}" if handle.place else ""
            yield shorten(f"    {handle.kind} made by {handle.made_by}{where}", 300)
        if run.last_line:
            yield f"    last line  {printable(run.last_line)}"
    if any(run.outcome == "exited 0" for run in report.runs):
        yield "exited 0: the program fell back to another backend or did not notice the failure"
