"""`qnnmem lint`: what is wrong in config files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import result_options, takes
from qnnmem.options.lint import LintOptions

if TYPE_CHECKING:
    from qnnmem.results.lint import LintResult

# What config files are called; in a folder nothing else is opened.
_SUFFIXES = (".json", ".conf", ".config", ".cfg")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(LintOptions)
@result_options("qnnmem.lint/1")
def lint(
    files: tuple[str, ...], options: LintOptions, as_json: bool, output: str | None, force: bool
) -> int:
    """Check config files of the QNN tools for LPAI: what is wrong, where, and what to write.

    FILE is the tool file that --config_file names (eaiParams_direct.json) or the LPAI file it
    points to (eaiParams_direct.conf, lpaiParams.conf), a pattern, or - for standard input. A tool
    file brings its LPAI file along. Of a folder, all files in it and below it are checked that
    hold keys of such files.

    Exit codes: 0 no errors, 1 errors found, 2 a file cannot be read.
    """
    from qnnmem.cli.files import named_files
    from qnnmem.cli.output import check_free, say_verdict, write
    from qnnmem.report.lpai import verdict

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    found = named_files(files, _is_config, "config file")
    say_verdict("\n".join(found.left_out))
    report = _lint(found.files, options.strict)
    if as_json or len(report.unreadable) < len(report.files):
        write(_render(report, as_json), target, force, verdict(report))
    _complain(report)
    return report.exit_code


def _is_config(path: Path) -> bool:
    """Whether a file in a folder is meant for the QNN tools; also one that is no good JSON."""
    from qnnmem.bounded_file import read_head
    from qnnmem.errors import LoadError
    from qnnmem.lpai.config.json_positions import MAX_FILE
    from qnnmem.lpai.config.schema import looks_like_config

    if path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        return looks_like_config(read_head(path, MAX_FILE))
    except LoadError:
        return True  # it will be said why


def _lint(files: Sequence[str], strict: bool) -> LintResult:
    """Checks the files; standard input keeps its name."""
    from contextlib import ExitStack

    from qnnmem.cli.files import STDIN, opened
    from qnnmem.lpai.config.check import lint_files
    from qnnmem.lpai.config.json_positions import MAX_FILE

    with ExitStack() as stack:
        paths = [stack.enter_context(opened(file, MAX_FILE)) for file in files]
        report = lint_files(paths, strict)
    shown = {str(path): file for path, file in zip(paths, files, strict=True) if file == STDIN}
    return report.renamed(shown) if shown else report


def _render(report: LintResult, as_json: bool) -> str:
    from qnnmem.report.lpai import lint_text
    from qnnmem.results.schema import encode

    return encode(report) if as_json else lint_text(report)


def _complain(report: LintResult) -> None:
    """One line on standard error for each file that cannot be read."""
    from qnnmem.text import shorten

    for file in report.unreadable:
        click.echo(f"qnnmem: {shorten(f'{file.path}: {file.unreadable}', 2000)}", err=True)
