"""`qnnmem qmem`: raw and memhandle inputs and outputs, with a model's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args, verb_call
from qnnmem.options.htp import QmemOptions

if TYPE_CHECKING:
    from qnnmem.errors import Words
    from qnnmem.results.qmem import QmemResult


@click.command(cls=RecordingCommand)
@click.argument("file", type=click.Path())
@texts.takes(QmemOptions)
@texts.verbose_option
@texts.result_options("qnnmem.qmem/1")
def qmem(
    file: str,
    options: QmemOptions,
    verbose: bool,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Show what raw and memhandle inputs and outputs of FILE cost, and which to choose.

    FILE is a QNN context binary of the HTP backend (nothing is compiled, no library is needed) or
    an ONNX model or a DLC, which is compiled for SOC with the real library first.

    The IO layer is emulated: the library for x86 registers no memory. With --run the results come
    from the real library, which is slow: use a small model. With --misuse a client that makes every
    mistake is carried out twice, under the emulated contract and with the library, if that is here.

    Exit codes: 0 shown, 1 the model cannot be compiled or the rows of --run differ, 2 it cannot be
    read, 3 a library, a SoC or a size in the file is missing, 4 not finished within the time limit.
    """
    from pathlib import Path

    from msgspec.structs import replace

    from qnnmem.verbs.compiler import need_soc

    path, target = Path(file), None if output is None else Path(output)
    need_soc(path, options.soc)
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.report.qmem import verdict
    from qnnmem.verbs.qmem import compare_io, qmem_exit_code
    from qnnmem.verbs.refusal import failure_code, say_failure

    if target is not None:
        check_free(target, force)  # says so before the work, not after
    with ProgressBar(f"reading {path.name}") as bar:
        call = verb_call(bar)
        table = compare_io(path, options, call)
    if isinstance(table, CompileFailure):
        write(say_failure(table, "table", call.flags, as_json=as_json), None, force=False)
        return failure_code(table)
    result = replace(table.result, file=file)
    text = _render(result, table.no_run, as_json, verbose)
    write(text, target, force, verdict(result))
    return qmem_exit_code(table)


def _render(result: QmemResult, no_run: Words, as_json: bool, verbose: bool) -> str:
    from qnnmem.report.qmem import render_text
    from qnnmem.results.schema import encode

    if as_json:
        return encode(result)
    return render_text(result, recorded_args, no_run=no_run, verbose=verbose)
