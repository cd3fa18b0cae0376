"""The remedy that cuts a model into parts: last, because applications then call it otherwise.

Results stay the same bit by bit; what changes is that several models run one after the other, and
that the application keeps what is handed from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.fix.parts.op_sequence import OpSequence, sequence_of
from qnnmem.fix.parts.partition import Partition, PlannedParts, partition
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.planner import Io
from qnnmem.text import counted, quote

NAME = "partition"
KEEP = "one-file"  # what a user says who wants no parts
_MOST_PARTS = 1000
Rounds = tuple[tuple[str, ...], ...]  # contexts that are loaded at the same time


@dataclass(frozen=True, slots=True)
class PlannedPartsRemedy:
    """Parts that meet the budgets of LPAI together, all resident or loaded in turn."""

    name: str = NAME

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """The fewest parts; nothing without a budget, as there would be no end of cutting."""
        case, start = bench.case, base.change
        if KEEP in case.keep or not case.budget or start.parts is not None:
            return
        begin = monotonic()
        try:
            sequence = sequence_of(start.model)
        except UsageError:  # whose parts could not be compared
            return
        if _cannot_help(base):
            return
        judge = PlannedParts(case.budget, start.pool_options, seed=case.seed)
        found = partition(sequence, judge, is_over=lambda: not case.seconds_left)
        if not isinstance(found, Partition) or len(found.parts) < 2:
            return
        made = cut(start, found, counted(len(found.parts), "part"), ())
        need = bench.judge(made)
        if need.missing or need.deployment is None:  # it is no answer as it would be deployed
            return
        words = f"{made.what}, {need.deployment.arrangement.value}"
        judged = bench.judged(replace(made, what=words))
        yield replace(judged, seconds=monotonic() - begin)

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """The cuts of a recipe."""
        return cut_again(base, step, ())


def _cannot_help(base: JudgedChange) -> bool:
    """Whether one step alone needs more than scratch may have.

    A tensor that waits outside of a part counts like one inside.
    """
    plan, limit = base.need.plan, base.need.limit
    if plan is None or plan.peak is None or limit is None or plan.options.io is Io.OUTSIDE:
        return False
    return plan.peak.size > limit


def cut(base: Change, found: Partition, words: str, rounds: Rounds) -> Change:
    """The change that consists of parts."""
    ops = found.sequence.model.ops
    step: dict[str, Any] = {
        "ops": len(ops),
        "cuts": [part.first for part in found.parts[1:]],
        "last_tensors": [ops[part.last - 1].outputs[0] for part in found.parts],
        "crossing_bytes": found.crossing_bytes,
        "rounds": [list(names) for names in rounds],
    }
    return base.then(NAME, words, step, parts=found, rounds=rounds)


def cut_again(base: Change, step: Step, rounds: Rounds) -> Change:
    """A model cut where a recipe says; refused where it is another one."""
    sequence = sequence_of(base.model)
    cuts = [*step["cuts"]]
    if len(sequence) != step["ops"]:
        raise UsageError(
            f"the recipe is for a model of {step['ops']} ops, this has {len(sequence)}"
        )
    if not 0 < len(cuts) < _MOST_PARTS or not all(type(at) is int for at in cuts):
        raise ValueError("cuts are positions of ops")
    places = [0, *cuts, len(sequence)]
    if sorted({*places}) != places:
        raise ValueError("cuts are positions of ops that rise")
    found = parts_at(sequence, places)
    last = [sequence.model.ops[part.last - 1].outputs[0] for part in found.parts]
    wrong = [name for name, said in zip(last, step["last_tensors"], strict=True) if name != said]
    if wrong:
        raise UsageError(
            f"the recipe is for another model: a part would end with {quote(wrong[0])}"
        )
    words = f"{counted(len(found.parts), 'part')} as in the recipe"
    return cut(base, found, words, rounds)


def parts_at(sequence: OpSequence, places: list[int]) -> Partition:
    """The parts between places, whose first and last are the ends of the sequence."""
    parts = tuple(sequence.stretch(first, last) for first, last in pairwise(places))
    crossing = sum(sequence.crossing[at] for at in places[1:-1])
    return Partition(sequence, parts, (), crossing, trials=0)
