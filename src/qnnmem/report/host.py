"""Render the checks of a machine as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.report.table import Column, text_table
from qnnmem.results.host import HostCheck, HostResult, HostVerdict
from qnnmem.text import counted, printable

_MOST_CAUSES = 5  # causes named in one line


def verdict(report: HostResult) -> str:
    """Return a one-line verdict on the state of the machine."""
    place = f"{report.place} ({report.system})"
    if not report.has_dsp and report.blindness:
        return (
            "cannot tell whether QNN can run: neither a QNN library nor a DSP is visible on "
            f"{place}: {report.blindness}"
        )
    if not report.has_dsp:
        return f"cannot tell whether QNN can run: {place} has neither a QNN library nor a DSP"
    unknown = sum(check.verdict is HostVerdict.NOT_KNOWN for check in report.checks)
    rest = f"{counted(unknown, 'check')} undecided" if unknown else "all checks done"
    if not report.problems:
        return f"good: no problem on {place}; {rest}"
    names = ", ".join(check.name for check in report.problem_checks)
    return f"{counted(report.problems, 'problem')} on {place}: {names}; {rest}"


def render_text(report: HostResult, *, verbose: bool = False) -> str:
    """Render the verdict; with a DSP or `verbose`, also a table of all checks and the actions."""
    lines = [verdict(report)]
    if report.has_dsp or verbose:
        lines += ["", *_table(report.checks), *_steps(_with_actions(report.checks, verbose))]
    return _text(lines)


def render_beside(report: HostResult, *, verbose: bool = False) -> str:
    """Render the section after a diagnosis: checks that concern its causes, then other checks."""
    in_full = report.has_dsp or verbose
    concerned = [c for c in report.checks if c.concerns_cause and (in_full or _is_known(c))]
    # Not without a DSP: an ordinary machine can be short of memory, too.
    others = [check for check in report.checks if in_full and not check.concerns_cause]
    lines = ["", f"the machine: {verdict(report)}"]
    if concerned:
        more = ", ..." if len(report.causes) > _MOST_CAUSES else ""
        causes = ", ".join(report.causes[:_MOST_CAUSES]) + more
        lines += ["", f"checks that concern {causes}:", *_table(concerned, head=False)]
        lines += _steps(_with_actions(concerned, True))
    worth = _with_actions(others, verbose)
    shown = others if verbose or not concerned else [o for o in others if _is_problem(o)]
    if shown:
        lines += ["", "other checks:", *_table(shown, head=False), *_steps(worth)]
    if len(shown) < len(others):
        left = len(others) - len(shown)
        lines += ["", f"{counted(left, 'more check')} without a problem; -v shows all"]
    return _text(lines)


def _is_known(check: HostCheck) -> bool:
    return check.verdict is not HostVerdict.NOT_KNOWN


def _is_problem(check: HostCheck) -> bool:
    return check.verdict is HostVerdict.PROBLEM


def _with_actions(checks: Sequence[HostCheck], verbose: bool) -> list[HostCheck]:
    """Return the checks with a problem; with `verbose`, also all other checks with an action."""
    return [check for check in checks if _is_problem(check) or (verbose and check.action)]


_COLUMNS = (Column("check", "<"), Column("stands", "<", 9), Column("found", "<"))


def _table(checks: Sequence[HostCheck], head: bool = True) -> Iterator[str]:
    rows = [
        (check.name, check.verdict.value.replace("_", " "), f"{check.found} ({check.origin.value})")
        for check in checks
    ]
    return text_table(_COLUMNS, rows, indent="" if head else "  ", has_head=head)


def _steps(checks: Sequence[HostCheck]) -> Iterator[str]:
    for number, check in enumerate(checks, 1):
        if number == 1:
            yield from ("", "what to do:")
        yield f"  {number}. {check.name}: {check.action}"
        yield f"     why: {check.why}"


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{printable(line.rstrip())}\n" for line in lines)
