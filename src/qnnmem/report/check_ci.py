"""Budgets of a project for build servers: SARIF, JUnit XML and GitHub annotations."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.gate.checked import BROKEN, NOT_READ, OPEN, BudgetRun, CheckedModel, grown_words
from qnnmem.report.check import pool_rows
from qnnmem.report.findings import (
    CiFinding,
    CiPlace,
    CiRule,
    JunitCase,
    JunitSuite,
    github_commands,
    junit_xml,
    sarif_log,
)
from qnnmem.results.check import PoolCheck
from qnnmem.text import shorten

_WORSE = "worse-than-baseline"
_RULES = {
    rule.id: rule
    for rule in (
        CiRule("budget-broken", "A pool is over its budget", "error"),
        CiRule("limit-broken", "A pool is over a limit of the SoC", "error"),
        CiRule(_WORSE, "A pool grew beyond what was accepted", "error"),
        CiRule("not-checked", "A model cannot be read", "error"),
        CiRule("not-compiled", "The library refuses to compile a model", "error"),
        CiRule("cannot-tell", "Something needed for an answer is missing", "warning"),
    )
}
# The rule of a model without an answer.
_REFUSALS = {NOT_READ: "not-checked", BROKEN: "not-compiled", OPEN: "cannot-tell"}


def render_sarif(run: BudgetRun) -> str:
    """A SARIF log with a result for each budget that is broken."""
    invocation = {"executionSuccessful": True, "exitCode": run.exit_code}
    return sarif_log(tuple(_RULES.values()), findings(run), invocation)


def render_github(run: BudgetRun) -> str:
    """An annotation for each thing that is wrong, beside the change."""
    return github_commands(findings(run), run.verdict)


def render_junit(run: BudgetRun) -> str:
    """A suite for each model, a case for each budget."""
    suites = [JunitSuite(one.name, tuple(_cases(one)), one.seconds) for one in run.models]
    return junit_xml(suites, "qnnmem check")


def findings(run: BudgetRun) -> Iterator[CiFinding]:
    """All that is wrong."""
    for model in run.models:
        rules = [(_broken_rule(check), check.pool) for check in model.broken]
        rules += [(_WORSE, change.pool) for change in model.grown]
        rules += [(_REFUSALS[model.refusal or OPEN], "")] * (len(model.reasons) - len(rules))
        for (rule, pool), reason in zip(rules, model.reasons, strict=True):
            yield CiFinding(
                rule,
                _RULES[rule].level,
                reason,
                _place(model.place),
                (_place(run.config, model.line or 1),),
                subject=model.name,
                fingerprint=f"{model.name}:{rule}:{pool}",
                properties={"target": model.target, "answer": model.answer},
            )


def _broken_rule(check: PoolCheck) -> str:
    return "budget-broken" if check.budget else "limit-broken"


def _place(file: str, line: int = 1) -> CiPlace:
    return CiPlace(file, line, shorten(file, 200))


def _cases(model: CheckedModel) -> Iterator[JunitCase]:
    """Their names hold no numbers: the same case in two builds has the same name."""
    if model.refusal:
        yield JunitCase("is checked", "error", _REFUSALS[model.refusal], model.answer)
        return
    budgets = {check.pool for check in model.checks if check.budget}
    said = {check.pool: why for check, why in zip(model.broken, model.reasons, strict=False)}
    for row in pool_rows(model):
        name = f"{row.pool} within its {'budget' if row.pool in budgets else 'limit'}"
        if row.words == "cannot tell":
            yield JunitCase(name, "error", "cannot-tell", model.why or row.words)
        elif row.kind in ("budget", "limit"):
            yield JunitCase(name, "failure", f"{row.kind}-broken", said[row.pool])
        elif row.limit is not None:
            yield JunitCase(name)
        if row.before is not None:
            name = f"{row.pool} no worse than the baseline"
            grown = [grown_words(one) for one in model.grown if one.pool == row.pool]
            yield JunitCase(name, "failure", _WORSE, "".join(grown)) if grown else JunitCase(name)
    if not model.checks and model.change is None:
        yield JunitCase("is planned")
