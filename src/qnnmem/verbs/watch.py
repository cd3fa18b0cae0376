"""`watch --read`: what a recorded trace says, with the doctor's reading of failed calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnmem.results.programs import WatchResult

_MAX_DIAGNOSES = 20


def read_watched(trace: Path) -> WatchResult:
    """Return the report of a trace."""
    from qnnmem.programs.watch.summary import summarize, with_diagnoses
    from qnnmem.programs.watch.trace import read_trace

    report = summarize(read_trace(trace), trace)
    return with_diagnoses(report, _diagnoses(report))


def watch_exit_code(report: WatchResult, *, is_run: bool) -> int:
    """Return 2 without a call, 1 for findings, 3 for unwatched calls, else the program's own."""
    # The exit code in a trace is that of a program that ran once, somewhere.
    return 0 if report.passes and not is_run else report.verb_code


def _diagnoses(report: WatchResult) -> Iterator[str]:
    """What the doctor makes of the log lines of each failed call."""
    from qnnmem.verbs.refusal import reading_of

    known: dict[tuple[str, ...], str] = {}
    for call in report.failed_calls:
        lines = tuple(line.text for line in call.log) if call.finding else ()
        if lines and lines not in known and len(known) < _MAX_DIAGNOSES:
            known[lines] = reading_of(lines)
        yield known.get(lines, "")
