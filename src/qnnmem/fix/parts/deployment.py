"""Peak memory of a chain of parts over a whole run, by pool.

    all resident      every part stays loaded; one runs at a time
    one spill/fill    every part stays loaded, and all contexts share one spill/fill buffer (HTP)
    loaded in turn    each part is loaded, run and freed before the next

The whole chain must meet a budget, not only its largest part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from qnnmem.fix.parts.op_sequence import OpRange, OpSequence
from qnnmem.ir.lifetime import stored_bytes
from qnnmem.planner import Io, MemoryPlan
from qnnmem.planner.pools import TCM, Budget, StatePair, as_limits
from qnnmem.results.fix import FixDeployment
from qnnmem.targets import tcm_pool
from qnnmem.units import MAX_BYTES, round_up

TOTAL = "total"  # the pool that sums all pools


class Arrangement(Enum):
    """Which parts are loaded at the same time."""

    RESIDENT = "all resident"
    SHARED = "all resident, sharing one spill/fill buffer"
    IN_TURN = "loaded in turn"


_NAMES: Mapping[Arrangement, Literal["resident", "shared", "in-turn"]] = {
    Arrangement.RESIDENT: "resident",
    Arrangement.SHARED: "shared",
    Arrangement.IN_TURN: "in-turn",
}


@dataclass(frozen=True)
class PartNeed:
    """Bytes that one part needs, by pool."""

    loaded: Mapping[str, int]  # bytes as long as the part is loaded
    running: Mapping[str, int]  # additional bytes while the part runs
    weights: int
    held: int = 0  # bytes of tensors of other parts while this part runs
    # Pools in which `held` counts only if the part is loaded alone. If all parts stay loaded, the
    # buffers of the other parts already hold these tensors.
    alone: frozenset[str] = frozenset()
    kept: Mapping[str, int] = field(default_factory=dict)  # bytes of state, kept between runs
    spill_fill: int = 0

    def in_turn(self, pool: str) -> int:
        """Return the bytes while this part runs and no other part is loaded."""
        held = self.held if pool in self.alone else 0
        return self.loaded.get(pool, 0) + self.running.get(pool, 0) + held


@dataclass(frozen=True)
class Deployment:
    """Chain of parts in one arrangement, with the bytes needed while each part runs."""

    arrangement: Arrangement
    steps: tuple[Mapping[str, int], ...]  # bytes by pool while each part runs
    held: tuple[int, ...]  # bytes of tensors for other parts while each part runs
    weights_bytes: int  # weight bytes of all parts
    plain_weights_bytes: int | None  # weight bytes of the uncut model; None if it does not compile
    moved_bytes: int  # bytes passed from part to part in one inference

    @property
    def pools(self) -> dict[str, int]:
        """Peak bytes of each pool; pools can peak at different steps."""
        return {pool: max(step[pool] for step in self.steps) for pool in self.steps[0]}

    @property
    def total(self) -> int:
        """Peak of all pools together, in bytes."""
        return self.pools[TOTAL]

    def worst(self, pool: str = TOTAL) -> int:
        """Return the number of the part that fills a pool the most, counted from 0."""
        return max(range(len(self.steps)), key=lambda part: (self.steps[part][pool], -part))

    @property
    def load_bytes(self) -> int:
        """Bytes loaded or moved in each inference; includes all weights if parts load in turn."""
        weights = self.weights_bytes if self.arrangement is Arrangement.IN_TURN else 0
        return weights + self.moved_bytes

    @property
    def repeated_bytes(self) -> int:
        """Bytes of weights stored in more than one part."""
        return max(0, self.weights_bytes - (self.plain_weights_bytes or self.weights_bytes))

    def result(self, plain_total: int | None) -> FixDeployment:
        """Return the deployment as a result type; `plain_total` is the unsplit model's total."""
        worst = self.worst()
        return FixDeployment(
            arrangement=_NAMES[self.arrangement],
            parts=len(self.steps),
            worst_part=worst + 1,
            held_bytes=self.held[worst],
            pools={pool: size for pool, size in self.pools.items() if pool != TOTAL},
            total_bytes=self.total,
            plain_total_bytes=plain_total,
            weights_bytes=self.weights_bytes,
            plain_weights_bytes=self.plain_weights_bytes,
            repeated_weights_bytes=self.repeated_bytes,
            moved_bytes_per_inference=self.moved_bytes,
            load_bytes_per_inference=self.load_bytes,
        )

    def over(self, limits: Mapping[str, int]) -> dict[str, int]:
        """Return the excess over each exceeded limit, by pool."""
        need = {pool: self.pools.get(pool, MAX_BYTES) for pool in limits}  # unknown: over the limit
        return {pool: need[pool] - most for pool, most in limits.items() if need[pool] > most}


def deployments(
    sequence: OpSequence,
    parts: Sequence[OpRange],
    needs: Sequence[PartNeed],
    plain_weights: int | None,
    bits: int | None = None,
) -> tuple[Deployment, ...]:
    """Return a deployment of a chain for each arrangement, the fastest first.

    `bits` is the width of floating-point elements; None means as in the model.
    """
    kinds = [Arrangement.RESIDENT, Arrangement.IN_TURN]
    if sum(need.spill_fill > 0 for need in needs) > 1:
        kinds.insert(1, Arrangement.SHARED)
    results = {name for part in parts for name in part.outputs}
    between = results.intersection(name for part in parts for name in part.inputs)
    moved = sum(stored_bytes(sequence.model.tensors[name], bits) for name in between)
    return tuple(_deployed(kind, needs, plain_weights, moved) for kind in kinds)


def chosen(options: Sequence[Deployment], limits: Mapping[str, int]) -> Deployment:
    """Return the first arrangement within all limits, else the one with the least total excess."""
    return min(options, key=lambda option: sum(option.over(limits).values()))


def _deployed(
    kind: Arrangement, needs: Sequence[PartNeed], plain_weights: int | None, moved: int
) -> Deployment:
    names = dict.fromkeys(name for need in needs for name in (*need.loaded, *need.running))
    return Deployment(
        kind,
        tuple(_at_step(kind, needs, need, names) for need in needs),
        tuple(need.held for need in needs),
        sum(need.weights for need in needs),
        plain_weights,
        moved,
    )


def _at_step(
    kind: Arrangement, needs: Sequence[PartNeed], running: PartNeed, names: Mapping[str, None]
) -> dict[str, int]:
    """Return the bytes of each pool while one part runs."""
    state = {name: sum(need.kept.get(name, 0) for need in needs) for name in names}
    if kind is Arrangement.IN_TURN:
        return {name: state[name] + running.in_turn(name) for name in names}
    loaded = {name: sum(need.loaded.get(name, 0) for need in needs) for name in names}
    if kind is Arrangement.SHARED:
        spills = [need.spill_fill for need in needs]
        for name in ("spill-fill", "ram", TOTAL):
            loaded[name] -= sum(spills) - max(spills)
    return {name: state[name] + loaded[name] + running.running.get(name, 0) for name in names}


def first_over(need: PartNeed, limits: Mapping[str, int]) -> tuple[str, int, int] | None:
    """Return pool, need and limit of the first limit that a single part exceeds."""
    for pool, most in limits.items():
        size = need.in_turn(pool) + need.kept.get(pool, 0)
        if size > most:
            return pool, size, most
    return None


def held_over(sequence: OpSequence, op_range: OpRange, *, copies: bool) -> tuple[str, ...]:
    """Return tensors that exist before a part runs and are needed after it.

    With `copies`, the part's own inputs count too: if IO is inside scratch, a part may overwrite
    them.
    """
    own = {*op_range.outputs, *(() if copies else op_range.inputs)}
    outputs = set(sequence.model.outputs)
    return tuple(
        name
        for name, maker in sequence.maker.items()
        if maker < op_range.first
        and name not in own
        and name not in sequence.fixed
        and (name in outputs or sequence.last_reader(name) >= op_range.last)
    )


TCM_SLOTS = "tcm allocations"


def planned_need(
    sequence: OpSequence, op_range: OpRange, plan: MemoryPlan, state: Collection[str]
) -> PartNeed:
    """Return the bytes of one part, and of tensors that other parts need while it runs.

    Only one part runs at a time, so all parts share scratch and IO. `state` names tensors in
    persistent memory, which are not counted as held.
    """
    options = plan.options
    inside = options.io is Io.INSIDE
    own = dict(plan.io_sizes)

    def rounded(name: str) -> int:
        size = own.get(name)
        tensor = sequence.model.tensors[name]
        return round_up(stored_bytes(tensor, options.bits) if size is None else size, plan.align)

    waiting = [name for name in held_over(sequence, op_range, copies=inside) if name not in state]
    held = sum(map(rounded, waiting))
    alive = {*own, *waiting}
    scratch = plan.scratch_bytes + (held if inside else 0)
    io = plan.io_bytes + (0 if inside else held)
    constants, persistent = plan.constant_bytes, plan.persistent_bytes
    return PartNeed(
        loaded={"constants": constants, TCM: round_up(constants, plan.align), TCM_SLOTS: 1}
        | {TOTAL: constants},
        running={"scratch": scratch, "io": io, "persistent": 0}
        | {TCM: sum(map(rounded, alive)), TCM_SLOTS: len(alive), TOTAL: scratch + io},
        weights=constants,
        held=held,
        kept={"persistent": persistent, TOTAL: persistent},
    )


def state_names(parts: Sequence[OpRange], pairs: Sequence[StatePair]) -> frozenset[str]:
    """Return the names of state tensors that one part both reads and writes.

    The application must pass all other state from one run to the next.
    """
    return frozenset(
        name
        for pair in pairs
        if any(pair[0] in part.inputs and pair[1] in part.outputs for part in parts)
        for name in pair
    )


def limits_of(budget: Budget | None) -> dict[str, int]:
    """Return the limits by pool; a TCM budget also limits the number of allocations."""
    limits = as_limits(budget)
    by_pool = {pool.value: int(size) for pool, size in limits.pools.items()}
    if limits.tcm is not None:
        by_pool |= {TCM: limits.tcm, TCM_SLOTS: tcm_pool().max_allocations.value}
    return by_pool
