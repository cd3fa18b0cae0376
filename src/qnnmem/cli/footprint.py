"""`qnnmem footprint`: the memory bill of a model on HTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args, verb_call
from qnnmem.options.htp import FootprintOptions

_KEPT = "kept from an earlier run; --cache with an empty folder compiles it again"

if TYPE_CHECKING:
    from qnnmem.results.footprint import Bill


@click.command(cls=RecordingCommand)
@click.argument("file", type=click.Path())
@texts.takes(FootprintOptions)
@texts.verbose_option
@texts.result_options("qnnmem.footprint/1")
def footprint(
    file: str,
    options: FootprintOptions,
    verbose: bool,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Show what FILE costs on HTP: weights, IO, spill/fill, VTCM, process domain.

    FILE is a QNN context binary of the HTP backend (.bin, .serialized.bin) or an ONNX model that
    embeds or points to one: nothing is compiled, and no library is needed. Any other ONNX model,
    and a DLC, is compiled for SOC with the real library first, which needs the extra `htp`. That
    bill is kept: asked again for the same file and settings, nothing is compiled.

    Exit codes: 0 shown, 1 the model cannot be compiled, 2 it cannot be read, 3 a library, a SoC, a
    size in the file or an output of the model is missing, 4 not finished within the time limit.
    """
    from pathlib import Path

    from msgspec.structs import replace

    from qnnmem.verbs.compiler import need_soc

    path, target = Path(file), None if output is None else Path(output)
    need_soc(path, options.soc)
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.verbs.footprint import bill_exit_code, bill_file
    from qnnmem.verbs.refusal import failure_code, say_failure

    if target is not None:
        check_free(target, force)  # says so before the work, not after
    with ProgressBar(f"reading {path.name}") as bar:
        call = verb_call(bar)
        found = bill_file(path, options, call)
    if isinstance(found.bill, CompileFailure):
        write(say_failure(found.bill, "bill", call.flags, as_json=as_json), None, force=False)
        return failure_code(found.bill)
    bill = replace(found.bill, file=file, from_cache=found.is_kept)
    text = _render(bill, as_json, found.is_compiled, verbose)
    write(text, target, force, _verdict(bill))
    return bill_exit_code(bill)


def _verdict(bill: Bill) -> str:
    from qnnmem.report.bill import verdict

    return verdict(bill)


def _render(bill: Bill, as_json: bool, compiled: bool, verbose: bool) -> str:
    from qnnmem.report import bill as report
    from qnnmem.results.schema import encode

    if as_json:
        return encode(bill)
    if compiled:
        following = report.next_prepare(bill, recorded_args("prepare"))
    else:
        following = report.next_look(bill, recorded_args())
    following = f"{_KEPT}\n\n{following}" if bill.from_cache is True else following
    return report.render_text(bill, compiled=compiled, next_step=following, verbose=verbose)
