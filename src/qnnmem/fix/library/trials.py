"""Compiles and loads with the real HTP library, each model once, with results kept between runs.

A result is found by content: the model, the SoC, settings, the library and our version. Limits are
checked each time. So a search that was killed goes on; only binaries that are wanted in the end are
made again. A kept file is untrusted: one that holds something else counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from qnnmem.cache import ResultCache
from qnnmem.errors import CannotTell
from qnnmem.htp.compile import (
    CompileFailure,
    CompileOptions,
    Progress,
    compile_model,
    no_progress,
)
from qnnmem.htp.fit import POOLS, Fit, fit_failure, fit_measured, why_not
from qnnmem.htp.kept import from_kept, to_kept
from qnnmem.htp.measure import measure
from qnnmem.htp.place import Resident
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import Bill, SizeRange
from qnnmem.results.result import MAX_COUNT, Count
from qnnmem.targets.socs import Soc
from qnnmem.version import __version__


@dataclass(frozen=True, slots=True)
class LibraryTrial:
    """A compile and a load of one model, checked against every limit."""

    fit: Fit
    is_taken: bool = True  # False: the library does not support an op, whatever its size
    pd: SizeRange | None = None
    spill_fill: Count = 0
    vtcm: Count = 0
    fixed: Count = 0  # bytes of weights and IO, which no setting changes
    measured: tuple[FitCheck, ...] = ()  # of every pool, whether or not it has a limit

    def resident(self, name: str) -> Resident | None:
        """Return its resident size for placement; None without a binary."""
        return None if self.pd is None else Resident(name, self.pd, self.spill_fill)

    @property
    def needs(self) -> dict[str, int]:
        """Most bytes of each pool, as far as known."""
        return {one.pool: one.need.high.value for one in self.measured if one.need is not None}

    @property
    def is_sure(self) -> bool:
        """True if a repeat gives the same answer: not after a crash or a timeout."""
        return self.fit.fits is not None or not self.is_taken


def trial_of(fit: Fit, bill: Bill) -> LibraryTrial:
    """Return the trial of a compiled model."""
    spills = [graph.spill_fill.value for graph in bill.graphs if graph.spill_fill is not None]
    fixed = [part.value for part in (bill.weights, bill.io) if part is not None]
    vtcm = 0 if bill.vtcm is None else bill.vtcm.value
    return LibraryTrial(fit, True, bill.process_domain, max(spills, default=0), vtcm, sum(fixed))


def every_pool() -> dict[str, Sourced]:
    """Return limits that nothing exceeds, so that every pool is measured for later questions."""
    of_soc = ("compile", "pd", "vtcm")
    endless = Sourced(MAX_COUNT, Origin.GIVEN, "no limit")
    return {pool: endless for pool in POOLS if pool not in of_soc}


def held_against(trial: LibraryTrial, budgets: Mapping[str, Sourced]) -> LibraryTrial:
    """Return the trial checked against a user's limits instead of `every_pool`."""
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
    """Return a kept trial; None if missing or invalid."""
    trial = from_kept(LibraryTrial, values)
    if trial is None or trial.fit.soc != soc:
        return None
    known = all(check.pool in POOLS for check in trial.fit.checks)
    return trial if known else None


@dataclass(frozen=True)
class HtpSource:
    """A model to compile: its bytes, and its path if it is the user's own file."""

    content: bytes
    path: Path | None = None

    @property
    def digest(self) -> str:
        """Key of its results in the cache."""
        return hashlib.sha256(self.content).hexdigest() + ("" if self.path is None else " file")


@dataclass(frozen=True)
class LibraryTrials:
    """Trials with one worker of the library; binaries that fit stay in the folder."""

    soc: Soc
    worker: Worker
    folder: Path
    budgets: Mapping[str, Sourced] = field(default_factory=dict)
    memory: ResultCache | None = None
    progress: Progress = no_progress
    known: dict[str, LibraryTrial] = field(default_factory=dict)

    def trial(self, source: HtpSource, options: CompileOptions) -> LibraryTrial:
        """Return the library's trial of a model."""
        key = self._key(source, options)
        if key not in self.known:
            kept = None if self.memory is None else self.memory.get(key)
            self.known[key] = kept_trial(kept, self.soc) or self._tried(key, source, options)
        return held_against(self.known[key], self.budgets)

    def binary(self, source: HtpSource, options: CompileOptions) -> Path:
        """Return the context binary of a fitting model; compile it if only the trial was kept."""
        path = self.folder / f"{self._key(source, options)}.bin"
        if not path.exists():
            model = self._file(path.stem, source)
            own = _own(source, options)
            made = compile_model(
                model, self.soc, own, output=path, worker=self.worker, progress=self.progress
            )
            if isinstance(made, CompileFailure):
                raise CannotTell(made.why)
        return path

    def _tried(self, key: str, source: HtpSource, options: CompileOptions) -> LibraryTrial:
        model, binary = self._file(key, source), self.folder / f"{key}.bin"
        own = _own(source, options)
        try:
            made = measure(
                model, self.soc, own, output=binary, worker=self.worker, progress=self.progress
            )
        finally:
            if source.path is None:
                model.unlink(missing_ok=True)
        if isinstance(made, CompileFailure):
            trial = LibraryTrial(fit_failure(made, every_pool()), made.stage != "partition")
        else:
            trial = trial_of(fit_measured(made, every_pool()), made.bill)
        if not held_against(trial, self.budgets).fit.fits:
            binary.unlink(missing_ok=True)
        if self.memory is not None and trial.is_sure:
            self.memory.put(key, to_kept(trial))
        return trial

    def _file(self, key: str, source: HtpSource) -> Path:
        if source.path is not None:
            return source.path
        path = self.folder / f"{key}.onnx"
        path.write_bytes(source.content)
        return path

    def _key(self, source: HtpSource, options: CompileOptions) -> str:
        facts = {
            "version": __version__,
            "model": source.digest,
            "soc": self.soc.model_id,
            "library": self.worker.library.name,
            "precision": options.precision.value,
            "settings": [options.vtcm_mb, options.opt_level, options.memhandle, options.partition],
            "random": [options.samples, options.seed],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _own(source: HtpSource, options: CompileOptions) -> CompileOptions:
    """Return options without shapes and values, which a changed model already has."""
    return options if source.path is not None else replace(options, dims={}, shapes={}, values={})
