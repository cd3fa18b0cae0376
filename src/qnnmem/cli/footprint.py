"""`qnnmem footprint`: the memory bill of a model on HTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.options.htp import FootprintOptions

_KEPT = "kept from an earlier run; --cache with an empty folder compiles it again"

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.bill import Bill
    from qnnmem.htp.compile import CompileFailure, CompileOptions
    from qnnmem.targets.socs import Soc


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

    from qnnmem.cli.compiler import need_soc

    path, target = Path(file), None if output is None else Path(output)
    need_soc(path, options.soc)
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.refusal import failure_code, say_failure
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.htp.compile.from_options import compile_options
    from qnnmem.loader.file_kind import check_kind
    from qnnmem.targets.socs import find_soc

    if target is not None:
        check_free(target, force)  # says so before the work, not after
    check_kind(path, "footprint")
    chosen = None if options.soc is None else find_soc(options.soc)
    bill = _stored_bill(path, chosen, options.load, options.time_limit)
    compiled, is_kept = bill is None, False
    if bill is None:
        folder = None if options.cache is None else Path(options.cache)
        made, is_kept = _compiled_bill(path, chosen, compile_options(options), folder)
        if isinstance(made, CompileFailure):
            write(say_failure(made, "bill", as_json=as_json), None, force=False)
            return failure_code(made)
        bill = made
    text = _render(bill, file, as_json, compiled, is_kept, verbose)
    write(text, target, force, _verdict(bill))
    return 0 if bill.ram is not None and bill.missing is None else 3


def _stored_bill(path: Path, soc: Soc | None, load: bool, time_limit: float) -> Bill | None:
    """The bill of a context binary; None for a model that has to be compiled first."""
    from qnnmem.errors import NotCompiled
    from qnnmem.htp.bill.stored import stored_bill

    try:
        bill = stored_bill(path, soc)
    except NotCompiled:
        return None
    if not load:
        return bill
    from qnnmem.htp.bill.measure import bill_of_loaded

    return bill_of_loaded(path, soc, time_limit)


def _compiled_bill(
    path: Path, soc: Soc | None, options: CompileOptions, folder: Path | None
) -> tuple[Bill | CompileFailure, bool]:
    """The bill of a model, or why the library made none; and whether it was kept."""
    from qnnmem.cli.compiler import need_compiler
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.htp.bill import Bill
    from qnnmem.htp.bill.measure import MeasuredModel, measure
    from qnnmem.htp.bill.target import compile_target
    from qnnmem.htp.kept import KeptAnswers

    target = compile_target(path, soc)
    library = need_compiler(path, (target,), options)
    answers = KeptAnswers(Bill, path, library.name, "footprint", folder)
    key = answers.key(target, options)
    kept = answers.get(key)
    if kept is not None:
        return kept, True
    with ProgressBar(f"compiling {path.name}") as bar:
        made = measure(path, target, options, name_weights=True, progress=bar.say, try_cures=True)
    if not isinstance(made, MeasuredModel):
        return made, False
    if not made.no_estimate:  # another run may load it
        answers.put(key, made.bill)
    return made.bill, False


def _verdict(bill: Bill) -> str:
    from qnnmem.report.bill import verdict

    return verdict(bill)


def _render(
    bill: Bill, file: str, as_json: bool, compiled: bool, is_kept: bool, verbose: bool
) -> str:
    from qnnmem.report import bill as report
    from qnnmem.results.result import TOOL
    from qnnmem.results.schema import write_json

    if as_json:
        return write_json({**report.as_values(bill, file, TOOL), "from_cache": is_kept})
    if compiled:
        following = report.next_prepare(bill, file, recorded_args("prepare"))
    else:
        following = report.next_look(bill, file, recorded_args())
    following = f"{_KEPT}\n\n{following}" if is_kept else following
    return report.render_text(bill, file, compiled=compiled, next_step=following, verbose=verbose)
