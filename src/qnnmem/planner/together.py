"""Several planned models in one scratch, one persistent pool and one TCM pool.

Models that never execute at the same time can share scratch. Models that can execute at the same
time need separate ranges:

    bound = the heaviest set of models that can all execute at the same time, found exactly
    for each order of the models, the heaviest first:
        place each model at the lowest free range, ignoring models that never execute with it
    keep the lowest result; stop when it equals the bound

At least one order gives the minimum. With few models, all orders are tried, so the result is
minimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, islice, permutations
from pathlib import PurePath
from typing import NamedTuple

from msgspec.structs import replace as changed

from qnnmem.errors import Setting, UsageError
from qnnmem.planner.model_plan import tcm_tensors
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.planner.pools import TCM, Limits, Pool
from qnnmem.planner.tcm_pool import TcmAlignment, TcmVerdict, judge, request_tcm
from qnnmem.results.plan import PlanBudget
from qnnmem.results.together import ArrangedModel, TogetherResult
from qnnmem.text import quote
from qnnmem.units import round_up

MAX_MODELS = 16  # every subset of them may be examined
_MAX_ORDERS = 50_000  # more than all orders of eight models

Sets = tuple[frozenset[int], ...]


def arrange(
    planned: Sequence[PlannedFile], concurrent: Sequence[Sequence[str]], limits: Limits
) -> TogetherResult:
    """Return the pools that serve all models, with verdicts on their budgets."""
    names = names_of(planned)
    plans = [file.plan for file in planned]
    models = [
        SharingModel(
            name,
            *(plan.scratch_bytes, plan.persistent_bytes, plan.io_bytes, plan.constant_bytes),
            int(plan.align),
        )
        for name, plan in zip(names, plans, strict=True)
    ]
    tcm = judge_together(planned)
    found = share_pools(models, concurrent, tcm)
    least = [round_up(plan.scratch.lower_bound, found.align_bytes) for plan in plans]
    bound = sum(least[at] for at in heaviest(least, _pairs(names, concurrent)))
    needs = {
        Pool(pool): (size, bound if pool == "scratch" else size)
        for pool, size in found.pools.items()
    }
    budgets = [
        PlanBudget(pool.value, *needs[pool], have, _fits(*needs[pool], have))
        for pool, have in limits.pools.items()
    ]
    if tcm is not None and limits.tcm is not None:
        budgets.append(PlanBudget(TCM, tcm.need, tcm.need, limits.tcm, tcm.need <= limits.tcm))
    answers = {budget.fits for budget in budgets} | ({False} if tcm and tcm.is_crowded else set())
    answers |= {None} if answers and any(plan.model.assumed for plan in plans) else set()
    fits = False if False in answers else None if None in answers else True
    return changed(
        found,
        budgets=tuple(budgets),
        fits=fits,
        exit_code=0 if fits else 3 if fits is None else 1,
        plans=tuple(file.result for file in planned),
    )


class SharingModel(NamedTuple):
    """A model that shares pools, with its sizes in bytes."""

    name: str
    scratch: int
    persistent: int
    io: int
    constants: int
    align: int


def share_pools(
    models: Sequence[SharingModel], concurrent: Sequence[Sequence[str]], tcm: TcmVerdict | None
) -> TogetherResult:
    """Return the offsets of each model in the shared pools, without verdicts on budgets."""
    names = [model.name for model in models]
    together = _pairs(names, concurrent)
    align = math.lcm(*(model.align for model in models))
    sizes = [round_up(model.scratch, align) for model in models]
    busiest = heaviest(sizes, together)
    offsets = place(sizes, together)
    kept = [round_up(model.persistent, align) for model in models]
    return TogetherResult(
        models=tuple(
            ArrangedModel(
                *(model.name, model.scratch, offsets[at], model.persistent, sum(kept[:at])),
                *(model.io, model.constants),
            )
            for at, model in enumerate(models)
        ),
        concurrent=tuple(tuple(names[at] for at in _found(names, one)) for one in concurrent),
        busiest=tuple(names[at] for at in busiest),
        scratch_bytes=max((at + size for at, size in zip(offsets, sizes, strict=True)), default=0),
        lower_bound_bytes=sum(sizes[at] for at in busiest),
        persistent_bytes=sum(kept),
        io_bytes=sum(model.io for model in models),
        constant_bytes=sum(model.constants for model in models),
        align_bytes=align,
        tcm=None if tcm is None else tcm.answer,
        origins={f"{pool}_bytes": "computed" for pool in ("scratch", "persistent", "io")}
        | {"constant_bytes": "computed", "lower_bound_bytes": "computed"},
        plans=(),
    )


def names_of(planned: Sequence[PlannedFile]) -> list[str]:
    """Return a name for each model: its file's stem, with the graph if the file has several."""
    return checked_names(
        [f"{PurePath(p.input).stem}{f'/{p.graph}' if p.graph else ''}" for p in planned]
    )


def checked_names(names: list[str]) -> list[str]:
    """Return the names of models; raise UsageError for duplicates or too many models."""
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise UsageError(f"two models are named {quote(twice)}; rename one of the files")
    if len(names) > MAX_MODELS:
        raise UsageError(
            f"{len(names)} models are over the limit of {MAX_MODELS} for one arrangement"
        )
    return names


def _pairs(names: Sequence[str], concurrent: Iterable[Sequence[str]]) -> Sets:
    """Return for each model the indexes of the models that can execute at the same time."""
    found: list[set[int]] = [set() for _ in names]
    for given in concurrent:
        for left, right in combinations(_found(names, given), 2):
            found[left].add(right)
            found[right].add(left)
    return tuple(map(frozenset, found))


def _found(names: Sequence[str], given: Sequence[str]) -> list[int]:
    places = []
    for name in given:
        stem = name if name in names else PurePath(name).stem
        if stem not in names:
            known = ", ".join(map(quote, names))
            what = f" names {quote(name)}; the models are {known}"
            raise UsageError((Setting("concurrent"), what))
        places.append(names.index(stem))
    return sorted(set(places))


def heaviest(weights: Sequence[int], together: Sets) -> tuple[int, ...]:
    """Return the models with the largest total weight that can all execute at the same time."""
    best: tuple[int, ...] = ()
    pending: list[tuple[tuple[int, ...], frozenset[int]]] = [((), frozenset(range(len(weights))))]
    while pending:
        chosen, rest = pending.pop()
        if sum(weights[at] for at in chosen) > sum(weights[at] for at in best) or not best:
            best = chosen or best
        for at in sorted(rest):
            pending.append(((*chosen, at), frozenset(o for o in together[at] & rest if o > at)))
    return best


def place(sizes: Sequence[int], together: Sets) -> list[int]:
    """Return the offset of each model's scratch; models that can run together do not overlap."""
    bound = sum(sizes[at] for at in heaviest(sizes, together))
    heavy = sorted(range(len(sizes)), key=lambda at: (-sizes[at], at))
    best, least = [0] * len(sizes), math.inf
    for order in islice(permutations(heavy), _MAX_ORDERS):
        found: dict[int, int] = {}
        for at in order:
            others = [(found[o], found[o] + sizes[o]) for o in together[at] if o in found]
            start = 0
            for begin, end in sorted(others):
                if start + sizes[at] <= begin:
                    break
                start = max(start, end)
            found[at] = start
        top = max((found[at] + sizes[at] for at in found), default=0)
        if top < least:
            best, least = [found[at] for at in range(len(sizes))], top
        if least <= bound:
            break
    return best


def judge_together(planned: Sequence[PlannedFile]) -> TcmVerdict | None:
    """Return the TCM verdict for all constants in one binary and all IO; None for buffer lists."""
    plans = [file.plan for file in planned]
    if any(plan.model.format == "csv" for plan in plans):
        return None
    align = math.lcm(*(int(plan.align) for plan in plans))
    names = names_of(planned)
    tensors = tuple(
        replace(tensor, name=f"{name}/{tensor.name}", graph=name)
        for name, plan in zip(names, plans, strict=True)
        for tensor in tcm_tensors(plan)
    )
    constants = sum(plan.constant_bytes for plan in plans)
    return judge(request_tcm(constants, tensors, TcmAlignment(align, align)))


def _fits(need: int, at_least: int, have: int) -> bool | None:
    if need <= have:
        return True
    return False if at_least > have else None
