"""`qnnmem fix` of several models: one after the other, in processes, or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.errors import QnnMemError, UsageError

if TYPE_CHECKING:
    from qnnmem.fix.fixed_model import FixRow
    from qnnmem.verbs.fix import FixTask

_INTERRUPTED = 130


def named_models(words: Sequence[str]) -> tuple[str, ...]:
    """The models that are meant; says what else was found in folders."""
    from qnnmem.cli.files import named_files
    from qnnmem.cli.output import say_verdict

    found = named_files(words, _is_onnx, "ONNX model")
    say_verdict("\n".join(found.left_out))
    return found.files


def _is_onnx(path: Path) -> bool:
    from qnnmem.loader.file_kind import is_kind

    return is_kind(path, ("onnx",))


def run(files: Sequence[str], task: FixTask, as_json: bool) -> int:
    """Fix each, and print a table; each has a folder of its own."""
    from qnnmem.cli.output import say_refused, write
    from qnnmem.report.fix import render_table
    from qnnmem.results.fix import FixedModels
    from qnnmem.results.schema import encode

    jobs, cluster = task.options.jobs, task.options.cluster
    if cluster is not None and jobs != 1:
        raise UsageError("--cluster and --jobs exclude each other")
    tasks = list(_tasks(files, task, is_far=cluster is not None))
    done: dict[int, FixRow] = {}
    is_interrupted = False
    try:
        for number, row in _rows(tasks, jobs, cluster):
            done[number] = row
            is_interrupted = row.exit_code == _INTERRUPTED
            if is_interrupted:
                break
    except KeyboardInterrupt:
        is_interrupted = True
    rows = [done[number] for number in sorted(done)]
    found = FixedModels.of(rows)
    write(encode(found) if as_json else render_table(rows), None, task.options.force)
    say_refused(rows)
    return _INTERRUPTED if is_interrupted else found.exit_code


def _tasks(files: Sequence[str], task: FixTask, *, is_far: bool) -> Iterator[FixTask]:
    """One for each file and SoC; workers elsewhere have another working directory."""
    taken: set[str] = set()
    for file in files:
        stem, number = Path(file).stem, 2
        name = stem
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name)
        place = str(Path(file).absolute()) if is_far else ""
        one, options = task._replace(model=file, place=place), task.options
        if not options.is_htp or len(options.socs) < 2:
            folder = _folder(task, name, is_far=is_far)
            yield one._replace(options=replace(options, output=folder))
            continue
        for soc in options.socs:
            folder = _folder(task, f"{name}/{soc}", is_far=is_far)
            yield one._replace(options=replace(options, output=folder, soc=soc))


def _folder(task: FixTask, name: str, *, is_far: bool) -> str:
    folder = Path(task.options.output, name)
    return str(folder.absolute() if is_far else folder)


def _rows(tasks: Sequence[FixTask], jobs: int, cluster: str | None) -> Iterator[tuple[int, FixRow]]:
    """What became of each, as soon as it is known, with its place."""
    if cluster is None and (jobs == 1 or len(tasks) == 1):
        yield from enumerate(map(fix_one, tasks))
        return
    from qnnmem.doctor.fleet.executors import Processes, cluster_executor

    chosen = cluster_executor(cluster) if cluster is not None else Processes(min(jobs, len(tasks)))
    with chosen as executor:
        yield from rows_with(executor, tasks)


def rows_with(executor: Executor, tasks: Sequence[FixTask]) -> Iterator[tuple[int, FixRow]]:
    """The same by an executor; what a worker took with it when it died is tried once more, alone.

    A worker may die of a model: then that model is the one that has no answer.
    """
    from concurrent.futures import as_completed

    jobs = {executor.submit(fix_one, task): number for number, task in enumerate(tasks)}
    lost = []
    for job in as_completed(jobs):
        row = _row_of(job)
        if row is None:
            lost.append(jobs[job])
        else:
            yield jobs[job], row
    for number in lost:
        task = tasks[number]
        again = _row_of(executor.submit(fix_one, task))
        yield number, again or _without_answer(task, "its worker ended before an answer")


def _row_of(job: Future[FixRow]) -> FixRow | None:
    """None where the worker is gone."""
    try:
        return job.result()
    except (BrokenExecutor, CancelledError):
        return None
    except Exception as exc:
        if type(exc).__module__.partition(".")[0] != "distributed":
            raise
        return None


def fix_one(task: FixTask) -> FixRow:
    """Fix one of several models; whatever is wrong with it is said in its row."""
    from qnnmem.cli.files import refused
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.errors import CannotTell
    from qnnmem.loader import dims_in
    from qnnmem.verbs.fix import fix_file
    from qnnmem.verbs.listener import VerbCall

    try:
        path, dims = Path(task.place or task.model), task.options.dims
        options = replace(task.options, dims=dims_in(path, dims) if dims else ())
        with ProgressBar(f"reading {path.name}") as bar:
            done = fix_file(task._replace(options=options), VerbCall(bar, tuple(sys.argv[1:])))
    except CannotTell as exc:
        return refused(task.model, exc, exc.exit_code)
    except QnnMemError as exc:
        return refused(task.model, exc)
    return replace(done.as_result(with_maps=False), input=task.model)


def _without_answer(task: FixTask, why: str) -> FixRow:
    from qnnmem.results.files import RefusedFile

    return RefusedFile(task.model, f"{task.model}: {why}", 3)
