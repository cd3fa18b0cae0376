"""`watch --read`: what a recorded trace says, with the doctor's reading of failed calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnmem.programs.watch.summary import WatchReport

_MAX_DIAGNOSES = 20


def read_watched(trace: Path) -> WatchReport:
    """Return the report of a trace."""
    from qnnmem.programs.watch.summary import summarize, with_diagnoses
    from qnnmem.programs.watch.trace import read_trace

    report = summarize(read_trace(trace), trace)
    return with_diagnoses(report, _diagnoses(report))


def watch_exit_code(report: WatchReport, *, is_run: bool) -> int:
    """Return 2 without a call, 1 for findings, 3 for unwatched calls, else the program's own."""
    if not report.called and not report.not_checked:
        return 2
    if report.findings or report.not_checked:
        return 1 if report.findings else 3
    # The code in a trace is one of a program that ran once, somewhere.
    return report.end.exit_code if is_run else 0


def _diagnoses(report: WatchReport) -> Iterator[str]:
    """What the doctor makes of the log lines of each failed call."""
    from qnnmem.verbs.refusal import reading_of

    known: dict[tuple[str, ...], str] = {}
    for one in report.failures:
        lines = tuple(text for _, text in one.log) if one.is_finding else ()
        if lines and lines not in known and len(known) < _MAX_DIAGNOSES:
            known[lines] = reading_of(lines)
        yield known.get(lines, "")
