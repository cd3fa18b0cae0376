"""Answers of `qnnmem fit` for models: compiled by one worker or several, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qnnmem.text import counted

if TYPE_CHECKING:
    from contextlib import ExitStack

    from qnnmem.htp.compile import CompileOptions, Progress
    from qnnmem.htp.fit import Fit
    from qnnmem.htp.fit.judges import FitWorker, JudgedModel
    from qnnmem.htp.library import Library
    from qnnmem.provenance import Sourced
    from qnnmem.targets.socs import Soc


class FitJudge(Protocol):
    """Judges a model for one SoC after another."""

    def judge(self, soc: Soc, options: CompileOptions) -> JudgedModel:
        """The answer for a SoC."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def judges_of_workers(
    path: Path, first: Library, budgets: Mapping[str, Sourced], progress: Progress, *, many: bool
) -> list[Callable[[], FitJudge]]:
    """A judge for each worker that answers; for one SoC the first will do."""
    from qnnmem.cli.workers import libraries_of_workers
    from qnnmem.htp.fit.judges import FitWorker
    from qnnmem.htp.worker import Worker

    def make(library: Library) -> FitWorker:
        return FitWorker(path, budgets, Worker.ready(library), progress)

    return [partial(make, one) for one in (libraries_of_workers(first) if many else [first])]


def judges_of_cluster(
    path: Path, address: str, budgets: Mapping[str, Sourced], stack: ExitStack
) -> tuple[str, list[Callable[[], FitJudge]]]:
    """The library of a cluster, and a judge for each of its workers."""
    from qnnmem.cli.workers import cluster_library
    from qnnmem.htp.fit.judges import FitCluster

    cluster = cluster_library(address, stack)
    there = FitCluster(path, budgets, cluster.executor, cluster.answers)
    return cluster.library, [lambda: there] * cluster.width


class WorkerJudge:
    """Judges a model for one SoC after another, or for many by all workers at once.

    Of many, finished answers are kept: what was broken off goes on where it was.
    """

    def __init__(
        self,
        path: Path,
        library: str,
        judges: Sequence[Callable[[], FitJudge]],
        budgets: Mapping[str, Sourced],
        *,
        many: bool,
    ) -> None:
        from qnnmem.htp.fit import Fit
        from qnnmem.htp.kept import KeptAnswers
        from qnnmem.htp.worker.slots import Slots

        self._limits = {f"budget {pool}": limit.value for pool, limit in budgets.items()}
        self._many, self._done = many, 0
        self._slots = Slots(judges)
        self._kept = KeptAnswers(Fit, path, library, "fit")

    def __enter__(self) -> WorkerJudge:
        return self

    def __exit__(self, *_error: object) -> None:
        self._slots.close()

    def __call__(self, soc: Soc, options: CompileOptions) -> Fit:
        """The answer for a SoC, kept or made."""
        key = self._kept.key(soc, options, self._limits) if self._many else ""
        kept = self._kept.get(key)
        if kept is not None and kept.soc == soc:
            return kept
        found = self._judged(soc, options)
        if key and found.is_final:
            self._kept.put(key, found.fit)
            self._done += 1
        return found.fit

    def _judged(self, soc: Soc, options: CompileOptions) -> JudgedModel:
        from qnnmem.errors import WorkerError

        try:
            return self._slots.use(lambda judge: judge.judge(soc, options))
        except WorkerError as exc:
            if not self._many:
                raise
            kept = f"{counted(self._done, 'new answer')} kept"
            raise WorkerError(f"{exc}; {kept}, and the same command goes on from there") from exc

    def spread(self, judge: Callable[[Soc], Fit], socs: list[Soc]) -> Iterable[Fit]:
        """Answers in the order of SoCs, as many at a time as there are workers."""
        if self._slots.count == 1:
            return map(judge, socs)
        with ThreadPoolExecutor(self._slots.count) as pool:
            jobs = [pool.submit(judge, soc) for soc in socs]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._slots.close()  # ends compiles whose answers are not wanted any more
                raise
