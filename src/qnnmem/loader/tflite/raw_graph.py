"""TFLite flatbuffers as plain values: tensors, operators, and their effect on memory.

The generated bindings check nothing: an offset can lead anywhere and a vector can claim any length.
So the length of every vector is compared with the file's size before the vector is read. All
decoding shares one budget, because a small file can point to the same table a million times.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from qnnmem.errors import LoadError
from qnnmem.ir import DType

# Cost of a table, in the unit of the budget; a string or vector costs its bytes.
_TABLE_COST = 64
# Budget per byte of file. The most compact real files, without weights, cost 1.8 (measured).
_SHARING = 4
_MAX_BUDGET = 1 << 25
_INDEX_BYTES = {1: 4, 2: 2, 3: 1}  # bytes of one index, by type of SparseIndexVector
_SHORT = 512  # bytes of a buffer that may hold sizes: 64 numbers of 64 bits


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as stored in the file."""

    name: str
    type: int
    shape: tuple[int, ...]
    signature: tuple[int, ...]  # like `shape` with -1 for open sizes; often absent
    stored: int  # bytes of its buffer in the file; 0 for none
    buffer: int  # index of that buffer; tensors of equal content share it
    data: bytes | memoryview  # stored bytes: all, or only those that may be sizes of other tensors
    variable: bool
    sparse: bool
    has_rank: bool
    index_bytes: int = 0  # bytes of a sparse tensor's indices, in addition to its values
    # Encoding of integers, per tensor or along an axis; read for execution only.
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True, slots=True)
class RawOp:
    """An operator with indexes into its subgraph's tensors; -1 is an absent input."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraphs: tuple[int, ...] = ()
    variable: str = ""  # the variable that a VAR_HANDLE names
    custom: bool = False  # `type` is a name chosen by the author
    options: Options = field(default_factory=dict)  # options that a rule or a translation uses


@dataclass(frozen=True, slots=True)
class RawGraph:
    """A subgraph of a TFLite file, as stored."""

    name: str
    tensors: tuple[RawTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[RawOp, ...]


def decode(path: Path, content: Any, *, whole: bool = False) -> tuple[RawGraph, ...]:
    """Return the subgraphs of a TFLite flatbuffer; subgraph 0 is the main graph.

    With `whole`, tensors have all of their bytes, as views of `content`, and their scales.
    """
    from tflite.Model import Model

    try:
        return _Decoder(content, whole).graphs(Model.GetRootAs(content, 0))
    except (struct.error, TypeError, ValueError, IndexError, AttributeError, OverflowError) as exc:
        raise LoadError(path, "is damaged: not a valid TFLite flatbuffer") from exc


_Buffer = tuple[int, bytes | memoryview]  # stored size, and the bytes if they are few


class _Decoder:
    """Decoder of one flatbuffer, with a limit on the total amount of decoded data."""

    def __init__(self, content: Any, whole: bool) -> None:
        self._content, self._whole = content, whole
        self._size = len(content)
        self._left = min(_SHARING * self._size, _MAX_BUDGET)

    def graphs(self, model: Any) -> tuple[RawGraph, ...]:
        buffers = [self._stored(model.Buffers(j)) for j in self._rows(model.BuffersLength())]
        codes = [
            self._code(model.OperatorCodes(j)) for j in self._rows(model.OperatorCodesLength())
        ]
        return tuple(
            self._graph(model.Subgraphs(j), buffers, codes)
            for j in self._rows(model.SubgraphsLength())
        )

    def _graph(self, graph: Any, buffers: list[_Buffer], codes: list[tuple[str, bool]]) -> RawGraph:
        return RawGraph(
            self._text(graph.Name),
            tuple(
                self._tensor(graph.Tensors(j), buffers) for j in self._rows(graph.TensorsLength())
            ),
            self._numbers(graph.InputsLength(), graph.InputsAsNumpy),
            self._numbers(graph.OutputsLength(), graph.OutputsAsNumpy),
            tuple(self._op(graph.Operators(j), codes) for j in self._rows(graph.OperatorsLength())),
        )

    def _tensor(self, tensor: Any, buffers: list[_Buffer]) -> RawTensor:
        buffer = tensor.Buffer() if buffers else 0
        stored, data = buffers[buffer] if buffers else (0, b"")
        return RawTensor(
            self._text(tensor.Name),
            tensor.Type(),
            self._numbers(tensor.ShapeLength(), tensor.ShapeAsNumpy),
            self._numbers(tensor.ShapeSignatureLength(), tensor.ShapeSignatureAsNumpy),
            stored,
            buffer,
            data,
            tensor.IsVariable(),
            tensor.Sparsity() is not None,
            tensor.HasRank(),
            self._index_bytes(tensor.Sparsity()),
            *(self._quantization(tensor.Quantization()) if self._whole else ()),
        )

    def _quantization(self, table: Any) -> tuple[tuple[float, ...], tuple[int, ...], int]:
        """Return scales, zero points and their axis."""
        if table is None:
            return (), (), 0
        scales = self._numbers(table.ScaleLength(), table.ScaleAsNumpy)
        zeros = self._numbers(table.ZeroPointLength(), table.ZeroPointAsNumpy)
        return scales, zeros, table.QuantizedDimension()

    def _index_bytes(self, sparsity: Any) -> int:
        """Return the bytes of a sparse tensor's indices."""
        total = 0
        for row in self._rows(0 if sparsity is None else sparsity.DimMetadataLength()):
            size = sparsity.DimMetadata(row)
            for kind, read in (
                (size.ArraySegmentsType(), size.ArraySegments),
                (size.ArrayIndicesType(), size.ArrayIndices),
            ):
                indices = read() if kind in _INDEX_BYTES else None
                if indices is not None:  # a table with one field, a vector
                    vector = indices.Offset(4)
                    total += _INDEX_BYTES[kind] * (indices.VectorLen(vector) if vector else 0)
        if total > self._size:
            raise ValueError("indices lie beyond the end of the file")
        return total

    def _op(self, op: Any, codes: list[tuple[str, bool]]) -> RawOp:
        kind, custom = codes[op.OpcodeIndex()]
        return RawOp(
            kind,
            self._numbers(op.InputsLength(), op.InputsAsNumpy),
            self._numbers(op.OutputsLength(), op.OutputsAsNumpy),
            () if custom else _subgraphs(op, kind),
            self._handle(op) if kind == "VAR_HANDLE" and not custom else "",
            custom,
            {} if custom else _read_options(op, kind),
        )

    def _handle(self, op: Any) -> str:
        options = _options(op, "VarHandleOptions")
        container, name = self._text(options.Container), self._text(options.SharedName)
        return f"{container}/{name}" if container else name

    def _stored(self, buffer: Any) -> _Buffer:
        # Files above 2 GB store buffers after the flatbuffer; offsets 0 and 1 mean "not used".
        external = int(buffer.Size()) if buffer.Offset() > 1 else 0
        stored = external or int(buffer.DataLength())
        if stored > self._size:
            raise ValueError("a buffer lies beyond the end of the file")
        if self._whole and stored:
            if not external:
                return stored, memoryview(buffer.DataAsNumpy())
            start = buffer.Offset()
            if start + stored > self._size:
                raise ValueError("a buffer lies beyond the end of the file")
            return stored, memoryview(self._content)[start : start + stored]
        if external or not 0 < stored <= _SHORT:
            return stored, b""
        self._pay(stored)
        return stored, buffer.DataAsNumpy().tobytes()

    def _code(self, code: Any) -> tuple[str, bool]:
        # The first field is the older 8-bit field; writers fill either field or both.
        number = max(code.DeprecatedBuiltinCode(), code.BuiltinCode())
        name = builtin_names().get(number, f"BUILTIN_{number}")
        custom = name == "CUSTOM"
        return (self._text(code.CustomCode) or name) if custom else name, custom

    def _rows(self, length: int) -> Iterator[int]:
        if length * 4 > self._size:
            raise ValueError("a vector lies beyond the end of the file")
        for row in range(length):
            self._pay(_TABLE_COST)
            yield row

    def _numbers(self, length: int, read: Callable[[], Any]) -> tuple[Any, ...]:
        self._pay(4 * length)
        return tuple(read().tolist()) if length else ()

    def _text(self, read: Callable[[], bytes | None]) -> str:
        text = read() or b""
        self._pay(len(text))
        return text.decode("utf-8", "backslashreplace")

    def _pay(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise ValueError("the tables, vectors and strings together are larger than the file")


@cache
def builtin_names() -> dict[int, str]:
    """Return the names of TFLite's built-in operators, keyed by number."""
    from tflite.BuiltinOperator import BuiltinOperator

    return {v: k for k, v in vars(BuiltinOperator).items() if isinstance(v, int)}


def _options(op: Any, name: str) -> Any:
    options = _options_table(op, name)
    if options is None:
        raise ValueError("an operator has no options")
    return options


def _subgraphs(op: Any, kind: str) -> tuple[int, ...]:
    """Return indexes of the subgraphs that an operator runs."""
    if kind == "IF":
        options = _options(op, "IfOptions")
        return (options.ThenSubgraphIndex(), options.ElseSubgraphIndex())
    if kind == "WHILE":
        options = _options(op, "WhileOptions")
        return (options.CondSubgraphIndex(), options.BodySubgraphIndex())
    if kind == "CALL":
        return (_options(op, "CallOptions").Subgraph(),)
    if kind == "CALL_ONCE":
        return (_options(op, "CallOnceOptions").InitSubgraphIndex(),)
    return ()


# Options table of each operator in the schema, and its fields as in the generated bindings.
_ACTIVATION = "FusedActivationFunction"
_POOL = (
    *("Pool2DOptions", "Padding", "StrideW", "StrideH", "FilterWidth", "FilterHeight"),
    _ACTIVATION,
)
_REDUCE = ("ReducerOptions", "KeepDims")
_CONV = ("Padding", "StrideW", "StrideH", "DilationWFactor", "DilationHFactor", _ACTIVATION)
_RESIZE = ("AlignCorners", "HalfPixelCenters")
_TABLES = {
    "ADD": ("AddOptions", _ACTIVATION, "PotScaleInt16"),
    "AVERAGE_POOL_2D": _POOL,
    "BATCH_MATMUL": ("BatchMatMulOptions", "AdjX", "AdjY"),
    "CONCATENATION": ("ConcatenationOptions", "Axis", _ACTIVATION),
    "CONV_2D": ("Conv2DOptions", *_CONV),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", *_CONV),
    "CUMSUM": ("CumsumOptions", "Exclusive", "Reverse"),
    "DEPTH_TO_SPACE": ("DepthToSpaceOptions", "BlockSize"),
    "DIV": ("DivOptions", _ACTIVATION),
    "FULLY_CONNECTED": (
        *("FullyConnectedOptions", "KeepNumDims", "WeightsFormat", _ACTIVATION),
        "AsymmetricQuantizeInputs",
    ),
    "GATHER": ("GatherOptions", "Axis", "BatchDims"),
    "GELU": ("GeluOptions", "Approximate"),
    "L2_NORMALIZATION": ("L2NormOptions", _ACTIVATION),
    "L2_POOL_2D": _POOL,
    "LEAKY_RELU": ("LeakyReluOptions", "Alpha"),
    "MAX_POOL_2D": _POOL,
    "MEAN": _REDUCE,
    "MIRROR_PAD": ("MirrorPadOptions", "Mode"),
    "MUL": ("MulOptions", _ACTIVATION),
    "ONE_HOT": ("OneHotOptions", "Axis"),
    "PACK": ("PackOptions", "Axis"),
    "REDUCE_ALL": _REDUCE,
    "REDUCE_ANY": _REDUCE,
    "REDUCE_MAX": _REDUCE,
    "REDUCE_MIN": _REDUCE,
    "REDUCE_PROD": _REDUCE,
    "RESIZE_BILINEAR": ("ResizeBilinearOptions", *_RESIZE),
    "RESIZE_NEAREST_NEIGHBOR": ("ResizeNearestNeighborOptions", *_RESIZE),
    "SOFTMAX": ("SoftmaxOptions", "Beta"),
    "SPACE_TO_DEPTH": ("SpaceToDepthOptions", "BlockSize"),
    "STRIDED_SLICE": (
        *("StridedSliceOptions", "BeginMask", "EndMask", "EllipsisMask", "NewAxisMask"),
        *("ShrinkAxisMask", "Offset"),
    ),
    "SUB": ("SubOptions", _ACTIVATION, "PotScaleInt16"),
    "SUM": _REDUCE,
    "TRANSPOSE_CONV": ("TransposeConvOptions", "Padding", "StrideW", "StrideH", _ACTIVATION),
    "UNPACK": ("UnpackOptions", "Axis"),
}
# Fields that are lists of numbers.
_LISTS = {"RESHAPE": ("ReshapeOptions", "NewShape"), "SQUEEZE": ("SqueezeOptions", "SqueezeDims")}
_LONGEST = 64

Options = Mapping[str, Any]


def _options_table(op: Any, name: str) -> Any:
    """Return the options table of an operator; None if there is none."""
    raw = op.BuiltinOptions()
    if raw is None:
        return None
    options = getattr(import_module(f"tflite.{name}"), name)()
    options.Init(raw.Bytes, raw.Pos)
    return options


def _read_options(op: Any, kind: str) -> Options:
    """Return those options of an operator that a rule or a translation uses, by name."""
    name, *fields = _TABLES.get(kind) or _LISTS.get(kind) or ("",)
    options = _options_table(op, name) if name else None
    if options is None:
        return {}
    if kind not in _LISTS:
        return {field: getattr(options, field)() for field in fields}
    (field,) = fields
    length = getattr(options, f"{field}Length")()
    if not 0 < length <= _LONGEST:
        return {}
    return {field: tuple(getattr(options, f"{field}AsNumpy")().tolist())}


# Numbers of TensorType in the TFLite schema; strings, resources and variants have no fixed size.
DTYPES = {
    0: DType.FLOAT32,
    1: DType.FLOAT16,
    2: DType.INT32,
    3: DType.UINT8,
    4: DType.INT64,
    6: DType.BOOL,
    7: DType.INT16,
    8: DType.COMPLEX64,
    9: DType.INT8,
    10: DType.FLOAT64,
    11: DType.COMPLEX128,
    12: DType.UINT64,
    15: DType.UINT32,
    16: DType.UINT16,
    17: DType.INT4,
    18: DType.BFLOAT16,
    19: DType.UINT4,
}
RESOURCE = 13
UNSIZED = {5: "strings", 13: "a resource", 14: "a variant"}

VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})

# Operators that return the values of a constant input unchanged: float16 weights, or sparse
# weights, which are counted dense.
STORED_FORMS = VIEWS | {"DEQUANTIZE", "DENSIFY"}

# Operators whose result depends only on the input's shape, not on its elements.
SHAPE_QUERIES = frozenset({"SHAPE", "RANK"})

# Operators whose result can differ between runs, or that run other graphs.
NEVER_FOLDED = frozenset(
    (
        *("ASSIGN_VARIABLE", "BUFFERIZE", "CALL", "CALL_ONCE", "DELEGATE", "HASHTABLE"),
        *("HASHTABLE_IMPORT", "IF", "MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"),
        *("READ_VARIABLE", "STABLEHLO_RNG_BIT_GENERATOR", "VAR_HANDLE", "WHILE"),
    )
)

# Operators whose output size depends on the values that they read.
DATA_DEPENDENT = frozenset({"WHERE", "UNIQUE"})

# Operators that run a nested graph in a way that this reader does not support.
UNFOLLOWED = frozenset({"STABLEHLO_CASE", "STABLEHLO_WHILE"})

ELEMENTWISE = frozenset(
    (
        *("ABS", "ADD", "ADD_N", "BITWISE_XOR", "CAST", "CEIL", "COS", "DEQUANTIZE", "DIV"),
        *("ELU", "EQUAL", "EXP", "FLOOR", "FLOOR_DIV", "FLOOR_MOD", "GELU", "GREATER"),
        *("GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS", "LESS_EQUAL", "LOG"),
        *("LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGISTIC", "MAXIMUM", "MINIMUM"),
        *("MUL", "NEG", "NOT_EQUAL", "POW", "PRELU", "QUANTIZE", "RELU", "RELU6"),
        *("RELU_0_TO_1", "RELU_N1_TO_1", "RIGHT_SHIFT", "ROUND", "RSQRT", "SELECT"),
        *("SELECT_V2", "SIGN", "SIN", "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "SUB"),
        *("TANH",),
    )
)
