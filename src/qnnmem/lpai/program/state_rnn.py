"""LSTM, GRU and RNN nodes whose hidden state becomes an input and an output of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import attribute, integer, is_op
from qnnmem.loader.onnx.tensor import STRING, UNKNOWN, OnnxType
from qnnmem.lpai.program.state_draft import Draft
from qnnmem.lpai.program.state_window import refusal, title
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

KINDS = ("LSTM", "GRU", "RNN")
# Position of the initial value among the inputs, of the last value among the outputs.
_H, _C = (5, 1, "h"), (6, 2, "c")
# Ops that only repeat or rearrange the values of their first input.
_MOVES = frozenset(
    {"Identity", "Cast", "Expand", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Transpose"}
    | {"Tile", "Gather"}
)
_MAX_STATE = 1 << 26  # elements
_FLOATS = frozenset({1, 10, 11, 16})


def is_rnn(node: onnx.NodeProto) -> bool:
    """Whether a node carries hidden state through a sequence."""
    return is_op(node, *KINDS)


def check_direction(draft: Draft, node: onnx.NodeProto) -> None:
    """Refuse a node that reads its sequence backwards: its state would come from the future."""
    found = attribute(node, "direction")
    way = found.s if found is not None else b"forward"
    if way != b"forward":
        words = "runs backwards through its sequence, so its state cannot be carried forward from "
        raise refusal(draft.path, node, words + "one execute to the next; keep no RNN state for it")


def find_kept(draft: Draft) -> frozenset[str]:
    """Titles of the nodes that start from zero at every execute; notes about the others."""
    makers = {name: made for made in draft.model.graph.node for name in made.output if name}
    stored = {item.name: item for item in draft.model.graph.initializer}
    kept = set()
    for node in filter(is_rnn, draft.model.graph.node):
        names = [node.input[at] for at, _, _ in _parts(node) if len(node.input) > at]
        other = [name for name in names if name and not _is_zero(name, makers, stored)]
        if not other:
            kept.add(key(node))
            continue
        draft.notes.append(
            f"{node.op_type} {quote(title(node))} starts from tensor {quote(other[0])}, which is "
            "not a constant zero; its state is left as it is"
        )
    return frozenset(kept)


def key(node: onnx.NodeProto) -> str:
    """What tells a node from all others: node names may repeat, tensor names may not."""
    return next(filter(None, node.output), "")


def keep_state(draft: Draft, node: onnx.NodeProto, kind: OnnxType) -> None:
    """Make the state of a node explicit; `kind` is the type of its first input."""
    state = _state_type(draft, node, kind)
    for position, output, letter in _parts(node):
        old = draft.state(f"{title(node)}_{letter}", state)
        _extend(node.input, position + 1)
        node.input[position] = old
        _extend(node.output, output + 1)
        name = node.output[output]
        new = name if name and not draft.is_output(name) else ""
        if not new:
            new = draft.fresh(f"{title(node)}_{letter}_next")
            if name:  # the application reads it too, and state is not handed out
                draft.model.graph.node.add(op_type="Identity", input=[name], output=[new], name=new)
            else:
                node.output[output] = new
        draft.keep(old, new, state)


def _parts(node: onnx.NodeProto) -> list[tuple[int, int, str]]:
    return [_H, _C] if node.op_type == "LSTM" else [_H]


def _extend(names: list[str], count: int) -> None:
    names.extend([""] * (count - len(names)))


def _state_type(draft: Draft, node: onnx.NodeProto, kind: OnnxType) -> OnnxType:
    shape = kind.shape or ()
    hidden = integer(node, "hidden_size", 0)
    if len(shape) != 3 or kind.elem not in _FLOATS:
        raise refusal(draft.path, node, "has an input that is not a sequence of float vectors")
    if hidden <= 0:
        raise refusal(draft.path, node, "does not say its hidden_size")
    by_batch = integer(node, "layout", 0) == 1
    batch = shape[0] if by_batch else shape[1]
    if not 0 < batch * hidden <= _MAX_STATE:
        words = (
            f"has a state of {quote(batch)} times {quote(hidden)} numbers, which is out of range"
        )
        raise refusal(draft.path, node, words)
    return OnnxType(kind.elem, (batch, 1, hidden) if by_batch else (1, batch, hidden))


def input_type(types: Mapping[str, OnnxType], node: onnx.NodeProto) -> OnnxType:
    """Type of the first input of a node."""
    return types.get(node.input[0], UNKNOWN) if node.input else UNKNOWN


def _is_zero(
    name: str, makers: Mapping[str, onnx.NodeProto], stored: Mapping[str, onnx.TensorProto]
) -> bool:
    while name in makers and is_op(makers[name], *_MOVES) and makers[name].input:
        name = makers[name].input[0]  # ends: the graph has no cycles
    if name in stored:
        return _all_zero(stored[name])
    node = makers.get(name)
    if node is None or not is_op(node, "Constant", "ConstantOfShape"):
        return False
    value = attribute(node, "value")
    if value is None:
        return bool(node.op_type == "ConstantOfShape")  # whose default is a float zero
    return _all_zero(value.t)


def _all_zero(tensor: onnx.TensorProto) -> bool:
    from onnx import numpy_helper

    count = 1
    for dim in tensor.dims:
        count *= dim
    if tensor.data_type == STRING or count > _MAX_STATE:
        return False
    return not numpy_helper.to_array(tensor).any()
