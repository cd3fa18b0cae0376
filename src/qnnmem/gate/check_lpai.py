"""A model or a prepared binary on LPAI, checked: the plan that `plan` makes, judged by pool."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.errors import join_words
from qnnmem.gate.checked import CheckedModel
from qnnmem.gate.pools import LPAI, TOTAL
from qnnmem.gate.task import BudgetTask, settings_of
from qnnmem.options.plan import PlanOptions
from qnnmem.results.check import Allocations, PoolCheck
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.planner import MemoryPlan
    from qnnmem.planner.pools import BudgetVerdict
    from qnnmem.planner.tcm import TcmVerdict
    from qnnmem.results.inspect import InspectedGraph
    from qnnmem.results.plan import TcmAnswer

_TARGET = "LPAI"
_AT_PEAK = 64  # tensors that a baseline keeps
_LARGEST = 16 << 30  # bytes of a binary


def check_planned(task: BudgetTask, kind: str) -> CheckedModel:
    """A model or a list of buffers: planned, then held against its budgets."""
    budgets = task.budgets(LPAI)
    started = time.perf_counter()
    plan = plan_task(task, kind, budgets)
    pools = _pools(plan, with_total=TOTAL in budgets)
    live = () if plan.peak is None else plan.peak.live
    return CheckedModel(
        name=task.entry.name or f"{task.file} ({_TARGET})",
        file=task.file,
        place=task.place or task.file,
        target=_TARGET,
        pools=pools,
        checks=tuple(_checks(plan, pools, budgets)),
        peak={one.name: one.size for one in live} if len(live) <= _AT_PEAK else {},
        settings={
            "alignment": str(plan.align),
            "bits": "as in the model" if plan.options.bits is None else str(plan.options.bits),
            "IO": f"{plan.options.io.value} scratch",
        },
        # Numbers that only stand in for others decide nothing.
        why=join_words(plan.model.assumed) if budgets else "",
        seconds=time.perf_counter() - started,
        given=settings_of(task.options(PlanOptions, kind)),
        line=task.entry.line,
        plan=plan,
    )


def plan_task(task: BudgetTask, kind: str, budgets: Mapping[str, Bytes]) -> MemoryPlan:
    """The plan of a task; a list of buffers is planned to the end before its budget is asked."""
    from qnnmem.loader import load
    from qnnmem.planner.model_plan import plan_with

    options = task.options(PlanOptions, kind)
    model = load(task.path, **options.sizes)
    asked: dict[str, Bytes] = {pool: size for pool, size in budgets.items() if pool != TOTAL}
    if kind != "csv" or "scratch" not in asked:
        return plan_with(model, options, budget=asked)
    # With a budget the search would end at the first plan that fits, and no baseline could be kept.
    rest = {pool: size for pool, size in asked.items() if pool != "scratch"}
    plan = plan_with(model, options, budget=rest)
    if plan.scratch_bytes <= asked["scratch"]:
        return plan
    answer = plan_with(model, options, budget=asked)
    smaller = answer.scratch_bytes < plan.scratch_bytes
    return answer if smaller else replace(plan, budgets=answer.budgets)


def _pools(plan: MemoryPlan, *, with_total: bool) -> dict[str, int]:
    from qnnmem.planner import Pool
    from qnnmem.planner.model_plan import judge_plan

    sizes: dict[str, int] = {pool.value: plan.pool_bytes(pool) for pool in Pool}
    tcm = judge_plan(plan)
    # A sum says nothing that its parts do not, unless it is what counts.
    whole = {TOTAL: sum(sizes.values())} if with_total else {}
    return sizes | ({} if tcm is None else {"tcm": tcm.need}) | whole


def _checks(
    plan: MemoryPlan, pools: Mapping[str, int], budgets: Mapping[str, Bytes]
) -> Iterator[PoolCheck]:
    from qnnmem.planner import Pool
    from qnnmem.planner.model_plan import alike, judge_plan
    from qnnmem.planner.pools import BudgetVerdict

    said = {verdict.pool.value: verdict for verdict in plan.budgets}
    lower = plan.scratch.lower_bound
    for pool, have in budgets.items():
        if pool in said:
            yield _checked(said[pool], alike=alike(plan, said[pool]))
        elif pool == "tcm":
            verdict = plan.tcm
            fits = None if verdict is None else verdict.fits
            yield PoolCheck.of(pool, pools.get("tcm"), have, fits, allocations=_crowd(verdict))
        else:
            need = Bytes(pools[pool])
            least = Bytes(need - plan.scratch_bytes + lower)
            yield _checked(BudgetVerdict(Pool.SCRATCH, need, least, have), pool)
    if "tcm" not in budgets:
        yield from _allocations(pools.get("tcm"), _crowd(judge_plan(plan)))


def _allocations(need: int | None, crowd: Allocations | None) -> Iterator[PoolCheck]:
    """The limit of TCM that holds without a budget: the number of allocations."""
    if crowd is not None:
        yield PoolCheck.of("tcm", need, None, fits=False, budget=False, allocations=crowd)


def _crowd(verdict: TcmVerdict | None) -> Allocations | None:
    if verdict is None or not verdict.is_crowded:
        return None
    return Allocations(verdict.buffers, verdict.max_buffers.value)


def _checked(verdict: BudgetVerdict, name: str = "", alike: int = 0) -> PoolCheck:
    return PoolCheck.of(
        name or verdict.pool.value,
        verdict.need,
        verdict.have,
        verdict.fits,
        at_least=verdict.at_least,
        blockers=verdict.blockers,
        alike=alike,
    )


def check_binary(task: BudgetTask) -> Iterator[CheckedModel]:
    """A prepared binary: what `inspect` reads of each graph."""
    from qnnmem.bounded_file import read_bytes
    from qnnmem.errors import LoadError, QnnError
    from qnnmem.lpai.binary import MALFORMED_BINARY, unpack
    from qnnmem.lpai.inspect import binary_info

    data = read_bytes(task.path, _LARGEST)
    try:
        binary = binary_info(unpack(data, MALFORMED_BINARY), len(data)).qnnmem
    except QnnError as exc:
        raise LoadError(task.path, str(exc)) from exc
    budgets = task.budgets(LPAI)
    for graph in binary.graphs:
        yield _graph(task, graph, budgets, is_only=len(binary.graphs) == 1)


def _graph(
    task: BudgetTask, graph: InspectedGraph, budgets: Mapping[str, Bytes], *, is_only: bool
) -> CheckedModel:
    pools = {"io": 0, **graph.pools}
    if TOTAL in budgets:
        pools[TOTAL] = sum(pools.values())
    if graph.tcm is not None:
        pools["tcm"] = graph.tcm.need_bytes
    name = task.entry.name or f"{task.file} ({_TARGET})"
    return CheckedModel(
        name=name if is_only else f"{name} {graph.name}",
        file=task.file,
        place=task.place or task.file,
        target=_TARGET,
        pools=pools,
        checks=tuple(_graph_checks(graph.tcm, pools, budgets)),
        settings={"alignment": str(graph.align), "IO": f"{graph.io} scratch"},
        line=task.entry.line,
    )


def _graph_checks(
    tcm: TcmAnswer | None, pools: Mapping[str, int], budgets: Mapping[str, Bytes]
) -> Iterator[PoolCheck]:
    crowd = None
    if tcm is not None and tcm.is_crowded:
        crowd = Allocations(tcm.buffers, tcm.max_buffers)
    for pool, have in budgets.items():
        need, broken = pools.get(pool), crowd if pool == "tcm" else None
        fits = None if need is None else need <= have and not broken
        yield PoolCheck.of(pool, need, have, fits, allocations=broken)
    if "tcm" not in budgets:
        yield from _allocations(pools.get("tcm"), crowd)
