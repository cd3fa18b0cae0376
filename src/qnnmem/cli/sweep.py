"""`qnnmem sweep`: many real compiles of one model in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from qnnmem.cli import options as texts
from qnnmem.options.htp import SweepOptions

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.htp.library import Library
    from qnnmem.htp.sweep import (
        Axis,
        Largest,
        PointCompiler,
        Question,
        SweepPoint,
        SweepRow,
    )
    from qnnmem.targets.socs import Soc


@click.command()
@click.argument("model", type=click.Path())
@texts.takes(SweepOptions)
@texts.verbose_option
@texts.result_options("qnnmem.sweep/1")
def sweep(
    model: str,
    options: SweepOptions,
    verbose: bool,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Compile MODEL for SOC with every combination of settings and show what each needs.

    Finished results are kept, so a sweep that was broken off goes on where it was; a compile that
    crashed, hung or ran out of memory is marked, and tried again next time. They are spread over
    the workers that QNNMEM_HTP_WORKER names; what one of them leaves undone, another does.

    Exit codes: 0 a setting fits, 1 none does, 2 bad usage or unreadable input, 3 cannot tell, 4 no
    compile was finished within the time limit. 130 after Ctrl-C, which shows the rows so far.
    """
    from pathlib import Path

    from qnnmem.errors import MissingSoc

    if options.soc is None:
        raise MissingSoc(model)
    from qnnmem.cli.output import check_free, write
    from qnnmem.htp.compile.from_options import compile_options
    from qnnmem.htp.sweep import Question
    from qnnmem.report.sweep import verdict
    from qnnmem.targets.socs import find_soc

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    axes, question = _axes(options.vary), Question(options.until or "fits")
    searched_axis = _split(axes, options.searched, options.until)
    _check_file(Path(model), axes)
    base = compile_options(options)
    cache = None if options.cache is None else Path(options.cache)
    places = _Places(options.jobs, options.cluster, cache)
    task = _Task(model, find_soc(options.soc), axes, *searched_axis, question, base, places)
    ran = _run(task)
    text = _render(task, ran, as_json=as_json, verbose=verbose)
    if ran.interrupted is not None:
        write(text, None, force)
        raise ran.interrupted
    write(text, target, force, verdict(ran.rows, ran.largest, task.soc.name))
    return _exit_code(ran.rows, question)


def _render(task: _Task, ran: _Ran, *, as_json: bool, verbose: bool) -> str:
    """The rows in either form, with options that this verb has."""
    from functools import partial

    from qnnmem.cli.refusal import explained_row
    from qnnmem.report import sweep as report
    from qnnmem.results.result import TOOL

    explain = partial(explained_row, path=task.path, soc=task.soc, base=task.base)
    given, broken = (task.model, task.soc.name), ran.interrupted is not None
    if as_json:
        rows = tuple(map(explain, ran.rows))
        return report.render_json(rows, ran.largest, *given, ran.library, TOOL, broken)
    return report.render_text(
        *(ran.rows, ran.largest, *given),
        verbose=verbose,
        say=lambda row: explain(row).result.reason,
        interrupted=broken,
    )


def _axes(varied: Sequence[str]) -> list[Axis]:
    """What is varied; what is no setting of one SoC is refused."""
    from qnnmem.errors import UsageError
    from qnnmem.htp.sweep import parse_axis

    if any(text.partition("=")[0].strip().lower() in ("soc", "socs") for text in varied):
        raise UsageError(
            "a sweep is for one SoC; several are asked with "
            "`qnnmem fit MODEL --soc SM8650 --soc SM8750`"
        )
    return [parse_axis(text) for text in varied]


def _check_file(path: Path, axes: Sequence[Axis]) -> None:
    """Refuse what is no model, and what cannot be varied: a DLC has no free dimensions."""
    from qnnmem.htp.compile.model import is_composed
    from qnnmem.htp.sweep.axes import check_settings
    from qnnmem.loader.file_kind import check_kind

    check_kind(path, "sweep")
    if is_composed(path):
        check_settings(path, axes)


class _Places(NamedTuple):
    """Where compiles happen, so many at a time on each worker or on a cluster, and are kept."""

    jobs: int
    cluster: str | None
    kept: Path | None


class _Task(NamedTuple):
    """What is compiled, what is asked of it, and where."""

    model: str
    soc: Soc
    axes: Sequence[Axis]
    searched: Axis | None
    points: Sequence[SweepPoint]  # of the other axes
    question: Question
    base: CompileOptions
    places: _Places

    @property
    def path(self) -> Path:
        """The file."""
        from pathlib import Path

        return Path(self.model)


class _Ran(NamedTuple):
    """What became of a sweep, and the signal that broke it off."""

    rows: tuple[SweepRow, ...]
    largest: tuple[Largest, ...]
    library: str
    interrupted: KeyboardInterrupt | None = None


def _exit_code(rows: Sequence[SweepRow], question: Question) -> int:
    from qnnmem.cli.refusal import TIMED_OUT

    states = {row.result.state for row in rows}
    if any(question.is_met(row.result) for row in rows):
        return 0
    if all(row.result.timed_out for row in rows):
        return TIMED_OUT
    return 1 if states == {"over"} else 3


def _run(task: _Task) -> _Ran:
    from contextlib import ExitStack

    from qnnmem.cache import ResultCache
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.refusal import explained_largest
    from qnnmem.htp.kept import default_folder, model_digest, settings_of
    from qnnmem.htp.sweep import Identity, Sweep

    path, soc, folder = task.path, task.soc, task.places.kept
    with ExitStack() as stack:
        library, compilers = _compilers(task, stack)
        identity = Identity(model_digest(path), soc.model_id, library, settings_of(task.base))
        results = ResultCache(folder or default_folder(), must_keep=folder is not None)
        bar = stack.enter_context(ProgressBar(f"reading {path.name}"))
        run = stack.enter_context(Sweep(compilers, results, identity, progress=bar.say))
        try:
            if task.searched is None:
                return _Ran(run.table(task.points), (), library)
            limits = _limits(soc, task.question)
            found = [
                run.largest(task.searched, point, task.question, limits) for point in task.points
            ]
        except KeyboardInterrupt as exc:
            return _Ran(tuple(run.rows), (), library, exc)
        rows = tuple(row for _, seen in found for row in seen)
        largest = (explained_largest(one, path, soc, task.base) for one, _ in found)
        return _Ran(rows, tuple(largest), library)


def _limits(soc: Soc, question: Question) -> dict[str, int]:
    """The limits by which the largest value is predicted."""
    from qnnmem.htp.sweep import Question
    from qnnmem.targets.socs import pd_budget

    found = {} if soc.compile_limit is None else {"compile": soc.compile_limit.value}
    return found if question is Question.COMPILES else {**found, "pd": pd_budget().value}


def _compilers(task: _Task, stack: ExitStack) -> tuple[str, list[Callable[[], PointCompiler]]]:
    """The name of the library, and a maker for each compile that may happen at the same time."""
    from functools import partial

    from qnnmem.cli.compiler import need_compiler
    from qnnmem.cli.workers import cluster_library, libraries_of_workers
    from qnnmem.htp.sweep import options_of, show
    from qnnmem.htp.sweep.cluster import ClusterCompiler
    from qnnmem.htp.sweep.compiler import LibraryCompiler
    from qnnmem.htp.worker import Worker

    path, soc, base, places = task.path, task.soc, task.base, task.places
    if places.cluster is not None:
        cluster = cluster_library(places.cluster, stack)
        there = ClusterCompiler(path, soc, base, cluster.executor, cluster.answers)
        return cluster.library, [lambda: there] * cluster.width
    last = {one.name: one.values[-1] for one in task.axes if one.name != "vtcm_mb"}
    at = show(last) if last else ""
    first = need_compiler(path, (soc,), options_of(last, base), at)

    def make(library: Library) -> LibraryCompiler:
        worker = Worker.ready(library)
        return LibraryCompiler(path, soc, base, share=places.jobs, worker=worker)

    found = libraries_of_workers(first)
    return first.name, [partial(make, one) for one in found for _ in range(places.jobs)]


def _split(
    axes: Sequence[Axis], searched: str | None, until: str | None
) -> tuple[Axis | None, list[SweepPoint]]:
    """The axis whose largest value is searched, and every combination of the others."""
    from qnnmem.errors import UsageError
    from qnnmem.htp.sweep import points_of

    if until is not None and searched is None:
        raise UsageError("--until says when a search ends; name what is searched with --max")
    if searched is None:
        return None, list(points_of(axes))
    found = [axis for axis in axes if axis.name == searched]
    if len(found) != 1 or searched == "precision":
        raise UsageError(f"--max {searched[:40]} needs one --vary {searched[:40]}=LOW..HIGH")
    return found[0], list(points_of([axis for axis in axes if axis.name != searched]))
