"""A program run again and again, each time with another call failing.

    run it as it is, and count the calls of the function
    for each of them: run it with that call failing, and look how it ends

A run is bad where it crashed, hung or left more behind than the run without a failure.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from qnnmem.errors import UsageError
from qnnmem.programs.functions import NAMES, in_table
from qnnmem.programs.watch.injections import Injection
from qnnmem.programs.watch.summary import LiveHandle, WatchReport, summarize
from qnnmem.programs.watch.trace import read_trace
from qnnmem.programs.watch.watch_run import WatchOptions, record
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import counted, shorten

_TAIL = 4096  # bytes of what a run printed last
_AT_LEAST_S = 10.0  # that a run is given, however fast the first one was
_TIMES = 5.0  # as long as the first one


@dataclass(frozen=True, slots=True)
class FailedRun:
    """How a program ended after one of its calls had failed."""

    nth: int
    place: str  # of that call
    exit_code: int
    ended_by: str
    timed_out: bool
    reached: bool  # whether the program came to that call at all
    leaked: tuple[LiveHandle, ...]
    last_line: str  # that it printed
    is_unseen: bool = False  # whether calls were not watched: what looks left may have been freed

    @property
    def outcome(self) -> str:
        """In a word, the worst one."""
        if self.timed_out:
            return "hung"
        if self.ended_by:
            return "crashed"
        if self.is_unseen:
            return "not watched"
        if self.leaked:
            return "leaked"
        if not self.reached:
            return "not reached"
        return "exited 0" if self.exit_code == 0 else "failed"

    @property
    def is_bad(self) -> bool:
        """Whether the program did not take the failure well."""
        return self.outcome in ("hung", "crashed", "leaked")


@dataclass(frozen=True, slots=True)
class FailEachReport:
    """All runs."""

    command: tuple[str, ...]
    function: str
    code: int
    calls: int  # of the function, when nothing failed
    exit_code: int  # when nothing failed
    runs: tuple[FailedRun, ...]
    time_limit_s: float  # of each run

    @property
    def findings(self) -> int:
        """How many runs were bad."""
        return sum(run.is_bad for run in self.runs)

    @property
    def unseen(self) -> int:
        """How many runs were not watched whole, and not bad otherwise."""
        return sum(run.outcome == "not watched" for run in self.runs)


def fail_each(
    options: WatchOptions,
    function: int,
    code: int,
    most_runs: int,
    say: Callable[[FailedRun], None] | None = None,
) -> FailEachReport:
    """Run a program once as it is, and then once for each call of a function."""
    begun = time.monotonic()
    usual, _ = _once(replace(options, injections=()))
    took = time.monotonic() - begun
    name = NAMES[function]
    total = usual.totals.get(name)
    _check_usual(usual, options, in_table(name), 0 if total is None else total.count)
    calls = total.count if total is not None else 0
    limit = options.time_limit_s or max(_AT_LEAST_S, _TIMES * took)
    before = Counter(one.kind for one in usual.unreleased)
    runs = []
    for nth in range(1, min(calls, most_runs) + 1):
        injections = (*options.injections, Injection(function, code, nth))
        report, printed = _once(replace(options, injections=injections, time_limit_s=limit))
        runs.append(_judged(nth, report, before, printed))
        if say is not None:
            say(runs[-1])
    return FailEachReport(
        options.command, name, code, calls, usual.end.exit_code, tuple(runs), limit
    )


def _check_usual(usual: WatchReport, options: WatchOptions, name: str, calls: int) -> None:
    program = shorten(options.command[0], 200)
    if usual.end.timed_out or usual.end.ended_by:
        how = "does not end in time" if usual.end.timed_out else f"ends by {usual.end.ended_by}"
        raise UsageError(f"{program} {how} even if nothing fails on purpose")
    if not calls:
        total = counted(sum(one.count for one in usual.totals.values()), "call")
        raise UsageError(f"{program} never calls {name} ({total} of QNN in all)")


def _once(options: WatchOptions) -> tuple[WatchReport, str]:
    with temporary_folder() as folder, tempfile.TemporaryFile() as printed:
        lines = record(replace(options, output=printed), Path(folder))
        with temporary_folder() as own:  # of which the program was told nothing
            trace = Path(own, "trace.jsonl")
            with trace.open("wb") as file:
                file.writelines(lines)
            return summarize(read_trace(trace)), _last_line(printed)


def _last_line(printed: IO[bytes]) -> str:
    size = printed.seek(0, 2)
    printed.seek(max(0, size - _TAIL))
    lines = printed.read(_TAIL).decode("utf-8", "replace").split("\n")
    return next((shorten(line.strip(), 200) for line in reversed(lines) if line.strip()), "")


def _judged(nth: int, report: WatchReport, before: Counter[str], printed: str) -> FailedRun:
    usual, leaked = Counter(before), []
    for thing in report.unreleased:
        if usual[thing.kind] > 0:
            usual[thing.kind] -= 1
        else:
            leaked.append(thing)
    injected = [one for one in report.failures if one.injected]
    return FailedRun(
        nth,
        injected[-1].place if injected else "",
        report.end.exit_code,
        report.end.ended_by,
        report.end.timed_out,
        bool(injected),
        tuple(leaked),
        printed,
        bool(report.not_checked),
    )
