"""`qnnmem prepare`: from model files to a context binary, for LPAI or for HTP."""

from __future__ import annotations

import click

from qnnmem.cli import options as texts
from qnnmem.cli.prepare_htp import prepare_htp
from qnnmem.cli.prepare_lpai import prepare_lpai
from qnnmem.options.option import refuse_foreign
from qnnmem.options.prepare import LPAI_ONLY, PreparationOptions


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=texts.OutputPath(is_text=False),
    required=True,
    help="The context binary to write.",
)
@texts.force_option
@texts.takes(PreparationOptions)
@texts.form_options("qnnmem.prepared/1 (lpai) or qnnmem.footprint/1 (htp)")
def prepare(
    files: tuple[str, ...],
    options: PreparationOptions,
    output: str,
    force: bool,
    as_json: bool,
) -> int:
    """Prepare FILES offline: every offset fixed, in one context binary.

    A FILE is an ONNX model. For LPAI several files give several graphs, and a TFLite model, an eAI
    report or a buffer CSV gives a layout: its pools and the contract can be tried, not executed.
    For HTP one model, ONNX or DLC, is compiled by the real library, which needs the extra `htp`.
    A model library (.so) is executed for its graphs, only with --trust.

    Exit codes: 0 the binary was written, 1 the library refuses the model (htp), 2 bad usage, an
    unreadable model, or a float one that LPAI cannot run, 3 a library, a SoC or an output of
    the model is missing (htp), 4 not finished within the time limit (htp).
    """
    refuse_foreign(options, options.backend, lpai_only=LPAI_ONLY)
    run = prepare_htp if options.backend == "htp" else prepare_lpai
    return run(files, output, options, force=force, as_json=as_json)
