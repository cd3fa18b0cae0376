"""`qnnmem explain`: what an error code of a log means, and what to look for above it."""

from __future__ import annotations

import click

from qnnmem.cli.options import result_options, verbose_option


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("codes", nargs=-1, required=True, metavar="CODE...")
@verbose_option
@result_options("qnnmem.explain/1")
def explain(
    codes: tuple[str, ...], verbose: bool, as_json: bool, output: str | None, force: bool
) -> int:
    """Say what error codes mean in practice.

    CODE is a number (1002, 0x3ea, 0x80000406, -12), a name (QNN_COMMON_ERROR_MEM_ALLOC, ENOMEM) or
    a piece of a log line that holds one ("graph prepare failed 13", err=1002). A number that
    several components use is explained for each. - reads codes from standard input, one a line.

    Exit codes: 0 explained, 2 not a code, or a number that is in no table.
    """
    from pathlib import Path

    from qnnmem.cli.files import STDIN, input_lines
    from qnnmem.cli.output import write
    from qnnmem.doctor.explain import explain as explain_code
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
    from qnnmem.report.kb import render_text
    from qnnmem.results.kb import ExplainResult
    from qnnmem.results.schema import encode

    entries = read_folder(BUILT_IN)[1]
    named = [one for code in _lines(codes) for one in (input_lines() if code == STDIN else [code])]
    explained = [explain_code(code, entries) for code in named]
    if as_json:
        text = encode(ExplainResult(codes=tuple(explained)))
    else:
        text = render_text(explained, verbose=verbose)
    write(text, None if output is None else Path(output), force)
    return 0 if all(one.meanings for one in explained) else 2


def _lines(words: tuple[str, ...]) -> tuple[str, ...]:
    """Codes one by one; the words of a log line that was pasted without quotes as that line."""
    from qnnmem.cli.files import STDIN
    from qnnmem.qnn.pasted import read_pasted

    if STDIN in words:
        return words
    others = [word for word in words if read_pasted(word) is None]
    are_words = not any("_" in word or word.isupper() for word in others)
    return (" ".join(words),) if 0 < len(others) < len(words) and are_words else words
