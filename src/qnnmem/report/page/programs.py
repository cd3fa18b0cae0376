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


def client_section(found: ClientResult) -> PageSection:
    """Return a section with the findings of check-client, and charts of live objects by call."""
    where = ", ".join(filter(None, (found.mode, found.hw_version)))
    known = f"{counted(found.suppressed, 'known finding')} left out" if found.suppressed else ""
    more = f"{counted(found.left_out, 'finding')} more were found but are not listed"
    body = [
        *_answer(found.passes, bool(found.calls), found.verdict, _is_open(found)),
        *(_rule(one) for one in found.findings[:_MOST]),
        *_beyond(len(found.findings), "finding"),
        *([tag("p", more)] if found.left_out else []),
        *_charts(
            [(one.call, one.contexts) for one in found.timeline],
            [(one.call, one.registered_bytes) for one in found.timeline],
            "call",
        ),
        *_client_calls(found),
        _footer(found.command, f"exit code {found.exit_code}", where, known),
    ]
    return PageSection(f"Rules that {_program(found.command)} breaks", lines(body))


def watch_section(found: WatchResult) -> PageSection:
    """Return a section with live objects, failures and leaks of a watched program."""
    libraries = [
        f"{one.name} {one.version or ''}".strip() + (f" (API {one.api})" if one.api else "")
        for one in found.libraries
    ]
    lost = f"{counted(found.left_out, 'event')} not kept" if found.left_out else ""
    body = [
        *_answer(found.passes, bool(found.functions), found.verdict, _is_open(found)),
        *_left("Never released", found.unreleased),
        *_left("Contexts that were alive when their backend was freed", found.freed_after_backend),
        *_lost(found.lost),
        *_failures(found.failed_calls),
        *_mixed(found),
        *_charts(
            [(one.time_ns / 1e6, one.contexts) for one in found.timeline],
            [(one.time_ns / 1e6, one.memory_bytes) for one in found.timeline],
            "ms",
        ),
        *_made(found.made),
        *_watched_calls(found),
        _footer(found.command, *libraries, lost),
    ]
    return PageSection(f"What {_program(found.command)} does with QNN", lines(body))


def fail_each_section(found: FailEachResult) -> PageSection:
    """Return a section about how the program reacts when each call fails."""
    rows = [
        (
            one.call,
            tag("strong", one.outcome, class_="bad" if one.bad else "good"),
            one.place,
            one.ended_by or ("" if one.exit_code is None else f"exit code {one.exit_code}"),
            ", ".join(f"{left.kind} {left.place}".strip() for left in one.leaked[:_LEFT]),
            one.last_line,
        )
        for one in found.runs[:_MOST]
    ]
    usual = f"usually exit code {found.exit_code}, {counted(found.calls, 'call')}"
    body = [
        *_answer(found.passes, bool(found.runs), found.verdict),
        table(("call", "outcome", "where", "end", "never released", "last line"), rows),
        *_beyond(len(found.runs), "run"),
        _footer(found.command, f"failing with {found.code}", usual),
    ]
    title = f"What {_program(found.command)} does when {found.function} fails"
    return PageSection(title, lines(body))


def _program(command: Sequence[str]) -> str:
    return file_name(command[0]) if command else "a program"


def _is_open(found: ClientResult | WatchResult) -> bool:
    """Return True if some calls were not checked and the checked calls have no findings."""
    return bool(found.not_checked) and not found.findings


def _answer(passes: bool, called: bool, verdict: str, is_open: bool = False) -> Iterator[Html]:
    yield answer(passes if called and not is_open else None, verdict, words=_ANSWER)


def _footer(command: Sequence[str], *facts: str) -> Html:
    """Return a collapsed part with the command that was run, and further facts."""
    said = tag("p", ", ".join(filter(None, (" ".join(command), *facts))), class_="faint wraps")
    return details("What was run", said)


def _beyond(number: int, what: str) -> Iterator[Html]:
    if number > _MOST:
        yield tag("p", f"{counted(number - _MOST, what)} more in the result.")


def _rule(one: ClientFinding) -> Html:
    rows: list[tuple[str, str]] = [("rule", one.title)] if one.title else []
    if one.need is not None or one.given is not None:
        rows += zip(("expected", "given"), numbers(one.rule, one.need, one.given), strict=True)
    if one.code:
        rows.append(("answered", f"{one.code} {code_name(one.code)}"))
    if one.cure:
        rows.append(("what to do", one.cure))
    if one.count > 1:
        rows.append(("times", f"{one.count:,}"))
    at = " at" if one.call != "exit" else ", about"  # the end of a program has no line number
    where = f"{at} {one.place}" if one.place else ""
    other = one.other
    return lines(
        [
            tag("h3", tag("code", one.rule), Html(" "), one.sentence),
            tag("p", tag("code", f"{one.call or 'exit'}{where}")),
            table(("what", "value"), rows) if rows else Html(""),
            *_stack("Call stack", one.stack),
            *(_stack(f"{other.what} {other.place}".strip(), other.stack) if other else ()),
        ]
    )


def _stack(title: str, stack: Sequence[Frame]) -> Iterator[Html]:
    if stack:
        shown = [
            tag("li", tag("code", frame.function or "?"), " ", _place(frame))
            for frame in stack[:_MOST]
        ]
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
        (one.name or ", ".join(one.graphs), one.place, lost_call(one), lost_cost(one))
        for one in sessions[:_MOST]
    ]
    yield table(("session", "made at", "call", "cost"), rows)
    yield from _beyond(len(sessions), "session")
    for one in sessions[:_STACKS]:
        yield from _own_stack(" ".join(filter(None, (one.name, one.place))), one.stack)


def _own_stack(of: str, stack: Sequence[Frame]) -> Iterator[Html]:
    """Yield the program's own frames of a call stack, collapsed."""
    own = own_stack(tuple(stack))
    shown = [tag("li", tag("code", one.function or "?"), " ", _place(one)) for one in own[:_MOST]]
    if len(shown) > 1:  # a single place is already in the sentence
        yield details(f"Lines of {of}", tag("ol", *shown, class_="frames"))


def _mixed(found: WatchResult) -> Iterator[Html]:
    if found.mixed_io:
        yield tag("h3", "Graphs not executed the way they were prepared")
        rows = [(one.sentence, one.place) for one in found.mixed_io[:_MOST]]
        yield table(("what", "made at"), rows)
        yield from _beyond(len(found.mixed_io), "graph")


def _made(things: Sequence[MadeHandle]) -> Iterator[Html]:
    if things:
        rows = [
            (one.kind, one.name, one.bytes or None, one.count, one.place) for one in things[:_MOST]
        ]
        shown = [
            table(("what", "name", "bytes", "how many", "made at"), rows),
            *_beyond(len(things), "thing"),
        ]
        yield details("Contexts, graphs and memory that the program made", lines(shown))


def _failures(calls: Sequence[FailedCall]) -> Iterator[Html]:
    if calls:
        yield tag("h3", "Calls that failed")
    for one in calls[:_MOST]:
        where = f" at {one.place}" if one.place else ""
        often = f", {one.count:,} times" if one.count > 1 else ""
        how = ", on purpose" if one.injected else ""
        of = f" of {one.of}" if one.of else ""
        yield tag("h4", tag("code", one.function), f"{of}: {one.code} {one.name}{how}{often}")
        if where:
            yield tag("p", tag("code", where.strip()))
        if one.diagnosis:
            yield tag("p", tag("strong", "diagnosis: "), one.diagnosis)
        if one.log:
            said = [tag("li", tag("code", text(row.text, 2000))) for row in one.log[-_LOG:]]
            title = f"Log of the library, {counted(len(one.log), 'line')}"
            yield details(title, tag("ol", *said, class_="evidence"), is_open=len(said) <= 8)
        yield from _own_stack(one.place, one.stack)
    yield from _beyond(len(calls), "call")


def _charts(
    contexts: Sequence[tuple[float, int]], registered: Sequence[tuple[float, int]], unit: str
) -> Iterator[Html]:
    """Yield step charts of live contexts and registered bytes."""
    for title, points, shown in (
        ("Contexts alive", contexts, "{:,}".format),
        ("Bytes registered", registered, format_size),
    ):
        if len(points) > 1 and any(value for _, value in points):
            yield tag("h3", title)
            yield line(_thinned(points), title, unit=unit, stepped=True, shown=shown)


def _thinned(points: Points) -> Points:
    """Return the highest and the last point of each interval if there are too many points."""
    ordered = sorted(points, key=lambda point: point[0])  # stable for equal times
    stretch = -(-2 * len(ordered) // _DRAWN)
    if stretch < 2:
        return ordered
    parts = (ordered[at : at + stretch] for at in range(0, len(ordered), stretch))
    return [one for part in parts for one in (max(part, key=lambda point: point[1]), part[-1])]


def _client_calls(found: ClientResult) -> Iterator[Html]:
    rows = [(name, count, found.failed_calls.get(name, 0)) for name, count in found.calls.items()]
    yield from _functions(("function", "calls", "failed"), rows[:_MOST], len(rows))


def _watched_calls(found: WatchResult) -> Iterator[Html]:
    by_time = sorted(found.functions.items(), key=lambda one: -one[1].ns)
    rows = [(name, one.count, f"{one.ns / 1e6:,.2f}", one.failed) for name, one in by_time[:_MOST]]
    yield from _functions(("function", "calls", "ms", "failed"), rows, len(by_time))


def _functions(head: Sequence[str], rows: Sequence[Sequence[Cell]], number: int) -> Iterator[Html]:
    if rows:
        shown = [table(head, rows), *_beyond(number, "function")]
        yield details("QNN functions that were called", lines(shown))
