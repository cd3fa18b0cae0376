"""`qnnmem kb`: what the doctor knows, and whether a team's own entries are good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import click

from qnnmem.cli.help import VerbGroup
from qnnmem.cli.options import OutputPath, form_options, result_options
from qnnmem.doctor.kb.entry import CAUSES, STAGES, Entry


def _own(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--kb",
        "own",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="A file or folder of your own entries; may be given several times.",
    )(command)


@click.group(cls=VerbGroup)
def kb() -> None:
    """Look at the knowledge base of `qnnmem doctor`, and add to it."""


@kb.command("list")
@click.option("--cause", metavar="CAUSE", help="Only entries of this cause, e.g. mem_dsp_va.")
@click.option("--stage", type=click.Choice(STAGES), help="Only entries of this stage.")
@_own
@result_options("qnnmem.kb/1")
def list_entries(
    cause: str | None,
    stage: str | None,
    own: tuple[Path, ...],
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """List the entries: id, stage, cause, verdict and title.

    Exit codes: 0 listed, 2 no such cause or unreadable entries.
    """
    from qnnmem.cli.output import write
    from qnnmem.doctor.kb.files import read_files
    from qnnmem.doctor.kb.listing import list_entries
    from qnnmem.errors import UsageError
    from qnnmem.report import kb as report
    from qnnmem.results.schema import encode

    if cause is not None and cause not in CAUSES:
        raise UsageError(f"'{cause}' is not a cause; known are {', '.join(CAUSES)}")
    chosen = [
        entry
        for entry in _entries(own)
        if cause in (None, entry.cause) and stage in (None, entry.stage)
    ]
    notes = [note for path in own for note in read_files(path).notes]
    found = list_entries(chosen, notes)
    text = encode(found) if as_json else report.render_list(found)
    write(text, None if output is None else Path(output), force)
    return 0


@kb.command()
@click.argument("name", metavar="ID")
@_own
@result_options("qnnmem.kb/1")
def show(name: str, own: tuple[Path, ...], as_json: bool, output: str | None, force: bool) -> int:
    """Show the entry called ID as Markdown: logs, causes, remedies, templates, conditions.

    Exit codes: 0 shown, 2 no such entry.
    """
    from difflib import get_close_matches

    from qnnmem.cli.output import write
    from qnnmem.doctor.kb.listing import list_entries
    from qnnmem.errors import UsageError
    from qnnmem.report import kb as report
    from qnnmem.results.schema import encode

    by_id = {entry.id: entry for entry in reversed(_entries(own))}
    if name not in by_id:
        near = get_close_matches(name, by_id, 3)
        hint = f"; do you mean {' or '.join(near)}?" if near else "; `qnnmem kb list` lists all"
        raise UsageError(f"there is no entry '{name}'{hint}")
    entry = by_id[name]
    text = encode(list_entries([entry])) if as_json else report.render_entry(entry)
    write(text, None if output is None else Path(output), force)
    return 0


@kb.command()
@click.argument("words", nargs=-1, required=True, metavar="WORDS...")
@_own
@result_options("qnnmem.kb/1")
def find(
    words: tuple[str, ...], own: tuple[Path, ...], as_json: bool, output: str | None, force: bool
) -> int:
    """Find entries by WORDS: in titles, log lines, causes and remedies, best first.

    WORDS may be a line of a log, a code (1002 or 0x3ea) or what you look for. A word may be written
    otherwise: alloc finds allocation.

    Exit codes: 0 found, 1 nothing found, 2 unreadable entries.
    """
    from qnnmem.cli.output import write
    from qnnmem.doctor.kb.listing import list_found
    from qnnmem.doctor.kb.similar import find as find_entries
    from qnnmem.report import kb as report
    from qnnmem.results.schema import encode

    asked = " ".join(words)
    found = find_entries(asked, _entries(own))
    shown = report.render_found(asked, found)
    text = encode(list_found(found)) if as_json else shown
    write(text, None if output is None else Path(output), force, shown.split("\n", 1)[0])
    return 0 if found else 1


@kb.command()
@_own
@result_options("qnnmem.kb-check/1")
def check(own: tuple[Path, ...], as_json: bool, output: str | None, force: bool) -> int:
    """Check entries: yours with --kb, the built-in ones without.

    Each entry must know its own typical lines, and all must stay silent on stored logs of healthy
    runs. Built-in entries must also speak on a stored real failure or say that they are documented
    only.

    Exit codes: 0 good, 1 something is wrong with an entry, 2 unreadable.
    """
    from qnnmem.cli.output import write
    from qnnmem.doctor.kb.check import check as check_entries
    from qnnmem.report import kb as report
    from qnnmem.results.schema import encode

    found = check_entries(own)
    shown = report.render_check(found)
    text = encode(found) if as_json else shown
    write(text, None if output is None else Path(output), force, shown.split("\n", 1)[0])
    return 0 if found.passes else 1


@kb.command()
@click.argument("name", metavar="ID")
@click.option(
    "-o",
    "--output",
    type=OutputPath(is_text=False),
    metavar="FILE",
    help="The file to write; ID.md in this folder if left out.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@form_options("qnnmem.written/1")
def new(name: str, output: str | None, force: bool, as_json: bool) -> int:
    """Write a skeleton for a new entry called ID, which passes `qnnmem kb check --kb`.

    Exit codes: 0 written, 2 not a good name, or the file exists.
    """
    from qnnmem.cli.output import write
    from qnnmem.doctor.kb.check import skeleton
    from qnnmem.results.files import written_result
    from qnnmem.results.schema import encode

    path = Path(output or f"{name}.md")
    write(skeleton(name), path, force)
    if as_json:
        following = f"qnnmem kb check --kb {quote(str(path))}"
        write(encode(written_result("kb new", [path], following)), None, force=False)
    return 0


def _entries(own: Sequence[Path]) -> list[Entry]:
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder

    mine = [entry for path in own for entry in read_folder(path, own=True)[1]]
    return [*mine, *read_folder(BUILT_IN)[1]]
