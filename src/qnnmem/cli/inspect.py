"""`qnnmem inspect`: what a context binary or a DLC holds."""

from __future__ import annotations

import click

from qnnmem.cli.options import result_options


@click.command()
@click.argument("file", type=click.Path())
@result_options("qnnmem.inspect/1, inspect-htp/1 or inspect-dlc/1")
def inspect(file: str, as_json: bool, output: str | None, force: bool) -> int:
    """Show what the context binary or DLC FILE holds: graphs, tensors, memory, state.

    FILE is what `qnnmem prepare` writes for LPAI, where every checksum and reference is checked, or
    a real QNN context binary of the HTP backend, whoever made it, also inside an ONNX model. The
    JSON has the nesting of qnn-context-binary-utility. Of a DLC its graphs are shown as QNN's
    compilers are given them, with their operators.

    Exit codes: 0 shown, 1 shown, and a graph has more allocations than TCM serves, 2 the file is
    damaged, of another version, or cannot be read, 3 the library that reads a DLC is missing.
    """
    from pathlib import Path

    from qnnmem.cli.output import check_free, write
    from qnnmem.verbs.inspect import inspect_file

    path, target = Path(file), None if output is None else Path(output)
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    shown, code = inspect_file(path, as_json=as_json)
    write(shown, target, force)
    return code
