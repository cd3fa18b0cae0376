"""Run a program once for each call of a function, with that call failing.

    run it as it is, and count the calls of the function
    for each of them: run it with that call failing, and look how it ends

A run is bad if it crashed, hung or leaked more than the run without a failure.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from qnnmem.errors import UsageError
from qnnmem.programs.functions import NAMES, in_table
from qnnmem.programs.watch.injections import Injection
from qnnmem.programs.watch.summary import summarize
from qnnmem.programs.watch.trace import read_trace
from qnnmem.programs.watch.watch_run import WatchOptions, record
from qnnmem.results.programs import FailEachResult, FailedRun, LeakedHandle, WatchResult
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import counted, shorten

NOT_WATCHED = "not watched"  # the outcome of a run of which calls were missed
_TAIL = 4096  # bytes of what a run printed last
_AT_LEAST_S = 10.0  # that a run is given, however fast the first one was
_TIMES = 5.0  # as long as the first one


def fail_each(
    options: WatchOptions,
    function: int,
    code: int,
    most_runs: int,
    say: Callable[[FailedRun], None] | None = None,
) -> FailEachResult:
    """Run a program once as it is, and then once for each call of a function."""
    begun = time.monotonic()
    usual, _ = _once(replace(options, injections=()))
    took = time.monotonic() - begun
    name = NAMES[function]
    total = usual.functions.get(name)
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
    return FailEachResult(
        verdict=_verdict(options.command[0], name, runs),
        passes=not any(run.bad or run.outcome == NOT_WATCHED for run in runs),
        command=options.command,
        function=name,
        code=code,
        calls=calls,
        exit_code=usual.exit_code,
        time_limit_s=limit,
        runs=tuple(runs),
    )


def _verdict(program: str, function: str, runs: Sequence[FailedRun]) -> str:
    """One line: how many runs ended in which way."""
    ends = Counter(run.outcome for run in runs)
    words = ", ".join(f"{number:,} {outcome}" for outcome, number in ends.most_common())
    what = f"{shorten(program, 200)}, {function} failing in turn"
    return f"{what}: {counted(len(runs), 'run')}: {words}"


def _check_usual(usual: WatchResult, options: WatchOptions, name: str, calls: int) -> None:
    program = shorten(options.command[0], 200)
    if usual.timed_out or usual.ended_by:
        how = "does not end in time" if usual.timed_out else f"ends by {usual.ended_by}"
        raise UsageError(f"{program} {how} even if nothing fails on purpose")
    if not calls:
        total = counted(sum(one.count for one in usual.functions.values()), "call")
        raise UsageError(f"{program} never calls {name} ({total} of QNN in all)")


def _once(options: WatchOptions) -> tuple[WatchResult, str]:
    with temporary_folder() as folder, tempfile.TemporaryFile() as printed:
        lines = record(replace(options, output=printed), Path(folder))
        with temporary_folder() as own:  # unknown to the program
            trace = Path(own, "trace.jsonl")
            with trace.open("wb") as file:
                file.writelines(lines)
            return summarize(read_trace(trace)), _last_line(printed)


def _last_line(printed: IO[bytes]) -> str:
    size = printed.seek(0, 2)
    printed.seek(max(0, size - _TAIL))
    lines = printed.read(_TAIL).decode("utf-8", "replace").split("\n")
    return next((shorten(line.strip(), 200) for line in reversed(lines) if line.strip()), "")


def _judged(nth: int, result: WatchResult, before: Counter[str], printed: str) -> FailedRun:
    usual, leaked = Counter(before), []
    for handle in result.unreleased:
        if usual[handle.kind] > 0:
            usual[handle.kind] -= 1
        else:
            leaked.append(LeakedHandle(handle.kind, handle.made_by, handle.place))
    injected = [call for call in result.failed_calls if call.injected]
    outcome = _outcome(result, leaked, is_reached=bool(injected))
    return FailedRun(
        call=nth,
        place=injected[-1].place if injected else "",
        outcome=outcome,
        bad=outcome in ("hung", "crashed", "leaked"),
        exit_code=result.exit_code,
        ended_by=result.ended_by,
        leaked=tuple(leaked),
        last_line=printed,
    )


def _outcome(result: WatchResult, leaked: Sequence[LeakedHandle], *, is_reached: bool) -> str:
    """How a run ended, the worst word that holds."""
    if result.timed_out:
        return "hung"
    if result.ended_by:
        return "crashed"
    if result.not_checked:  # what looks left may have been freed
        return NOT_WATCHED
    if leaked:
        return "leaked"
    if not is_reached:
        return "not reached"
    return "exited 0" if result.exit_code == 0 else "failed"
