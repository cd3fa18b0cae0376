"""Budgets of a project as SARIF 2.1.0: a result for each budget that is broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from qnnmem.gate.checked import OPEN, BudgetRun, CheckedModel
from qnnmem.report.check import REFUSALS, WORSE, answer, reasons
from qnnmem.report.sarif import SCHEMA, VERSION, message, uri
from qnnmem.text import shorten
from qnnmem.version import __version__

_RULES = {
    "budget-broken": ("A pool is over its budget", "error"),
    "limit-broken": ("A pool is over a limit of the SoC", "error"),
    WORSE: ("A pool grew beyond what was accepted", "error"),
    "not-checked": ("A model cannot be read", "error"),
    "not-compiled": ("The library refuses to compile a model", "error"),
    "cannot-tell": ("Something needed for an answer is missing", "warning"),
}
_IDS = tuple(_RULES)


def render_sarif(run: BudgetRun) -> str:
    """One SARIF log with one run."""
    driver = {"name": "qnnmem", "version": __version__, "rules": [_rule(name) for name in _RULES]}
    results = [one for model in run.models for one in _results(model, run.config)]
    log = {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [{"executionSuccessful": True, "exitCode": run.exit_code}],
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=True) + "\n"


def _rule(name: str) -> dict[str, Any]:
    words, level = _RULES[name]
    return {
        "id": name,
        "shortDescription": message(words),
        "defaultConfiguration": {"level": level},
    }


def _results(model: CheckedModel, config: str) -> Iterator[dict[str, Any]]:
    said = list(reasons(model))
    rules = [
        *("budget-broken" if check.is_budget else "limit-broken" for check in model.broken),
        *(WORSE for _ in model.grown),
    ]
    rules += [REFUSALS[model.refusal or OPEN][1]] * (len(said) - len(rules))
    pools = [*(check.pool for check in model.broken), *(one.pool for one in model.grown)]
    for number, (rule, words) in enumerate(zip(rules, said, strict=True)):
        pool = pools[number] if number < len(pools) else ""
        yield {
            "ruleId": rule,
            "ruleIndex": _IDS.index(rule),
            "level": _RULES[rule][1],
            "message": message(shorten(f"{model.name}: {words}", 1000)),
            "locations": [_place(model.place, None)],
            "relatedLocations": [{"id": 1, **_place(config, model.line)}],
            # The same finding in two runs is one finding to whoever tracks them.
            "partialFingerprints": {"qnnmem/v1": f"{model.name}:{rule}:{pool}"},
            "properties": {"target": model.target, "answer": answer(model)},
        }


def _place(file: str, line: int | None) -> dict[str, Any]:
    """A file; forges want a line for each finding, and a model has none but its first."""
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(file)},
            "region": {"startLine": line or 1},
        },
        "message": message(shorten(file, 200)),
    }
