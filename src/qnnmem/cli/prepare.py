"""`qnnmem prepare`: from model files to a context binary, for LPAI or for HTP."""

from __future__ import annotations

from typing import Any

import click

from qnnmem.cli import options as texts
from qnnmem.cli.prepare_htp import HTP_ONLY, htp_options, prepare_htp
from qnnmem.cli.prepare_lpai import LPAI_ONLY, lpai_options, prepare_lpai
from qnnmem.errors import UsageError

_COMPILE_SECONDS = 600.0


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--backend",
    type=click.Choice(["lpai", "htp"]),
    default="lpai",
    show_default=True,
    help="lpai: qnnmem's own binary for the desk; htp: a real one by the real library.",
)
@click.option(
    "-o",
    "--output",
    type=texts.OutputPath(is_text=False),
    required=True,
    help="The context binary to write.",
)
@texts.force_option
@texts.model_options
@click.option(
    "--calibration",
    type=click.Path(),
    metavar="DIR",
    help="Sample inputs (.npy, .npz, .raw) to learn ranges from.  [default: random data]",
)
@texts.seed_option("Of the random calibration data.")
@texts.seconds_option(
    None,
    "Seconds for planning (lpai; all of it ends 10 s later at most) or compiling (htp).  "
    "[default: 10, other steps as long as they need within limits of their own; 600]",
)
@texts.trust_option
@lpai_options
@htp_options
@texts.form_options("qnnmem.prepared/1 (lpai) or qnnmem.footprint/1 (htp)")
@click.pass_context
def prepare(
    context: click.Context,
    /,
    files: tuple[str, ...],
    backend: str,
    output: str,
    force: bool,
    states: tuple[tuple[str, str], ...],
    time_limit: float | None,
    **given: Any,
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
    foreign = (*HTP_ONLY,) if backend == "lpai" else (*LPAI_ONLY, "states")
    _refuse(context, backend, foreign)
    mine = LPAI_ONLY if backend == "lpai" else HTP_ONLY
    shared = ("dims", "shapes", "values", "calibration", "seed", "trust", "as_json")
    chosen = {name: given[name] for name in (*mine, *shared)}
    if backend == "htp":
        seconds = _COMPILE_SECONDS if time_limit is None else time_limit
        return prepare_htp(files, output, force=force, time_limit=seconds, **chosen)
    return prepare_lpai(files, output, force=force, states=states, time_limit=time_limit, **chosen)


def _refuse(context: click.Context, backend: str, foreign: tuple[str, ...]) -> None:
    """Say so when an option of the other backend was given."""
    other = "htp" if backend == "lpai" else "lpai"
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in foreign and source is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[-1]} is for --backend {other}")
