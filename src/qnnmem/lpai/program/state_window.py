"""What a Buffer op of domain qti_aisw says: its window, checked against its input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import LoadError
from qnnmem.loader.onnx.graph import attribute
from qnnmem.loader.onnx.tensor import DTYPES, OnnxType, check_shape
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

DOMAIN = "qti_aisw"
BLOCKING, LEFT, RIGHT = 0, 1, 2
ATTRIBUTES = ("buffer_size", "buffer_dim", "stride", "mode", "buffer_padding")
# Far above any window of a low-power model; it keeps hostile numbers from becoming memory.
MAX_FRAMES = 1 << 20

_MAX_TITLE = 200
_INT = 2  # AttributeProto.AttributeType; 0 in files that leave it out


@dataclass(frozen=True, slots=True)
class BufferWindow:
    """A Buffer op: a sliding window of frames that survives between executes."""

    name: str  # of the node
    state: tuple[str, str]  # input and output that carry the window
    result: str  # what the consumers read; the state's output where possible
    frames: int  # that one execute brings, on `axis`
    size: int  # frames in a full window
    stride: int  # frames that leave a full window
    mode: int  # BLOCKING, LEFT or RIGHT
    padding: int  # zero frames that count as present at the start and after a reset
    axis: int
    reset: str | None  # graph input that clears the window when true
    counter: tuple[str, str] | None = None  # pair that counts frames, only for LEFT
    gated: tuple[str, ...] = ()  # outputs that hold nothing new while a blocking window fills

    def step(self, present: int) -> tuple[int, bool]:
        """Frames left after one more execute, and whether that execute has a result.

        `present` is `padding` at the start and after a reset. Without a result, execute
        returns 6038.
        """
        now = min(present + self.frames, self.size)
        full = now == self.size
        return (self.size - self.stride if full else now), full or self.mode != BLOCKING


class BufferSettings(NamedTuple):
    """Attributes of a Buffer op, each within its own range."""

    size: int
    axis: int
    stride: int | None
    mode: int
    padding: int


def is_buffer(node: onnx.NodeProto) -> bool:
    """Whether a node is the vendor's Buffer."""
    return node.op_type == "Buffer" and node.domain == DOMAIN


def title(node: onnx.NodeProto) -> str:
    """Name by which a node is known, short enough to make other names from it."""
    return str(node.name or next(filter(None, node.output), "") or node.op_type)[:_MAX_TITLE]


def refusal(path: Path, node: onnx.NodeProto, words: str) -> LoadError:
    """Error that names the node."""
    return LoadError(path, f"{node.op_type} {quote(title(node))} {words}")


def read_settings(path: Path, node: onnx.NodeProto) -> BufferSettings:
    """Settings of a Buffer, refused unless its form and attributes are sound by themselves."""
    if not 1 <= len(node.input) <= 2 or not node.input[0]:
        raise refusal(path, node, "needs one input and may have a second one, reset")
    if len(node.output) != 1 or not node.output[0]:
        raise refusal(path, node, "needs exactly one output")
    size, axis, stride, mode, padding = (_number(path, node, name) for name in ATTRIBUTES)
    if size is None or axis is None:
        raise refusal(path, node, f"lacks {'buffer_size' if size is None else 'buffer_dim'}")
    if not 0 < size <= MAX_FRAMES:
        words = f"has buffer_size {quote(size)}, which is not within 1 to {MAX_FRAMES:,}"
        raise refusal(path, node, words)
    if mode not in (None, BLOCKING, LEFT, RIGHT):
        words = "0 (blocking), 1 (fills from the left) or 2 (fills from the right)"
        raise refusal(path, node, f"has mode {quote(mode)}, which is not {words}")
    if not 0 <= (padding or 0) <= size:
        words = f"has buffer_padding {quote(padding)}, which is not within 0 to its {size:,} frames"
        raise refusal(path, node, words)
    return BufferSettings(size, axis, stride, mode or BLOCKING, padding or 0)


def _number(path: Path, node: onnx.NodeProto, name: str) -> int | None:
    found = attribute(node, name)
    if found is None:
        return None
    if found.type not in (0, _INT) or not found.HasField("i"):
        raise refusal(path, node, f"has an attribute {name} that is not an integer")
    return int(found.i)


def read_window(
    path: Path, node: onnx.NodeProto, kind: OnnxType, reset: str | None
) -> tuple[BufferWindow, OnnxType]:
    """BufferWindow of a Buffer whose input has this type, and the window's own type."""
    given = read_settings(path, node)
    axis = _axis(path, node, given.axis, kind)
    shape = list(kind.shape or ())
    frames = shape[axis]
    if given.size % frames:
        words = f"has buffer_size {given.size:,}, {_not_multiple(frames)}"
        raise refusal(path, node, words)
    shape[axis] = given.size
    full = OnnxType(kind.elem, tuple(shape))
    check_shape(path, node.output[0], full.shape or (), DTYPES[full.elem])
    stride = _stride(path, node, given, frames)
    pair = ("", node.output[0])
    window = BufferWindow(
        title(node),
        pair,
        pair[1],
        frames,
        given.size,
        stride,
        given.mode,
        given.padding,
        axis,
        reset,
    )
    return window, full


def _axis(path: Path, node: onnx.NodeProto, axis: int, kind: OnnxType) -> int:
    shape = kind.shape or ()
    if kind.elem not in DTYPES or DTYPES[kind.elem].bits < 8:
        raise refusal(path, node, "has an input of a type that a window cannot hold")
    if not -len(shape) <= axis < len(shape):
        words = f"has buffer_dim {quote(axis)}, but its input has {len(shape)} dimensions"
        raise refusal(path, node, words)
    if 0 in shape:
        raise refusal(path, node, "has an empty input, which brings no frames")
    return axis % len(shape)


def _stride(path: Path, node: onnx.NodeProto, given: BufferSettings, frames: int) -> int:
    stride = frames if given.stride is None else given.stride
    if not frames <= stride <= given.size or stride % frames:
        words = f"has stride {quote(stride)}, which is not within {frames:,} to {given.size:,} or "
        raise refusal(path, node, words + _not_multiple(frames))
    if given.mode != BLOCKING and stride != frames:
        words = f"answers every execute (mode {given.mode}), so its stride must be {frames:,}"
        raise refusal(path, node, f"{words}, not {stride:,}")
    return stride


def _not_multiple(frames: int) -> str:
    return f"not a multiple of the {frames:,} frames that one execute brings"
