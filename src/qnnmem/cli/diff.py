"""`qnnmem diff`: two results, models or binaries against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.errors import UsageError
from qnnmem.options.plan import PlanOptions

if TYPE_CHECKING:
    from qnnmem.gate.comparison import Tolerance
    from qnnmem.results.diff import DiffResult

# Besides what a page shows.
_VERBS = {"lpai": "inspect"}
# What an ONNX model leaves open; no other file takes them.
_OPEN = ("--dim=", "--shape=", "--value=")


def tolerance(text: str) -> Tolerance:
    """How much a pool may grow: bytes as `4K`, or a part of it as `2%`."""
    from qnnmem.gate.comparison import parse_tolerance

    return parse_tolerance(text)


@click.command(cls=RecordingCommand)
@click.argument("before", type=click.Path(), metavar="A")
@click.argument("after", type=click.Path(), metavar="B")
@click.option(
    "--tolerance",
    "allowed",
    type=tolerance,
    metavar="SIZE|N%",
    help="How much a pool may grow without being worse, e.g. 4K or 1%.  [default: nothing]",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME",
    help="Only growth of this pool is worse; may be repeated.  [default: every pool]",
)
@texts.takes(PlanOptions)
@texts.verbose_option
@texts.result_options("qnnmem.diff/1", ("text", "json", "markdown"))
def diff(
    before: str,
    after: str,
    allowed: Tolerance | None,
    pools: tuple[str, ...],
    options: PlanOptions,  # given on to `plan` as they were typed
    verbose: bool,
    form: str,
    output: str | None,
    force: bool,
) -> int:
    """Compare A with B: pools before and after, tensors that grew, verdicts that turned.

    A and B are results in JSON (of plan, footprint, fit, fix, sweep, inspect or doctor, of one file
    or several), models, which are planned, context binaries, which are read, or logs. Worse is a
    pool that grew, a verdict that turned from yes to no, or a failure that was not there. Options
    of plan hold for both; a number that is exact and one that is a bound are not compared.

    Exit codes: 0 not worse, 1 worse or mixed, 2 the two cannot be compared.
    """
    from qnnmem.cli.output import check_free, write
    from qnnmem.gate.comparison import Tolerance, WhatCounts, compare_results

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    counts = WhatCounts(allowed or Tolerance(), pools)
    _check_planned((before, after))
    sides = Path(before), Path(after)
    found = compare_results(
        _result(*sides), _result(*reversed(sides)), counts, names=(before, after)
    )
    write(_render(found, form, verbose), target, force, found.verdict)
    return found.exit_code


def _result(path: Path, other: Path) -> Any:
    """A result that is there, or that a verb makes; `other` is the file on the other side."""
    from qnnmem.cli.report import result_of

    words = recorded_args("plan")
    shapes = [word for word in words if word.startswith(_OPEN)]
    if shapes:
        # A size that only the other model leaves open does not concern this one.
        own, others = _open_names(path), _open_names(other)
        shapes = [word for word in shapes if _name(word) not in others - own]
    rest = [word for word in words if not word.startswith(_OPEN)]
    return result_of(path, shapes, "which qnnmem diff does not compare", _VERBS, rest)


def _name(word: str) -> str:
    """The dimension or tensor that `--option=NAME=VALUE` is about."""
    return word.partition("=")[2].rpartition("=")[0]


def _open_names(path: Path) -> set[str]:
    """Dimensions and tensors that an ONNX model has; none for any other file."""
    from qnnmem.loader.file_kind import kind_of_file

    if kind_of_file(path).name != "onnx":
        return set()
    from qnnmem.loader.onnx.graph import all_names
    from qnnmem.loader.onnx.inputs import named_dims
    from qnnmem.loader.onnx.passes.guard import guard
    from qnnmem.loader.onnx.passes.read import read

    graph = guard(read(path)).proto.graph
    return {*named_dims(graph), *all_names(graph)}


def _check_planned(files: Sequence[str]) -> None:
    """Refuses options of a plan where nothing is planned: they would change nothing."""
    from qnnmem.cli.report import is_planned

    words = recorded_args("plan")
    if words and not any(is_planned(Path(file)) for file in files):
        name = words[0].partition("=")[0]
        raise UsageError(f"{name} is for models, which are planned here; neither file is one")


def _render(found: DiffResult, form: str, verbose: bool) -> str:
    from qnnmem.report import diff as report
    from qnnmem.results.schema import encode

    if form == "json":
        return encode(found)
    if form == "markdown":
        return report.render_markdown(found)
    return report.render_text(found, verbose=verbose)
