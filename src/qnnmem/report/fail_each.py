"""How a program took the failure of each of its calls, as text with the verdict first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qnnmem.programs.watch.summary import amount
from qnnmem.qnn.codes import code_name
from qnnmem.results.programs import FailEachResult, FailedRun
from qnnmem.text import counted, printable, shorten


def headline(run: FailedRun) -> str:
    """One run in one line."""
    where = f" at {run.place}" if run.place else ""
    return shorten(f"call {run.call}{where}: {_end(run)}", 400)


def _end(run: FailedRun) -> str:
    if run.outcome == "crashed":
        return f"crashed ({run.ended_by})"
    if run.outcome == "leaked":
        kinds = Counter(one.kind for one in run.leaked)
        left = ", ".join(amount(kind, number) for kind, number in kinds.items())
        return f"leaked {left} (exit code {run.exit_code})"
    if run.outcome == "failed":
        return f"failed with exit code {run.exit_code}"
    return run.outcome


def render_text(report: FailEachResult) -> str:
    """Verdict, then every run."""
    return "\n".join([report.verdict, *_lines(report)]) + "\n"


def _lines(report: FailEachResult) -> Iterator[str]:
    yield f"code       {report.code} {code_name(report.code)}"
    yield f"usually    exit code {report.exit_code}, {counted(report.calls, 'call')}"
    if report.calls > len(report.runs):
        tried = counted(len(report.runs), "call")
        yield f"note: {tried} of {report.calls:,} failed in turn, from the first on"
    for run in report.runs:
        yield headline(run)
        for one in run.leaked[:5]:
            where = f" at {one.place}" if one.place else ""
            yield shorten(f"    {one.kind} made by {one.made_by}{where}", 300)
        if run.last_line:
            yield f"    last line  {printable(run.last_line)}"
    if any(run.outcome == "exited 0" for run in report.runs):
        yield "exited 0: the program fell back to something else, or did not notice the failure"
