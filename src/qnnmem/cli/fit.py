"""`qnnmem fit`: does a model or binary fit a SoC, by how many bytes, what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.options.htp import FitOptions

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.htp.fit import Fit
    from qnnmem.provenance import Sourced
    from qnnmem.report.fit_table import FitRow
    from qnnmem.targets.socs import Soc


@click.command(cls=RecordingCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@texts.takes(FitOptions)
@texts.verbose_option
@texts.result_options("qnnmem.fit/1")
def fit(
    files: tuple[str, ...],
    options: FitOptions,
    verbose: bool,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Say whether FILE fits a SoC: compile limit, process domain and VTCM, in bytes.

    FILE is a context binary of the HTP backend, which is read and not compiled, or an ONNX model or
    a DLC, which the real library compiles and loads. That needs the extra `htp`. Several files, a
    pattern or a folder give a table; each model in it is compiled, which takes its time.

    Exit codes: 0 fits, 1 does not fit, 2 bad usage or unreadable input, 3 cannot tell, 4 not
    finished within the time limit. Of several files the worst counts: 2, then 1, then 4, then 3.
    """
    from pathlib import Path

    from qnnmem.cli.compiler import need_soc

    if len(files) == 1 and not options.soc and not options.all_socs and Path(files[0]).is_file():
        need_soc(Path(files[0]), None)
    from qnnmem.cli.files import named_files
    from qnnmem.cli.output import check_free, say_refused, say_verdict, write
    from qnnmem.htp.compile.from_options import compile_options
    from qnnmem.htp.fit import check_pools, exit_code
    from qnnmem.provenance import Origin, Sourced
    from qnnmem.report.fit_table import code_of_all

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    check_pools(pool for pool, _size in options.budgets)
    limits = {pool: Sourced(size, Origin.GIVEN, "--budget") for pool, size in options.budgets}
    wish = _Wish(
        _targets(options.soc, options.all_socs),
        limits,
        options.load,
        compile_options(options),
        options.tries,
        options.cluster,
    )
    found = named_files(files, _is_judged, "HTP model")
    say_verdict("\n".join(found.left_out))
    if len(files) == 1 and files == found.files:
        answers = _fits(Path(files[0]), wish)
        text = _render(answers, files[0], as_json, verbose)
        write(text, target, force, _verdict(answers))
        return exit_code(answers)
    rows = _fit_all(found.files, wish._replace(tries=0))
    write(_render_all(rows, as_json, verbose), target, force, _verdict_on_files(rows))
    say_refused(rows)
    return code_of_all(rows)


class _Wish(NamedTuple):
    """For what a file is judged, and how."""

    targets: tuple[Soc, ...]
    budgets: Mapping[str, Sourced]
    load: bool
    options: CompileOptions
    tries: int
    cluster: str | None


def _is_judged(path: Path) -> bool:
    """Whether a file in a folder is a model or a context binary for HTP."""
    from qnnmem.errors import QnnMemError
    from qnnmem.loader.file_kind import kind_of_file, kinds_for

    try:
        return kind_of_file(path).name in kinds_for("fit")
    except QnnMemError:
        return False


def _fit_all(files: Sequence[str], wish: _Wish) -> list[FitRow]:
    """A row for each file."""
    from pathlib import Path

    from qnnmem.cli.files import refused
    from qnnmem.errors import CannotTell, OutOfTime, QnnMemError
    from qnnmem.report.fit_table import FileFits

    rows: list[FitRow] = []
    for file in files:
        try:
            rows.append(FileFits(file, _fits(Path(file), wish, one_of_many=True)))
        except (CannotTell, OutOfTime) as exc:
            rows.append(refused(file, exc, exc.exit_code))
        except QnnMemError as exc:
            rows.append(refused(file, exc))
    return rows


def _fits(path: Path, wish: _Wish, *, one_of_many: bool = False) -> tuple[Fit, ...]:
    from dataclasses import replace

    from qnnmem.htp.fit.stored import fit_stored
    from qnnmem.loader import dims_in
    from qnnmem.loader.file_kind import check_kind

    check_kind(path, "fit")
    limit = wish.options.time_limit_s
    answers = fit_stored(path, wish.targets, wish.budgets, load=wish.load, time_limit_s=limit)
    if answers is not None:
        return answers
    options = wish.options
    if one_of_many and options.dims:
        options = replace(options, dims=dict(dims_in(path, options.dims.items())))
    return _model_fits(path, wish.targets, options, wish.budgets, wish.tries, wish.cluster)


def _targets(names: tuple[str, ...], all_socs: bool) -> tuple[Soc, ...]:
    from qnnmem.errors import UsageError
    from qnnmem.targets.socs import find_soc, socs

    if all_socs and names:
        raise UsageError("--all-socs and --soc exclude each other")
    if all_socs:
        return tuple(soc for soc in socs() if soc.has_htp)
    return tuple(dict.fromkeys(find_soc(name) for name in names))


def _model_fits(
    path: Path,
    targets: tuple[Soc, ...],
    options: CompileOptions,
    budgets: Mapping[str, Sourced],
    tries: int,
    cluster: str | None,
) -> tuple[Fit, ...]:
    from contextlib import ExitStack

    from qnnmem.cli.compiler import need_compiler
    from qnnmem.cli.judged import WorkerJudge, judges_of_cluster, judges_of_workers
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.refusal import explained
    from qnnmem.deadline import Deadline
    from qnnmem.htp.bill.target import compile_target
    from qnnmem.htp.compile.model import is_composed
    from qnnmem.htp.fit.many import fit_all
    from qnnmem.htp.fit.nearby import with_suggestions

    compile_target(path, targets[0] if targets else None)
    many = len(targets) > 1
    with ExitStack() as stack:
        if cluster is None:
            library = need_compiler(path, targets, options)
            bar = stack.enter_context(ProgressBar(f"compiling {path.name}"))
            name, judges = (
                library.name,
                judges_of_workers(path, library, budgets, bar.say, many=many),
            )
        else:
            name, judges = judges_of_cluster(path, cluster, budgets, stack)
            stack.enter_context(ProgressBar(f"compiling {path.name} on {cluster}"))
        judge = stack.enter_context(WorkerJudge(path, name, judges, budgets, many=many))
        ends = Deadline.after(options.time_limit_s)  # for one SoC and what is tried nearby
        answers = fit_all(targets, lambda soc: judge(soc, options), judge.spread)
        found = (
            with_suggestions(
                *(one, options, judge, tries if len(answers) == 1 else 0, ends),
                converts=not is_composed(path),
            )
            for one in answers
        )
        return tuple(explained(one, path, options) for one in found)


def _verdict(answers: tuple[Fit, ...]) -> str:
    from qnnmem.report.fit import verdict_on_all

    return verdict_on_all(answers)


def _render(answers: tuple[Fit, ...], file: str, as_json: bool, verbose: bool) -> str:
    from qnnmem.report import fit as report
    from qnnmem.version import __version__

    if as_json:
        return report.render_json(answers, file, f"qnnmem {__version__}")
    return report.render_text(answers, file, verbose=verbose, given=recorded_args("fix"))


def _verdict_on_files(rows: Sequence[FitRow]) -> str:
    from qnnmem.report.fit_table import verdict_on_files

    return verdict_on_files(rows)


def _render_all(rows: Sequence[FitRow], as_json: bool, verbose: bool) -> str:
    from qnnmem.report import fit_table
    from qnnmem.version import __version__

    if as_json:
        return fit_table.render_json(rows, f"qnnmem {__version__}")
    return fit_table.render_all(rows, verbose=verbose)
