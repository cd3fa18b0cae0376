"""The contract suite: every rule kept and broken on purpose, and what the runtime made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qnnmem.errors import QnnMemError
from qnnmem.lpai.rules import rules
from qnnmem.lpai.selftest.case import Case


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that went otherwise than the contract promises."""

    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """The cases of one rule."""

    rule: str
    title: str
    keeping: int  # cases in which the client keeps the rule
    breaking: int  # cases in which it breaks the rule
    failures: tuple[Failure, ...]

    @property
    def as_expected(self) -> bool:
        """Whether each case went as the contract promises."""
        return not self.failures


def cases() -> tuple[Case, ...]:
    """Every case, in the order of the rules."""
    from qnnmem.lpai.selftest.checks import CHECKS
    from qnnmem.lpai.selftest.io import IO
    from qnnmem.lpai.selftest.order import ORDER
    from qnnmem.lpai.selftest.pools import POOLS

    order = {rule: at for at, rule in enumerate(rules())}
    every = (*POOLS.cases, *ORDER.cases, *IO.cases, *CHECKS.cases)
    return tuple(sorted(every, key=lambda case: order[case.rule]))


def run_cases(chosen: Iterable[Case]) -> tuple[Row, ...]:
    """One row for each rule that has cases."""
    by_rule: dict[str, list[Case]] = {}
    for case in chosen:
        by_rule.setdefault(case.rule, []).append(case)
    return tuple(_row(rule, group) for rule, group in by_rule.items())


def _row(rule: str, group: Sequence[Case]) -> Row:
    reasons = [(case.title, _reason(case)) for case in group]
    failures = tuple(Failure(title, reason) for title, reason in reasons if reason)
    breaking = sum(case.breaks for case in group)
    return Row(rule, rules()[rule].title, len(group) - breaking, breaking, failures)


def _reason(case: Case) -> str:
    """Why a case failed; empty if it did not."""
    try:
        case.run()
    except QnnMemError as exc:
        return str(exc)
    except Exception as exc:  # any other exception is itself a broken promise of the runtime
        return f"{type(exc).__name__} instead of a code: {exc!s:.200}"
    return ""
