"""The mildest remedy: the model as it is, planned in place or run in another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from qnnmem.fix.order import reordered
from qnnmem.fix.prove import prove
from qnnmem.fix.remedy import FixCase, JudgedChange, self_contained
from qnnmem.fix.tiling.graph import TiledGraph


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """Element-wise ops in place, and another order of ops."""

    name: str = "plan"

    def changes(self, case: FixCase, before: int) -> Iterator[JudgedChange]:
        """Each alone, then both."""
        inplace = replace(case.options, inplace=True)
        begin = monotonic()
        plan = case.plan(case.model, inplace)
        yield JudgedChange(self.name, "in place", before, plan, seconds=monotonic() - begin)
        model = TiledGraph.of(case.model).model
        for options, words in ((case.options, "another order"), (inplace, "both")):
            begin = monotonic()
            found = reordered(case, model, options)
            if found is None:
                continue
            changed, plan = found
            proof = prove(
                self_contained(case.model),
                self_contained(changed),
                samples=case.samples,
                seed=case.seed,
            )
            seconds = monotonic() - begin
            yield JudgedChange(
                self.name,
                words,
                before,
                plan,
                changed,
                proof=proof,
                reordered=True,
                seconds=seconds,
            )
