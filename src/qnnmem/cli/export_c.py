"""`qnnmem lpai export-c`: a C client for one model."""

from __future__ import annotations

import click

from qnnmem.cli.options import form_options, output_options
from qnnmem.errors import UsageError


@click.command("export-c")
@click.argument("file", type=click.Path(), metavar="PLAN|BIN")
@click.option(
    "--io",
    type=click.Choice(["user", "scratch"]),
    default="user",
    show_default=True,
    help="Inputs and outputs in buffers of the client, or at their planned places in scratch.",
)
@output_options
@form_options("qnnmem.written/1")
def export_c(file: str, io: str, output: str | None, force: bool, as_json: bool) -> None:
    """Write a complete C client for the model in PLAN or BIN.

    BIN is a context binary that `qnnmem prepare` made for LPAI, PLAN the JSON that `qnnmem plan`
    writes. The client asks for every size, allocates aligned memory, hands it over, finalizes,
    executes and cleans up in the right order; it compiles as C11 and C++17 with the headers of the
    QNN SDK. Planned sizes are compared with what the backend answers.

    Exit codes: 0 written, 2 bad usage or unreadable input.
    """
    from pathlib import Path

    from qnnmem.cli.output import check_free, write
    from qnnmem.lpai.client_plan import read_client_plan
    from qnnmem.report.c_source import render_client
    from qnnmem.results.files import written_result
    from qnnmem.results.schema import encode
    from qnnmem.version import __version__

    target = None if output is None else Path(output)
    if as_json and target is None:
        raise UsageError("--json tells which file was written, so it needs -o and a file")
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    plan = read_client_plan(Path(file))
    text = render_client(plan, f"qnnmem {__version__}", io_in_scratch=io == "scratch")
    write(text, target, force)
    if as_json and target is not None:
        write(encode(written_result("lpai export-c", [target])), None, force=False)
