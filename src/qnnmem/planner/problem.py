"""The packing problem and its results, as plain values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from qnnmem.arguments import expect, expect_items
from qnnmem.errors import UsageError
from qnnmem.ir.model import Buffer
from qnnmem.results.proof import ProofScope, proof_words
from qnnmem.text import counted, quote
from qnnmem.units import MAX_BYTES, Bytes, Offset, Size, Step, as_bytes


@dataclass(frozen=True, init=False, repr=False)
class Problem:
    """Buffers to place so that no two buffers alive at the same time share a byte.

    With a capacity, the question is whether they fit below it; without one, how low the peak can
    be.
    """

    buffers: tuple[Buffer, ...]
    capacity: Bytes | None

    def __init__(self, buffers: Iterable[Buffer], capacity: Size | None = None) -> None:
        what = "a problem's buffers must be a list of Buffer objects"
        object.__setattr__(self, "buffers", expect_items(buffers, Buffer, what))
        object.__setattr__(self, "capacity", None if capacity is None else as_bytes(capacity))
        self._check()

    def __repr__(self) -> str:
        """Return one line, whatever the number of buffers."""
        within = "" if self.capacity is None else f" within {counted(self.capacity, 'byte')}"
        return f"<Problem: {counted(len(self.buffers), 'buffer')}{within}>"

    def _check(self) -> None:
        names = {buffer.name for buffer in self.buffers}
        if len(names) != len(self.buffers):
            raise UsageError("two buffers of one problem have the same name")
        if any(buffer.size < 0 or buffer.align < 1 for buffer in self.buffers):
            raise UsageError("a buffer's size must be at least 0 and its alignment at least 1")
        # Alignment can cost up to `align - 1` bytes for each buffer: the sum of both must not
        # overflow.
        if sum(buffer.size + buffer.align for buffer in self.buffers) > MAX_BYTES:
            raise UsageError(f"the buffers add up to more than {MAX_BYTES:,} bytes")
        if self.capacity is not None and not 0 <= self.capacity <= MAX_BYTES:
            raise UsageError(f"a capacity must be between 0 and {MAX_BYTES:,} bytes")

    @cached_property
    def by_name(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}


@dataclass(frozen=True, repr=False)
class Plan:
    """Offsets for every buffer of a problem, with a proven lower bound of the peak."""

    problem: Problem
    offsets: tuple[Offset, ...]  # in the order of problem.buffers
    lower_bound: Bytes  # proven: no plan can have a lower peak
    cut_by_clock: bool = False  # the clock ended the search: a rerun may differ
    search_missing: bool = False  # the search ran in plain Python and did not finish

    def __post_init__(self) -> None:
        expect(self.problem, Problem, "a plan must belong to a Problem")
        offsets = expect_items(self.offsets, int, "the offsets of a plan must be a list of numbers")
        object.__setattr__(self, "offsets", offsets)
        expect(self.lower_bound, int, "the lower bound of a plan must be a number of bytes")

    def __repr__(self) -> str:
        """Return the plan in one line."""
        buffers = counted(len(self.offsets), "buffer")
        return f"<Plan: {counted(self.peak, 'byte')}, {self.proof}; {buffers}>"

    @cached_property
    def peak(self) -> Bytes:
        """The address after the highest byte in use."""
        # `verify` checks that there is an offset for each buffer.
        ends = (o + b.size for o, b in zip(self.offsets, self.problem.buffers, strict=False))
        return Bytes(max(ends, default=0))

    @property
    def optimal(self) -> bool:
        """True if the peak equals the lower bound: no plan for these lifetimes is smaller."""
        return self.peak == self.lower_bound

    @property
    def proof(self) -> str:
        """The distance of the peak from the minimum, in words."""
        proof = ProofScope.LIFETIMES if self.optimal else ProofScope.NONE
        return proof_words(proof, self.peak, self.lower_bound)

    @cached_property
    def offset_of(self) -> dict[str, Offset]:
        """Offsets by buffer name."""
        return dict(zip(self.problem.by_name, self.offsets, strict=False))


def check_plan(plan: object) -> None:
    """Raise UsageError unless the value is a Plan."""
    if not isinstance(plan, Plan):
        cure = "plan(problem) returns a Plan; a MemoryPlan has a Plan in .scratch"
        raise UsageError(f"{quote(plan)} is not a Plan", cure=cure)


@dataclass(frozen=True, repr=False)
class Infeasible:
    """The result if the buffers do not fit the capacity, or no plan was found in time."""

    problem: Problem
    blockers: tuple[str, ...]  # buffers that cannot fit together
    lower_bound: Bytes
    proven: bool  # False: the search ran out of time, or is not installed
    best: Plan  # the lowest plan found; its peak is above the capacity

    def __repr__(self) -> str:
        """Return the result in one line."""
        have = 0 if self.problem.capacity is None else self.problem.capacity
        known = "does not fit" if self.proven else "not known to fit"
        return (
            f"<Infeasible: {known} {counted(have, 'byte')}, at least {self.lower_bound:,} "
            f"needed; {counted(len(self.blockers), 'buffer')} too large together>"
        )


@dataclass(frozen=True)
class Peak:
    """The step with the most live bytes, and the buffers alive at this step."""

    step: Step
    live: tuple[Buffer, ...]  # largest first

    @property
    def size(self) -> Bytes:
        """Number of bytes alive at the peak step."""
        return Bytes(sum(buffer.size for buffer in self.live))


def find_peak(buffers: Iterable[Buffer]) -> Peak | None:
    """Return the first step with the most live bytes; None if there are no buffers."""
    buffers = tuple(buffers)
    if not buffers:
        return None
    change: defaultdict[int, int] = defaultdict(int)
    for buffer in buffers:
        live, size = buffer.live, buffer.size
        change[live.lower] += size
        change[live.upper] -= size
    load = highest = 0
    step = min(change)
    for when in sorted(change):
        load += change[when]
        if load > highest:
            highest, step = load, when
    alive = [buffer for buffer in buffers if buffer.live.lower <= step < buffer.live.upper]
    return Peak(Step(step), tuple(sorted(alive, key=lambda b: (-b.size, b.name))))
