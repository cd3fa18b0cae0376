"""Verb `inspect`: show the content of a context binary or a DLC."""

from __future__ import annotations

from pathlib import Path

from qnnmem.errors import NotCompiled
from qnnmem.loader.file_kind import CARRIERS, KINDS, check_kind, kind_of_file, kinds_for, wrong_kind
from qnnmem.results.schema import encode


def inspect_file(path: Path, *, as_json: bool) -> tuple[str, int]:
    """Return the content of a file as text or JSON, and the exit code."""
    # The EPContext node may come after other nodes, so that only reading the model finds it.
    check_kind(path, "inspect", takes=(*kinds_for("inspect"), "onnx"))
    kind = kind_of_file(path).name
    show = _carrier if kind in CARRIERS else {"lpai": _ours, "dlc": _dlc}.get(kind, _real)
    return show(path, as_json)


def _carrier(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.htp.binary.context import describe_context
    from qnnmem.htp.carriers.carrier_bill import facts_of, read_carrier
    from qnnmem.report.carrier import render_text
    from qnnmem.results.carrier import CarrierResult

    with read_carrier(path) as read:
        contents = tuple(describe_context(part.context) for part in read.contexts)
        result = CarrierResult(file=str(path), facts=facts_of(read), contents=contents)
    return encode(result) if as_json else render_text(result), 0


def _dlc(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.loader.dlc.composed import compose, dlc_result
    from qnnmem.report.inspect import render_dlc

    result = dlc_result(compose(path), str(path))
    return encode(result) if as_json else render_dlc(result), 0


def _real(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.htp.binary.context import describe_context
    from qnnmem.htp.binary.read import describe_binary
    from qnnmem.report.inspect import render_vendor

    try:
        context = describe_binary(path)
    except NotCompiled as exc:
        raise wrong_kind(path, KINDS["onnx"], "which qnnmem inspect does not read") from exc
    return encode(describe_context(context)) if as_json else render_vendor(context, str(path)), 0


def _ours(path: Path, as_json: bool) -> tuple[str, int]:
    from qnnmem.lpai.binary import read_binary
    from qnnmem.lpai.inspect import binary_info
    from qnnmem.report.inspect import render_lpai

    info = binary_info(*read_binary(path))
    # Only too many allocations change the exit code, because they crash the device; QNN refuses too
    # many bytes with an error code.
    text = encode(info) if as_json else render_lpai(info.qnnmem, str(path))
    return text, int(info.qnnmem.is_fatal)
