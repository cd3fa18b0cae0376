"""`qnnmem plan`: make a certified memory plan for a model file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.atomic_file import shown, write_whole
from qnnmem.cli.options import detailed, takes
from qnnmem.cli.output import say_refused, say_verdict
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.cli.streams import note
from qnnmem.errors import QnnMemError, UsageError
from qnnmem.options.plan import PlanFileOptions
from qnnmem.results.files import RefusedFile
from qnnmem.results.schema import encode

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.planner import MemoryPlan
    from qnnmem.planner.planned_file import PlannedFile, PlanRow
    from qnnmem.report.plan_picture import PlanPicture

_ONE = ("c", "svg", "png", "perfetto")  # formats for a single plan
_LARGEST_INPUT = 2 << 30  # bytes of standard input; an ONNX file cannot be larger


@click.command(cls=RecordingCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(PlanFileOptions)
@detailed(
    "qnnmem.plan/1",
    ("text", "json", "csv", "c", "svg", "png", "perfetto"),
    "csv: the scratch buffers with their offsets; c: a C header with all offsets; svg and png: "
    "the memory map; perfetto: a trace of the pools by step.",
)
def plan(files: tuple[str, ...], options: PlanFileOptions, output: Output) -> int:
    """Plan the memory of FILE: show how many bytes it needs, why, and whether fewer would suffice.

    FILE is an ONNX or TFLite model, a DLC, an eAI compiler report (.eaix), a buffer list (.csv with
    id,lower,upper,size[,alignment][,offset]), or - for standard input. For several files, a
    pattern, a folder or a file with several graphs, the result is a table; the options apply to
    each file.

    Exit codes: 0 planned, every budget is met; 1 a budget is exceeded, or there are more
    allocations than TCM allows; 2 a file cannot be planned; 3 cannot tell. With several files, the
    worst result counts: 2, then 1, then 3.
    """
    from qnnmem.planner.planned_file import plans_result
    from qnnmem.verbs.named_files import STDIN, named_files

    form = output.form
    if options.concurrent and not options.together:
        raise UsageError("--concurrent needs --together")
    if form == "png" and output.path is None:
        raise UsageError("a PNG cannot be printed to a terminal; name a file with -o")
    named = named_files(files, _is_model, "model")
    if named.files.count(STDIN) and len(named.files) > 1:
        raise UsageError("standard input cannot be planned together with other files")
    if options.together:
        return _show_together(named.files, options, output)
    if form in _ONE and len(named.files) > 1:
        raise UsageError(f"--format {form} is for one file, not for {len(named.files)}")
    say_verdict("\n".join(named.left_out))
    # A pattern or a folder gives a table even for a single file.
    if form in _ONE or (len(files) == 1 and files == named.files):
        reports = _plan_file(named.files[0], options)
        if form in _ONE and len(reports) > 1:
            raise UsageError(
                f"--format {form} is for one graph, not for {len(reports)}; choose one with --graph"
            )
        if len(reports) == 1:
            _show(reports[0], output)
            return reports[0].result.exit_code
        rows: list[PlanRow] = [*reports]
    else:
        rows = _plan_all(named.files, options)
    output.write(_render_all(rows, output), _verdict(rows))
    say_refused(rows)
    return plans_result(rows).exit_code


def _show_together(files: Sequence[str], options: PlanFileOptions, output: Output) -> int:
    """Plan all files together, write the plan, and return the exit code."""
    from msgspec.structs import replace

    from qnnmem.planner.model_plan import limits_of
    from qnnmem.planner.together import arrange
    from qnnmem.report.plan_picture import draw_named, svg_of
    from qnnmem.report.together import render_together, render_together_c, verdict_lines

    if output.form not in ("text", "json", "c", "svg", "png"):
        raise UsageError(
            f"--format {output.form} is for one model and cannot be combined with --together"
        )
    own = replace(options, budgets=())
    reports = [row for file in files for row in _plan_file(file, own, one_of_many=len(files) > 1)]
    result = arrange(reports, options.concurrent, limits_of(options))
    verdict = "\n".join(verdict_lines(result))
    if output.form in ("svg", "png"):
        title, axis = f"{len(result.models)} models together", "one model each"
        picture = draw_named(result.map, title, f"{result.summary}; {result.assumed}", axis)
        if output.form == "svg":
            output.write(svg_of(picture), verdict)
        else:
            _write_png(picture, output, verdict)
    elif output.form == "c":
        output.write(render_together_c(result, reports), verdict)
    else:
        output.show(result, lambda: render_together(result), verdict)
    return result.exit_code


def _show(report: PlannedFile, output: Output) -> None:
    if output.form == "png":
        from qnnmem.report.plan_picture import picture_of

        _write_png(picture_of(report.result), output, _verdict([report]))
    else:
        output.write(_render(report, output), _verdict([report]))


def _write_png(picture: PlanPicture, output: Output, verdict: str) -> None:
    from qnnmem.report.plan_picture import png_of

    if output.path is None:
        raise UsageError("a PNG cannot be printed to a terminal; name a file with -o")
    write_whole(output.path, png_of(picture), force=output.force)
    note(f"Wrote {shown(output.path)}")
    say_verdict(verdict)


def _is_model(path: Path) -> bool:
    """Return True if a file in a folder is a model or a buffer list."""
    from qnnmem.bounded_file import read_head
    from qnnmem.loader.csv import is_header

    suffix = path.suffix.lower()
    if suffix != ".csv":
        return suffix in (".onnx", ".tflite", ".dlc", ".eaix")
    try:
        return is_header(read_head(path, 4096).decode("utf-8-sig", "replace").split("\n", 1)[0])
    except QnnMemError:
        return False


def _plan_all(files: Sequence[str], options: PlanFileOptions) -> list[PlanRow]:
    """Return a row for each file."""
    from qnnmem.planner.model_plan import limits_of
    from qnnmem.verbs.named_files import refused

    limits_of(options)  # report errors that concern every file only once
    rows: list[PlanRow] = []
    for file in files:
        try:
            rows += _plan_file(file, options, one_of_many=True)
        except QnnMemError as exc:
            rows.append(refused(file, exc))
    return rows


def _plan_file(
    file: str, options: PlanFileOptions, *, one_of_many: bool = False
) -> list[PlannedFile]:
    """Return a plan for each graph in a file; `one_of_many` is True for one of several files."""
    from qnnmem.verbs.named_files import opened
    from qnnmem.verbs.plan import PlanRequest, plan_file

    with opened(file, _LARGEST_INPUT) as path, ProgressBar(f"reading {Path(file).name}") as bar:
        return plan_file(PlanRequest(path, file, options, recorded_args(), one_of_many), bar)


def _render(report: PlannedFile, output: Output) -> str:
    from qnnmem.report.plan import render_answer, render_text

    form = output.form
    if form == "csv":
        return _csv(report.plan)
    if form == "c":
        from qnnmem.report.c_source import render_c

        return render_c(report)
    if form == "svg":
        from qnnmem.report.plan_picture import render_svg

        return render_svg(report.result)
    if form == "perfetto":
        from qnnmem.report.perfetto import render_perfetto

        return render_perfetto(report)
    if form == "json":
        return encode(report.result)
    return render_text(report) if output.verbose else render_answer(report)


def _render_all(rows: Sequence[PlanRow], output: Output) -> str:
    from qnnmem.planner.planned_file import plans_result
    from qnnmem.report.plan import render_csv, render_table, render_text, rows_of

    if output.is_json:
        return encode(plans_result(rows))
    if output.form == "csv":
        return render_csv(rows_of(rows))
    table = render_table(rows)
    planned = (row for row in rows if not isinstance(row, RefusedFile))
    return "\n".join([table, *map(render_text, planned)]) if output.verbose else table


def _verdict(rows: Sequence[PlanRow]) -> str:
    """Return the verdict on all files, which is printed even if the result goes to a file."""
    from qnnmem.planner.planned_file import PlannedFile
    from qnnmem.report.plan import (
        allocation_lines,
        budget_lines,
        crowded_lines,
        rows_of,
        verdict_on_all,
    )

    if len(rows) == 1 and isinstance(rows[0], PlannedFile):
        return "\n".join([*budget_lines(rows[0]), *allocation_lines(rows[0].result)])
    results = rows_of(rows)
    return "\n".join([verdict_on_all(results), *crowded_lines(results)])


def _csv(result: MemoryPlan) -> str:
    from dataclasses import replace

    from qnnmem.ir import FixedBuffer
    from qnnmem.loader.csv import write
    from qnnmem.planner import Pool

    if result.model.format == "csv":
        offsets = {buffer.name: buffer.offset for buffer in result.buffers}
        return write(replace(b, offset=offsets[b.name]) for b in result.model.buffers)
    return write(
        FixedBuffer(b.name, b.size, b.live, result.align, b.offset)
        for b in result.buffers
        if b.pool is Pool.SCRATCH
    )
