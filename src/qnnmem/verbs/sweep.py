"""Verb `sweep`: compile one model with many settings, on several workers, with a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.cache import ResultCache
from qnnmem.errors import MissingSoc, UsageError
from qnnmem.htp.compile import is_composed, no_progress
from qnnmem.htp.compile.compiled import cluster_options, compile_options
from qnnmem.htp.compile_cache import default_folder, model_digest, settings_of
from qnnmem.htp.remote.cluster import ClusterModel
from qnnmem.htp.sweep import (
    Identity,
    Question,
    Sweep,
    TaskCompiler,
    check_settings,
    options_of,
    parse_axis,
    points_of,
    show,
    sweep_result,
)
from qnnmem.htp.worker import LocalModel, Worker
from qnnmem.loader.file_kind import check_kind
from qnnmem.targets.socs import find_soc, pd_budget
from qnnmem.verbs.compiler import cluster_library, libraries_of_workers, need_compiler
from qnnmem.verbs.refusal import TIMED_OUT, explained_largest, explained_row

if TYPE_CHECKING:
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.htp.installed import Library
    from qnnmem.htp.sweep import Axis, Largest, PointCompiler, SweepPoint, SweepRow
    from qnnmem.options.htp import SweepOptions
    from qnnmem.results.sweep import SweepResult
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs import VerbCall
    from qnnmem.verbs.refusal import Flags


def sweep_task(model: str, options: SweepOptions) -> SweepTask:
    """Return the task for these options; raise UsageError for contradictory options."""
    if options.soc is None:
        raise MissingSoc(model)
    axes, question = _axes(options.vary), Question(options.until or "fits")
    searched = _split(axes, options.searched, options.until)
    _check_file(Path(model), axes)
    return SweepTask(
        *(model, find_soc(options.soc), axes, *searched, question, compile_options(options)),
        jobs=options.jobs,
        cluster=options.cluster,
        cache=None if options.cache is None else Path(options.cache),
    )


def _axes(varied: Sequence[str]) -> list[Axis]:
    """Return the varied settings; raise UsageError if the SoC is among them."""
    if any(text.partition("=")[0].strip().lower() in ("soc", "socs") for text in varied):
        raise UsageError(
            "a sweep covers one SoC; for several, use `qnnmem fit MODEL --soc SM8650 --soc SM8750`"
        )
    return [parse_axis(text) for text in varied]


def _check_file(path: Path, axes: Sequence[Axis]) -> None:
    """Raise UsageError for files that are not models, and for dimensions of a DLC."""
    check_kind(path, "sweep")
    if is_composed(path):
        check_settings(path, axes)


class SweepTask(NamedTuple):
    """Task of a sweep: the model, the search, the workers and the cache."""

    model: str
    soc: Soc
    axes: Sequence[Axis]
    searched: Axis | None
    points: Sequence[SweepPoint]  # combinations of the axes that are not searched
    question: Question
    base: CompileOptions
    jobs: int  # parallel compiles on each local worker
    cluster: str | None
    cache: Path | None

    @property
    def path(self) -> Path:
        """Path of the model."""
        return Path(self.model)


class SweepRun(NamedTuple):
    """Result of a sweep, and the signal that interrupted it."""

    task: SweepTask
    rows: tuple[SweepRow, ...]
    largest: tuple[Largest, ...]
    library: str
    signal: KeyboardInterrupt | None = None

    def explained(self, row: SweepRow, flags: Flags) -> SweepRow:
        """Return the row with the remedies in its reason written as options of this verb."""
        task = self.task
        return explained_row(row, task.path, task.soc, task.base, flags)

    def as_result(self, flags: Flags) -> SweepResult:
        """Return the JSON result."""
        return sweep_result(
            (self.explained(row, flags) for row in self.rows),
            self.largest,
            file=self.task.model,
            soc=self.task.soc.name,
            library=self.library,
            interrupted=self.signal is not None,
        )

    @property
    def exit_code(self) -> int:
        """0 if a setting meets the goal, 4 if all timed out, 1 if all are too large, else 3."""
        if any(self.task.question.is_met(row.result) for row in self.rows):
            return 0
        if all(row.result.timed_out for row in self.rows):
            return TIMED_OUT
        return 1 if {row.result.state for row in self.rows} == {"over"} else 3


def run_sweep(task: SweepTask, call: VerbCall) -> SweepRun:
    """Compile every setting; after Ctrl-C the result has the rows so far."""
    path, soc, folder = task.path, task.soc, task.cache
    with ExitStack() as stack:
        library, compilers = _compilers(task, stack, call)
        identity = Identity(model_digest(path), soc.model_id, library, settings_of(task.base))
        results = ResultCache(folder or default_folder(), must_keep=folder is not None)
        run = stack.enter_context(Sweep(compilers, results, identity, progress=call.listener.say))
        try:
            if task.searched is None:
                return SweepRun(task, run.table(task.points), (), library)
            limits = _limits(soc, task.question)
            searches = [
                run.largest(task.searched, point, task.question, limits) for point in task.points
            ]
        except KeyboardInterrupt as exc:
            return SweepRun(task, tuple(run.rows), (), library, exc)
        rows = tuple(row for _, seen in searches for row in seen)
        largest = tuple(
            explained_largest(answer, path, soc, task.base, call.flags) for answer, _ in searches
        )
        return SweepRun(task, rows, largest, library)


def _limits(soc: Soc, question: Question) -> dict[str, int]:
    """Return the limits used to predict the largest value."""
    limits = {} if soc.compile_limit is None else {"compile": soc.compile_limit.value}
    return limits if question is Question.COMPILES else {**limits, "pd": pd_budget().value}


def _compilers(
    task: SweepTask, stack: ExitStack, call: VerbCall
) -> tuple[str, list[Callable[[], PointCompiler]]]:
    """Return the name of the library, and a compiler factory for each parallel compile."""
    path, soc, base, jobs = task.path, task.soc, task.base, task.jobs
    if task.cluster is not None:
        cluster = cluster_library(task.cluster, stack)
        model = ClusterModel(path, cluster.executor, cluster.answers)
        compiler = TaskCompiler(model, soc, cluster_options(base))
        return cluster.library, [lambda: compiler] * cluster.width
    last = {axis.name: axis.values[-1] for axis in task.axes if axis.name != "vtcm_mb"}
    settings = show(last) if last else ""
    first = need_compiler(path, (soc,), options_of(last, base), call, settings)

    def make(library: Library) -> TaskCompiler:
        worker = Worker.ready(library)
        # Parallel compiles share the memory.
        limit = base.memory_limit or worker.memory_limit // jobs
        shared = replace(base, memory_limit=limit)
        return TaskCompiler(LocalModel(path, worker, no_progress), soc, shared)

    libraries = libraries_of_workers(first, call.listener)
    return first.name, [partial(make, library) for library in libraries for _ in range(jobs)]


def _split(
    axes: Sequence[Axis], searched: str | None, until: str | None
) -> tuple[Axis | None, list[SweepPoint]]:
    """Return the searched axis, if there is one, and all combinations of the other axes."""
    if until is not None and searched is None:
        raise UsageError("--until needs --max, which names the setting to search")
    if searched is None:
        return None, list(points_of(axes))
    chosen = [axis for axis in axes if axis.name == searched]
    if len(chosen) != 1 or searched == "precision":
        raise UsageError(f"--max {searched[:40]} needs one --vary {searched[:40]}=LOW..HIGH")
    return chosen[0], list(points_of([axis for axis in axes if axis.name != searched]))
