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
    a piece of a log line that ends with a number ("graph prepare failed 13"). A number that
    several components use is explained for each. - reads codes from standard input, one a line.

    Exit codes: 0 explained, also when a number is in no table; 2 not a code.
    """
    from pathlib import Path

    from qnnmem.cli.files import STDIN, input_lines
    from qnnmem.cli.output import write
    from qnnmem.doctor.explain import explain as explain_code
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
    from qnnmem.report import explain as report

    entries = read_folder(BUILT_IN)[1]
    named = [one for code in codes for one in (input_lines() if code == STDIN else [code])]
    explained = [explain_code(code, entries) for code in named]
    if as_json:
        text = report.render_json(explained)
    else:
        text = report.render_text(explained, verbose=verbose)
    write(text, None if output is None else Path(output), force)
    return 0
