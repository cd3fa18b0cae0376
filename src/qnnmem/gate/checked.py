"""What a check holds: a model on a target, its pools against budgets and against what was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qnnmem.errors import Setting
from qnnmem.gate.changes import ComparedSubject, PoolChange

if TYPE_CHECKING:
    from qnnmem.planner import MemoryPlan

NOT_READ, BROKEN, OPEN, GOOD = 2, 1, 3, 0  # exit codes
_WORST = (NOT_READ, BROKEN, OPEN, GOOD)


@dataclass(frozen=True, slots=True)
class CheckedPool:
    """A pool against its budget, or against a limit of the SoC; None is not known."""

    pool: str
    need: int | None
    have: int | None
    fits: bool | None
    is_budget: bool = True
    at_least: int | None = None  # by any plan, where that is less
    blockers: tuple[str, ...] = ()  # the largest tensors in the way
    alike: int = 0  # others that are as large
    allocations: tuple[int, int] | None = None  # there are and may be, where that is what breaks

    @property
    def over(self) -> int:
        """Bytes that are missing; 0 where none are or it is not known."""
        if self.fits is not False or self.need is None or self.have is None:
            return 0
        return max(0, (self.need if self.at_least is None else self.at_least) - self.have)


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model on one target."""

    name: str  # as it is called in tables and in the baseline
    file: str  # relative to the folder of the config
    target: str  # LPAI or the SoC
    place: str = ""  # the file as seen from where the check runs
    pools: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[CheckedPool, ...] = ()
    peak: Mapping[str, int] = field(default_factory=dict)  # tensors alive at the fullest step
    settings: Mapping[str, str] = field(default_factory=dict)
    why: str = ""  # where there is no answer, or none that is sure
    refusal: int = GOOD  # the exit code of a model without an answer
    seconds: float = 0.0
    given: tuple[Setting, ...] = ()  # what it was planned with, for commands to paste
    line: int | None = None  # of the config
    plan: MemoryPlan | None = None
    change: ComparedSubject | None = None  # against the baseline
    at_most: tuple[str, ...] = ()  # pools of which only an upper bound is known

    @property
    def fits(self) -> bool | None:
        """Whether every budget and limit holds; None where that cannot be told."""
        answers = {one.fits for one in self.checks}
        if False in answers:
            return False
        return None if None in answers or self.refusal or self.why else True

    @property
    def grown(self) -> tuple[PoolChange, ...]:
        """Pools that grew by more than is allowed."""
        return tuple(one for one in self.change.pools if one.is_worse) if self.change else ()

    @property
    def broken(self) -> tuple[CheckedPool, ...]:
        """Budgets and limits that do not hold."""
        return tuple(one for one in self.checks if one.fits is False)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a budget is broken or it is worse than the baseline, 2 unreadable, 3 open."""
        if self.refusal:
            return self.refusal
        if self.fits is False or self.grown:
            return BROKEN
        return GOOD if self.fits else OPEN


@dataclass(frozen=True, slots=True)
class BudgetRun:
    """All models of a config, checked."""

    config: str
    models: tuple[CheckedModel, ...]
    baseline: str | None = None  # its file, where there is to be one
    has_baseline: bool = False  # whether the file is there
    gone: tuple[str, ...] = ()  # in the baseline and no longer checked
    is_updated: bool = False  # the baseline was written anew

    @property
    def exit_code(self) -> int:
        """The worst of all."""
        codes = {model.exit_code for model in self.models}
        return next(code for code in (*_WORST, GOOD) if code in codes or code == GOOD)

    @property
    def new(self) -> tuple[str, ...]:
        """Models that the baseline does not have."""
        if not self.has_baseline:
            return ()
        return tuple(one.name for one in self.models if one.change is None and not one.refusal)
