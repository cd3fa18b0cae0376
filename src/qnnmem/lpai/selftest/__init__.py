"""The contract suite: every rule kept and broken on purpose, and what the runtime made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qnnmem.contract.rules import rules
from qnnmem.lpai.selftest.case import ContractCase


@dataclass(frozen=True, slots=True)
class CaseFailure:
    """A case that went otherwise than the contract promises."""

    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The cases of one rule."""

    rule: str
    title: str
    keeping: int  # cases in which the client keeps the rule
    breaking: int  # cases in which it breaks the rule
    failures: tuple[CaseFailure, ...]

    @property
    def as_expected(self) -> bool:
        """Whether each case went as the contract promises."""
        return not self.failures


def cases() -> tuple[ContractCase, ...]:
    """Every case, in the order of the rules."""
    from qnnmem.lpai.selftest.calls import CALLS
    from qnnmem.lpai.selftest.ends import ENDS
    from qnnmem.lpai.selftest.io import IO
    from qnnmem.lpai.selftest.memory import MEMORY
    from qnnmem.lpai.selftest.pointers import POINTERS

    order = {rule: at for at, rule in enumerate(rules())}
    every = (*MEMORY, *POINTERS, *CALLS, *IO, *ENDS)
    return tuple(sorted(every, key=lambda case: order[case.rule]))


def run_cases(chosen: Iterable[ContractCase]) -> tuple[RuleResult, ...]:
    """One result for each rule that has cases."""
    by_rule: dict[str, list[ContractCase]] = {}
    for case in chosen:
        by_rule.setdefault(case.rule, []).append(case)
    return tuple(_result(rule, group) for rule, group in by_rule.items())


def _result(rule: str, group: Sequence[ContractCase]) -> RuleResult:
    reasons = [(case.title, case.run()) for case in group]
    failures = tuple(CaseFailure(title, reason) for title, reason in reasons if reason)
    breaking = sum(case.breaks for case in group)
    return RuleResult(rule, rules()[rule].title, len(group) - breaking, breaking, failures)
