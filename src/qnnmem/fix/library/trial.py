"""What the real HTP library said about a model, and how that is kept between runs.

Nothing that is read back is trusted: a file that holds something else counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from qnnmem.htp.fit import POOLS, Fit
from qnnmem.htp.fit.check_bill import why_not
from qnnmem.htp.kept import from_kept
from qnnmem.htp.place import Resident
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import Bill, SizeRange
from qnnmem.results.result import MAX_COUNT, Count
from qnnmem.targets.socs import Soc


@dataclass(frozen=True, slots=True)
class LibraryTrial:
    """A compile and a load of one model, held against every limit."""

    fit: Fit
    is_taken: bool = True  # False: the library cannot take an op, which is no matter of size
    pd: SizeRange | None = None
    spill_fill: Count = 0
    vtcm: Count = 0
    fixed: Count = 0  # bytes of weights and IO, which no setting changes
    measured: tuple[FitCheck, ...] = ()  # of every pool, whether or not it has a limit

    def resident(self, name: str) -> Resident | None:
        """What placing needs of it; None where there is no binary."""
        return None if self.pd is None else Resident(name, self.pd, self.spill_fill)

    @property
    def needs(self) -> dict[str, int]:
        """Bytes that each pool takes at most, as far as they are known."""
        return {one.pool: one.need.high.value for one in self.measured if one.need is not None}

    @property
    def is_sure(self) -> bool:
        """Whether the same would be said again: not after a crash, or where time ran out."""
        return self.fit.fits is not None or not self.is_taken


def trial_of(fit: Fit, bill: Bill) -> LibraryTrial:
    """Of a model that was compiled."""
    spills = [graph.spill_fill.value for graph in bill.graphs if graph.spill_fill is not None]
    fixed = [part.value for part in (bill.weights, bill.io) if part is not None]
    vtcm = 0 if bill.vtcm is None else bill.vtcm.value
    return LibraryTrial(fit, True, bill.process_domain, max(spills, default=0), vtcm, sum(fixed))


def every_pool() -> dict[str, Sourced]:
    """Limits that nothing breaks, so that what each pool needs is known whatever is asked later."""
    of_soc = ("compile", "pd", "vtcm")
    endless = Sourced(MAX_COUNT, Origin.GIVEN, "no limit")
    return {pool: endless for pool in POOLS if pool not in of_soc}


def held_against(trial: LibraryTrial, budgets: Mapping[str, Sourced]) -> LibraryTrial:
    """The same trial with the limits of a user in place of those of `every_pool`."""
    fit, endless = trial.fit, every_pool()
    trial = replace(trial, measured=fit.checks)
    checks = tuple(
        FitCheck.of(one.pool, one.need, budgets[one.pool], refused=one.refused)
        if one.pool in budgets
        else one
        for one in fit.checks
        if one.pool in budgets or one.pool not in endless
    )
    if not trial.is_taken or any(one.refused for one in checks):
        return replace(trial, fit=structs.replace(fit, checks=checks))
    answers = [one.fits for one in checks]
    fits = False if False in answers else None if None in (*answers, fit.fits) else True
    why = why_not(checks, fits) if fits is not None or fit.fits is not None else fit.why
    return replace(trial, fit=structs.replace(fit, checks=checks, fits=fits, why=why))


def kept_trial(values: Mapping[str, Any] | None, soc: Soc) -> LibraryTrial | None:
    """A kept trial; None when there is none or a file holds something else."""
    trial = from_kept(LibraryTrial, values)
    if trial is None or trial.fit.soc != soc:
        return None
    known = all(check.pool in POOLS for check in trial.fit.checks)
    return trial if known else None
