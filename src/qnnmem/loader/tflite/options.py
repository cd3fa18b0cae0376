"""The options of operators that decide what shape they return."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# Table of the schema, and its fields as the generated bindings name them.
_POOL = ("Pool2DOptions", "Padding", "StrideW", "StrideH", "FilterWidth", "FilterHeight")
_REDUCE = ("ReducerOptions", "KeepDims")
_CONV = ("Padding", "StrideW", "StrideH", "DilationWFactor", "DilationHFactor")
_TABLES = {
    "AVERAGE_POOL_2D": _POOL,
    "BATCH_MATMUL": ("BatchMatMulOptions", "AdjX", "AdjY"),
    "CONCATENATION": ("ConcatenationOptions", "Axis"),
    "CONV_2D": ("Conv2DOptions", *_CONV),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", *_CONV),
    "DEPTH_TO_SPACE": ("DepthToSpaceOptions", "BlockSize"),
    "FULLY_CONNECTED": ("FullyConnectedOptions", "KeepNumDims"),
    "GATHER": ("GatherOptions", "Axis", "BatchDims"),
    "L2_POOL_2D": _POOL,
    "MAX_POOL_2D": _POOL,
    "MEAN": _REDUCE,
    "ONE_HOT": ("OneHotOptions", "Axis"),
    "PACK": ("PackOptions", "Axis"),
    "REDUCE_ALL": _REDUCE,
    "REDUCE_ANY": _REDUCE,
    "REDUCE_MAX": _REDUCE,
    "REDUCE_MIN": _REDUCE,
    "REDUCE_PROD": _REDUCE,
    "SPACE_TO_DEPTH": ("SpaceToDepthOptions", "BlockSize"),
    "STRIDED_SLICE": (
        *("StridedSliceOptions", "BeginMask", "EndMask", "EllipsisMask", "NewAxisMask"),
        *("ShrinkAxisMask", "Offset"),
    ),
    "SUM": _REDUCE,
    "UNPACK": ("UnpackOptions", "Axis"),
}
# Fields that are lists of numbers.
_LISTS = {"RESHAPE": ("ReshapeOptions", "NewShape"), "SQUEEZE": ("SqueezeOptions", "SqueezeDims")}
_LONGEST = 64

Options = Mapping[str, Any]


def table(op: Any, name: str) -> Any:
    """The options of an operator as a table of the schema; None where it has none."""
    found = op.BuiltinOptions()
    if found is None:
        return None
    options = getattr(import_module(f"tflite.{name}"), name)()
    options.Init(found.Bytes, found.Pos)
    return options


def read_options(op: Any, kind: str) -> Options:
    """The fields by their names; empty for operators whose shape needs none."""
    name, *fields = _TABLES.get(kind) or _LISTS.get(kind) or ("",)
    options = table(op, name) if name else None
    if options is None:
        return {}
    if kind not in _LISTS:
        return {field: int(getattr(options, field)()) for field in fields}
    (field,) = fields
    length = getattr(options, f"{field}Length")()
    if not 0 < length <= _LONGEST:
        return {}
    return {field: tuple(getattr(options, f"{field}AsNumpy")().tolist())}
