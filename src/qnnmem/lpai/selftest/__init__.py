"""Contract suite: a table of cases that follow or break each rule, and a runner for the cases.

`qnnmem lpai selftest` and the tests run the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qnnmem.contract.rules import rules
from qnnmem.lpai.selftest.client import ContractCase
from qnnmem.results.lpai import CaseFailure, RuleResult


def cases() -> tuple[ContractCase, ...]:
    """Return all cases, in the order of the rules."""
    from qnnmem.lpai.selftest.calls import CALLS
    from qnnmem.lpai.selftest.memory import MEMORY

    order = {rule: number for number, rule in enumerate(rules())}
    return tuple(sorted((*MEMORY, *CALLS), key=lambda case: order[case.rule]))


def run_cases(chosen: Iterable[ContractCase]) -> tuple[RuleResult, ...]:
    """Return a result for each rule that has cases."""
    by_rule: dict[str, list[ContractCase]] = {}
    for case in chosen:
        by_rule.setdefault(case.rule, []).append(case)
    return tuple(_result(rule, group) for rule, group in by_rule.items())


def _result(rule: str, group: Sequence[ContractCase]) -> RuleResult:
    reasons = [(case.title, case.run()) for case in group]
    failures = tuple(CaseFailure(title, reason) for title, reason in reasons if reason)
    breaking = sum(case.breaks for case in group)
    return RuleResult(
        rule=rule,
        title=rules()[rule].title,
        keeping=len(group) - breaking,
        breaking=breaking,
        failures=failures,
        as_expected=not failures,
    )
