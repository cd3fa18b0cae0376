"""The remedies that change results, each followed by lossless remedies.

for each lossy change that is not enough:
    for each lossless remedy, on top of the best change so far:
        compare its changes bit for bit with the lossy change
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from qnnmem.errors import ChildFailed
from qnnmem.fix.bench import LossyBench, TimeLimitedBench
from qnnmem.fix.graph.fusion import ROUNDING
from qnnmem.fix.graph.operators import OPERATORS
from qnnmem.fix.lossy.lower_precision import (
    HTP_WORDS,
    LPAI_WIDTHS,
    PrecisionRemedy,
    precisions_for,
    without_layout,
)
from qnnmem.fix.lossy.smaller_inputs import (
    BatchRemedy,
    ResolutionRemedy,
    batch_of,
    smaller_images,
)
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    LossyHint,
    ModelRemedy,
    Step,
)
from qnnmem.fix.remedy_search import best_of
from qnnmem.planner.pools import PoolOptions

LOSSY_REMEDIES: tuple[ModelRemedy, ...] = (BatchRemedy(), PrecisionRemedy(), ResolutionRemedy())
FEWER_CHANNELS = (
    "the only option left is another model: reduce the channels of the largest layers and retrain"
)
_NAMES = frozenset(remedy.name for remedy in LOSSY_REMEDIES)


@dataclass(frozen=True, slots=True)
class _WrappedRemedy:
    """Base class of wrappers; a wrapper has the name and the recipe steps of the wrapped remedy."""

    first: ModelRemedy

    @property
    def name(self) -> str:
        """Name of the wrapped remedy."""
        return self.first.name

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe step applied by the wrapped remedy."""
        return self.first.replay(case, base, step)


@dataclass(frozen=True, slots=True)
class TimeLimitedRemedy(_WrappedRemedy):
    """Wrapper that gives a remedy half of the remaining time."""

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield the wrapped remedy's changes until half of the time is used."""
        return self.first.changes(TimeLimitedBench(bench, bench.case.seconds_left / 2), base)


@dataclass(frozen=True, slots=True)
class FollowedRemedy(_WrappedRemedy):
    """Lossy remedy, with lossless remedies tried after each of its changes."""

    then: tuple[ModelRemedy, ...] = ()

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield each lossy change, followed by lossless changes on top of it while time is left."""
        failure: ChildFailed | None = None
        left = whole = bench.case.seconds_left
        for judged in self.first.changes(bench, base):
            yield judged
            if judged.holds and not judged.is_enough:
                begin = monotonic()
                try:
                    yield from self._on_top(LossyBench(bench, judged, max(left, whole / 4)), judged)
                except ChildFailed as exc:  # another change may still work
                    failure = exc
                left = max(0.0, left - (monotonic() - begin))
        if failure is not None:
            raise failure

    def _on_top(self, bench: LossyBench, lossy: JudgedChange) -> Iterator[JudgedChange]:
        """Yield lossless changes on top of a lossy change until one is enough."""
        tried = [lossy]
        for remedy in self.then:
            for judged in remedy.changes(bench, best_of(tried)):
                tried.append(bench.checked(judged))
                yield tried[-1]
                if tried[-1].is_enough:
                    return


def with_lossy(case: FixCase, remedies: Sequence[ModelRemedy]) -> tuple[ModelRemedy, ...]:
    """Return all remedies to try in order: lossless remedies, then allowed lossy remedies."""
    words = tuple(word for word in precisions_for(case) if word in case.allow)
    lossy: list[ModelRemedy] = []
    if "batch" in case.allow:
        lossy.append(BatchRemedy())
    if words:
        lossy.append(PrecisionRemedy(words))
    if "resolution" in case.allow:
        lossy.append(ResolutionRemedy())
    if not lossy:
        return tuple(remedies)
    followed = (FollowedRemedy(remedy, tuple(remedies)) for remedy in lossy)
    return (*map(TimeLimitedRemedy, remedies), *followed)


def needed_words(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the names that `--allow` needs for the steps of a recipe."""
    words = (str(step.get("to", step["remedy"])) for step in steps if step["remedy"] in _NAMES)
    return tuple(dict.fromkeys(words))


def judged_steps(bench: FixBench, change: Change) -> JudgedChange:
    """Judge the change of a recipe; steps after the last lossy step must not change results."""
    lossy: Change | None = change
    while lossy is not None and lossy.remedy not in _NAMES:
        lossy = lossy.of
    if lossy is None or lossy is change:
        return bench.judged(change)
    return LossyBench(bench, bench.judged(lossy)).judged(change)


def find_hints(bench: FixBench, best: JudgedChange) -> tuple[LossyHint, ...]:
    """Return lossy remedies that are not allowed but whose plans fit, the least lossy first."""
    planned = _planned(bench.case, best.change)
    hints = (LossyHint(w, bench.judge(c)) for w, c in planned if w not in bench.case.allow)
    return tuple(hint for hint in hints if hint.need.fits)


def _planned(case: FixCase, best: Change) -> Iterator[tuple[str, Change]]:
    """Yield each lossy change that can be planned without quantization, with its `--allow` name."""
    options, base = best.options, without_layout(best)
    if not isinstance(options, PoolOptions):
        return
    with suppress(ChildFailed):  # the model may accept no other batch
        if batch_of(case) > 1:
            yield "batch", BatchRemedy().replay(case, base, {"size": 1})
    for word, (bits, _) in LPAI_WIDTHS.items():
        if options.bits is None and word != "w8a16":
            yield word, replace(best, options=replace(options, bits=bits))
    with suppress(ChildFailed):  # or no other image size
        if sizes := smaller_images(case, 0.5):
            yield "resolution", ResolutionRemedy().replay(case, base, {"shapes": sizes})


def lossy_words(backend: str) -> tuple[str, ...]:
    """Return the names that `--allow` accepts for a backend."""
    precisions = tuple(LPAI_WIDTHS) if backend == "lpai" else HTP_WORDS
    return (ROUNDING, OPERATORS, "batch", *precisions, "resolution")
