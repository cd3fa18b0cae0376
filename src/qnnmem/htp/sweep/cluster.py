"""Points of a sweep compiled by the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path

from qnnmem.errors import QnnMemError, WorkerError
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.compile.value import for_a_cluster
from qnnmem.htp.kept import from_kept, to_kept
from qnnmem.htp.remote.cluster import Answer, ClusterModel, SentModel, model_there
from qnnmem.htp.sweep.rows import SweepOutcome, SweepPoint
from qnnmem.targets.socs import Soc, find_soc


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
