"""Who judges whether models fit: a worker of the library, or the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from qnnmem.errors import QnnMemError, WorkerError
from qnnmem.htp.bill.measure import MeasuredModel, measure
from qnnmem.htp.compile import CompileFailure, CompileOptions, Progress
from qnnmem.htp.compile.compiled import for_a_cluster
from qnnmem.htp.fit.fit import Fit
from qnnmem.htp.fit.model import fit_made
from qnnmem.htp.kept import from_kept, to_kept
from qnnmem.htp.remote.cluster import Answer, ClusterModel, SentModel, model_there
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Sourced
from qnnmem.targets.socs import Soc, find_soc


class JudgedModel(NamedTuple):
    """An answer, and whether another run would say the same."""

    fit: Fit
    is_final: bool


def is_final(made: MeasuredModel | CompileFailure) -> bool:
    """Whether another run would say the same: a crash or a time limit may not come again."""
    if isinstance(made, CompileFailure):
        return made.outcome.kind == "refused"
    return not made.no_estimate


class FitWorker:
    """Judges a model with the library of one worker."""

    def __init__(
        self, path: Path, budgets: Mapping[str, Sourced], worker: Worker, progress: Progress | None
    ) -> None:
        self._path, self._budgets = path, budgets
        self._worker, self._progress = worker, progress

    def judge(self, soc: Soc, options: CompileOptions) -> JudgedModel:
        """Compile for a SoC, load, and compare with every limit."""
        made = measure(
            *(self._path, soc, options),
            worker=self._worker,
            progress=self._progress,
            try_cures=True,
        )
        return JudgedModel(fit_made(made, self._path, options, self._budgets), is_final(made))

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


class FitCluster:
    """Judges a model by tasks for the workers of a cluster."""

    def __init__(
        self,
        path: Path,
        budgets: Mapping[str, Sourced],
        executor: Executor,
        answers: Callable[[], bool],
    ) -> None:
        self._model, self._budgets = ClusterModel(path, executor, answers), budgets

    def judge(self, soc: Soc, options: CompileOptions) -> JudgedModel:
        """Have it judged somewhere."""
        wish = (soc.name, for_a_cluster(options), dict(self._budgets))
        answer = self._model.ask(judge_there, *wish)
        fit = from_kept(Fit, answer["fit"])
        if fit is None or fit.soc != soc:
            raise WorkerError("a worker of the cluster sends what cannot be understood")
        return JudgedModel(fit, answer["final"] is True)

    def close(self) -> None:
        """Do nothing: the cluster is the caller's."""


def judge_there(
    sent: SentModel,
    contents: Mapping[str, bytes],
    soc: str,
    wanted: CompileOptions,
    budgets: Mapping[str, Sourced],
) -> Answer:
    """On a worker of a cluster: judge a model with the library that is there."""
    with model_there(sent, contents) as model:
        if isinstance(model, list):
            return {"missing": model}
        try:
            worker = FitWorker(model, budgets, Worker(warm=True), None)
        except QnnMemError as exc:
            return {"error": str(exc)}
        try:
            found = worker.judge(find_soc(soc), wanted)
        finally:
            worker.close()
        return {"fit": to_kept(found.fit), "final": found.is_final, "model": str(model)}
