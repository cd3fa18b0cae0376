"""Verb `fit`: check whether a model or binary fits SoCs, with one or more workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.deadline import Deadline
from qnnmem.errors import UsageError, WorkerError
from qnnmem.loader.file_kind import check_kind
from qnnmem.provenance import Origin, Sourced
from qnnmem.text import counted

if TYPE_CHECKING:
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.htp.fit import Fit, JudgedModel
    from qnnmem.htp.installed import Library
    from qnnmem.htp.worker import TaskModel
    from qnnmem.options.htp import FitOptions
    from qnnmem.results.fit import FitResult
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs import ProgressListener, VerbCall


def models_of_workers(
    path: Path, first: Library, listener: ProgressListener, *, many: bool
) -> list[Callable[[], TaskModel]]:
    """Return a model factory for each worker that answers; without `many`, for the first only."""
    from qnnmem.htp.worker import LocalModel, Worker
    from qnnmem.verbs.compiler import libraries_of_workers

    def start(library: Library) -> LocalModel:
        return LocalModel(path, Worker.ready(library), listener.say)

    libraries = libraries_of_workers(first, listener) if many else [first]
    return [partial(start, library) for library in libraries]


def models_of_cluster(
    path: Path, address: str, stack: ExitStack
) -> tuple[str, list[Callable[[], TaskModel]]]:
    """Return the library of a cluster, and a model factory for each of its workers."""
    from qnnmem.htp.remote.cluster import ClusterModel
    from qnnmem.verbs.compiler import cluster_library

    cluster = cluster_library(address, stack)
    model = ClusterModel(path, cluster.executor, cluster.answers)
    return cluster.library, [lambda: model] * cluster.width


class WorkerJudge:
    """Judges whether a model fits SoCs, one at a time or in parallel on all workers.

    Finished verdicts are cached, so that an interrupted run can continue.
    """

    def __init__(
        self,
        path: Path,
        library: str,
        models: Sequence[Callable[[], TaskModel]],
        budgets: Mapping[str, Sourced],
        *,
        many: bool,
    ) -> None:
        from qnnmem.htp.compile_cache import CompileCache
        from qnnmem.htp.fit import Fit
        from qnnmem.htp.worker import Slots

        self._limits = {f"budget {pool}": limit.value for pool, limit in budgets.items()}
        self._budgets, self._many, self._done = dict(budgets), many, 0
        self._slots = Slots(models)
        self._kept = CompileCache(Fit, path, library, "fit")

    def __enter__(self) -> WorkerJudge:
        return self

    def __exit__(self, *_error: object) -> None:
        self._slots.close()

    def __call__(self, soc: Soc, options: CompileOptions) -> Fit:
        """Return the cached or new verdict for a SoC."""
        key = self._kept.key(soc, options, self._limits) if self._many else ""
        kept = self._kept.get(key)
        if kept is not None and kept.soc == soc:
            return kept
        judged = self._judged(soc, options)
        if key and judged.is_final:
            self._kept.put(key, judged.fit)
            self._done += 1
        return judged.fit

    def _judged(self, soc: Soc, options: CompileOptions) -> JudgedModel:
        from qnnmem.htp.fit import JudgedModel, judge_task
        from qnnmem.htp.remote.cluster import unreadable_answer

        task = (judge_task, soc.name, options, self._budgets)
        try:
            judged = self._slots.use(lambda model: model.ask(JudgedModel, *task))
        except WorkerError as exc:
            if not self._many:
                raise
            kept = f"{counted(self._done, 'new answer')} kept"
            raise WorkerError(f"{exc}; {kept}; run the same command again to continue") from exc
        if judged.fit.soc != soc:  # from a worker of a cluster
            raise unreadable_answer()
        return judged

    def spread(self, judge: Callable[[Soc], Fit], socs: list[Soc]) -> Iterable[Fit]:
        """Return the verdicts in the order of the SoCs; workers compile in parallel."""
        if self._slots.count == 1:
            return map(judge, socs)
        with ThreadPoolExecutor(self._slots.count) as pool:
            jobs = [pool.submit(judge, soc) for soc in socs]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._slots.close()  # ends compiles whose answers are no longer needed
                raise


def check_fit(options: FitOptions) -> None:
    """Raise UsageError for unknown pools and SoCs before any file is read."""
    _targets(options)
    _budgets(options)


def fit_file(
    file: str, options: FitOptions, call: VerbCall, *, one_of_many: bool = False
) -> FitResult:
    """Return the answer for each SoC; a binary is read, a model is compiled.

    With `one_of_many`, dimensions can belong to other files, and no nearby setting is tried.
    """
    from qnnmem.verbs.compiler import need_soc

    path = Path(file)
    if not (options.soc or options.all_socs or one_of_many):
        need_soc(path, None)
    from qnnmem.htp.fit import fit_result, fit_stored
    from qnnmem.loader import dims_in
    from qnnmem.loader.onnx import tensor_count

    check_kind(path, "fit")
    targets, budgets, limit = _targets(options), _budgets(options), options.time_limit
    answers = fit_stored(path, targets, budgets, load=options.load, time_limit_s=limit)
    if answers is None:
        if one_of_many:
            dims = dims_in(path, options.dims) if options.dims else ()
            options = replace(options, dims=dims, tries=0)
        answers = _model_fits(path, options, call)
        return replace(fit_result(answers, file), tensors=tensor_count(path))
    return fit_result(answers, file)


def _targets(options: FitOptions) -> tuple[Soc, ...]:
    from qnnmem.targets.socs import find_soc, socs

    if options.all_socs and options.soc:
        raise UsageError("--all-socs and --soc cannot be combined")
    if options.all_socs:
        return tuple(soc for soc in socs() if soc.has_htp)
    return tuple(dict.fromkeys(find_soc(name) for name in options.soc))


def _budgets(options: FitOptions) -> dict[str, Sourced]:
    from qnnmem.htp.fit import check_pools

    check_pools(pool for pool, _size in options.budgets)
    return {pool: Sourced(size, Origin.GIVEN, "--budget") for pool, size in options.budgets}


def _model_fits(path: Path, wanted: FitOptions, call: VerbCall) -> tuple[Fit, ...]:
    from qnnmem.htp.compile import is_composed
    from qnnmem.htp.compile.compiled import cluster_options, compile_options
    from qnnmem.htp.fit import fit_all, with_suggestions
    from qnnmem.htp.measure import compile_target
    from qnnmem.verbs.compiler import need_compiler
    from qnnmem.verbs.refusal import explained

    targets, budgets, options = _targets(wanted), _budgets(wanted), compile_options(wanted)
    compile_target(path, targets[0] if targets else None)
    many = len(targets) > 1
    with ExitStack() as stack:
        if wanted.cluster is None:
            library = need_compiler(path, targets, options, call)
            call.listener.say(f"compiling {path.name}")
            name = library.name
            models = models_of_workers(path, library, call.listener, many=many)
        else:
            name, models = models_of_cluster(path, wanted.cluster, stack)
            options = cluster_options(options)
            call.listener.say(f"compiling {path.name} on {wanted.cluster}")
        judge = stack.enter_context(WorkerJudge(path, name, models, budgets, many=many))
        ends = Deadline.after(options.time_limit_s)  # one deadline for all compiles
        answers = fit_all(targets, lambda soc: judge(soc, options), judge.spread)
        suggested = (
            with_suggestions(
                *(fit, options, judge, wanted.tries if len(answers) == 1 else 0, ends),
                converts=not is_composed(path),
            )
            for fit in answers
        )
        return tuple(explained(fit, path, options, call.flags) for fit in suggested)
