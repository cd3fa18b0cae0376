"""Replaces a Buffer op of domain qti_aisw with standard ops around an explicit window.

kept     = the old window without its oldest frames; zeros where reset is true
window   = kept, then the new frames
present  = number of frames received so far                       (only if filled from the left)
result   = the frames present, moved to the start, then zeros     (only if filled from the left)

`Draft` is the model being rewritten, with its new inputs and outputs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from qnnmem.atomic_file import write_whole
from qnnmem.errors import LoadError, OutputError
from qnnmem.ir import Tensor
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, all_names, attribute, bodies
from qnnmem.loader.onnx.tensor import (
    DTYPES,
    EXTERNAL,
    OnnxType,
    check_shape,
    embed,
    stored_bytes,
    tensors,
    type_of,
    value_info,
)
from qnnmem.results.inspect import FrameWindow
from qnnmem.text import quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

# Below protobuf's limit of 2 GiB, with room for additions of the rewrite.
MAX_MODEL_BYTES = 3 << 29
_DEFAULT_OPSET = 17

DOMAIN = "qti_aisw"
BLOCKING, LEFT, RIGHT = 0, 1, 2
ATTRIBUTES = ("buffer_size", "buffer_dim", "stride", "mode", "buffer_padding")
# Far above any window of a low-power model; limits the memory that a malicious file can claim.
MAX_FRAMES = 1 << 20
_MAX_TITLE = 200
_INT = 2  # AttributeProto.AttributeType; 0 in files that omit it

# Limit of all windows together: far above the memory of such a device. The model file stores zeros
# of this size.
MAX_KEPT_BYTES = 256 << 20
_INT64, _BOOL = 7, 9
_QUANTIZED = frozenset({2, 3, 4, 5})  # 8- and 16-bit integers
_COUNTER = OnnxType(_INT64, (1,))
# First opsets in which Slice takes its limits as inputs, Where exists, and Min accepts integers.
_SLICE_BY_INPUTS, _WHERE, _INTEGER_MIN = 10, 9, 12


class Draft:
    """A model whose state is made explicit, node by node."""

    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        self.path, self.model = path, model
        self.states: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.kept_bytes = 0
        self._taken = set(all_names(model.graph))
        self._windows: set[str] = set()
        self.opset = _opset(model)

    def fresh(self, stem: str) -> str:
        """Return an unused tensor name, and reserve it."""
        return _unused(stem, self._taken)

    def window_name(self, stem: str) -> str:
        """Return an unused window name, and reserve it; node names are not always unique."""
        return _unused(stem, self._windows)

    def constant(self, stem: str, value: NDArray[Any] | onnx.TensorProto) -> str:
        """Add a constant to the model and return its name."""
        from onnx import TensorProto, numpy_helper

        tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(value)
        tensor.name = self.fresh(stem)
        self.model.graph.initializer.append(tensor)
        return str(tensor.name)

    def state(self, stem: str, kind: OnnxType) -> str:
        """Add an input for the old value of a state and return its name."""
        name = self.fresh(stem)
        self.model.graph.input.append(value_info(name, kind))
        return name

    def keep(self, old: str, new: str, kind: OnnxType) -> None:
        """Add an output `new` for the next value of the state whose input is `old`."""
        self.model.graph.output.append(value_info(new, kind))
        self.states.append((old, new))
        self.kept_bytes += Tensor(new, DTYPES[kind.elem], kind.shape or ()).nbytes

    def is_output(self, name: str) -> bool:
        """Return whether a tensor is an output of the model."""
        return any(item.name == name for item in self.model.graph.output)

    def replace(self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
        """Replace a node with other nodes, at the same position."""
        graph = self.model.graph
        index = next(i for i, other in enumerate(graph.node) if other.output == node.output)
        rest = list(map(_copy, graph.node[index + 1 :]))
        del graph.node[index:]
        graph.node.extend([*nodes, *rest])


def _unused(stem: str, taken: set[str]) -> str:
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _opset(model: onnx.ModelProto) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS]
    if not versions:  # no standard ops
        model.opset_import.add(domain="", version=_DEFAULT_OPSET)
    return min(versions, default=_DEFAULT_OPSET)


def inline_external(path: Path, model: onnx.ModelProto) -> None:
    """Embed weights from files next to the model; the rewritten model goes to another folder.

    Raise LoadError if the model gets too large. Paths and sizes were checked when the model was
    unpacked.
    """
    outside = [tensor for tensor in tensors(model) if tensor.data_location == EXTERNAL]
    total = model.ByteSize() + sum(map(stored_bytes, outside))
    if total > MAX_MODEL_BYTES:
        raise LoadError(
            path,
            f"is {format_size(total)} with its weights, over the limit of "
            f"{format_size(MAX_MODEL_BYTES)} for a model with state inside ops; use inputs and "
            "outputs for the state instead",
        )
    for tensor in outside:
        embed(path, tensor)


def forget_domain(model: onnx.ModelProto, domain: str) -> None:
    """Remove an operator set that no node uses."""
    if all(node.domain != domain for node in nodes_within(model.graph)):
        entries = [_copy(entry) for entry in model.opset_import if entry.domain != domain]
        del model.opset_import[:]
        model.opset_import.extend(entries)


def nodes_within(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of all bodies in it."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from nodes_within(body)


class Declared:
    """A file's type declarations, which are removed while shapes are computed, then restored."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        stored = {item.name for item in graph.initializer}
        self._inputs = {i.name: _copy(i) for i in graph.input if i.name not in stored}
        self._outputs = {item.name: _copy(item) for item in graph.output}
        self._values = [_copy(item) for item in graph.value_info]
        self._annotations = [_copy(item) for item in graph.quantization_annotation]

    def put_back(self, graph: onnx.GraphProto, changed: Iterable[str]) -> None:
        """Restore all declarations except the types of the tensors in `changed`."""
        inputs = [self._inputs.get(item.name, _copy(item)) for item in graph.input]
        untyped = {name: item for name, item in self._outputs.items() if name not in changed}
        outputs = [untyped.get(item.name, _copy(item)) for item in graph.output]
        del graph.input[:], graph.output[:]
        graph.input.extend(inputs)
        graph.output.extend(outputs)
        graph.value_info.extend(item for item in self._values if item.name not in changed)
        graph.quantization_annotation.extend(self._annotations)


def _copy(item: Any) -> Any:
    """Return a copy of a nested protobuf message; it stays valid when the outer message is gone."""
    return type(item).FromString(item.SerializeToString())


def write_model(model: onnx.ModelProto, target: Path) -> None:
    """Write a model completely or not at all; raise OutputError if the file exists."""
    if os.path.lexists(target):
        raise OutputError(
            f"{target} already exists; choose an empty folder for the rewritten model"
        )
    write_whole(target, model.SerializeToString())


@dataclass(frozen=True, slots=True)
class BufferWindow:
    """A Buffer op that is being replaced by standard ops around a window of frames."""

    kept: FrameWindow  # its entry in the binary
    result: str  # tensor that consumers read; the new window where possible
    mode: int  # BLOCKING, LEFT or RIGHT
    axis: int  # of the frames
    counter: tuple[str, str] | None = None  # pair that counts frames, only for LEFT
    gated: tuple[str, ...] = ()  # outputs that are not written while a blocking window fills


class BufferSettings(NamedTuple):
    """Attributes of a Buffer op, each within its valid range."""

    size: int
    axis: int
    stride: int | None
    mode: int
    padding: int


def is_buffer(node: onnx.NodeProto) -> bool:
    """Return whether a node is Qualcomm's Buffer op."""
    return node.op_type == "Buffer" and node.domain == DOMAIN


def title(node: onnx.NodeProto) -> str:
    """Return a short name for a node, from which other names can be derived."""
    return str(node.name or next(filter(None, node.output), "") or node.op_type)[:_MAX_TITLE]


def refusal(path: Path, node: onnx.NodeProto, predicate: str) -> LoadError:
    """Return an error that names the node."""
    return LoadError(path, f"{node.op_type} {quote(title(node))} {predicate}")


def read_settings(path: Path, node: onnx.NodeProto) -> BufferSettings:
    """Return the attributes of a Buffer op; raise LoadError for invalid ones."""
    if not 1 <= len(node.input) <= 2 or not node.input[0]:
        raise refusal(path, node, "needs one input, and optionally a second one, `reset`")
    if len(node.output) != 1 or not node.output[0]:
        raise refusal(path, node, "needs exactly one output")
    size, axis, stride, mode, padding = (_number(path, node, name) for name in ATTRIBUTES)
    if size is None or axis is None:
        raise refusal(path, node, f"lacks {'buffer_size' if size is None else 'buffer_dim'}")
    if not 0 < size <= MAX_FRAMES:
        words = f"has buffer_size {quote(size)}; allowed: 1 to {MAX_FRAMES:,}"
        raise refusal(path, node, words)
    if mode not in (None, BLOCKING, LEFT, RIGHT):
        words = "0 (blocking), 1 (fills from the left) or 2 (fills from the right)"
        raise refusal(path, node, f"has mode {quote(mode)}; allowed: {words}")
    if not 0 <= (padding or 0) <= size:
        words = f"has buffer_padding {quote(padding)}; allowed: 0 to {size:,}, the number of frames"
        raise refusal(path, node, words)
    return BufferSettings(size, axis, stride, mode or BLOCKING, padding or 0)


def _number(path: Path, node: onnx.NodeProto, name: str) -> int | None:
    value = attribute(node, name)
    if value is None:
        return None
    if value.type not in (0, _INT) or not value.HasField("i"):
        raise refusal(path, node, f"has an attribute {name} that is not an integer")
    return int(value.i)


def read_window(
    path: Path, node: onnx.NodeProto, kind: OnnxType, reset: str | None
) -> tuple[BufferWindow, OnnxType]:
    """Return the window of a Buffer op, and the window's tensor type.

    `kind` is the type of the op's input, `reset` the input that empties the window.
    """
    settings = read_settings(path, node)
    axis = _axis(path, node, settings.axis, kind)
    shape = list(kind.shape or ())
    frames = shape[axis]
    if settings.size % frames:
        words = f"has buffer_size {settings.size:,}, {_not_multiple(frames)}"
        raise refusal(path, node, words)
    shape[axis] = settings.size
    full = OnnxType(kind.elem, tuple(shape))
    check_shape(path, node.output[0], full.shape or (), DTYPES[full.elem])
    stride = _stride(path, node, settings, frames)
    kept = FrameWindow(
        name=title(node),
        old="",
        new=node.output[0],
        frames=frames,
        size=settings.size,
        stride=stride,
        blocking=settings.mode == BLOCKING,
        padding=settings.padding,
        reset=reset,
    )
    return BufferWindow(kept, node.output[0], settings.mode, axis), full


def _axis(path: Path, node: onnx.NodeProto, axis: int, kind: OnnxType) -> int:
    shape = kind.shape or ()
    if kind.elem not in DTYPES or DTYPES[kind.elem].bits < 8:
        raise refusal(path, node, "has an input whose type is not supported")
    if not -len(shape) <= axis < len(shape):
        words = f"has buffer_dim {quote(axis)}, but its input has only {len(shape)} dimensions"
        raise refusal(path, node, words)
    if 0 in shape:
        raise refusal(path, node, "has an empty input, which adds no frames")
    return axis % len(shape)


def _stride(path: Path, node: onnx.NodeProto, settings: BufferSettings, frames: int) -> int:
    stride = frames if settings.stride is None else settings.stride
    if not frames <= stride <= settings.size:
        words = f"has stride {quote(stride)}; allowed: {frames:,} to {settings.size:,}"
        raise refusal(path, node, words)
    if stride % frames:
        raise refusal(path, node, f"has stride {stride:,}, {_not_multiple(frames)}")
    if settings.mode != BLOCKING and stride != frames:
        words = (
            f"returns a result in each execution (mode {settings.mode}), so its stride must be "
            f"{frames:,}, not {stride:,}"
        )
        raise refusal(path, node, words)
    return stride


def _not_multiple(frames: int) -> str:
    return f"not a multiple of the {frames:,} frames of one execution"


def expand(draft: Draft, node: onnx.NodeProto, kind: OnnxType) -> BufferWindow | None:
    """Replace a Buffer op with standard ops, and return its window.

    Return None if each execution replaces all frames, so that there is no state.
    """
    window, full = read_window(draft.path, node, kind, _reset(draft, node))
    _check_opset(draft, node, window)
    draft.notes.extend(_remarks(node, window, kind))
    if window.kept.size == window.kept.frames:
        draft.replace(node, [_op("Identity", [node.input[0]], node.output[0])])
        return None
    window = _name(draft, window, full)
    if draft.kept_bytes > MAX_KEPT_BYTES:
        words = f"increases the size of all windows to {format_size(draft.kept_bytes)}"
        limit = format_size(MAX_KEPT_BYTES)
        raise refusal(draft.path, node, f"{words}, over the limit of {limit}")
    nodes = _shift(draft, window, node.input[0], full)
    if window.counter is not None:
        nodes += _to_the_left(draft, window, window.counter, full)
    elif window.result != window.kept.new:
        nodes.append(_op("Identity", [window.kept.new], window.result))
    draft.replace(node, nodes)
    return window


def _reset(draft: Draft, node: onnx.NodeProto) -> str | None:
    name = node.input[1] if len(node.input) > 1 else ""
    if not name:
        return None
    item = next((item for item in draft.model.graph.input if item.name == name), None)
    kind = type_of(item) if item is not None else None
    if kind is None or kind.elem != _BOOL or kind.shape not in ((), (1,)):
        words = f"names {quote(name)} as its reset input, which must be a model input with one bool"
        raise refusal(draft.path, node, words)
    return str(name)


def _check_opset(draft: Draft, node: onnx.NodeProto, window: BufferWindow) -> None:
    need = _INTEGER_MIN if window.mode == LEFT else _WHERE if window.kept.reset else 0
    if draft.opset < need:
        feature = "mode 1" if window.mode == LEFT else "reset"
        words = (
            f"uses {feature}, which needs ONNX operator set {need}, but the model has "
            f"{draft.opset}; convert the model first"
        )
        raise refusal(draft.path, node, words)


def _remarks(node: onnx.NodeProto, window: BufferWindow, kind: OnnxType) -> list[str]:
    buffer = f"Buffer {quote(title(node))}"
    stated = {item.name for item in node.attribute}
    unknown = stated - {*ATTRIBUTES}
    remarks = [f"{buffer}: unknown attribute {quote(name)} was ignored" for name in unknown]
    if "stride" not in stated and window.kept.frames > 1:
        frames = f"{window.kept.frames:,}"
        remarks.append(
            f"{buffer} has no stride; the default of 1 is below the {frames} frames of one "
            f"execution, so {frames} is used"
        )
    if window.kept.size == window.kept.frames:
        remarks.append(
            f"{buffer} is not larger than the frames of one execution, so it has no state"
        )
    elif kind.elem in _QUANTIZED:
        remarks.append(
            f"{buffer} contains quantized numbers; its empty frames have code 0, which means "
            "zero only if the zero point is 0"
        )
    return sorted(remarks)


def _name(draft: Draft, window: BufferWindow, full: OnnxType) -> BufferWindow:
    """Return the window after adding its state to the inputs and outputs of the model."""
    name = draft.window_name(window.kept.name)
    old = draft.state(f"{name}_window", full)
    new = window.result
    # An output of the model cannot be the state as well, because state is not returned.
    if window.mode == LEFT or draft.is_output(new):
        new = draft.fresh(f"{name}_window_next")
    draft.keep(old, new, full)
    window = replace(window, kept=structs.replace(window.kept, name=name, old=old, new=new))
    if window.mode != LEFT:
        return window
    counter = (draft.state(f"{name}_count", _COUNTER), draft.fresh(f"{name}_count_next"))
    draft.keep(*counter, _COUNTER)
    return replace(window, counter=counter)


def _shift(draft: Draft, window: BufferWindow, source: str, full: OnnxType) -> list[onnx.NodeProto]:
    kept = draft.fresh(f"{window.kept.name}_kept")
    if window.kept.reset is None:
        nodes = [_slice(draft, window, kept)]
    else:
        nodes = _kept_unless_reset(draft, window, full, kept)
    return [*nodes, _op("Concat", [kept, source], window.kept.new, axis=window.axis)]


def _slice(draft: Draft, window: BufferWindow, kept: str) -> onnx.NodeProto:
    import numpy as np

    limits = {"starts": window.kept.frames, "ends": window.kept.size, "axes": window.axis}
    if draft.opset < _SLICE_BY_INPUTS:
        attributes = {name: [value] for name, value in limits.items()}
        return _op("Slice", [window.kept.old], kept, **attributes)
    inputs = [
        draft.constant(f"{window.kept.name}_{name}", np.array([value], np.int64))
        for name, value in limits.items()
    ]
    return _op("Slice", [window.kept.old, *inputs], kept)


def _kept_unless_reset(
    draft: Draft, window: BufferWindow, full: OnnxType, kept: str
) -> list[onnx.NodeProto]:
    # Reset by choosing an index: Where on the values has no 16-bit integer kernel in onnxruntime
    # 1.31.
    import numpy as np

    positions = np.arange(window.kept.frames, window.kept.size, dtype=np.int64)
    shifted = draft.constant(f"{window.kept.name}_shifted", positions)
    beyond = draft.constant(f"{window.kept.name}_beyond", np.array([window.kept.size], np.int64))
    index = draft.fresh(f"{window.kept.name}_index")
    choose = _op("Where", [str(window.kept.reset), beyond, shifted], index)
    return [choose, *_gather(draft, window, full, (window.kept.old, index, kept))]


def _gather(
    draft: Draft, window: BufferWindow, full: OnnxType, names: tuple[str, str, str]
) -> list[onnx.NodeProto]:
    """Return nodes that gather frames by index; the index after the last frame selects zeros."""
    source, index, result = names
    longer = draft.fresh(f"{window.kept.name}_longer")
    zero = draft.constant(f"{window.kept.name}_zero", _zero_frame(window, full))
    return [
        _op("Concat", [source, zero], longer, axis=window.axis),
        _op("Gather", [longer, index], result, axis=window.axis),
    ]


def _zero_frame(window: BufferWindow, full: OnnxType) -> onnx.TensorProto:
    import onnx

    shape = list(full.shape or ())
    shape[window.axis] = 1
    size = onnx.helper.tensor_dtype_to_np_dtype(full.elem).itemsize * math.prod(shape)
    return onnx.TensorProto(data_type=full.elem, dims=shape, raw_data=bytes(size))


def _to_the_left(
    draft: Draft, window: BufferWindow, counter: tuple[str, str], full: OnnxType
) -> list[onnx.NodeProto]:
    import numpy as np

    def number(word: str, value: object) -> str:
        return draft.constant(f"{window.kept.name}_{word}", np.array(value, np.int64))

    def tensor(word: str) -> str:
        return draft.fresh(f"{window.kept.name}_{word}")

    nodes, (count, counted) = [], counter
    if window.kept.reset is not None:
        count = tensor("count_kept")
        nodes = [_op("Where", [window.kept.reset, number("none", [0]), counter[0]], count)]
    # The counter starts at zero like all state, so padding is added where the counter is used.
    room = window.kept.size - window.kept.padding
    more, lead, index, clipped = map(tensor, ("more", "lead", "spread", "position"))
    nodes += [
        _op("Add", [count, number("step", [window.kept.frames])], more),
        _op("Min", [more, number("room", [room])], counted),
        _op("Sub", [number("free", [room]), counted], lead),
        _op("Add", [number("range", range(window.kept.size)), lead], index),
        _op("Min", [index, number("end", [window.kept.size])], clipped),
    ]
    return nodes + _gather(draft, window, full, (window.kept.new, clipped, window.result))


def _op(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    from onnx import helper

    # Named after its output, so that messages about it lead back to the Buffer.
    return helper.make_node(kind, inputs, [output], name=output, **attributes)
