"""`qnnmem prepare` and `inspect`: make context binaries and show their contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import printed, shows, takes
from qnnmem.cli.recorded_args import verb_call
from qnnmem.options.option import refuse_foreign
from qnnmem.options.prepare import PreparationOptions

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.htp.worker import Worker


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@takes(PreparationOptions)
@printed("qnnmem.prepared/1 (lpai) or qnnmem.footprint/1 (htp)")
def prepare(files: tuple[str, ...], options: PreparationOptions, output: Output) -> int:
    """Compile FILES offline to one context binary in which every offset is fixed.

    FILE is an ONNX model. For LPAI it can also be a TFLite model or a DLC, and several files give
    several graphs; an eAI report or a buffer CSV gives a layout, which cannot be executed. For HTP
    the real library compiles one ONNX model or DLC; this needs the extra `htp`. A model library
    (.so) is native code that composes graphs; it needs --trust.

    Exit codes: 0 the binary was written, 1 the library refuses the model (htp), 2 bad usage, an
    unreadable model, or a float model that LPAI cannot run, 3 a library, a SoC or an output of the
    model is missing (htp), 4 not finished within the time limit (htp).
    """
    refuse_foreign(options, options.backend)
    run = show_htp if options.is_htp else _show_lpai
    return run(files, options, output)


def _show_lpai(files: tuple[str, ...], options: PreparationOptions, output: Output) -> int:
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.streams import note
    from qnnmem.report.prepare import error_lines, render_text
    from qnnmem.results.schema import encode
    from qnnmem.verbs.prepare import prepare_lpai

    with ProgressBar("preparing") as bar:
        made = prepare_lpai(files, options, bar)
    if output.is_json:
        for line in error_lines(made.prepared.errors):  # the text has them already
            note(line)
        output.write(encode(made.as_result()))
    else:
        output.write(render_text(made.prepared, made.tcm, made.notes, str(made.path), made.size))
    return 0


def show_htp(
    files: tuple[str, ...],
    options: PreparationOptions,
    output: Output,
    worker: Worker | None = None,
) -> int:
    """Compile a model; show its memory bill or the reason for the failure; return the exit code."""
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.report.bill import render_prepared
    from qnnmem.results.schema import encode
    from qnnmem.verbs.prepare import prepare_htp
    from qnnmem.verbs.refusal import failure_code, say_failure

    with ProgressBar("preparing") as bar:
        call = verb_call(bar)
        made = prepare_htp(files, options, call, worker)
    if isinstance(made, CompileFailure):
        output.write(say_failure(made, "binary", call.flags, as_json=output.is_json))
        return failure_code(made)
    bill = made.as_result()
    if output.is_json:
        output.write(encode(bill))
    else:
        output.write(render_prepared(bill, made.written, made.io_mem_types))
    return made.exit_code


@click.command()
@click.argument("file", type=click.Path())
@shows("qnnmem.inspect/1, inspect-htp/1, inspect-dlc/1 or carrier/1")
def inspect(file: str, output: Output) -> int:
    """Show the graphs, tensors, memory and state in a context binary or DLC.

    FILE is an LPAI binary of `qnnmem prepare`, whose checksums and references are checked, or an
    HTP context binary from any tool, which can be inside an ONNX model. The JSON has the structure
    of qnn-context-binary-utility. For a DLC, the graphs are shown as QNN's compilers see them.

    FILE can also be a deployed file: an ExecuTorch program (.pte), a LiteRT model for an NPU, a
    Genie or GenAI folder, or an app or zip with any of them. Each distinct context is listed once,
    with its users, the parts that run on the CPU, and what the file claims about its binaries.

    Exit codes: 0 shown, 1 shown, but a graph has more allocations than TCM allows, 2 the file is
    damaged, has an unknown version, or cannot be read, 3 the library that reads a DLC is missing.
    """
    from pathlib import Path

    from qnnmem.verbs.inspect import inspect_file

    shown, code = inspect_file(Path(file), as_json=output.is_json)
    output.write(shown)
    return code
