"""The Buffer op as standard ops around an explicit window.

kept     = the old window without its oldest frames; zeros where reset is true
window   = kept, then the new frames
present  = how many frames have come so far                     (only if filled from the left)
result   = the frames present, moved to the start, zeros behind (only if filled from the left)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qnnmem.loader.onnx.tensor import OnnxType, type_of
from qnnmem.lpai.program.state_draft import Draft
from qnnmem.lpai.program.state_window import (
    ATTRIBUTES,
    LEFT,
    BufferWindow,
    read_window,
    refusal,
    title,
)
from qnnmem.text import quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    import onnx

# Of all windows together: far above the memory of such a device, and zeros of this size are stored.
MAX_KEPT_BYTES = 256 << 20

_INT64, _BOOL = 7, 9
_QUANTIZED = frozenset({2, 3, 4, 5})  # 8- and 16-bit integers
_COUNTER = OnnxType(_INT64, (1,))
# First operator sets with Slice by inputs, Where, and Min of integers.
_SLICE_BY_INPUTS, _WHERE, _INTEGER_MIN = 10, 9, 12


def expand(draft: Draft, node: onnx.NodeProto, kind: OnnxType) -> BufferWindow | None:
    """Put standard ops in the place of a Buffer; None if it keeps nothing between executes."""
    window, full = read_window(draft.path, node, kind, _reset(draft, node))
    _check_opset(draft, node, window)
    draft.notes.extend(_remarks(node, window, kind))
    if window.size == window.frames:
        draft.replace(node, [_op("Identity", [node.input[0]], node.output[0])])
        return None
    window = _name(draft, window, full)
    if draft.kept_bytes > MAX_KEPT_BYTES:
        words = f"brings the windows to {format_size(draft.kept_bytes)}; more than"
        raise refusal(draft.path, node, f"{words} {format_size(MAX_KEPT_BYTES)} is not handled")
    nodes = _shift(draft, window, node.input[0], full)
    if window.counter is not None:
        nodes += _to_the_left(draft, window, window.counter, full)
    elif window.result != window.state[1]:
        nodes.append(_op("Identity", [window.state[1]], window.result))
    draft.replace(node, nodes)
    return window


def _reset(draft: Draft, node: onnx.NodeProto) -> str | None:
    name = node.input[1] if len(node.input) > 1 else ""
    if not name:
        return None
    item = next((item for item in draft.model.graph.input if item.name == name), None)
    kind = type_of(item) if item is not None else None
    if kind is None or kind.elem != _BOOL or kind.shape not in ((), (1,)):
        words = f"has reset {quote(name)}, which is not an input of the model that holds one bool"
        raise refusal(draft.path, node, words)
    return str(name)


def _check_opset(draft: Draft, node: onnx.NodeProto, window: BufferWindow) -> None:
    need = _INTEGER_MIN if window.mode == LEFT else _WHERE if window.reset else 0
    if draft.opset < need:
        what = "mode 1" if window.mode == LEFT else "reset"
        words = f"uses {what}, which needs ONNX operator set {need}; the model has {draft.opset}"
        raise refusal(draft.path, node, f"{words}, convert it first")


def _remarks(node: onnx.NodeProto, window: BufferWindow, kind: OnnxType) -> list[str]:
    who = f"Buffer {quote(title(node))}"
    given = {found.name for found in node.attribute}
    found = [f"{who}: attribute {quote(n)} is unknown, ignored" for n in given - {*ATTRIBUTES}]
    if "stride" not in given and window.frames > 1:
        found.append(
            f"{who} gives no stride; the default of 1 is below the {window.frames:,} frames that "
            f"one execute brings, so {window.frames:,} is used"
        )
    if window.size == window.frames:
        found.append(f"{who} holds no more than one execute brings, so it has no state")
    elif kind.elem in _QUANTIZED:
        found.append(
            f"{who} holds quantized numbers; its empty frames are code 0, which is the value zero "
            "only if the zero point is 0"
        )
    return sorted(found)


def _name(draft: Draft, window: BufferWindow, full: OnnxType) -> BufferWindow:
    """BufferWindow with its state among the inputs and outputs of the model."""
    window = replace(window, name=draft.window_name(window.name))
    old = draft.state(f"{window.name}_window", full)
    new = window.result
    # The application's own output cannot be the state as well: state is not handed out.
    if window.mode == LEFT or draft.is_output(new):
        new = draft.fresh(f"{window.name}_window_next")
    draft.keep(old, new, full)
    window = replace(window, state=(old, new))
    if window.mode != LEFT:
        return window
    counter = (
        draft.state(f"{window.name}_count", _COUNTER),
        draft.fresh(f"{window.name}_count_next"),
    )
    draft.keep(*counter, _COUNTER)
    return replace(window, counter=counter)


def _shift(draft: Draft, window: BufferWindow, source: str, full: OnnxType) -> list[onnx.NodeProto]:
    kept = draft.fresh(f"{window.name}_kept")
    if window.reset is None:
        nodes = [_slice(draft, window, kept)]
    else:
        nodes = _kept_unless_reset(draft, window, full, kept)
    return [*nodes, _op("Concat", [kept, source], window.state[1], axis=window.axis)]


def _slice(draft: Draft, window: BufferWindow, kept: str) -> onnx.NodeProto:
    import numpy as np

    limits = {"starts": window.frames, "ends": window.size, "axes": window.axis}
    if draft.opset < _SLICE_BY_INPUTS:
        attributes = {name: [value] for name, value in limits.items()}
        return _op("Slice", [window.state[0]], kept, **attributes)
    inputs = [
        draft.constant(f"{window.name}_{name}", np.array([value], np.int64))
        for name, value in limits.items()
    ]
    return _op("Slice", [window.state[0], *inputs], kept)


def _kept_unless_reset(
    draft: Draft, window: BufferWindow, full: OnnxType, kept: str
) -> list[onnx.NodeProto]:
    # By index, because Where on the values has no 16-bit integer kernel in onnxruntime 1.31.
    import numpy as np

    positions = np.arange(window.frames, window.size, dtype=np.int64)
    shifted = draft.constant(f"{window.name}_shifted", positions)
    beyond = draft.constant(f"{window.name}_beyond", np.array([window.size], np.int64))
    index = draft.fresh(f"{window.name}_index")
    choose = _op("Where", [str(window.reset), beyond, shifted], index)
    return [choose, *_gather(draft, window, full, (window.state[0], index, kept))]


def _gather(
    draft: Draft, window: BufferWindow, full: OnnxType, names: tuple[str, str, str]
) -> list[onnx.NodeProto]:
    """Frames of a window by index, where the index behind the last one means zeros."""
    source, index, result = names
    longer = draft.fresh(f"{window.name}_longer")
    zero = draft.constant(f"{window.name}_zero", _zero_frame(window, full))
    return [
        _op("Concat", [source, zero], longer, axis=window.axis),
        _op("Gather", [longer, index], result, axis=window.axis),
    ]


def _zero_frame(window: BufferWindow, full: OnnxType) -> onnx.TensorProto:
    import onnx

    shape = list(full.shape or ())
    shape[window.axis] = 1
    size = onnx.helper.tensor_dtype_to_np_dtype(full.elem).itemsize
    for dim in shape:
        size *= dim
    return onnx.TensorProto(data_type=full.elem, dims=shape, raw_data=bytes(size))


def _to_the_left(
    draft: Draft, window: BufferWindow, counter: tuple[str, str], full: OnnxType
) -> list[onnx.NodeProto]:
    import numpy as np

    def number(word: str, value: object) -> str:
        return draft.constant(f"{window.name}_{word}", np.array(value, np.int64))

    def tensor(word: str) -> str:
        return draft.fresh(f"{window.name}_{word}")

    nodes, (count, counted) = [], counter
    if window.reset is not None:
        count = tensor("count_kept")
        nodes = [_op("Where", [window.reset, number("none", [0]), counter[0]], count)]
    # The counter starts at zero like all state, so padding is added where it is used.
    room = window.size - window.padding
    more, lead, index, clipped = map(tensor, ("more", "lead", "spread", "position"))
    nodes += [
        _op("Add", [count, number("step", [window.frames])], more),
        _op("Min", [more, number("room", [room])], counted),
        _op("Sub", [number("free", [room]), counted], lead),
        _op("Add", [number("range", range(window.size)), lead], index),
        _op("Min", [index, number("end", [window.size])], clipped),
    ]
    return nodes + _gather(draft, window, full, (window.state[1], clipped, window.result))


def _op(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    from onnx import helper

    # Named after its output: messages about it then lead back to the Buffer.
    return helper.make_node(kind, inputs, [output], name=output, **attributes)
