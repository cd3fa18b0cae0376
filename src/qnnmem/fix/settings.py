"""The mildest remedy: the model as it is, planned otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from qnnmem.fix.remedy import FixCase, JudgedChange
from qnnmem.plan.pools import PoolOptions


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """Element-wise ops in place, and another order of ops."""

    name: str = "plan"

    def changes(self, case: FixCase, before: int) -> Iterator[JudgedChange]:
        """Each alone, then both."""
        for options in option_choices(case.options):
            if options == case.options:
                continue
            begin = monotonic()
            plan = case.plan(case.model, options)
            words = option_words(options)
            yield JudgedChange(self.name, words, before, plan, seconds=monotonic() - begin)


def option_choices(options: PoolOptions) -> list[PoolOptions]:
    """The options as they are, then with what costs nothing at run time."""
    wishes = ((False, False), (True, False), (False, True), (True, True))
    found = [
        replace(options, inplace=options.inplace or inplace, reorder=options.reorder or reorder)
        for inplace, reorder in wishes
    ]
    return list(dict.fromkeys(found))


def option_words(options: PoolOptions) -> str:
    """What is planned otherwise, in words."""
    parts = ["in place"] * options.inplace + ["another order"] * options.reorder
    return " and ".join(parts) or "as it is"
