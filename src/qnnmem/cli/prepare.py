"""`qnnmem prepare` and `inspect`: make context binaries and show their contents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import printed, shows, takes
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import verb_call
from qnnmem.cli.streams import note
from qnnmem.options.option import refuse_foreign
from qnnmem.options.prepare import PreparationOptions
from qnnmem.results.schema import encode

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
    unreadable model, or a float model that LPAI cannot run, 3 no library is available, the SoC has
    no HTP, or the binary lacks a model output (htp), 4 not finished within the time limit (htp).
    """
    refuse_foreign(options, options.backend)
    run = show_htp if options.is_htp else _show_lpai
    return run(files, options, output)


def _show_lpai(files: tuple[str, ...], options: PreparationOptions, output: Output) -> int:
    from qnnmem.report.prepare import error_lines, render_text
    from qnnmem.verbs.prepare import prepare_lpai

    with ProgressBar("preparing") as bar:
        binary = prepare_lpai(files, options, bar)
    if output.is_json:
        for line in error_lines(binary.prepared.errors):  # the text has them already
            note(line)
        output.write(encode(binary.as_result()))
    else:
        facts = binary.prepared, binary.tcm, binary.notes, str(binary.path), binary.size
        output.write(render_text(*facts))
    return 0


def show_htp(
    files: tuple[str, ...],
    options: PreparationOptions,
    output: Output,
    worker: Worker | None = None,
) -> int:
    """Compile a model; show its memory bill or the reason for the failure; return the exit code."""
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.report.bill import render_prepared
    from qnnmem.verbs.prepare import prepare_htp

    with ProgressBar("preparing") as bar:
        call = verb_call(bar)
        binary = prepare_htp(files, options, call, worker)
    if isinstance(binary, CompileFailure):
        return output.show_failure(binary, "binary", call)
    bill, types = binary.as_result(), binary.io_mem_types
    output.show(bill, lambda: render_prepared(bill, binary.written, types))
    return binary.exit_code


@click.command()
@click.argument("file", type=click.Path())
@shows("qnnmem.inspect/1, inspect-htp/1, inspect-dlc/1 or carrier/1")
def inspect(file: str, output: Output) -> int:
    """Show the graphs, tensors, memory and state in a context binary or DLC.

    FILE is an LPAI binary of `qnnmem prepare` (whose checksums and references are checked), or an
    HTP context binary from any tool (which can be inside an ONNX model). The JSON has the structure
    of qnn-context-binary-utility. For a DLC, the graphs are shown as QNN's compilers see them.

    FILE can also be a deployed file: an ExecuTorch program (.pte), a LiteRT model for an NPU, a
    Genie or GenAI folder, or an app or zip with any of them. Each distinct context is listed once,
    with its users, the parts that run on the CPU, and what the file claims about its binaries.

    Exit codes: 0 shown, 1 shown, but a graph has more allocations than TCM allows, 2 the file is
    damaged, has an unknown version, or cannot be read, 3 the library that reads a DLC is missing.
    """
    from qnnmem.verbs.inspect import inspect_file

    shown, code = inspect_file(Path(file), as_json=output.is_json)
    output.write(shown)
    return code
