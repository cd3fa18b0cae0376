"""Budgets of a project as JUnit XML: a suite for each model, a case for each budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from qnnmem.gate.checked import BudgetRun, CheckedModel
from qnnmem.report.check import REFUSALS, WORSE, answer, grown_words, pool_rows, reasons
from qnnmem.text import printable

# What XML 1.0 cannot hold at all, not even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SECONDS = 3  # digits


@dataclass(frozen=True, slots=True)
class JunitCase:
    """A test case: what is asked, and what went wrong."""

    name: str
    fault: str = ""  # failure or error; empty where all is well
    kind: str = ""
    message: str = ""


def render_junit(run: BudgetRun) -> str:
    """One file with all suites, the one that every build server shows as tests."""
    suites = [(model, tuple(_cases(model))) for model in run.models]
    every = [case for _, cases in suites for case in cases]
    seconds = sum(model.seconds for model in run.models)
    counts = _counts(every, seconds)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites name={_quoted('qnnmem check')} {counts}>",
        *(line for model, cases in suites for line in _suite(model, cases)),
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _cases(model: CheckedModel) -> Iterator[JunitCase]:
    """Their names hold no numbers: the same case in two builds has the same name."""
    if model.refusal:
        yield JunitCase("is checked", "error", REFUSALS[model.refusal][1], answer(model))
        return
    said = tuple(reasons(model))
    budgets = {one.pool for one in model.checks if one.is_budget}
    for row in pool_rows(model):
        is_budget = row.pool in budgets
        name = f"{row.pool} within its {'budget' if is_budget else 'limit'}"
        if row.kind in ("budget", "limit"):
            open_ = row.words == "cannot tell"
            about = [one for one in said if one.startswith(f"{row.pool} ")]
            message = next(iter(about), f"{row.pool}: {row.words}")
            fault, kind = ("error", "cannot-tell") if open_ else ("failure", f"{row.kind}-broken")
            yield JunitCase(name, fault, kind, model.why or row.words if open_ else message)
        elif row.limit is not None:
            yield JunitCase(name)
        if row.before is not None:
            name = f"{row.pool} no worse than the baseline"
            grown = [one for one in model.grown if one.pool == row.pool]
            words = "".join(map(grown_words, grown))
            yield JunitCase(name, "failure", WORSE, words) if grown else JunitCase(name)
    if not model.checks and model.change is None:
        yield JunitCase("is planned")


def _suite(model: CheckedModel, cases: Sequence[JunitCase]) -> Iterator[str]:
    yield f' <testsuite name={_quoted(model.name)} {_counts(cases, model.seconds)} skipped="0">'
    for case in cases:
        head = f'  <testcase classname={_quoted(model.name)} name={_quoted(case.name)} time="0"'
        if not case.fault:
            yield f"{head}/>"
            continue
        words = f"type={_quoted(case.kind)} message={_quoted(case.message)}"
        yield f"{head}><{case.fault} {words}/></testcase>"
    yield " </testsuite>"


def _counts(cases: Sequence[JunitCase], seconds: float) -> str:
    failures = sum(case.fault == "failure" for case in cases)
    errors = sum(case.fault == "error" for case in cases)
    numbers = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    return f'{numbers} time="{seconds:.{_SECONDS}f}"'


def _quoted(text: str) -> str:
    """An attribute's value; what no XML can hold is shown in other words."""
    return quoteattr(_NO_XML.sub("?", printable(text)))
