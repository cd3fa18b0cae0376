"""`qnnmem inspect`: what a context binary or a DLC holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import result_options

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 16 << 30


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
    from qnnmem.loader.file_kind import check_kind, kind_of_file, kinds_for

    path, target = Path(file), None if output is None else Path(output)
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    # A context may stand far behind other nodes of a model: only reading it tells.
    check_kind(path, "inspect", takes=(*kinds_for("inspect"), "onnx"))
    show = {"lpai": _ours, "dlc": _dlc}.get(kind_of_file(path).name, _real)
    shown, code = show(path, as_json)
    write(shown, target, force)
    return code


def _dlc(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.loader.dlc import compose
    from qnnmem.report import dlc as report

    graphs = compose(path)
    show = report.render_json if as_json else report.render_text
    return show(graphs, str(path)), 0


def _real(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.errors import NotCompiled
    from qnnmem.htp.binary.read import read_context
    from qnnmem.loader.file_kind import KINDS, wrong_kind
    from qnnmem.report import context as report

    try:
        context = read_context(path)
    except NotCompiled as exc:
        raise wrong_kind(path, KINDS["onnx"], "which qnnmem inspect does not read") from exc
    return report.render_json(context) if as_json else report.render_text(context, str(path)), 0


def _ours(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.bounded_file import read_bytes
    from qnnmem.errors import LoadError, QnnError
    from qnnmem.lpai.binary import MALFORMED_BINARY, unpack
    from qnnmem.lpai.inspect import binary_info
    from qnnmem.report.inspect import render_text
    from qnnmem.results.schema import encode

    # Read, not mapped: a file that shrinks meanwhile must end in a sentence.
    data = read_bytes(path, _LARGEST)
    try:
        context = unpack(data, MALFORMED_BINARY)
    except QnnError as exc:  # the code says which fault it is; to the shell it is bad input
        raise LoadError(path, str(exc)) from exc
    info = binary_info(context, len(data))
    # Too many bytes are refused with a code; too many allocations end the system of the device.
    text = encode(info) if as_json else render_text(info.qnnmem, str(path))
    return text, int(info.qnnmem.is_fatal)
