"""`qnnmem kb` and `explain`: the doctor's knowledge base, and the meanings of error codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from qnnmem.cli.help import VerbGroup
from qnnmem.cli.options import detailed, printed, shows, takes
from qnnmem.cli.output import write
from qnnmem.errors import UsageError
from qnnmem.options.kb import KbListOptions, KbNewOptions, KbOptions
from qnnmem.results.files import written_result
from qnnmem.results.schema import encode

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.doctor.kb.entry import Entry


@click.group(cls=VerbGroup)
def kb() -> None:
    """Show and extend the knowledge base of `qnnmem doctor`."""


@kb.command("list")
@takes(KbListOptions)
@shows("qnnmem.kb/1")
def list_entries(options: KbListOptions, output: Output) -> int:
    """List the entries: id, stage, cause, verdict and title.

    Exit codes: 0 listed, 2 no such cause or unreadable entries.
    """
    from qnnmem.doctor.kb.entry import CAUSES
    from qnnmem.doctor.kb.files import read_files
    from qnnmem.doctor.kb.listing import list_entries
    from qnnmem.report import kb as report

    cause, stage = options.cause, options.stage
    if cause is not None and cause not in CAUSES:
        raise UsageError(f"'{cause}' is not a cause; known causes: {', '.join(CAUSES)}")
    chosen = [
        entry
        for entry in _entries(options.kb)
        if cause in (None, entry.cause) and stage in (None, entry.stage)
    ]
    notes = [note for path in options.kb for note in read_files(Path(path)).notes]
    result = list_entries(chosen, notes)
    output.show(result, lambda: report.render_list(result))
    return 0


@kb.command()
@click.argument("name", metavar="ID")
@takes(KbOptions)
@shows("qnnmem.kb/1")
def show(name: str, options: KbOptions, output: Output) -> int:
    """Show entry ID as Markdown: logs, causes, remedies, templates, conditions.

    Exit codes: 0 shown, 2 no such entry.
    """
    from difflib import get_close_matches

    from qnnmem.doctor.kb.listing import list_entries
    from qnnmem.report import kb as report

    by_id = {entry.id: entry for entry in reversed(_entries(options.kb))}
    if name not in by_id:
        near = get_close_matches(name, by_id, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `qnnmem kb list` lists all"
        raise UsageError(f"no entry '{name}'{hint}")
    entry = by_id[name]
    output.show(list_entries([entry]), lambda: report.render_entry(entry))
    return 0


@kb.command()
@click.argument("words", nargs=-1, required=True, metavar="WORDS...")
@takes(KbOptions)
@shows("qnnmem.kb/1")
def find(words: tuple[str, ...], options: KbOptions, output: Output) -> int:
    """Find entries by WORDS in titles, log lines, causes and remedies, best first.

    WORDS are a log line, a code (1002 or 0x3ea) or keywords. Abbreviations match: alloc finds
    allocation.

    Exit codes: 0 found, 1 nothing found, 2 unreadable entries.
    """
    from qnnmem.doctor.kb.listing import list_found
    from qnnmem.doctor.kb.similar import find as find_entries
    from qnnmem.report import kb as report

    query = " ".join(words)
    matches = find_entries(query, _entries(options.kb))
    shown = report.render_found(query, matches)
    output.show(list_found(matches), lambda: shown, shown.partition("\n")[0])
    return 0 if matches else 1


@kb.command()
@takes(KbOptions)
@shows("qnnmem.kb-check/1")
def check(options: KbOptions, output: Output) -> int:
    """Check the entries named by --kb; without --kb, check the built-in entries.

    Each entry must match its own typical lines, and none may match a stored log of a healthy run.
    A built-in entry must also match a stored log of a real failure, or state that it is only
    documented.

    Exit codes: 0 all entries passed, 1 an entry has a fault, 2 an entry is unreadable.
    """
    from qnnmem.doctor.kb.check import check as check_entries
    from qnnmem.report import kb as report

    result = check_entries(tuple(map(Path, options.kb)))
    shown = report.render_check(result)
    output.show(result, lambda: shown, shown.partition("\n")[0])
    return 0 if result.passes else 1


@kb.command()
@click.argument("name", metavar="ID")
@takes(KbNewOptions)
@printed("qnnmem.written/1")
def new(name: str, options: KbNewOptions, output: Output) -> int:
    """Write a skeleton for a new entry called ID; it passes `qnnmem kb check --kb`.

    Exit codes: 0 written, 2 ID is not a valid name, or the file exists.
    """
    from qnnmem.doctor.kb.check import skeleton

    path = Path(options.output or f"{name}.md")
    write(skeleton(name), path, options.force)
    if output.is_json:
        following = f"qnnmem kb check --kb {quote(str(path))}"
        output.write(encode(written_result("kb new", [path], following)))
    return 0


def _entries(own: Sequence[str]) -> list[Entry]:
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder

    entries = [entry for path in own for entry in read_folder(Path(path), own=True)[1]]
    return [*entries, *read_folder(BUILT_IN)[1]]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("codes", nargs=-1, required=True, metavar="CODE...")
@detailed("qnnmem.explain/1")
def explain(codes: tuple[str, ...], output: Output) -> int:
    """Explain what error codes mean in practice.

    CODE is a number (1002, 0x3ea, 0x80000406, -12), a name (QNN_COMMON_ERROR_MEM_ALLOC, ENOMEM) or
    part of a log line with a code ("graph prepare failed 13", err=1002). A number that several
    components use is explained for each component. With -, codes are read from standard input, one
    per line.

    Exit codes: 0 explained, 2 not a code, or a number without a known meaning.
    """
    from qnnmem.doctor.explain import explain as explain_code
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
    from qnnmem.report.kb import render_text
    from qnnmem.results.kb import ExplainResult
    from qnnmem.verbs.named_files import STDIN, input_lines

    entries = read_folder(BUILT_IN)[1]
    named = [
        text for code in _lines(codes) for text in (input_lines() if code == STDIN else [code])
    ]
    explained = [explain_code(code, entries) for code in named]
    result = ExplainResult(codes=tuple(explained))
    output.show(result, lambda: render_text(explained, verbose=output.verbose))
    return 0 if all(code.meanings for code in explained) else 2


def _lines(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the codes to explain; the words of an unquoted log line are joined to one text."""
    from qnnmem.qnn.pasted import read_pasted
    from qnnmem.verbs.named_files import STDIN

    if STDIN in words:
        return words
    others = [word for word in words if read_pasted(word) is None]
    are_words = not any("_" in word or word.isupper() for word in others)
    return (" ".join(words),) if 0 < len(others) < len(words) and are_words else words
