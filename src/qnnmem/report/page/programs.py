"""Render programs that call QNN as page sections: broken rules, live objects, failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.programs.stacks import own_stack
from qnnmem.qnn.codes import code_name
from qnnmem.report.check_client import numbers
from qnnmem.report.page.charts import Points, line
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.htp import file_name
from qnnmem.report.page.markup import Cell, Html, answer, details, lines, table, tag, text
from qnnmem.report.watch import amounts, by_session, lost_call, lost_cost
from qnnmem.results.programs import (
    ClientFinding,
    ClientResult,
    FailEachResult,
    FailedCall,
    Frame,
    LiveHandle,
    LostSession,
    MadeHandle,
    WatchResult,
)
from qnnmem.text import counted
from qnnmem.units import format_size

_MOST = 200  # findings, failures or objects shown
_STACKS = 20  # call stacks below a table
_LEFT = 5  # objects that a run leaked
_LOG = 40  # log lines of the library below a call
_DRAWN = 1000  # points of a curve
_ANSWER = ("no problems found", "problems found", "cannot tell")


def client_section(result: ClientResult) -> PageSection:
    """Return a section with the findings of check-client, and charts of live objects by call."""
    where = ", ".join(filter(None, (result.mode, result.hw_version)))
    known = f"{counted(result.suppressed, 'known finding')} left out" if result.suppressed else ""
    more = f"{counted(result.left_out, 'more finding')} not listed"
    body = [
        *_answer(result.passes, bool(result.calls), result.verdict, _is_open(result)),
        *(_rule(finding) for finding in result.findings[:_MOST]),
        *_beyond(len(result.findings), "finding"),
        *([tag("p", more)] if result.left_out else []),
        *_charts(
            [(point.call, point.contexts) for point in result.timeline],
            [(point.call, point.registered_bytes) for point in result.timeline],
            "call",
        ),
        *_client_calls(result),
        _footer(result.command, f"exit code {result.exit_code}", where, known),
    ]
    return PageSection(f"Rules that {_program(result.command)} breaks", lines(body))


def watch_section(result: WatchResult) -> PageSection:
    """Return a section with live objects, failures and leaks of a watched program."""
    libraries = [
        f"{library.name} {library.version or ''}".strip()
        + (f" (API {library.api})" if library.api else "")
        for library in result.libraries
    ]
    lost = f"{counted(result.left_out, 'event')} not kept" if result.left_out else ""
    body = [
        *_answer(result.passes, bool(result.functions), result.verdict, _is_open(result)),
        *_left("Never released", result.unreleased),
        *_left("Contexts that were alive when their backend was freed", result.freed_after_backend),
        *_lost(result.lost),
        *_failures(result.failed_calls),
        *_mixed(result),
        *_charts(
            [(point.time_ns / 1e6, point.contexts) for point in result.timeline],
            [(point.time_ns / 1e6, point.memory_bytes) for point in result.timeline],
            "ms",
        ),
        *_made(result.made),
        *_watched_calls(result),
        _footer(result.command, *libraries, lost),
    ]
    return PageSection(f"What {_program(result.command)} does with QNN", lines(body))


def fail_each_section(result: FailEachResult) -> PageSection:
    """Return a section with each call that was made to fail, and how the program reacted."""
    rows = [
        (
            run.call,
            tag("strong", run.outcome, class_="bad" if run.bad else "good"),
            run.place,
            run.ended_by or ("" if run.exit_code is None else f"exit code {run.exit_code}"),
            ", ".join(f"{left.kind} {left.place}".strip() for left in run.leaked[:_LEFT]),
            run.last_line,
        )
        for run in result.runs[:_MOST]
    ]
    usual = f"usually exit code {result.exit_code}, {counted(result.calls, 'call')}"
    body = [
        *_answer(result.passes, bool(result.runs), result.verdict),
        table(("call", "outcome", "where", "end", "never released", "last line"), rows),
        *_beyond(len(result.runs), "run"),
        _footer(result.command, f"failing with {result.code}", usual),
    ]
    title = f"What {_program(result.command)} does when {result.function} fails"
    return PageSection(title, lines(body))


def _program(command: Sequence[str]) -> str:
    return file_name(command[0]) if command else "a program"


def _is_open(result: ClientResult | WatchResult) -> bool:
    """Return True if some calls were not checked and the other calls have no findings."""
    return bool(result.not_checked) and not result.findings


def _answer(passes: bool, called: bool, verdict: str, is_open: bool = False) -> Iterator[Html]:
    yield answer(passes if called and not is_open else None, verdict, words=_ANSWER)


def _footer(command: Sequence[str], *facts: str) -> Html:
    """Return a collapsed part with the command that was run, followed by `facts`."""
    words = tag("p", ", ".join(filter(None, (" ".join(command), *facts))), class_="faint wraps")
    return details("What was run", words)


def _beyond(number: int, noun: str) -> Iterator[Html]:
    if number > _MOST:
        yield tag("p", f"{counted(number - _MOST, f'more {noun}')} in the JSON result.")


def _rule(finding: ClientFinding) -> Html:
    rows: list[tuple[str, str]] = [("rule", finding.title)] if finding.title else []
    if finding.need is not None or finding.given is not None:
        rows += zip(
            ("expected", "given"), numbers(finding.rule, finding.need, finding.given), strict=True
        )
    if finding.code:
        rows.append(("answered", f"{finding.code} {code_name(finding.code)}"))
    if finding.cure:
        rows.append(("what to do", finding.cure))
    if finding.count > 1:
        rows.append(("times", f"{finding.count:,}"))
    # The end of a program has no line number.
    where = f"{', about' if finding.call == 'exit' else ' at'} {finding.place}"
    where = where if finding.place else ""
    other = finding.other
    return lines(
        [
            tag("h3", tag("code", finding.rule), Html(" "), finding.sentence),
            tag("p", tag("code", f"{finding.call or 'exit'}{where}")),
            table(("what", "value"), rows) if rows else Html(""),
            *_stack("Call stack", finding.stack),
            *(_stack(f"{other.what} {other.place}".strip(), other.stack) if other else ()),
        ]
    )


def _stack(title: str, stack: Sequence[Frame]) -> Iterator[Html]:
    if stack:
        shown = [tag("li", tag("code", f.function or "?"), " ", _place(f)) for f in stack[:_MOST]]
        yield details(title, tag("ol", *shown, class_="frames"))


def _place(frame: Frame) -> str:
    if frame.file and frame.line:
        return f"{frame.file}:{frame.line}"
    return f"{file_name(frame.module)}+{frame.offset:#x}" if frame.module else ""


def _left(title: str, things: Sequence[LiveHandle]) -> Iterator[Html]:
    if not things:
        return
    yield tag("h3", title)
    groups = tuple(by_session(things).items())
    rows = [(amounts(handles), name, place) for (name, place), handles in groups[:_MOST]]
    yield table(("what", "of", "made at"), rows)
    yield from _beyond(len(groups), "session")
    for (name, place), handles in groups[:_STACKS]:
        yield from _own_stack(" ".join(filter(None, (name, place))), handles[0].stack)


def _lost(sessions: Sequence[LostSession]) -> Iterator[Html]:
    if not sessions:
        return
    yield tag("h3", "Continued without QNN")
    rows = [
        (s.name or ", ".join(s.graphs), s.place, lost_call(s), lost_cost(s))
        for s in sessions[:_MOST]
    ]
    yield table(("session", "made at", "call", "cost"), rows)
    yield from _beyond(len(sessions), "session")
    for session in sessions[:_STACKS]:
        yield from _own_stack(" ".join(filter(None, (session.name, session.place))), session.stack)


def _own_stack(of: str, stack: Sequence[Frame]) -> Iterator[Html]:
    """Yield the program's own frames of a call stack, collapsed."""
    own = own_stack(tuple(stack))
    if len(own) > 1:  # a single place is already in the sentence
        yield from _stack(f"Lines of {of}", own)


def _mixed(result: WatchResult) -> Iterator[Html]:
    if result.mixed_io:
        yield tag("h3", "Graphs executed with a memory type that they were not prepared for")
        rows = [(graph.sentence, graph.place) for graph in result.mixed_io[:_MOST]]
        yield table(("what", "made at"), rows)
        yield from _beyond(len(result.mixed_io), "graph")


def _made(things: Sequence[MadeHandle]) -> Iterator[Html]:
    if things:
        rows = [
            (handle.kind, handle.name, handle.bytes or None, handle.count, handle.place)
            for handle in things[:_MOST]
        ]
        shown = [
            table(("what", "name", "bytes", "how many", "made at"), rows),
            *_beyond(len(things), "thing"),
        ]
        yield details("Contexts, graphs and memory that the program made", lines(shown))


def _failures(calls: Sequence[FailedCall]) -> Iterator[Html]:
    if calls:
        yield tag("h3", "Calls that failed")
    for call in calls[:_MOST]:
        where = f" at {call.place}" if call.place else ""
        often = f", {call.count:,} times" if call.count > 1 else ""
        how = ", on purpose" if call.injected else ""
        of = f" of {call.of}" if call.of else ""
        yield tag("h4", tag("code", call.function), f"{of}: {call.code} {call.name}{how}{often}")
        if where:
            yield tag("p", tag("code", where.strip()))
        if call.diagnosis:
            yield tag("p", tag("strong", "diagnosis: "), call.diagnosis)
        if call.log:
            rows = [tag("li", tag("code", text(row.text, 2000))) for row in call.log[-_LOG:]]
            title = f"Log of the library, {counted(len(call.log), 'line')}"
            yield details(title, tag("ol", *rows, class_="evidence"), is_open=len(rows) <= 8)
        yield from _own_stack(call.place, call.stack)
    yield from _beyond(len(calls), "call")


def _charts(contexts: Points, registered: Points, unit: str) -> Iterator[Html]:
    """Yield step charts of live contexts and registered bytes."""
    for title, points, shown in (
        ("Contexts alive", contexts, "{:,}".format),
        ("Bytes registered", registered, format_size),
    ):
        if len(points) > 1 and any(value for _, value in points):
            yield tag("h3", title)
            yield line(_thinned(points), title, unit=unit, stepped=True, shown=shown)


def _thinned(points: Points) -> Points:
    """Return the points; if there are too many, only the highest and the last of each interval."""
    ordered = sorted(points, key=lambda point: point[0])  # stable for equal times
    stretch = -(-2 * len(ordered) // _DRAWN)
    if stretch < 2:
        return ordered
    parts = (ordered[start : start + stretch] for start in range(0, len(ordered), stretch))
    return [point for part in parts for point in (max(part, key=lambda point: point[1]), part[-1])]


def _client_calls(result: ClientResult) -> Iterator[Html]:
    rows = [(name, count, result.failed_calls.get(name, 0)) for name, count in result.calls.items()]
    yield from _functions(("function", "calls", "failed"), rows[:_MOST], len(rows))


def _watched_calls(result: WatchResult) -> Iterator[Html]:
    by_time = sorted(result.functions.items(), key=lambda item: -item[1].ns)
    totals = by_time[:_MOST]
    rows = [(name, t.count, f"{t.ns / 1e6:,.2f}", t.failed) for name, t in totals]
    yield from _functions(("function", "calls", "ms", "failed"), rows, len(by_time))


def _functions(head: Sequence[str], rows: Sequence[Sequence[Cell]], number: int) -> Iterator[Html]:
    if rows:
        shown = [table(head, rows), *_beyond(number, "function")]
        yield details("QNN functions that were called", lines(shown))
