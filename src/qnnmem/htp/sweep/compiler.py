"""Compiles the points of a sweep: with the library of one worker, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from qnnmem.errors import (
    FreeDimensions,
    LoadError,
    OutOfTime,
    QnnMemError,
    UsageError,
    Words,
    WorkerError,
    chain_words,
)
from qnnmem.htp.bill.measure import MeasuredModel, measure
from qnnmem.htp.compile import CompileFailure, CompileOptions, Progress, check_options
from qnnmem.htp.compile.compiled import for_a_cluster
from qnnmem.htp.fit import Fit, fit_failure
from qnnmem.htp.fit.model import fit_measured
from qnnmem.htp.kept import from_kept, to_kept
from qnnmem.htp.remote.cluster import Answer, ClusterModel, SentModel, model_there
from qnnmem.htp.sweep.rows import SweepOutcome, SweepPoint, options_of
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import Bill
from qnnmem.results.sweep import SweepState
from qnnmem.targets.socs import Soc, find_soc

_STATES: Mapping[bool | None, SweepState] = {True: "fits", False: "over", None: "refused"}
_BROKEN = ("crashed", "timeout", "memory")


class LibraryCompiler:
    """Compiles and loads each point; a library that dies or hangs is a result as well."""

    def __init__(
        self,
        path: Path,
        soc: Soc,
        base: CompileOptions,
        *,
        share: int = 1,
        worker: Worker | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`share` is how many of these run at the same time there: they divide the memory."""
        self.worker = Worker(warm=True) if worker is None else worker
        limit = base.memory_limit or self.worker.memory_limit // share
        self._path, self._soc = path, soc
        self._base, self._progress = replace(base, memory_limit=limit), progress

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Compile a point and load its binary."""
        options = options_of(point, self._base)
        try:
            check_options(self._soc, options)
        except UsageError as exc:  # e.g. more VTCM than the SoC has: the other rows go on
            return SweepOutcome("refused", _words(exc))
        try:
            made = measure(
                *(self._path, self._soc, options),
                worker=self.worker,
                progress=self._progress,
                try_cures=True,
            )
        except FreeDimensions:
            raise
        except OutOfTime as exc:  # another run may be faster
            return SweepOutcome("failed", _words(exc), timed_out=True)
        except LoadError as exc:  # a size that the model cannot have
            return SweepOutcome("refused", _words(exc))
        return _failed(made) if isinstance(made, CompileFailure) else _compiled(made)

    def close(self) -> None:
        """End the worker."""
        self.worker.close()


def _words(exc: QnnMemError) -> Words:
    """What an error says, its settings still as data."""
    where = f"{exc.where}: " if exc.where else ""
    return chain_words(where, exc.what, "; " if exc.cure else "", exc.cure)


def _failed(failure: CompileFailure) -> SweepOutcome:
    outcome = failure.outcome
    if outcome.kind in _BROKEN:
        peak = outcome.peak_rss
        late = outcome.kind == "timeout"
        return SweepOutcome(
            "failed", failure.why, host_ram=peak, seconds=outcome.seconds, timed_out=late
        )
    result = result_of(fit_failure(failure))
    return structs.replace(result, host_ram=outcome.peak_rss, seconds=outcome.seconds)


def _compiled(made: MeasuredModel) -> SweepOutcome:
    """The row of a binary; one that cannot be told without loading it is tried again next time."""
    fit = fit_measured(made)
    result = _with_bill(result_of(fit), made.bill)
    if made.no_estimate and fit.fits is None:
        return structs.replace(result, state="failed")
    return result


def result_of(fit: Fit) -> SweepOutcome:
    """What a sweep keeps of an answer for one SoC."""
    ranges = {check.pool: check.need for check in fit.checks if check.need is not None}
    needs = {pool: need.high.value for pool, need in ranges.items()}
    return SweepOutcome(
        state=_STATES[fit.fits],
        reason=fit.why,
        code=fit.code,
        compile_need=needs.get("compile"),
        pd_need=needs.get("pd"),
        pd_low=ranges["pd"].low.value if "pd" in ranges else None,
        vtcm=needs.get("vtcm"),
        seconds=fit.seconds or 0.0,
    )


def _with_bill(result: SweepOutcome, bill: Bill) -> SweepOutcome:
    return structs.replace(
        result,
        ram=_bytes(bill.total),
        weights=_bytes(bill.all_weights),
        io=_bytes(bill.io),
        spill_fill=_bytes(bill.spill_fill),
        ddr_read=_bytes(bill.ddr_read_per_inference),
        ddr_written=_bytes(bill.ddr_written_per_inference),
        host_ram=_bytes(bill.host_ram),
        file_bytes=bill.file_bytes,
    )


def _bytes(part: Sourced | None) -> int | None:
    return None if part is None else part.value


class ClusterCompiler:
    """Compiles each point by one task."""

    def __init__(
        self,
        path: Path,
        soc: Soc,
        base: CompileOptions,
        executor: Executor,
        answers: Callable[[], bool],
    ) -> None:
        self._base, self._soc = for_a_cluster(base), soc
        self._model = ClusterModel(path, executor, answers)

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Compile a point somewhere."""
        answer = self._model.ask(compile_there, self._soc.name, self._base, dict(point))
        outcome = from_kept(SweepOutcome, answer["result"])
        if outcome is None:
            raise WorkerError("a worker of the cluster sends what cannot be understood")
        return outcome

    def close(self) -> None:
        """Do nothing: the cluster is the caller's."""


def compile_there(
    sent: SentModel,
    contents: Mapping[str, bytes],
    soc: str,
    base: CompileOptions,
    point: SweepPoint,
) -> Answer:
    """On a worker of a cluster: compile a point with the library that is there."""
    from qnnmem.htp.sweep.compiler import LibraryCompiler

    with model_there(sent, contents) as model:
        if isinstance(model, list):
            return {"missing": model}
        try:
            compiler = LibraryCompiler(model, find_soc(soc), base)
        except QnnMemError as exc:
            return {"error": str(exc)}
        try:
            result = compiler.run(point)
            return {"result": to_kept(result), "model": str(model)}
        finally:
            compiler.close()
