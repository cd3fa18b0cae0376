"""`qnnmem lint`: what is wrong in config files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import result_options

if TYPE_CHECKING:
    from qnnmem.lpai.config.finding import LintReport


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--strict", is_flag=True, help="Let warnings count as errors.")
@result_options("qnnmem.lint/1")
def lint(
    files: tuple[str, ...], strict: bool, as_json: bool, output: str | None, force: bool
) -> int:
    """Check config files of the QNN tools for LPAI: what is wrong, where, and what to write.

    FILE is the tool file that --config_file names (eaiParams_direct.json) or the LPAI file it
    points to (eaiParams_direct.conf, lpaiParams.conf). A tool file brings its LPAI file along.

    Exit codes: 0 no errors, 1 errors found, 2 a file cannot be read.
    """
    from pathlib import Path

    from qnnmem.cli.output import check_free, write
    from qnnmem.lpai.config.lint import lint_files

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    report = lint_files([Path(file) for file in files], strict)
    if as_json or len(report.unreadable) < len(report.files):
        write(_render(report, as_json), target, force)
    _complain(report)
    if report.unreadable:
        return 2
    return 0 if report.passes else 1


def _render(report: LintReport, as_json: bool) -> str:
    from qnnmem.report.lint import render_json, render_text
    from qnnmem.version import __version__

    return render_json(report, f"qnnmem {__version__}") if as_json else render_text(report)


def _complain(report: LintReport) -> None:
    """One line on standard error for each file that cannot be read."""
    from qnnmem.text import shorten

    for file in report.unreadable:
        click.echo(f"qnnmem: {shorten(f'{file.path}: {file.unreadable}', 2000)}", err=True)
