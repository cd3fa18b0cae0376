"""Verb `fix` for several models: one at a time, in processes, or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.doctor.fleet.executors import Processes, cluster_executor
from qnnmem.errors import CannotTell, QnnMemError, UsageError
from qnnmem.loader import dims_in
from qnnmem.results.files import RefusedFile
from qnnmem.verbs import ProgressListener, VerbCall
from qnnmem.verbs.fix import INTERRUPTED, fix_file
from qnnmem.verbs.named_files import refused

if TYPE_CHECKING:
    from qnnmem.fix.fixed_model import FixRow
    from qnnmem.verbs.fix import FixTask

Listening = Callable[[str], AbstractContextManager[ProgressListener]]


def fix_models(files: Sequence[str], task: FixTask, listen: Listening) -> tuple[list[FixRow], bool]:
    """Fix each model; return a row for each finished model, and True if Ctrl-C ended the run.

    `listen` makes the listener of each model, in the process that does the work.
    """
    jobs, cluster = task.options.jobs, task.options.cluster
    if cluster is not None and jobs != 1:
        raise UsageError("--cluster and --jobs cannot be combined")
    tasks = list(_tasks(files, task, is_far=cluster is not None))
    done: dict[int, FixRow] = {}
    is_interrupted = False
    try:
        for number, row in _rows(tasks, jobs, cluster, listen):
            done[number] = row
            is_interrupted = row.exit_code == INTERRUPTED
            if is_interrupted:
                break
    except KeyboardInterrupt:
        is_interrupted = True
    return [done[number] for number in sorted(done)], is_interrupted


def _tasks(files: Sequence[str], task: FixTask, *, is_far: bool) -> Iterator[FixTask]:
    """Yield a task for each file and SoC; remote tasks get absolute paths."""
    taken: set[str] = set()
    for file in files:
        stem, number = Path(file).stem, 2
        name = stem
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name)
        place = str(Path(file).absolute()) if is_far else ""
        own, options = task._replace(model=file, place=place), task.options
        if not options.is_htp or len(options.socs) < 2:
            folder = _folder(task, name, is_far=is_far)
            yield own._replace(options=replace(options, output=folder))
            continue
        for soc in options.socs:
            folder = _folder(task, f"{name}/{soc}", is_far=is_far)
            yield own._replace(options=replace(options, output=folder, soc=soc))


def _folder(task: FixTask, name: str, *, is_far: bool) -> str:
    folder = Path(task.options.output, name)
    return str(folder.absolute() if is_far else folder)


def _rows(
    tasks: Sequence[FixTask], jobs: int, cluster: str | None, listen: Listening
) -> Iterator[tuple[int, FixRow]]:
    """Yield each task's number and row, as soon as the row is known."""
    if cluster is None and (jobs == 1 or len(tasks) == 1):
        yield from enumerate(fix_one(task, listen) for task in tasks)
        return

    chosen = cluster_executor(cluster) if cluster is not None else Processes(min(jobs, len(tasks)))
    with chosen as executor:
        yield from rows_with(executor, tasks, listen)


def rows_with(
    executor: Executor, tasks: Sequence[FixTask], listen: Listening
) -> Iterator[tuple[int, FixRow]]:
    """Yield each task's row from an executor; a task whose worker died is tried once more, alone.

    A model can kill its worker; then only the row of that model has no answer.
    """
    jobs = {executor.submit(fix_one, task, listen): number for number, task in enumerate(tasks)}
    lost = []
    for job in as_completed(jobs):
        row = _row_of(job)
        if row is None:
            lost.append(jobs[job])
        else:
            yield jobs[job], row
    for number in lost:
        task = tasks[number]
        again = _row_of(executor.submit(fix_one, task, listen))
        yield (
            number,
            again
            or _without_answer(
                task, "the worker process for this file died before it sent a result"
            ),
        )


def _row_of(job: Future[FixRow]) -> FixRow | None:
    """Return the row that a job computed; None if the job's worker died."""
    try:
        return job.result()
    except (BrokenExecutor, CancelledError):
        return None
    except Exception as exc:
        if type(exc).__module__.partition(".")[0] != "distributed":
            raise
        return None


def fix_one(task: FixTask, listen: Listening) -> FixRow:
    """Fix one of several models and return its row; an error also becomes a row."""
    try:
        path, dims = Path(task.place or task.model), task.options.dims
        options = replace(task.options, dims=dims_in(path, dims) if dims else ())
        with listen(f"reading {path.name}") as listener:
            call = VerbCall(listener, tuple(sys.argv[1:]))
            done = fix_file(task._replace(options=options), call)
    except CannotTell as exc:
        return refused(task.model, exc, exc.exit_code)
    except QnnMemError as exc:
        return refused(task.model, exc)
    return replace(done.as_result(with_maps=False), input=task.model)


def _without_answer(task: FixTask, why: str) -> FixRow:
    return RefusedFile(task.model, f"{task.model}: {why}", 3)
