"""What an answer to "does it fit" holds: checks against limits, the reason, what to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qnnmem.errors import Setting, Words
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import BillItem, SizeRange
from qnnmem.targets.socs import Soc

# Pools that have a limit, and what they are called.
TITLES = {
    "compile": "compile limit",
    "pd": "process domain",
    "vtcm": "VTCM",
    "ram": "RAM budget",
    "weights": "weights budget",
    "io": "IO budget",
    "spill-fill": "spill/fill budget",
    "host-ram": "host RAM budget",
}
POOLS = tuple(TITLES)


@dataclass(frozen=True, slots=True)
class Check:
    """What one pool needs against what it may have; None is not known."""

    pool: str
    need: SizeRange | None
    limit: Sourced | None
    refused: bool = False  # the library said no, whether or not it said how much
    accepted: bool = False  # the library said yes, whatever our own sum says

    @property
    def fits(self) -> bool | None:
        """Whether there is room; None where the bounds lie on both sides of the limit."""
        if self.refused or self.accepted:
            return self.accepted
        if self.need is None or self.limit is None:
            return None
        if self.need.high.value <= self.limit.value:
            return True
        return False if self.need.low.value > self.limit.value else None

    @property
    def is_between(self) -> bool:
        """Whether both numbers are known and do not decide."""
        return self.fits is None and self.need is not None and self.limit is not None

    @property
    def spare(self) -> int | None:
        """Bytes left at the worst; negative when some are missing."""
        if self.need is None or self.limit is None:
            return None
        # Bytes that are missing for sure are the claim when it does not fit.
        bound = self.need.low if self.fits is False else self.need.high
        return self.limit.value - bound.value


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A nearby setting; verified only if it was compiled and fits."""

    setting: Setting
    verified: bool
    reason: Words
    unfinished: bool = False  # tried, and not told in time


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer for one SoC; `fits` is None where that cannot be told."""

    soc: Soc
    fits: bool | None
    checks: tuple[Check, ...]
    why: Words = ""  # for anything but yes
    code: int | None = None  # of QNN
    operator: str = ""  # that does not fit VTCM
    largest: tuple[BillItem, ...] = ()
    parts: Mapping[str, Sourced] = field(default_factory=dict)  # of the memory, as far as known
    total: Sourced | None = None  # their sum, where all are known
    suggestions: tuple[Suggestion, ...] = ()
    tried: tuple[Suggestion, ...] = ()  # compiled without success
    same_as: str = ""  # SoC that was compiled for, where that has the same limits
    seconds: float | None = None  # of compiling
    timed_out: bool = False  # why it cannot be told
    wrong_arch: bool = False  # made for a newer Hexagon: sizes do not matter then
    line: str = ""  # of the library's log: the first that decides
    reading: str = ""  # what the doctor makes of it
    evidence: tuple[str, ...] = ()  # the line and what follows it
    needs_int8: bool = False  # a float model, and the SoC does not compute in FP16

    @property
    def worst(self) -> Check | None:
        """The check that decides: one that fails, else the tightest."""
        return _tightest([check for check in self.checks if check.fits is False] or self.checks)

    @property
    def beside_vtcm(self) -> Check | None:
        """The tightest but VTCM, of which a graph mostly takes all that it is given."""
        return _tightest([check for check in self.checks if check.pool != "vtcm"])

    @property
    def tightest(self) -> Check | None:
        """The check that says most: VTCM that is taken whole tells neither files nor SoCs apart."""
        worst = self.worst
        whole = self.fits and worst is not None and (worst.pool, worst.spare) == ("vtcm", 0)
        return self.beside_vtcm or worst if whole else worst


def _tightest(checks: Iterable[Check]) -> Check | None:
    known = (check for check in checks if check.spare is not None or check.refused)
    return min(known, key=_tightness, default=None)


def _tightness(check: Check) -> float:
    if check.spare is None or check.limit is None:
        return 0.0
    return check.spare / max(1, check.limit.value)


def exit_code(fits: tuple[Fit, ...]) -> int:
    """0 all fit, 1 one does not, 3 it cannot be told, 4 that took too long."""
    answers = [fit.fits for fit in fits]
    if False in answers:
        return 1
    if any(fit.fits is None and fit.timed_out for fit in fits):
        return 4
    return 3 if None in answers else 0
