"""`qnnmem config` and `lint`: write and check the LPAI config files of the QNN tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.atomic_file import folder_for_output, write_together
from qnnmem.cli.options import printed, shows, takes
from qnnmem.cli.output import say_verdict
from qnnmem.errors import LoadError
from qnnmem.options.config import ConfigOptions, LintOptions
from qnnmem.results.files import written_result
from qnnmem.text import shorten

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.lpai.config.settings import LpaiConfig
    from qnnmem.results.lint import LintResult

# Suffixes of config files; other files in a folder are not opened.
_SUFFIXES = (".json", ".conf", ".config", ".cfg")


@click.command(no_args_is_help=True)
@takes(ConfigOptions)
@printed("qnnmem.written/1")
def config(options: ConfigOptions, output: Output) -> int:
    """Write a tool file and its LPAI file, without errors that `qnnmem lint` would find.

    For adsp the names are eaiParams_direct.json and eaiParams_direct.conf, otherwise
    lpaiParams.json and lpaiParams.conf. Either both files are written or none.

    Exit codes: 0 written, 2 settings contradict each other, or a file already exists.
    """
    from qnnmem.lpai.config.settings import (
        LpaiConfig,
        PrepareSettings,
        make_pair,
        run_command,
    )

    chosen = LpaiConfig(
        options.target_env,
        options.hw_ver,
        PrepareSettings(exclude_io=options.exclude_io),
        options,
    )
    pair, folder = make_pair(chosen), Path(options.output)
    texts = {folder / pair.lpai_name: pair.lpai_text, folder / pair.tool_name: pair.tool_text}
    with folder_for_output(folder):
        contents = {path: text.encode() for path, text in texts.items()}
        write_together(contents, force=options.force)
    written = [*reversed(texts)]
    following = run_command(chosen, written[0].name)
    result = written_result("config", written, following)
    output.show(result, lambda: _render(chosen, folder, written, following))
    return 0


def _render(chosen: LpaiConfig, folder: Path, written: list[Path], following: str) -> str:
    from qnnmem.atomic_file import shown

    direct = chosen.target_env == "adsp"
    mode = "direct mode on the aDSP" if direct else f"target {chosen.target_env}"
    memory = f", IO and model binary in {chosen.execute.mem_type.upper()}" if direct else ""
    lines = [f"LPAI {chosen.hw_version}, {mode}{memory}"]
    lines += [f"Wrote {shown(path)}" for path in written]
    lines += [f"next: in folder {shown(folder)}: {following}"]
    return "\n".join(lines) + "\n"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(LintOptions)
@shows("qnnmem.lint/1")
def lint(files: tuple[str, ...], options: LintOptions, output: Output) -> int:
    """Check LPAI config files of the QNN tools; show each error with its place and its correction.

    FILE is the tool file that --config_file names (eaiParams_direct.json), the LPAI file that the
    tool file names (eaiParams_direct.conf, lpaiParams.conf), a pattern, or - for standard input.
    With a tool file, its LPAI file is also checked. In a folder and its subfolders, every file with
    keys of these files is checked.

    Exit codes: 0 no errors, 1 errors found, 2 a file cannot be read.
    """
    from qnnmem.report.lpai import lint_text, verdict
    from qnnmem.verbs.named_files import named_files

    named = named_files(files, _is_config, "config file")
    say_verdict("\n".join(named.left_out))
    report = _lint(named.files, options.strict)
    if output.is_json or len(report.unreadable) < len(report.files):
        output.show(report, lambda: lint_text(report), verdict(report))
    for file in report.unreadable:
        click.echo(f"qnnmem: {shorten(f'{file.path}: {file.unreadable}', 2000)}", err=True)
    return report.exit_code


def _is_config(path: Path) -> bool:
    """Return True if a file looks like a config file of the QNN tools, even with invalid JSON."""
    from qnnmem.bounded_file import read_head
    from qnnmem.lpai.config.json_positions import MAX_FILE
    from qnnmem.lpai.config.schema import looks_like_config

    if path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        return looks_like_config(read_head(path, MAX_FILE))
    except LoadError:
        return True  # the check reports the reason


def _lint(files: Sequence[str], strict: bool) -> LintResult:
    """Check the files; the result names standard input the way the user typed it."""
    from contextlib import ExitStack

    from qnnmem.lpai.config.check import lint_files
    from qnnmem.lpai.config.json_positions import MAX_FILE
    from qnnmem.verbs.named_files import STDIN, opened

    with ExitStack() as stack:
        paths = [stack.enter_context(opened(file, MAX_FILE)) for file in files]
        report = lint_files(paths, strict)
    shown = {str(path): file for path, file in zip(paths, files, strict=True) if file == STDIN}
    return report.renamed(shown) if shown else report
