"""How a program took the failure of each of its calls: text with the verdict first, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from qnnmem.programs.watch.fail_each import FailEachReport, FailedRun
from qnnmem.qnn.codes import code_name
from qnnmem.results.schema import write_json
from qnnmem.text import counted, printable, shorten

SCHEMA = "qnnmem.fail-each/1"


def verdict(report: FailEachReport) -> str:
    """One line: how many runs ended in which way."""
    ends = Counter(run.outcome for run in report.runs)
    words = ", ".join(f"{number:,} {outcome}" for outcome, number in ends.most_common())
    runs = counted(len(report.runs), "run")
    return f"{shorten(report.command[0], 200)}, {report.function} failing in turn: {runs}: {words}"


def headline(run: FailedRun) -> str:
    """One run in one line."""
    where = f" at {run.place}" if run.place else ""
    return shorten(f"call {run.nth}{where}: {_end(run)}", 400)


def _end(run: FailedRun) -> str:
    if run.outcome == "crashed":
        return f"crashed ({run.ended_by})"
    if run.outcome == "leaked":
        kinds = Counter(one.kind for one in run.leaked)
        left = ", ".join(
            counted(number, "memory handle" if kind == "memory" else kind)
            for kind, number in kinds.items()
        )
        return f"leaked {left} (exit code {run.exit_code})"
    if run.outcome == "failed":
        return f"failed with exit code {run.exit_code}"
    return run.outcome


def render_text(report: FailEachReport) -> str:
    """Verdict, then every run."""
    return "\n".join([verdict(report), *_lines(report)]) + "\n"


def _lines(report: FailEachReport) -> Iterator[str]:
    yield f"code       {report.code} {code_name(report.code)}"
    yield f"usually    exit code {report.exit_code}, {counted(report.calls, 'call')}"
    if report.calls > len(report.runs):
        tried = counted(len(report.runs), "call")
        yield f"note: {tried} of {report.calls:,} failed in turn, from the first on"
    for run in report.runs:
        yield headline(run)
        for one in run.leaked[:5]:
            where = f" at {one.place}" if one.place else ""
            yield shorten(f"    {one.kind} made by {one.maker}{where}", 300)
        if run.last_line:
            yield f"    last line  {printable(run.last_line)}"
    if any(run.outcome == "exited 0" for run in report.runs):
        yield "exited 0: the program fell back to something else, or did not notice the failure"


def render_json(report: FailEachReport) -> str:
    """One JSON object of `qnnmem.fail-each/1`."""
    return write_json(
        {
            "schema": SCHEMA,
            "verdict": verdict(report),
            "passes": not report.findings and not report.unseen,
            "command": list(report.command),
            "function": report.function,
            "code": report.code,
            "calls": report.calls,
            "exit_code": report.exit_code,
            "time_limit_s": report.time_limit_s,
            "runs": [_run(run) for run in report.runs],
        }
    )


def _run(run: FailedRun) -> dict[str, Any]:
    return {
        **{"call": run.nth, "place": run.place, "outcome": run.outcome, "bad": run.is_bad},
        **{"exit_code": run.exit_code, "ended_by": run.ended_by or None},
        "leaked": [
            {"kind": one.kind, "made_by": one.maker, "place": one.place} for one in run.leaked
        ],
        "last_line": run.last_line,
    }
