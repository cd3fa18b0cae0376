"""Makes state explicit: replaces Buffer ops and the state of RNN nodes with standard ops.

  a Buffer whose input has a known shape is replaced by the ops of a shifting window
  the nodes after that Buffer then have known shapes, so this repeats until no Buffer is left
  the hidden state of LSTM, GRU and RNN nodes becomes an input and an output, if requested

The planner puts each pair of state input and output into persistent memory, which starts as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from qnnmem.errors import LoadError
from qnnmem.loader.onnx.graph import attribute, bodies, integer, is_op, reads
from qnnmem.loader.onnx.inputs import Fixed
from qnnmem.loader.onnx.tensor import STRING, UNKNOWN, OnnxType
from qnnmem.lpai.program.state_window import (
    BLOCKING,
    DOMAIN,
    BufferWindow,
    Declared,
    Draft,
    expand,
    forget_domain,
    inline_external,
    is_buffer,
    nodes_within,
    read_settings,
    refusal,
    title,
    write_model,
)
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx import FixedSizes
    from qnnmem.loader.onnx.trial import TrialChild, Trials

KINDS = ("LSTM", "GRU", "RNN")
# Position of the initial value among the inputs, of the final value among the outputs.
_H, _C = (5, 1, "h"), (6, 2, "c")
# Ops that only repeat or rearrange the values of their first input.
_MOVES = frozenset(
    {"Identity", "Cast", "Expand", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Transpose"}
    | {"Tile", "Gather"}
)
_MAX_STATE = 1 << 26  # elements
_FLOATS = frozenset({1, 10, 11, 16})

MAX_STATEFUL = 256  # nodes; each costs a pass over the whole graph


def is_rnn(node: onnx.NodeProto) -> bool:
    """Return whether a node has hidden state: LSTM, GRU or RNN."""
    return is_op(node, *KINDS)


def check_direction(draft: Draft, node: onnx.NodeProto) -> None:
    """Raise LoadError for a node that reads its sequence backwards.

    Its state would come from the future.
    """
    direction = attribute(node, "direction")
    if direction is not None and direction.s != b"forward":
        words = (
            "runs backwards through its sequence, so its state cannot be kept from one execution "
            "to the next; do not keep RNN state"
        )
        raise refusal(draft.path, node, words)


def find_kept(draft: Draft) -> frozenset[str]:
    """Return the keys of the RNN nodes that start from zero; add a note about every other node."""
    producers = {name: node for node in draft.model.graph.node for name in node.output if name}
    stored = {item.name: item for item in draft.model.graph.initializer}
    kept = set()
    for node in filter(is_rnn, draft.model.graph.node):
        names = [node.input[index] for index, _, _ in _parts(node) if len(node.input) > index]
        other = [name for name in names if name and not _is_zero(name, producers, stored)]
        if not other:
            kept.add(key(node))
            continue
        draft.notes.append(
            f"{node.op_type} {quote(title(node))} starts from tensor {quote(other[0])}, "
            "which is not a constant zero; its state is not kept"
        )
    return frozenset(kept)


def key(node: onnx.NodeProto) -> str:
    """Return a node's key: the name of its first output, because node names can repeat."""
    return next(filter(None, node.output), "")


def keep_state(draft: Draft, node: onnx.NodeProto, kind: OnnxType) -> None:
    """Turn the state of an RNN node into inputs and outputs of the model.

    `kind` is the type of the node's first input.
    """
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
            if name:  # an output of the model cannot be state as well
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
        raise refusal(draft.path, node, "has no hidden_size")
    by_batch = integer(node, "layout", 0) == 1
    batch = shape[0] if by_batch else shape[1]
    if not 0 < batch * hidden <= _MAX_STATE:
        words = f"has a state of {quote(batch)} by {quote(hidden)} values, which is out of range"
        raise refusal(draft.path, node, words)
    return OnnxType(kind.elem, (batch, 1, hidden) if by_batch else (1, batch, hidden))


def _is_zero(
    name: str, producers: Mapping[str, onnx.NodeProto], stored: Mapping[str, onnx.TensorProto]
) -> bool:
    while name in producers and is_op(producers[name], *_MOVES) and producers[name].input:
        name = producers[name].input[0]  # terminates: the graph has no cycles
    if name in stored:
        return _all_zero(stored[name])
    node = producers.get(name)
    if node is None or not is_op(node, "Constant", "ConstantOfShape"):
        return False
    value = attribute(node, "value")
    if value is None:
        return bool(node.op_type == "ConstantOfShape")  # a float zero by default
    return _all_zero(value.t)


def _all_zero(tensor: onnx.TensorProto) -> bool:
    from onnx import numpy_helper

    if tensor.data_type == STRING or math.prod(tensor.dims) > _MAX_STATE:
        return False
    return not numpy_helper.to_array(tensor).any()


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model with explicit state, and the inputs and outputs that hold it."""

    path: Path  # model to load: the given file if there was nothing to rewrite
    states: tuple[tuple[str, str], ...] = ()  # pairs of input and output, those of windows included
    windows: tuple[BufferWindow, ...] = ()
    notes: tuple[str, ...] = ()


def rewrite_states(
    path: Path,
    folder: Path,
    *,
    keep_rnn_state: bool = False,
    time_limit_s: float = 60.0,
    **sizes: Unpack[FixedSizes],
) -> Rewritten:
    """Write a model with explicit state to `folder` if the model has implicit state.

    Return the path and the state pairs. The new file does not contain the `sizes`: load the file
    with the same `sizes` again.
    """
    path = Path(path)
    model = _unpack(path, keep_rnn_state)
    if model is None:
        return Rewritten(path)
    draft = Draft(path, model)
    rnns, buffers = keep_rnn_state and _check_rnns(draft), _check_buffers(draft)
    if rnns or buffers:
        inline_external(path, model)
    kept = find_kept(draft) if rnns else frozenset()
    if not kept and not buffers:
        return Rewritten(path, notes=tuple(draft.notes))
    windows = _rewrite(draft, kept, Fixed(**sizes), time_limit_s)
    target = Path(folder) / f"{path.stem}.onnx"
    write_model(draft.model, target)
    return Rewritten(target, tuple(draft.states), windows, tuple(draft.notes))


def _unpack(path: Path, keep_rnn_state: bool) -> onnx.ModelProto | None:
    """Return the model in a file; None if its bytes show that no node has state."""
    from qnnmem.loader.onnx import read_guarded
    from qnnmem.loader.onnx.passes.read import mentions

    if not mentions(path, [DOMAIN, *(KINDS if keep_rnn_state else ())]):
        return None
    return read_guarded(path).proto


def _check_buffers(draft: Draft) -> bool:
    """Return whether there are Buffer ops; raise LoadError if they cannot be rewritten."""
    path = draft.path
    for node in filter(is_buffer, _inner_nodes(draft.model)):
        raise refusal(path, node, "is in a branch, a loop or a function; move it to the main graph")
    buffers = [node for node in draft.model.graph.node if is_buffer(node)]
    for node in buffers:
        read_settings(path, node)
    if len(buffers) > MAX_STATEFUL:
        raise LoadError(path, f"has {len(buffers):,} Buffer ops, over the limit of {MAX_STATEFUL}")
    return bool(buffers)


def _check_rnns(draft: Draft) -> bool:
    """Return whether the main graph has RNN nodes; add a note about RNN nodes elsewhere.

    Raise LoadError for too many nodes or a node that reads its sequence backwards.
    """
    inner = sum(map(is_rnn, _inner_nodes(draft.model)))
    if inner:
        draft.notes.append(
            f"the state of {counted(inner, 'RNN node')} in branches, loops or functions is not kept"
        )
    nodes = [node for node in draft.model.graph.node if is_rnn(node)]
    if len(nodes) > MAX_STATEFUL:
        what = f"has {len(nodes):,} RNN nodes, over the limit of {MAX_STATEFUL}"
        raise LoadError(draft.path, what)
    for node in nodes:
        check_direction(draft, node)
    return bool(nodes)


def _inner_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of functions, branches and loops."""
    for function in model.functions:
        yield from function.node
    for node in model.graph.node:
        for body in bodies(node):
            yield from nodes_within(body)


def _rewrite(
    draft: Draft,
    kept: frozenset[str],
    fixed: Fixed,
    time_limit_s: float,
) -> tuple[BufferWindow, ...]:
    from qnnmem.loader.onnx.passes.guard import GuardedModel
    from qnnmem.loader.onnx.passes.resolve import open_model, resolve
    from qnnmem.loader.onnx.trial import TrialChild

    path = draft.path
    if draft.model.functions:
        words = "inline the functions first with onnx.inliner.inline_local_functions"
        raise LoadError(path, f"has functions, so the state of its ops cannot be kept; {words}")
    with TrialChild(path, time_limit_s) as child:
        declared = Declared(draft.model.graph)
        opened = open_model(GuardedModel(path, draft.model), child)
        draft.model = resolve(opened, fixed).proto()
        trials = _trials(draft, child, fixed.shapes)
        windows, changed = _expand_all(draft, trials)
        if kept:
            _keep_rnns(draft, trials, kept)
    forget_domain(draft.model, DOMAIN)
    _open_again(draft.model.graph, fixed.values)
    declared.put_back(draft.model.graph, changed)
    return _gate(draft.model.graph, windows)


def _open_again(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Turn the constants in `names` back into the inputs that they had replaced."""
    others = [item for item in graph.initializer if item.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(others)
    for name in names:
        graph.input.add(name=name)


def _trials(draft: Draft, child: TrialChild, shapes: Mapping[str, tuple[int, ...]]) -> Trials:
    import onnx

    from qnnmem.loader.onnx.trial import Trials

    model = draft.model
    head = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    if all(entry.domain != DOMAIN for entry in head.opset_import):
        head.opset_import.add(domain=DOMAIN, version=1)  # shape inference needs this entry
    return Trials(draft.path, child, head, shapes, {})


def _expand_all(draft: Draft, trials: Trials) -> tuple[list[BufferWindow], set[str]]:
    """Replace all Buffers; return their windows and the names of their outputs.

    Buffers whose input has a known type come first.
    """
    windows, outputs = [], set()
    while pending := [node for node in draft.model.graph.node if is_buffer(node)]:
        types = _types(draft, trials, pending[0].input[0])
        for node in pending:
            kind = types.get(node.input[0], UNKNOWN)
            if kind.is_static:
                outputs.add(node.output[0])
                window = expand(draft, node, kind)
                windows += [window] if window is not None else []
    return windows, outputs


def _types(draft: Draft, trials: Trials, needed: str) -> Mapping[str, OnnxType]:
    """Return the known types and that of the tensor `needed`, which must not depend on a Buffer."""
    from qnnmem.loader.onnx.trial import infer_types

    types = infer_types(trials, draft.model.graph, {})
    if not types.get(needed, UNKNOWN).is_static:
        types[needed] = _examined(draft, trials, needed)
    return types


def _examined(draft: Draft, trials: Trials, name: str) -> OnnxType:
    """Return the type of a tensor; raise LoadError if the type cannot be found.

    To find the type, the loader folds branches and runs earlier nodes.
    """
    from qnnmem.loader.onnx.passes.shape import find_type

    kind = find_type(trials, draft.model.graph, name)
    if not kind.is_static:
        words = "set the sizes of the model's open dimensions"
        raise LoadError(draft.path, f"the shape of {quote(name)} is unknown; {words}")
    return kind


def _keep_rnns(draft: Draft, trials: Trials, kept: frozenset[str]) -> None:
    from qnnmem.loader.onnx.trial import infer_types

    types = infer_types(trials, draft.model.graph, {})
    for node in [node for node in draft.model.graph.node if is_rnn(node) and key(node) in kept]:
        name = node.input[0] if node.input else ""
        kind = types.get(name, UNKNOWN)
        if not kind.is_static and name:
            kind = _examined(draft, trials, name)
        keep_state(draft, node, kind)


def _gate(graph: onnx.GraphProto, windows: list[BufferWindow]) -> tuple[BufferWindow, ...]:
    """Return the windows, each with the outputs that are only valid once the window is full."""
    steps = [(reads(node), [name for name in node.output if name]) for node in graph.node]
    outputs = [item.name for item in graph.output]
    gated = []
    for window in windows:
        waiting = _dependents(window, steps) if window.mode == BLOCKING else set()
        # A counter does not read the frames that it counts, so it is not among the dependents.
        for other in windows:
            if other.counter is not None and other.kept.new in waiting:
                waiting.add(other.counter[1])
        gated.append(replace(window, gated=tuple(n for n in outputs if n in waiting)))
    return tuple(gated)


def _dependents(window: BufferWindow, steps: Sequence[tuple[list[str], list[str]]]) -> set[str]:
    """Return the tensors whose values depend on a window."""
    reached = {window.kept.new}
    for inputs, outputs in steps:
        if not reached.isdisjoint(inputs):
            reached.update(outputs)
    return reached - {window.kept.new}
