"""`qnnmem check`: the budgets of a project, and whether anything grew since the baseline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.errors import UsageError
from qnnmem.text import quote

if TYPE_CHECKING:
    from qnnmem.gate.budget_check import BudgetTask
    from qnnmem.gate.checked import BudgetRun
    from qnnmem.gate.config import BudgetConfig

_FORMS = ("text", "json", "junit", "sarif", "github", "markdown")
_SUMMARY = "GITHUB_STEP_SUMMARY"
_WORKSPACE = "GITHUB_WORKSPACE"
_LARGEST_SUMMARY = 900 << 10  # bytes: GitHub takes 1 MiB of a step


@click.command(cls=RecordingCommand)
@click.option(
    "--config",
    "named",
    type=click.Path(),
    metavar="FILE",
    help="Where the budgets are.  [default: qnnmem.toml or pyproject.toml, here or above]",
)
@click.option(
    "--baseline",
    type=click.Path(),
    metavar="FILE",
    help="What was accepted.  [default: as the config says]",
)
@click.option(
    "--update-baseline", "update", is_flag=True, help="Write today's numbers as the baseline."
)
@click.option(
    "--maps",
    type=click.Path(),
    metavar="DIR",
    help="Write the memory map of every planned model to this folder, as SVG.",
)
@click.option(
    "--also",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the result to this file, too, in the form of its suffix: .sarif, .xml (junit), "
    ".json, .md or .txt; may be repeated.",
)
@texts.verbose_option
@texts.form_options(
    "qnnmem.check/1",
    _FORMS,
    "junit and sarif: for build servers; github: annotations, and a summary where a step has one.",
    to_file=True,
)
@texts.output_options
def check(
    named: str | None,
    baseline: str | None,
    update: bool,
    maps: str | None,
    also: tuple[str, ...],
    verbose: bool,
    form: str,
    output: str | None,
    force: bool,
) -> int:
    """Check the models of a project against budgets, and against what was accepted before.

    The budgets stand in [tool.qnnmem] of pyproject.toml or in qnnmem.toml: models, sizes, targets
    (LPAI, or SoCs with HTP) and bytes for each pool. Models are planned, context binaries are read;
    a model for HTP is compiled where the real library is installed.

    Exit codes: 0 all hold or there are no budgets, 1 a budget is broken or a pool grew, 2 a file
    cannot be read, 3 cannot tell. Of several the worst counts: 2, then 1, then 3.
    """
    from qnnmem.cli.output import check_free, write

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    others = [(Path(name), _form_of(name)) for name in also]
    _check_twice([*([target] if target else []), *(path for path, _ in others)])
    for path, _ in others:
        check_free(path, force)
    config, kept = _config(named, baseline, update)
    run = _run(config, kept, update, _base(form))
    drawn = _draw(run, maps)
    write(_render(run, form, verbose, drawn), target, force, run.verdict)
    for path, other in others:
        write(_render(run, other, verbose, drawn), path, force)
    if form == "github":
        _summarise(run, drawn)
    return run.exit_code


def _config(
    named: str | None, baseline: str | None, update: bool
) -> tuple[BudgetConfig, Path | None]:
    """The budgets, and the file of the baseline."""
    from qnnmem.cli.output import check_free
    from qnnmem.gate.config import find_config, read_config

    config = read_config(find_config(Path.cwd()) if named is None else Path(named))
    kept = config.baseline if baseline is None else Path(baseline)
    if update and kept is None:
        example = 'baseline = "qnnmem-baseline.json"'
        raise UsageError(f"no baseline is named; give --baseline FILE or write {example}")
    if update and kept is not None:
        check_free(kept, force=True)
    return config, kept


def _check_twice(files: Sequence[Path]) -> None:
    """Refuses two results for one file: the second would go over the first."""
    for number, path in enumerate(files):
        if path in files[:number]:
            raise UsageError(f"{quote(str(path))} is named for two results; name another")


def _form_of(name: str) -> str:
    form = texts.form_of(name)
    if form not in _FORMS:
        raise UsageError(
            f"the suffix of {quote(name)} says no form; .sarif, .xml, .json, .md or .txt does"
        )
    return form


def _base(form: str) -> Path:
    """What names of files are relative to: where we are, on GitHub the top of the repository."""
    top = os.environ.get(_WORKSPACE) if form == "github" else None
    return Path(top) if top else Path.cwd()


def _run(config: BudgetConfig, kept: Path | None, update: bool, base: Path) -> BudgetRun:
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.gate.budget_check import check_all
    from qnnmem.gate.checked import BudgetRun, against, read_baseline, write_baseline

    accepted = None if kept is None else read_baseline(kept)
    tasks = _tasks(config, base)
    with ProgressBar("checking") as bar:
        models = check_all(tasks, bar.say)
    gone: tuple[str, ...] = ()
    if accepted is not None:
        models, gone = against(models, accepted, config.tolerance)
    run = BudgetRun(
        _shown(config.path, base),
        models,
        None if kept is None else _shown(kept, base),
        accepted is not None,
        gone,
    )
    if not update or kept is None:
        return run
    write_baseline(kept, run)
    return run.updated()


def _tasks(config: BudgetConfig, base: Path) -> list[BudgetTask]:
    """Every file once for each table that names it; those with a table of their own go first."""
    from qnnmem.gate.budget_check import BudgetTask

    tasks: list[BudgetTask] = []
    listed: set[Path] = set()
    for entry in config.entries:
        files = list(dict.fromkeys(_files(config, entry.paths)))
        if not entry.has_table:
            files = [file for file in files if file not in listed]
        if entry.name and len(files) > 1:
            what = f"{quote(entry.name)} names {len(files)} files; a name is for one"
            raise UsageError(what, where=config.path)
        listed.update(files)
        tasks += [
            BudgetTask(entry, path, _shown(path, config.folder), config.folder, _shown(path, base))
            for path in files
        ]
    return tasks


def _files(config: BudgetConfig, names: Sequence[str]) -> Iterator[Path]:
    """The files that names, patterns and folders mean, as seen from the config."""
    from glob import escape

    from qnnmem.cli.files import named_files
    from qnnmem.gate.config import check_inside

    for name in names:
        absolute = os.path.isabs(name)  # noqa: PTH117 - a pattern is no path
        word = name if absolute else f"{escape(str(config.folder))}/{name}"
        try:
            found = named_files([word], _is_checked, "model")
        except UsageError as exc:
            raise UsageError(f"no file matches {quote(name)}", where=config.path) from exc
        for file in found.files:
            path = Path(file)  # of a pattern that may have led through a link
            check_inside(config.path, path.absolute(), _shown(path, config.folder))
            yield path


def _is_checked(path: Path) -> bool:
    """Whether a file in a folder is a model or a binary."""
    from qnnmem.loader.file_kind import is_kind

    return is_kind(path, _KINDS)


_KINDS = ("onnx", "tflite", "dlc", "eaix", "csv", "lpai", "htp", "epcontext")


def _shown(path: Path, base: Path) -> str:
    """A path from a folder on, with slashes on every system."""
    try:
        return Path(os.path.relpath(path, base)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def _draw(run: BudgetRun, maps: str | None) -> dict[str, str]:
    """Maps written to a folder; where each lies, by the name of its model."""
    if maps is None:
        return {}
    from qnnmem.atomic_file import folder_for_output, write_together
    from qnnmem.report.check import drawings

    folder, found = Path(maps), drawings(run.models)
    with folder_for_output(folder):
        write_together({folder / file: svg.encode() for file, svg in found.values()})
    return {name: (folder / file).as_posix() for name, (file, _) in found.items()}


def _render(run: BudgetRun, form: str, verbose: bool, drawn: dict[str, str]) -> str:
    from qnnmem.report import check as report

    if form == "json":
        from qnnmem.results.schema import encode

        return encode(run.result)
    if form in ("junit", "sarif", "github"):
        render = {
            "junit": report.render_junit,
            "sarif": report.render_sarif,
            "github": report.render_github,
        }
        return render[form](run)
    if form == "markdown":
        return report.render_markdown(run, drawn)
    again = [
        word for word in recorded_args() if not word.startswith(("--maps", "--update", "--also"))
    ]
    return report.render_text(run, verbose=verbose, given=again)


def _summarise(run: BudgetRun, drawn: dict[str, str]) -> None:
    """Adds to the summary of a workflow's step, where there is one."""
    from qnnmem.cli.stderr import note
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
        note(f"note: the summary cannot be written: {exc.strerror or exc}")
