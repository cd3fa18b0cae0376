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
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, islice, permutations
from pathlib import PurePath
from typing import NamedTuple

from msgspec.structs import replace as changed

from qnnmem.errors import Setting, UsageError
from qnnmem.planner.model_plan import tcm_tensors
from qnnmem.planner.planned_file import EXIT_CODES, PlannedFile
from qnnmem.planner.pools import TCM, BudgetVerdict, Limits, Pool, joint_verdict
from qnnmem.planner.tcm_pool import TcmAlignment, TcmVerdict, judge, request_tcm
from qnnmem.results.plan import PlanBudget
from qnnmem.results.together import ArrangedModel, TogetherResult
from qnnmem.text import quote
from qnnmem.units import Bytes, round_up

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
    shared = share_pools(models, concurrent, tcm)
    bounds = [round_up(plan.scratch.lower_bound, shared.align_bytes) for plan in plans]
    bound = sum(bounds[index] for index in heaviest(bounds, _pairs(names, concurrent)))
    budgets = []
    for pool, have in limits.pools.items():
        need = Bytes(shared.pools[pool.value])
        least = Bytes(bound) if pool is Pool.SCRATCH else need
        verdict = BudgetVerdict(pool, need, least, have)
        budgets.append(PlanBudget(pool.value, need, least, have, verdict.fits))
    if tcm is not None and limits.tcm is not None:
        budgets.append(PlanBudget(TCM, tcm.need, tcm.need, limits.tcm, tcm.need <= limits.tcm))
    answers = {budget.fits for budget in budgets} | ({False} if tcm and tcm.is_crowded else set())
    answers |= {None} if answers and any(plan.model.assumed for plan in plans) else set()
    fits = joint_verdict(answers)
    return changed(
        shared,
        budgets=tuple(budgets),
        fits=fits,
        exit_code=EXIT_CODES[fits],
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
    *state_offsets, persistent = accumulate(
        (round_up(model.persistent, align) for model in models), initial=0
    )
    return TogetherResult(
        models=tuple(
            ArrangedModel(
                name=model.name,
                scratch_bytes=model.scratch,
                scratch_offset=offset,
                persistent_bytes=model.persistent,
                persistent_offset=state_offset,
                io_bytes=model.io,
                constant_bytes=model.constants,
            )
            for model, offset, state_offset in zip(models, offsets, state_offsets, strict=True)
        ),
        concurrent=tuple(tuple(names[i] for i in _indexes(names, group)) for group in concurrent),
        busiest=tuple(names[i] for i in busiest),
        scratch_bytes=max(map(operator.add, offsets, sizes), default=0),
        lower_bound_bytes=sum(sizes[i] for i in busiest),
        persistent_bytes=persistent,
        io_bytes=sum(model.io for model in models),
        constant_bytes=sum(model.constants for model in models),
        align_bytes=align,
        tcm=None if tcm is None else tcm.answer,
        origins={f"{pool}_bytes": "computed" for pool in ("scratch", "persistent", "io")}
        | {"constant_bytes": "computed", "lower_bound_bytes": "computed"},
        plans=(),
    )


def names_of(planned: Sequence[PlannedFile]) -> list[str]:
    """Return a name for each model: the file's stem, and the graph's name if it is known."""
    return checked_names(
        [f"{PurePath(p.input).stem}{f'/{p.graph}' if p.graph else ''}" for p in planned]
    )


def checked_names(names: list[str]) -> list[str]:
    """Return the names of models; raise UsageError for duplicates or too many models."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UsageError(f"two models are named {quote(twice)}; rename one of the files")
    if len(names) > MAX_MODELS:
        raise UsageError(
            f"{len(names)} models are over the limit of {MAX_MODELS} for one arrangement"
        )
    return names


def _pairs(names: Sequence[str], concurrent: Iterable[Sequence[str]]) -> Sets:
    """Return for each model the indexes of the models that can execute at the same time as it."""
    partners: list[set[int]] = [set() for _ in names]
    for group in concurrent:
        for left, right in combinations(_indexes(names, group), 2):
            partners[left].add(right)
            partners[right].add(left)
    return tuple(map(frozenset, partners))


def _indexes(names: Sequence[str], group: Sequence[str]) -> list[int]:
    """Return the indexes of the models in a group, each given by name or by file name."""
    indexes = []
    for name in group:
        stem = name if name in names else PurePath(name).stem
        if stem not in names:
            known = ", ".join(map(quote, names))
            what = f" names {quote(name)}; the models are {known}"
            raise UsageError((Setting("concurrent"), what))
        indexes.append(names.index(stem))
    return sorted(set(indexes))


def heaviest(weights: Sequence[int], together: Sets) -> tuple[int, ...]:
    """Of the sets of models that can all execute at the same time, return the heaviest."""
    best: tuple[int, ...] = ()
    pending: list[tuple[tuple[int, ...], frozenset[int]]] = [((), frozenset(range(len(weights))))]
    while pending:
        chosen, rest = pending.pop()
        if sum(weights[i] for i in chosen) > sum(weights[i] for i in best) or not best:
            best = chosen or best
        for i in sorted(rest):
            pending.append(((*chosen, i), frozenset(o for o in together[i] & rest if o > i)))
    return best


def place(sizes: Sequence[int], together: Sets) -> list[int]:
    """Return the offset of each model's scratch; models that can run together share no byte."""
    bound = sum(sizes[i] for i in heaviest(sizes, together))
    heavy = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    best, least = [0] * len(sizes), math.inf
    for order in islice(permutations(heavy), _MAX_ORDERS):
        offset_of: dict[int, int] = {}
        for i in order:
            others = [
                (offset_of[o], offset_of[o] + sizes[o]) for o in together[i] if o in offset_of
            ]
            offset = 0
            for begin, end in sorted(others):
                if offset + sizes[i] <= begin:
                    break
                offset = max(offset, end)
            offset_of[i] = offset
        top = max((offset + sizes[i] for i, offset in offset_of.items()), default=0)
        if top < least:
            best, least = [offset_of[i] for i in range(len(sizes))], top
        if least <= bound:
            break
    return best


def judge_together(planned: Sequence[PlannedFile]) -> TcmVerdict | None:
    """Return the TCM verdict for all models, as if one binary held the constants of all.

    Return None if one of the files is a buffer list.
    """
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
