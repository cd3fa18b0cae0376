"""Makes a model fit the memory of LPAI: remedies in turn, the mildest first, until one suffices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from qnnmem.errors import ChildFailed
from qnnmem.fix.remedy import FixCase, JudgedChange, ModelRemedy
from qnnmem.fix.search import RegionSearch
from qnnmem.fix.settings import PlanRemedy
from qnnmem.fix.tile import TilingRemedy
from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.text import quote

REMEDIES: tuple[ModelRemedy, ...] = (PlanRemedy(), TilingRemedy())
Watcher = Callable[[JudgedChange], None]


@dataclass(frozen=True)
class FixResult:
    """All that was tried, in order; the first is the model as it is."""

    case: FixCase
    tried: tuple[JudgedChange, ...]
    obstacle: str = ""  # what stands in the way, where nothing suffices
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> JudgedChange:
        """The first that fits; where none does, the smallest whose results are the same."""
        sound = [one for one in self.tried if one.holds]
        fitting = [one for one in sound if one.fits]
        return fitting[0] if fitting else min(sound, key=lambda one: one.after)

    @property
    def fits(self) -> bool | None:
        """Whether every budget holds in the end; None without one."""
        return self.best.fits

    @property
    def exit_code(self) -> int:
        """0 it fits or is as small as was found, 1 nothing helps, 3 the search could not tell."""
        if self.case.budget is None:
            return 0
        return {True: 0, False: 1, None: 3}[self.best.fits]


def fix_for_lpai(
    case: FixCase,
    watch: Watcher | None = None,
    remedies: Sequence[ModelRemedy] = REMEDIES,
) -> FixResult:
    """Try remedies until one makes the model fit; without a budget, all of them."""
    begin = monotonic()
    plan = case.plan(case.model, case.options)
    tried = [
        JudgedChange("none", "as it is", plan.scratch_bytes, plan, seconds=monotonic() - begin)
    ]
    notes: list[str] = []
    if watch is not None:
        watch(tried[0])
    for remedy in remedies:
        if tried[-1].fits and tried[-1].holds:
            break
        try:
            for change in remedy.changes(case, plan.scratch_bytes):
                tried.append(change)
                if watch is not None:
                    watch(change)
                if change.fits and change.holds:
                    break
        except ChildFailed as exc:
            notes.append(f"{remedy.name} could not be judged: {exc}")
    if not case.seconds_left and not (tried[-1].fits and tried[-1].holds):
        notes.append("the time limit ended the search; with more time it may find less")
    result = FixResult(case, tuple(tried), notes=tuple(notes))
    if result.exit_code != 1:
        return result
    return FixResult(case, tuple(tried), find_obstacle(case, result.best), tuple(notes))


def find_obstacle(case: FixCase, best: JudgedChange) -> str:
    """What stands in the way of fewer bytes, in one sentence."""
    over = [b.pool.value for b in best.plan.budgets if b.fits is False]
    if best.plan.tcm is not None and not best.plan.tcm.fits:
        over.append("tcm")
    others = [pool for pool in over if pool != "scratch"]
    if others and "scratch" not in over:
        return f"{' and '.join(others)} cannot be made smaller without changing results"
    search = RegionSearch(TiledGraph.of(case.model), best.plan.options, seconds=1.0)
    found = list(search.obstacles(case.limit or 0))
    if found:
        at, reason = max(found, key=lambda one: (search.costs.at_node[one[0]], -one[0]))
        node = search.graph.nodes[at]
        size = search.costs.at_node[at]
        name = quote(node.name or node.output[0])
        return f"{name} needs {size:,} bytes and cannot be computed in bands: {reason}"
    peak, ops = best.plan.peak, best.plan.model.ops
    where = "" if peak is None or not 0 <= peak.step < len(ops) else quote(ops[peak.step].name)
    return f"the fullest step is {where}, and no other bands need less" if where else ""
