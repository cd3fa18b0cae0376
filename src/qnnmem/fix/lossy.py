"""Remedies that change results: which there are, and how those that do not come on top of them.

for each change that loses and is not enough:
    for each remedy that loses nothing, on the best so far:
        compare its changes bit by bit with the change that loses
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qnnmem.errors import ChildFailed
from qnnmem.fix.batch import BatchRemedy, batch_of
from qnnmem.fix.precision import (
    HTP_WORDS,
    LPAI_WIDTHS,
    PrecisionRemedy,
    precisions_for,
    without_layout,
)
from qnnmem.fix.prove import Proof
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    LossyHint,
    ModelRemedy,
    Need,
    Step,
)
from qnnmem.fix.resolution import ResolutionRemedy, smaller_pictures
from qnnmem.fix.run import best_of
from qnnmem.plan.pools import PoolOptions

LOSSY_REMEDIES: tuple[ModelRemedy, ...] = (BatchRemedy(), PrecisionRemedy(), ResolutionRemedy())
FEWER_CHANNELS = (
    "what is left is another model: fewer channels in the layers that need most, then train it "
    "again"
)
_NAMES = frozenset(remedy.name for remedy in LOSSY_REMEDIES)


class LossyBench:
    """A bench on which a change that loses is the model as it is: nothing more may be lost."""

    def __init__(self, bench: FixBench, base: JudgedChange) -> None:
        self._bench, self._base = bench, base
        made = base.change
        self.case: FixCase = replace(bench.case, model=made.model, options=made.options)

    def judge(self, change: Change) -> Need:
        """What it needs."""
        return self._bench.judge(change)

    def prove(self, change: Change) -> Proof:
        """Compare with the change that loses, by digests of all results."""
        found, base = self._bench.prove(change), self._base.proof
        if base is not None and found.digest == base.digest:
            return replace(found, differing=(), largest=0.0, relative=0.0, each=(), unmeasured=())
        every = tuple(item.name for item in self.case.model.scope.graph.output)
        return replace(found, differing=found.differing or every)

    def judged(self, change: Change) -> JudgedChange:
        """What it needs, and how far it is from the model of the user."""
        base = self._base
        if change.model is base.change.model and change.parts is None:
            return replace(base, change=change, need=self.judge(change), seconds=0.0)
        judged = self._bench.judged(change)
        if self.prove(change).identical:
            return judged
        # As a change that was to lose nothing it does not count.
        return replace(judged, change=replace(change, is_lossy=False))

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Nothing: answers are kept for the user's model."""
        return None

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Keep nothing."""


@dataclass(frozen=True, slots=True)
class FollowedRemedy:
    """A remedy that loses, and after each of its changes those that lose nothing more."""

    first: ModelRemedy
    then: tuple[ModelRemedy, ...] = ()

    @property
    def name(self) -> str:
        """That of the remedy that loses."""
        return self.first.name

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Each change, then what the others bring on top of it."""
        for made in self.first.changes(bench, base):
            yield made
            if made.holds and not made.is_enough:
                yield from self._on_top(bench, made)

    def _on_top(self, bench: FixBench, made: JudgedChange) -> Iterator[JudgedChange]:
        tried, inner = [made], LossyBench(bench, made)
        for remedy in self.then:
            for one in remedy.changes(inner, best_of(tried)):
                tried.append(one)
                yield one
                if one.is_enough:
                    return

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """As the remedy that loses does it."""
        return self.first.again(case, base, step)


def lossy_remedies(case: FixCase, then: Sequence[ModelRemedy]) -> tuple[ModelRemedy, ...]:
    """What the user allows, in the order it is tried; `then` are remedies that lose nothing."""
    words = tuple(word for word in precisions_for(case) if word in case.allow)
    found: list[ModelRemedy] = []
    if "batch" in case.allow:
        found.append(BatchRemedy())
    if words:
        found.append(PrecisionRemedy(words))
    if "resolution" in case.allow:
        found.append(ResolutionRemedy())
    return tuple(FollowedRemedy(one, tuple(then)) for one in found)


def needed_words(steps: Sequence[Step]) -> tuple[str, ...]:
    """What must be allowed for the steps of a recipe."""
    found = [str(step.get("to", step["remedy"])) for step in steps if step["remedy"] in _NAMES]
    return tuple(dict.fromkeys(found))


def judged_steps(bench: FixBench, change: Change) -> JudgedChange:
    """A change judged as a whole; steps on top of those that lose may lose nothing more."""
    lossy: Change | None = change
    while lossy is not None and lossy.remedy not in _NAMES:
        lossy = lossy.of
    if lossy is None or lossy is change:
        return bench.judged(change)
    return LossyBench(bench, bench.judged(lossy)).judged(change)


def find_hints(bench: FixBench, best: JudgedChange) -> tuple[LossyHint, ...]:
    """What else would make the model fit, those that lose least first; only planned."""
    case = bench.case
    found = []
    for word, change in _planned(case, best.change):
        if word not in case.allow:
            need = bench.judge(change)
            found += [LossyHint(word, need)] if need.fits else []
    return tuple(found)


def _planned(case: FixCase, best: Change) -> Iterator[tuple[str, Change]]:
    """Changes that lose, as far as the planner needs them."""
    options = best.options
    if not isinstance(options, PoolOptions):
        return
    for word, (bits, _) in LPAI_WIDTHS.items():
        if options.bits is None and word != "w8a16":
            yield word, replace(best, options=replace(options, bits=bits))
    try:
        if batch_of(case) > 1:
            yield "batch", BatchRemedy().again(case, without_layout(best), {"size": 1})
        sizes = smaller_pictures(case, 0.5)
        if sizes:
            step = {"shapes": sizes}
            yield "resolution", ResolutionRemedy().again(case, without_layout(best), step)
    except ChildFailed:
        return  # the model takes no other sizes


def lossy_words(backend: str) -> tuple[str, ...]:
    """What can be allowed, by name."""
    precisions = tuple(LPAI_WIDTHS) if backend == "lpai" else HTP_WORDS
    return ("batch", *precisions, "resolution")
