"""`qnnmem check` and `diff`: find pools over budget and pools that grew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.atomic_file import check_replaceable, folder_for_output, write_together
from qnnmem.cli.options import detailed, form_of, takes
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args, verb_call
from qnnmem.cli.streams import note
from qnnmem.errors import UsageError
from qnnmem.options.gate import CheckOptions, DiffOptions
from qnnmem.results.schema import encode
from qnnmem.text import quote

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.gate.checked import BudgetRun

_FORMS = ("text", "json", "junit", "sarif", "github", "markdown", "html")
_SUMMARY = "GITHUB_STEP_SUMMARY"
_WORKSPACE = "GITHUB_WORKSPACE"
_LARGEST_SUMMARY = 900 << 10  # bytes; GitHub accepts 1 MiB per step


@click.command(cls=RecordingCommand)
@takes(CheckOptions)
@detailed(
    "qnnmem.check/1",
    _FORMS,
    "junit and sarif: for build servers; github: annotations and a summary; "
    "html: a page of all models.",
)
def check(options: CheckOptions, output: Output) -> int:
    """Check a project's models against budgets and accepted sizes.

    The budgets are in [tool.qnnmem] of pyproject.toml or in qnnmem.toml: models, sizes, targets
    (LPAI, or SoCs with HTP) and bytes for each pool. Models are planned, context binaries are read,
    and models for HTP are compiled if the real library is installed.

    Exit codes: 0 every budget is met or no budget is set, 1 a budget is exceeded or a pool grew, 2
    a file cannot be read, 3 cannot tell. With several results, the worst one counts: 2, then 1,
    then 3.
    """
    from qnnmem.verbs.gate import check_budgets

    others = [output._replace(path=Path(name), form=_form_of(name)) for name in options.also]
    paths = [target.path for target in (output, *others) if target.path is not None]
    _check_twice(paths)
    for path in paths:
        check_replaceable(path, force=output.force)
    # File names are relative to the current folder, on GitHub to the top of the repository.
    top = os.environ.get(_WORKSPACE) if output.form == "github" else None
    with ProgressBar("checking") as bar:
        run = check_budgets(options, Path(top) if top else Path.cwd(), verb_call(bar))
    drawn = _draw(run, options.maps)
    output.write(_render(run, output, drawn), run.verdict)
    for other in others:
        other.write(_render(run, other, drawn))
    if output.form == "github":
        _summarise(run, drawn)
    return run.exit_code


def _check_twice(files: Sequence[Path]) -> None:
    """Raise UsageError if two outputs name the same file: the second would replace the first."""
    for number, path in enumerate(files):
        if path in files[:number]:
            name = quote(str(path))
            raise UsageError(f"two results would be written to {name}; choose another file for one")


def _form_of(name: str) -> str:
    form = form_of(name)
    if form not in _FORMS:
        raise UsageError(
            f"the suffix of {quote(name)} is not a known format; use .sarif, .xml, "
            ".json, .html, .md or .txt"
        )
    return form


def _draw(run: BudgetRun, maps: str | None) -> dict[str, str]:
    """Write memory maps to a folder; return the path of each map by model name."""
    if maps is None:
        return {}
    from qnnmem.report.check import drawings

    folder, drawn = Path(maps), drawings(run.models)
    with folder_for_output(folder):
        write_together({folder / file: svg.encode() for file, svg in drawn.values()})
    return {name: (folder / file).as_posix() for name, (file, _) in drawn.items()}


def _render(run: BudgetRun, output: Output, drawn: dict[str, str]) -> str:
    from qnnmem.planner.planned_file import plan_map
    from qnnmem.report import check as report

    if output.is_json:
        return encode(run.result)
    if output.form in ("junit", "sarif", "github"):
        render = {
            "junit": report.render_junit,
            "sarif": report.render_sarif,
            "github": report.render_github,
        }
        return render[output.form](run)
    if output.form == "markdown":
        return report.render_markdown(run, drawn)
    if output.form == "html":
        from qnnmem.report.page.budgets import check_page

        maps = {model.name: plan_map(model.plan) for model in run.models if model.plan is not None}
        return check_page(run.result, maps)
    again = [
        word for word in recorded_args() if not word.startswith(("--maps", "--update", "--also"))
    ]
    return report.render_text(run, verbose=output.verbose, options=again)


def _summarise(run: BudgetRun, drawn: dict[str, str]) -> None:
    """Append the result to the summary of a GitHub workflow step, if there is one."""
    from qnnmem.report.check import render_markdown

    name = os.environ.get(_SUMMARY)
    if not name:
        return
    text = render_markdown(run, drawn).encode("utf-8", "backslashreplace")
    if len(text) > _LARGEST_SUMMARY:
        text = text[:_LARGEST_SUMMARY].rpartition(b"\n")[0] + b"\n```\n\n(cut here)\n"
    try:
        with open(name, "ab") as file:  # noqa: PTH123 - the variable is a name
            file.write(text)
    except OSError as exc:
        note(f"note: the workflow summary cannot be written: {exc.strerror or exc}")


@click.command(cls=RecordingCommand)
@click.argument("before", type=click.Path(), metavar="A")
@click.argument("after", type=click.Path(), metavar="B")
@takes(DiffOptions)
@detailed("qnnmem.diff/1", ("text", "json", "markdown"))
def diff(before: str, after: str, options: DiffOptions, output: Output) -> int:
    """Compare A with B: pools before and after, tensors that grew, verdicts that changed.

    A and B are JSON results (of plan, footprint, fit, fix, sweep, inspect or doctor, for one or
    several files), models (which are planned), context binaries (which are read) or logs. B is
    worse than A if a pool grew, a verdict changed from yes to no, or a failure is new. Plan options
    apply to A and B. An exact number is never compared with a bound.

    Exit codes: 0 B is not worse, 1 B is worse or the changes are mixed, 2 A and B cannot be
    compared.
    """
    from qnnmem.report import diff as report
    from qnnmem.verbs.diff import compare_files

    with ProgressBar("comparing") as bar:
        result = compare_files(before, after, options, verb_call(bar))
    if output.form == "markdown":
        output.write(report.render_markdown(result), result.verdict)
    else:
        text = partial(report.render_text, result, verbose=output.verbose)
        output.show(result, text, result.verdict)
    return result.exit_code
