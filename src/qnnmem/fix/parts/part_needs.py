"""Bytes that one part of a model needs, from an LPAI plan or from the HTP library."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qnnmem.fix.library.trials import LibraryTrial
from qnnmem.fix.parts.deployment import TOTAL, PartNeed, held_over
from qnnmem.fix.parts.op_sequence import OpSequence, Stretch
from qnnmem.ir.lifetime import stored_bytes
from qnnmem.planner import Io, MemoryPlan
from qnnmem.planner.pools import TCM, Budget, as_limits
from qnnmem.planner.states import StatePair
from qnnmem.targets import tcm_pool
from qnnmem.targets.socs import htp_constant
from qnnmem.units import round_up

TCM_SLOTS = "tcm allocations"


def planned_need(
    sequence: OpSequence, stretch: Stretch, plan: MemoryPlan, state: Collection[str]
) -> PartNeed:
    """Bytes of one part, and of what waits for others while it runs.

    Scratch and IO are used by one part at a time, so that all parts share them. `state` names
    tensors in persistent memory, which do not wait outside.
    """
    options = plan.options
    inside = options.io is Io.INSIDE
    own = dict(plan.io_sizes)

    def rounded(name: str) -> int:
        size = own.get(name)
        tensor = sequence.model.tensors[name]
        return round_up(stored_bytes(tensor, options.bits) if size is None else size, plan.align)

    waiting = [name for name in held_over(sequence, stretch, copies=inside) if name not in state]
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


def state_names(parts: Sequence[Stretch], pairs: Sequence[StatePair]) -> frozenset[str]:
    """Inputs and outputs that are state of one part; the application hands on all other state."""
    return frozenset(
        name
        for pair in pairs
        if any(pair[0] in part.inputs and pair[1] in part.outputs for part in parts)
        for name in pair
    )


def limits_of(budget: Budget | None) -> dict[str, int]:
    """Limits by pool; a budget of TCM also limits the number of allocations."""
    limits = as_limits(budget)
    found = {pool.value: int(size) for pool, size in limits.pools.items()}
    if limits.tcm is not None:
        found |= {TCM: limits.tcm, TCM_SLOTS: tcm_pool().max_allocations.value}
    return found


_LOADED = ("weights", "io", "spill-fill", "pd")
_RUNNING = ("vtcm", "compile", "host-ram")


def library_need(sequence: OpSequence, stretch: Stretch, trial: LibraryTrial) -> PartNeed:
    """Bytes of one part; there is one VTCM, which the part that runs has.

    A pool of which the library said nothing is left out.
    """
    known = trial.needs
    loaded = {pool: known[pool] for pool in _LOADED if pool in known}
    running = {pool: known[pool] for pool in _RUNNING if pool in known}
    for name in ("ram", TOTAL) if "ram" in known else ():
        loaded[name] = known["ram"] - trial.vtcm
        running[name] = trial.vtcm
    unit = htp_constant("io", "unit").value
    tensors = sequence.model.tensors
    held = held_over(sequence, stretch, copies=False)
    return PartNeed(
        loaded,
        running,
        weights=known.get("weights", 0),
        held=sum(round_up(tensors[name].nbytes, unit) for name in held),
        alone=frozenset(("ram", "io", TOTAL)),
        spill_fill=trial.spill_fill,
    )
