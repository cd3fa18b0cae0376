"""What shape an operator returns, from the shapes it reads, its options and known numbers.

A rule gives the shapes, or says by `Unknown` that they are not known before the model runs, or by
`Damaged` that the operator cannot run on these inputs at all. The rules were compared with TFLite's
own interpreter (`tools/tflite_shapes.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from qnnmem.errors import Damaged
from qnnmem.loader.tflite.derive import arrange, window
from qnnmem.loader.tflite.derive.call import Call, Shape, Unknown, broadcast, elements, written
from qnnmem.loader.tflite.ops import ELEMENTWISE

Rule = Callable[[Call], list[Shape]]


def derive(call: Call) -> list[Shape]:
    """The shapes of all outputs."""
    rule = None if call.op.custom else _RULES.get(call.op.type)
    if rule is None:
        raise Unknown
    found = rule(call)
    if len(found) != len(call.outputs):
        raise Damaged(f"has {len(call.outputs)} outputs where {len(found)} are made")
    return found


def _spread(call: Call) -> list[Shape]:
    return [broadcast([call.shape(at) for at in range(len(call.inputs))])]


def _same(call: Call) -> list[Shape]:
    return [call.shape(0)]


def _choice(call: Call) -> list[Shape]:
    return [call.shape(1)]  # of the older SELECT, whose condition may be one for each row


def _connect(call: Call) -> list[Shape]:
    shape, (units, width) = call.shape(0), call.of_rank(1, 2)
    if call.option("KeepNumDims"):
        if not shape or shape[-1] != width:
            raise Damaged(f"multiplies {written(shape)} by weights for {width:,}")
        return [(*shape[:-1], units)]
    rows, rest = divmod(elements(shape), width) if width else (0, 1)
    if rest:
        raise Damaged(f"multiplies {written(shape)} by weights for {width:,}")
    return [(rows, units)]


def _multiply(call: Call) -> list[Shape]:
    left, right = call.shape(0), call.shape(1)
    if len(left) < 2 or len(right) < 2:
        raise Damaged(f"multiplies {written(left)} by {written(right)}")
    rows, inner = left[-2:][:: -1 if call.option("AdjX") else 1]
    other, columns = right[-2:][:: -1 if call.option("AdjY") else 1]
    if inner != other:
        raise Damaged(f"multiplies {written(left)} by {written(right)}")
    return [(*broadcast((left[:-2], right[:-2])), rows, columns)]


def _reduce(call: Call) -> list[Shape]:
    shape = call.shape(0)
    axes = {call.axis(axis, len(shape)) for axis in call.value(1)} if shape else set()
    if call.option("KeepDims"):
        return [tuple(1 if at in axes else size for at, size in enumerate(shape))]
    return [tuple(size for at, size in enumerate(shape) if at not in axes)]


def _place(call: Call) -> list[Shape]:
    shape = call.shape(0)
    axis = call.axis(call.number(1), len(shape))
    return [(*shape[:axis], *shape[axis + 1 :])]


def _transform(call: Call) -> list[Shape]:
    shape, length = call.shape(0), call.value(1)
    if len(shape) < 2 or len(length) != 2 or min(length) < 1:
        raise Damaged(f"transforms {written(shape)} by {len(length)} lengths")
    return [(*shape[:-2], length[0], length[1] // 2 + 1)]


_SAME = (
    *("COMPLEX_ABS", "CUMSUM", "DENSIFY", "DYNAMIC_UPDATE_SLICE", "FAKE_QUANT", "IMAG"),
    *("L2_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION", "LOG_SOFTMAX", "REAL"),
    *("REVERSE_SEQUENCE", "REVERSE_V2", "SOFTMAX", "ZEROS_LIKE"),
)
_REDUCING = (
    *("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"),
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys((*ELEMENTWISE, "ATAN2"), _spread),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_REDUCING, _reduce),
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), window.pool),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), window.resize),
    **dict.fromkeys(("MIRROR_PAD", "PAD", "PADV2"), arrange.pad),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _place),
    "BATCH_MATMUL": _multiply,
    "BATCH_TO_SPACE_ND": window.batch_to_space,
    "BROADCAST_ARGS": lambda call: [(max(len(call.value(0)), len(call.value(1))),)],
    "BROADCAST_TO": arrange.broadcast_to,
    "CONCATENATION": arrange.concatenate,
    "CONV_2D": window.convolve,
    "DEPTHWISE_CONV_2D": window.convolve_depthwise,
    "DEPTH_TO_SPACE": window.depth_to_space,
    "EMBEDDING_LOOKUP": arrange.look_up,
    "EXPAND_DIMS": arrange.expand_dims,
    "FILL": arrange.fill,
    "FULLY_CONNECTED": _connect,
    "GATHER": arrange.gather,
    "GATHER_ND": arrange.gather_nd,
    "ONE_HOT": arrange.one_hot,
    "PACK": arrange.pack,
    "RANGE": arrange.count_up,
    "RANK": lambda _: [()],
    "RESHAPE": arrange.reshape,
    "RFFT2D": _transform,
    "SELECT": _choice,
    "SHAPE": lambda call: [(len(call.shape(0)),)],
    "SLICE": arrange.slice_out,
    "SPACE_TO_BATCH_ND": window.space_to_batch,
    "SPACE_TO_DEPTH": window.space_to_depth,
    "SPLIT": arrange.split,
    "SPLIT_V": arrange.split_at,
    "SQUEEZE": arrange.squeeze,
    "STRIDED_SLICE": arrange.strided_slice,
    "TILE": arrange.tile,
    "TOPK_V2": arrange.largest,
    "TRANSPOSE": arrange.transpose,
    "TRANSPOSE_CONV": arrange.fill,
    "UNPACK": arrange.unpack,
}
