"""Try remedies in turn, the mildest first, until a change suffices.

Each remedy starts from the best change so far, so that small changes add up. Ctrl-C ends the search
like the time limit: the best change so far is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from qnnmem.deadline import Deadline
from qnnmem.errors import ChildFailed, NotInTime
from qnnmem.fix.bench import CaseBench, LossyBench
from qnnmem.fix.remedy import (
    MAY_LOSE,
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    LossyHint,
    ModelRemedy,
)
from qnnmem.planner.pools import PoolOptions

Watcher = Callable[[JudgedChange], None]
_INTERRUPTED = "interrupted; this is the best result so far"
_LAST_STEP_S = 10.0  # seconds for work in progress at the time limit
_LATE = "the time limit ended the search; more time might find a smaller result"


@dataclass(frozen=True)
class FixResult:
    """Result of a fix: all changes in the order tried; the first is the unchanged model."""

    case: FixCase
    tried: tuple[JudgedChange, ...]
    has_limits: bool = True  # False: the goal was as few bytes as possible
    obstacle: str = ""  # reason why nothing suffices
    notes: tuple[str, ...] = ()
    hints: tuple[LossyHint, ...] = ()  # lossy remedies that would fit if allowed

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        from qnnmem.notebook import shown

        return shown(self)

    @property
    def best(self) -> JudgedChange:
        """The cheapest sufficient change, else the valid change with the least memory need."""
        return best_of(self.tried)

    @property
    def backend(self) -> Literal["lpai", "htp"]:
        """Backend of the result: "lpai" or "htp"."""
        return "lpai" if isinstance(self.case.options, PoolOptions) else "htp"

    @property
    def fits(self) -> bool | None:
        """True if the best change meets every limit; None if unknown or if there are no limits."""
        return self.best.fits

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C ended the search."""
        return _INTERRUPTED in self.notes

    @property
    def exit_code(self) -> int:
        """0 if the best change fits or there is no limit, 1 if no change fits, 3 if undecided."""
        if not self.has_limits:
            return 0
        return {True: 0, False: 1, None: 3}[self.best.fits]


def best_of(tried: Sequence[JudgedChange]) -> JudgedChange:
    """Return the cheapest sufficient change, else the valid change with the least memory need."""
    valid = [judged for judged in tried if judged.holds]
    enough = [judged for judged in valid if judged.is_enough]
    return min(enough, key=cost_of) if enough else min(valid, key=lambda judged: judged.need.rank)


def with_levels(bench: CaseBench, tried: Sequence[JudgedChange]) -> tuple[JudgedChange, ...]:
    """Return the changes, with the best change also compared at every optimisation level."""
    best = best_of(tried)
    return tuple(bench.with_levels(judged) if judged is best else judged for judged in tried)


def cost_of(judged: JudgedChange) -> tuple[float, ...]:
    """Return a change's sort key: lossy, depth, loaded bytes, parts, extra work, nodes, bytes."""
    change, deployment = judged.change, judged.need.deployment
    return (
        float(change.is_lossy),
        _depth(change),
        0.0 if deployment is None else float(deployment.load_bytes),
        0.0 if change.parts is None else float(len(change.parts.parts)),
        change.extra_macs / change.macs if change.macs else 0.0,
        float(len(change.model.scope.graph.node)),
        float(judged.need.size or 0),
    )


def _depth(change: Change) -> float:
    """Return 0 for no change, 1 for other settings, 2 for a changed model."""
    first = change
    while first.of is not None:
        first = first.of
    return 2.0 if change.model is not first.model or change.parts else float(bool(change.steps))


def try_remedies(
    bench: FixBench,
    remedies: Sequence[ModelRemedy],
    watch: Watcher | None = None,
    required: Sequence[ModelRemedy] = (),
) -> tuple[tuple[JudgedChange, ...], tuple[str, ...]]:
    """Return the tried changes up to the first sufficient one, and notes about failures.

    All other remedies start from the result of a required remedy, even if this result needs more
    memory.
    """
    case = bench.case
    tried = [bench.judged(Change("none", "as it is", case.model, case.options))]
    notes: list[str] = []
    for remedy in required:
        try:
            changes = remedy.changes(bench, tried[0])
            tried = [judged for judged in changes if judged.holds][-1:] or tried
        except ChildFailed as exc:
            notes.append(f"{remedy.name} could not be tried: {exc}")
    if watch is not None:
        watch(tried[0])
    end = Deadline.after(case.seconds_left, _LAST_STEP_S)
    try:
        with end.enforced():
            for remedy in remedies:
                if any(judged.is_enough for judged in tried):
                    break
                try:
                    _try(remedy, bench, tried, watch)
                except ChildFailed as exc:
                    notes.append(f"{remedy.name} could not be tried: {exc}")
    except KeyboardInterrupt:
        notes.append(_INTERRUPTED)
    except NotInTime:
        pass  # reported below
    if not case.seconds_left and not any(judged.is_enough for judged in tried):
        notes.append(_LATE)
    notes += (note for note in best_of(tried).change.notes if note not in notes)
    return tuple(tried), tuple(notes)


def _try(
    remedy: ModelRemedy, bench: FixBench, tried: list[JudgedChange], watch: Watcher | None
) -> None:
    """Append a remedy's changes to `tried` until one is enough.

    If the best change so far is lossy, a lossless remedy must keep that change's results bit for
    bit.
    """
    base = best_of(tried)
    lossy: LossyBench | None = None
    if base.change.is_lossy and remedy.name not in MAY_LOSE:
        lossy = LossyBench(bench, base, bench.case.seconds_left)
    for judged in remedy.changes(lossy or bench, base):
        tried.append(judged if lossy is None else lossy.checked(judged))
        if watch is not None:
            watch(tried[-1])
        if tried[-1].is_enough:
            return
