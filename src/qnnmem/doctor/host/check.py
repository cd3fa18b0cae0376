"""What is said about a machine: one check for each thing that can be in the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from qnnmem.provenance import Origin


class HostVerdict(Enum):
    """How one thing stands."""

    GOOD = "good"
    PROBLEM = "problem"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found of one thing, how it stands, and what to do about it."""

    found: str
    verdict: HostVerdict
    action: str = ""
    origin: Origin = Origin.MEASURED  # reported: the machine's own word about itself


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing to check, why it matters, and the causes of failures that it concerns."""

    id: str
    name: str
    why: str
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostCheck:
    """A subject with its outcome."""

    subject: Subject
    outcome: Outcome

    @property
    def verdict(self) -> HostVerdict:
        """How it stands."""
        return self.outcome.verdict


@dataclass(frozen=True, slots=True)
class HostReport:
    """All checks of one machine, those first that concern what was diagnosed."""

    place: str
    system: str  # kernel and SoC, in words
    has_dsp: bool
    checks: tuple[HostCheck, ...]
    causes: tuple[str, ...] = ()
    blindness: str = ""  # why no node of a DSP could be asked for

    @property
    def problems(self) -> tuple[HostCheck, ...]:
        """The checks that found one."""
        return tuple(one for one in self.checks if one.verdict is HostVerdict.PROBLEM)

    def concerns(self, check: HostCheck) -> bool:
        """Whether a check is about a cause that was diagnosed."""
        return not set(self.causes).isdisjoint(check.subject.causes)

    @property
    def exit_code(self) -> int:
        """1 for a problem, 3 for a machine without anything of QNN or a DSP."""
        if not self.has_dsp:
            return 3
        return 1 if self.problems else 0


def with_causes(report: HostReport, causes: Iterable[str]) -> HostReport:
    """The report for what a log says: what concerns its first cause comes first.

    Among the checks of one cause a problem comes first, then what is not known.
    """
    every = tuple(dict.fromkeys(causes))

    def rank(check: HostCheck) -> tuple[int, int]:
        ranks = [at for at, cause in enumerate(every) if cause in check.subject.causes]
        return min(ranks, default=len(every)), _ORDER.index(check.verdict)

    checks = tuple(sorted(report.checks, key=rank)) if every else report.checks
    return replace(report, checks=checks, causes=every)


_ORDER = (HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN, HostVerdict.GOOD)
