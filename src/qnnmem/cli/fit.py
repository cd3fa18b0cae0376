"""`qnnmem fit`: does a model or binary fit a SoC, by how many bytes, what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.options.htp import FitOptions

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.fit import Fit
    from qnnmem.report.fit import FitRow
    from qnnmem.results.fit import FitResult
    from qnnmem.verbs.fit import FitRequest


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

    from qnnmem.verbs.compiler import need_soc

    if len(files) == 1 and not options.soc and not options.all_socs and Path(files[0]).is_file():
        need_soc(Path(files[0]), None)
    from qnnmem.cli.files import named_files
    from qnnmem.cli.output import check_free, say_refused, say_verdict, write
    from qnnmem.htp.fit import fit_result
    from qnnmem.results.files import worst_code
    from qnnmem.verbs.fit import fit_request

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    request = fit_request(options)
    found = named_files(files, _is_judged, "HTP model")
    say_verdict("\n".join(found.left_out))
    if len(files) == 1 and files == found.files:
        result = fit_result(_fits(Path(files[0]), request), files[0])
        write(_render(result, as_json, verbose), target, force, _verdict(result))
        return result.exit_code
    rows = _fit_all(found.files, request._replace(tries=0))
    write(_render_all(rows, as_json, verbose), target, force, _verdict_on_files(rows))
    say_refused(rows)
    return worst_code(row.exit_code for row in rows)


def _is_judged(path: Path) -> bool:
    """Whether a file in a folder is a model or a context binary for HTP."""
    from qnnmem.loader.file_kind import is_kind, kinds_for

    return is_kind(path, kinds_for("fit"))


def _fit_all(files: Sequence[str], request: FitRequest) -> list[FitRow]:
    """A row for each file."""
    from pathlib import Path

    from qnnmem.cli.files import refused
    from qnnmem.errors import CannotTell, OutOfTime, QnnMemError
    from qnnmem.htp.fit import fit_result

    rows: list[FitRow] = []
    for file in files:
        try:
            rows.append(fit_result(_fits(Path(file), request, one_of_many=True), file))
        except (CannotTell, OutOfTime) as exc:
            rows.append(refused(file, exc, exc.exit_code))
        except QnnMemError as exc:
            rows.append(refused(file, exc))
    return rows


def _fits(path: Path, request: FitRequest, *, one_of_many: bool = False) -> tuple[Fit, ...]:
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.recorded_args import verb_call
    from qnnmem.verbs.fit import fit_file

    with ProgressBar(f"reading {path.name}") as bar:
        return fit_file(path, request, verb_call(bar), one_of_many=one_of_many)


def _verdict(result: FitResult) -> str:
    from qnnmem.report.fit import verdict_on_all

    return verdict_on_all(result)


def _render(result: FitResult, as_json: bool, verbose: bool) -> str:
    from qnnmem.report.fit import render_text
    from qnnmem.results.schema import encode

    if as_json:
        return encode(result)
    return render_text(result, verbose=verbose, given=recorded_args("fix"))


def _verdict_on_files(rows: Sequence[FitRow]) -> str:
    from qnnmem.report.fit import verdict_on_files

    return verdict_on_files(rows)


def _render_all(rows: Sequence[FitRow], as_json: bool, verbose: bool) -> str:
    from qnnmem.report.fit import render_all
    from qnnmem.results.fit import FitsResult
    from qnnmem.results.schema import encode

    if as_json:
        return encode(FitsResult.of(rows))
    return render_all(rows, verbose=verbose)
