"""Memory of a chain of parts at the worst moment of a whole run, pool by pool.

    all resident      every part stays loaded; one runs at a time
    one spill/fill    the same, with one spill/fill buffer for all contexts (HTP)
    loaded in turn    each part is loaded, run and freed before the next

A budget is met by the chain as it is deployed, never by its neediest part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from qnnmem.fix.parts.op_sequence import OpSequence, Stretch
from qnnmem.ir.lifetime import stored_bytes
from qnnmem.results.fix import FixDeployment
from qnnmem.units import MAX_BYTES

TOTAL = "total"  # the pool that holds everything


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
    """Bytes that one part takes, by pool."""

    loaded: Mapping[str, int]  # as long as it is loaded
    running: Mapping[str, int]  # on top of that while it runs
    weights: int
    held: int = 0  # tensors of other parts that wait while it runs
    # Pools in which `held` counts only if the part is loaded alone: where all parts stay loaded,
    # the buffers of the other parts are there anyhow.
    alone: frozenset[str] = frozenset()
    kept: Mapping[str, int] = field(default_factory=dict)  # state: stays between runs
    spill_fill: int = 0

    def in_turn(self, pool: str) -> int:
        """Bytes while it runs and no other part is loaded."""
        held = self.held if pool in self.alone else 0
        return self.loaded.get(pool, 0) + self.running.get(pool, 0) + held


@dataclass(frozen=True)
class Deployment:
    """A chain of parts in one arrangement."""

    arrangement: Arrangement
    steps: tuple[Mapping[str, int], ...]  # bytes by pool while each part runs
    held: tuple[int, ...]  # bytes that wait for other parts while each runs
    weights_bytes: int  # of all parts
    plain_weights_bytes: int | None  # of the model in one piece; None: it does not compile
    moved_bytes: int  # tensors that are handed from part to part in one inference

    @property
    def pools(self) -> dict[str, int]:
        """Bytes of each pool at its own worst moment."""
        return {pool: max(step[pool] for step in self.steps) for pool in self.steps[0]}

    @property
    def total(self) -> int:
        """Bytes of everything at the worst moment."""
        return self.pools[TOTAL]

    def worst(self, pool: str = TOTAL) -> int:
        """The part, from 0, at which a pool is fullest."""
        return max(range(len(self.steps)), key=lambda at: (self.steps[at][pool], -at))

    @property
    def load_bytes(self) -> int:
        """Bytes that every inference reads again or moves: all weights, where parts take turns."""
        weights = self.weights_bytes if self.arrangement is Arrangement.IN_TURN else 0
        return weights + self.moved_bytes

    @property
    def repeated_bytes(self) -> int:
        """Bytes of weights that all parts together have more than the model in one piece."""
        return max(0, self.weights_bytes - (self.plain_weights_bytes or self.weights_bytes))

    def result(self, plain_total: int | None) -> FixDeployment:
        """All of it as results hold it, beside the total of the model in one piece."""
        at = self.worst()
        return FixDeployment(
            arrangement=_NAMES[self.arrangement],
            parts=len(self.steps),
            worst_part=at + 1,
            held_bytes=self.held[at],
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
        """Bytes beyond each limit that is broken, by pool."""
        need = {pool: self.pools.get(pool, MAX_BYTES) for pool in limits}  # unknown: not met
        return {pool: need[pool] - most for pool, most in limits.items() if need[pool] > most}


def deployments(
    sequence: OpSequence,
    parts: Sequence[Stretch],
    needs: Sequence[PartNeed],
    plain_weights: int | None,
    bits: int | None = None,
) -> tuple[Deployment, ...]:
    """Every arrangement of a chain, the one that costs least time first.

    `bits` is the width of floating-point elements; None: as in the model.
    """
    kinds = [Arrangement.RESIDENT, Arrangement.IN_TURN]
    if sum(need.spill_fill > 0 for need in needs) > 1:
        kinds.insert(1, Arrangement.SHARED)
    made = {name for part in parts for name in part.outputs}
    between = made.intersection(name for part in parts for name in part.inputs)
    moved = sum(stored_bytes(sequence.model.tensors[name], bits) for name in between)
    return tuple(_deployed(kind, needs, plain_weights, moved) for kind in kinds)


def chosen(found: Sequence[Deployment], limits: Mapping[str, int]) -> Deployment:
    """The first that meets all limits; where none does, the one that is least over."""
    return min(found, key=lambda one: sum(one.over(limits).values()))


def _deployed(
    kind: Arrangement, needs: Sequence[PartNeed], plain_weights: int | None, moved: int
) -> Deployment:
    names = dict.fromkeys(name for need in needs for name in (*need.loaded, *need.running))
    return Deployment(
        kind,
        tuple(_at_step(kind, needs, at, names) for at in range(len(needs))),
        tuple(need.held for need in needs),
        sum(need.weights for need in needs),
        plain_weights,
        moved,
    )


def _at_step(
    kind: Arrangement, needs: Sequence[PartNeed], at: int, names: Mapping[str, None]
) -> dict[str, int]:
    """Bytes of each pool while one part runs."""
    state = {name: sum(need.kept.get(name, 0) for need in needs) for name in names}
    if kind is Arrangement.IN_TURN:
        return {name: state[name] + needs[at].in_turn(name) for name in names}
    loaded = {name: sum(need.loaded.get(name, 0) for need in needs) for name in names}
    if kind is Arrangement.SHARED:
        spills = [need.spill_fill for need in needs]
        for name in ("spill-fill", "ram", TOTAL):
            loaded[name] -= sum(spills) - max(spills)
    return {name: state[name] + loaded[name] + needs[at].running.get(name, 0) for name in names}


def first_over(need: PartNeed, limits: Mapping[str, int]) -> tuple[str, int, int] | None:
    """The first limit that a part breaks even when it is loaded alone: pool, need and limit."""
    for pool, most in limits.items():
        size = need.in_turn(pool) + need.kept.get(pool, 0)
        if size > most:
            return pool, size, most
    return None


def held_over(sequence: OpSequence, stretch: Stretch, *, copies: bool) -> tuple[str, ...]:
    """Tensors that exist before a stretch runs and are needed after it.

    With `copies` its own inputs count too: where IO lies in scratch, a part may overwrite them.
    """
    own = {*stretch.outputs, *(() if copies else stretch.inputs)}
    wanted = set(sequence.model.outputs)
    return tuple(
        name
        for name, made in sequence.maker.items()
        if made < stretch.first
        and name not in own
        and name not in sequence.fixed
        and (name in wanted or sequence.readers.get(name, (-1,))[-1] >= stretch.last)
    )
