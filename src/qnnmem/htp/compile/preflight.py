"""Checks before a compile: warnings about late failures and slow compiles; sizes and limits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import ChildFailed, FreeDimensions, LoadError, UsageError
from qnnmem.htp.compile import (
    check_composed,
    check_options,
    fixed_source,
    is_composed,
    model_source,
)
from qnnmem.htp.compile.compiled import CompileOptions, HtpPrecision
from qnnmem.ir import Model
from qnnmem.loader.onnx.graph import attribute, bodies, integer, is_op
from qnnmem.loader.onnx.tensor import UNKNOWN
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import PD_BUDGET, Soc, limits_of, pd_budget
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.loader.onnx.passes.guard import GuardedModel
    from qnnmem.loader.onnx.passes.shape import ShapedModel

# --- Ranks: the compiler accepts a wrong rank at first and fails much later -----------------------
# Only ops whose rank follows without values are listed; other ranks stay unknown.


_BROADCAST = frozenset(
    {
        *("Add", "And", "BitShift", "Div", "Equal", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Where", "Xor"),
    }
)
_SAME = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool"),
        *("BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Concat", "Conv"),
        *("ConvTranspose", "Cos", "Cosh", "CumSum", "DepthToSpace", "DequantizeLinear"),
        *("Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "GlobalAveragePool"),
        *("GlobalMaxPool", "HardSigmoid", "HardSwish", "Hardmax", "Identity"),
        *("InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "Log"),
        *("LogSoftmax", "LpPool", "MaxPool", "Mish", "Neg", "Not", "PRelu", "Pad"),
        *("QuantizeLinear", "Reciprocal", "Relu", "Resize", "Round", "Selu", "Shrink"),
        *("Sigmoid", "Sign", "Sin", "Sinh", "Slice", "Softmax", "Softplus", "Softsign"),
        *("SpaceToDepth", "Split", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Tile", "TopK"),
        *("Transpose",),
    }
)
_FIXED = {"Flatten": (2,), "Gemm": (2,), "Shape": (1,), "LSTM": (4, 3, 3), "GRU": (4, 3)}


def wrong_ranks(graph: onnx.GraphProto, options: CompileOptions) -> Iterator[str]:
    """Yield a sentence for each tensor whose declared rank differs from its computed rank."""
    declared = {
        info.name: [size.dim_value or size.dim_param or "?" for size in _sizes(info)]
        for info in (*graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known = {name: len(tensor.dims) for name, tensor in constants.items()}
    for info in graph.input:
        if info.name in options.shapes:
            known[info.name] = len(options.shapes[info.name])
        elif info.type.tensor_type.HasField("shape"):
            known.setdefault(info.name, len(_sizes(info)))
    for node in graph.node:
        for name, rank in zip(node.output, _ranks(node, known, constants), strict=False):
            if rank is None:
                continue
            known[name] = rank
            if name in declared and len(declared[name]) != rank:
                shape = "x".join(map(str, declared[name])) or "scalar"
                which = f"{quote(node.name)} ({node.op_type})" if node.name else node.op_type
                yield (
                    f"tensor {quote(name)} is declared with {len(declared[name])} "
                    f"dimensions ({shape}), but {which} gives {rank}"
                )


def _sizes(info: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(info.type.tensor_type.shape.dim)


def _ranks(
    node: onnx.NodeProto, known: Mapping[str, int], constants: Mapping[str, onnx.TensorProto]
) -> tuple[int | None, ...]:
    """Return the rank of each output of a node; None for an output whose rank is unknown."""
    if node.domain not in ("", "ai.onnx"):
        return ()
    ranks = [known.get(name) for name in node.input if name]
    first, count = ranks[0] if ranks else None, len(node.output)
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type in _SAME:
        return (first,) * count
    if node.op_type in _BROADCAST:
        known_ranks = [rank for rank in ranks if rank is not None]
        return (max(known_ranks) if known_ranks and None not in ranks else None,)
    if node.op_type == "MatMul" and all(rank is not None and rank >= 2 for rank in ranks):
        return (max(rank for rank in ranks if rank is not None),)
    if node.op_type == "Gather" and len(ranks) == 2 and None not in ranks:
        return (sum(rank for rank in ranks if rank is not None) - 1,)
    if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in constants:
        return (_length(constants[node.input[1]]),)
    return (_reduced(node, first, constants),)


def _reduced(
    node: onnx.NodeProto, rank: int | None, constants: Mapping[str, onnx.TensorProto]
) -> int | None:
    """Return the rank after a node adds or removes axes; None if their number is unknown."""
    attributes = {item.name: item for item in node.attribute}
    kept = attributes["keepdims"].i if "keepdims" in attributes else 1
    if rank is None or node.op_type.startswith("ArgM"):
        return rank if kept or rank is None else rank - 1
    is_reduce = node.op_type.startswith("Reduce")
    if is_reduce and kept:
        return rank
    axes = next((constants[name] for name in node.input[1:2] if name in constants), None)
    count = len(attributes["axes"].ints) if "axes" in attributes else axes and _length(axes)
    if not count or not (is_reduce or node.op_type in ("Squeeze", "Unsqueeze")):
        return None
    return rank + count if node.op_type == "Unsqueeze" else rank - count


def _length(tensor: onnx.TensorProto) -> int | None:
    """Return the number of elements of a one-dimensional constant."""
    return tensor.dims[0] if len(tensor.dims) == 1 else None


# --- Constants that FP16 cannot hold --------------------------------------------------------------


LARGEST_FP16 = 65504.0
_MOST_BYTES = 256 << 20  # limit on the constants that are folded and examined
_FOLDING_S = 30.0  # a warning is not worth more time
_NAMED = 3
_FLOATS = (1, 11)  # TensorProto.FLOAT, DOUBLE
# Inputs that do not become FP16 tensors. Tested for Clip: limits of 3.4e38 do no harm.
_PARAMETERS = {
    "Clip": (1, 2),
    "DequantizeLinear": (0, 1, 2),
    "QuantizeLinear": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}
_FACTORS = ("alpha", "beta", "gamma")


@dataclass(frozen=True, slots=True)
class _Large:
    """A constant with values beyond FP16's range."""

    name: str
    operator: str  # the node that reads it
    over: int
    size: int
    largest: float


def may_overflow(path: Path, model: GuardedModel, options: CompileOptions) -> Iterator[str]:
    """Yield at most one warning that names the constants beyond FP16's range."""
    folded = _folded(path, model, options)
    search = _Search(path)
    large = search.large(folded or model.proto.graph, {})
    constants = {constant.name: constant for constant in large}
    if constants:
        named = [
            f"{quote(constant.name)} of {constant.operator} ({constant.over:,} of "
            f"{constant.size:,} values, the largest is {constant.largest:.3g})"
            for constant in list(constants.values())[:_NAMED]
        ]
        more = f" and {len(constants) - _NAMED} more" if len(constants) > _NAMED else ""
        yield (
            f"{counted(len(constants), 'constant')} might overflow: HTP computes in FP16, whose "
            f"largest value is {LARGEST_FP16:,.0f}: {', '.join(named)}{more}"
        )


def _folded(path: Path, model: GuardedModel, options: CompileOptions) -> onnx.GraphProto | None:
    """Return the graph after ONNX Runtime has folded its constants; None if that fails."""
    from qnnmem.loader.onnx.inputs import Fixed
    from qnnmem.loader.onnx.passes.resolve import open_model, resolve
    from qnnmem.loader.onnx.tensor import stored_bytes, tensors
    from qnnmem.loader.onnx.trial import TrialChild

    if sum(map(stored_bytes, tensors(model.proto))) > _MOST_BYTES:
        return None
    fixed = Fixed(options.dims, options.shapes, options.values)
    try:
        with TrialChild(path, min(_FOLDING_S, options.time_limit_s)) as child:
            return child.optimise(resolve(open_model(model, child), fixed).proto()).graph
    except (LoadError, UsageError, ChildFailed):  # the compile will report why
        return None


class _Search:
    """A search for constants beyond FP16's range, within a budget of bytes."""

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, _MOST_BYTES

    def large(
        self, graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]
    ) -> Iterator[_Large]:
        """Yield constants beyond FP16's range, in a graph and in all bodies inside it."""
        known = {**outer, **{item.name: item for item in _constants(graph)}}
        for node in graph.node:
            for body in bodies(node):
                yield from self.large(body, known)
            if is_op(node, "BatchNormalization") and all(name in known for name in node.input[1:]):
                yield from self._batch_norm(node, known)
                continue
            yield from _attributes(node)
            skipped = _PARAMETERS.get(node.op_type, ())
            for index, name in enumerate(node.input):
                if name in known and index not in skipped:
                    yield from _beyond(name, node, self._values(known[name]))

    def _batch_norm(
        self, node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto]
    ) -> Iterator[_Large]:
        """Yield the scale and offset that the library computes, if they are beyond FP16's range."""
        import numpy

        values = [self._values(known[name]) for name in node.input[1:5]]
        if any(value is None for value in values):
            return
        scale, bias, mean, variance = (numpy.asarray(value, "f8") for value in values)
        stored = attribute(node, "epsilon")
        epsilon = 1e-5 if stored is None else stored.f
        with numpy.errstate(all="ignore"):
            factor = scale / numpy.sqrt(variance + epsilon)
            for name, value in ((node.input[1], factor), (node.input[2], bias - mean * factor)):
                yield from _beyond(name, node, value)

    def _values(self, tensor: onnx.TensorProto) -> NDArray[Any] | None:
        """Return the numbers of a float constant, embedded or external; None for other types."""
        import numpy

        from qnnmem.loader.onnx.tensor import embed, stored_bytes

        if tensor.data_type not in _FLOATS or stored_bytes(tensor) > self._left:
            return None
        if tensor.data_location:
            outside, tensor = tensor, type(tensor)()
            tensor.CopyFrom(outside)
            try:
                embed(self._path, tensor)
            except LoadError:  # the compile will report it
                return None
        self._left -= stored_bytes(tensor)
        kind = "<f4" if tensor.data_type == _FLOATS[0] else "<f8"
        if tensor.raw_data:
            return numpy.frombuffer(tensor.raw_data, kind)
        return numpy.array(tensor.float_data or tensor.double_data, kind)


def _beyond(name: str, node: onnx.NodeProto, values: NDArray[Any] | None) -> Iterator[_Large]:
    """Yield a constant with finite values beyond FP16; infinities are intended and not counted."""
    import numpy

    if values is None:
        return
    size = numpy.abs(values[numpy.isfinite(values)])
    over = int((size > LARGEST_FP16).sum())
    if over:
        who = f"{node.op_type} {quote(node.name)}" if node.name else node.op_type
        yield _Large(name, who, over, int(values.size), float(size.max()))


def _attributes(node: onnx.NodeProto) -> Iterator[_Large]:
    """Yield factors beyond FP16's range that are attributes, e.g. of LeakyRelu."""
    import numpy

    for factor in node.attribute:
        if factor.name in _FACTORS:
            yield from _beyond(factor.name, node, numpy.array([factor.f]))


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a graph as tensors with the names that its nodes use."""
    import onnx

    yield from graph.initializer
    for node in graph.node:
        for stored in node.attribute if is_op(node, "Constant") else ():
            floats = [stored.f] if stored.name == "value_float" else list(stored.floats)
            if stored.name == "value":
                tensor = onnx.TensorProto()
                tensor.CopyFrom(stored.t)
            elif floats:
                tensor = onnx.TensorProto(data_type=1, dims=[len(floats)], float_data=floats)
            else:
                continue
            tensor.name = next(iter(node.output), "")
            yield tensor


# --- Warnings -------------------------------------------------------------------------------------


_RECURRENT = ("GRU", "LSTM", "RNN")
_MANY_STEPS = 200
_SHAPING_S = 60.0  # for shapes inside a model: a warning is not worth more time
# Measured: a GRU with 64 units for SM8650, onnxruntime-qnn 2.7.0, two shared cores.
_SEEN = "a GRU of 64 units took 5 s for 200 steps and 24 s for 400"


def preflight_warnings(path: Path, options: CompileOptions) -> tuple[str, ...]:
    """Return warnings about a model, with numbers; empty if the file cannot be read."""
    if options.trust or is_composed(path):  # its shapes are fixed and its recurrences unrolled
        return ()
    from qnnmem.loader.onnx import read_guarded

    try:
        model = read_guarded(path)
    except LoadError:  # the compile will report it
        return ()
    graph = model.proto.graph
    warnings = [*list(wrong_ranks(graph, options))[:_NAMED], *_unrolled(path, model, options)]
    if options.precision is HtpPrecision.FP16:
        warnings += may_overflow(path, model, options)
    return tuple(warnings)


def _unrolled(path: Path, model: GuardedModel, options: CompileOptions) -> Iterator[str]:
    """Yield a warning for each recurrent node with many steps, which the compiler unrolls."""
    if not any(map(_recurs, (model.proto.graph, *model.proto.functions))):
        return
    from qnnmem.loader.onnx.inputs import Fixed
    from qnnmem.loader.onnx.passes.resolve import open_model
    from qnnmem.loader.onnx.sizes.size_search import shape_model
    from qnnmem.loader.onnx.trial import TrialChild

    # Few files state the sequence length of tensors inside the model; shape inference finds it.
    fixed = Fixed(options.dims, options.shapes, options.values)
    try:
        with TrialChild(path, min(_SHAPING_S, options.time_limit_s)) as child:
            shaped = shape_model(open_model(model, child), fixed, child)
    except (LoadError, UsageError):  # the compile will report it
        return
    for node, steps in _recurrences(shaped):
        if steps >= _MANY_STEPS:
            which = quote(node.name or next(iter(node.output), ""))
            yield (
                f"{which} ({node.op_type}) runs {steps:,} steps, which the compiler "
                f"unrolls: this can take minutes and gigabytes ({_SEEN}); fewer steps, "
                "with the state as input and output, compile faster"
            )


def _recurs(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    return any(node.op_type in _RECURRENT or any(map(_recurs, bodies(node))) for node in graph.node)


def _recurrences(shaped: ShapedModel) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield each recurrent node with its number of steps, also in bodies of control flow."""
    for scope in shaped.scope.with_bodies():
        for node in scope.graph.node:
            if node.op_type in _RECURRENT and node.input:
                shape = scope.types.get(node.input[0], UNKNOWN).shape or ()
                axis = integer(node, "layout", 0)  # 1: the batch comes first
                yield node, shape[axis] if 0 <= axis < len(shape) else 0


# --- Sizes and limits, for machines without a compiler --------------------------------------------
# Invalid options are also refused here, so that nobody moves to another machine only to learn of a
# typing error.


Facts = tuple[tuple[str, Sourced], ...]

_BITS = {HtpPrecision.FP16: 16, HtpPrecision.INT8: 8, HtpPrecision.W8A16: 8}  # of weights
_SOCS = 3  # for more SoCs, the limits have their own table


def known_uncompiled(path: Path, socs: Sequence[Soc], options: CompileOptions) -> Facts:
    """Return a model's sizes and the limits of SoCs, every number with its origin."""
    for soc in socs:
        check_options(soc, options)
    if is_composed(path):
        check_composed(path, options)
    few = socs if len(socs) <= _SOCS else ()
    limits = dict(limit for soc in few for limit in limits_of(soc))
    limits = limits or {PD_BUDGET: pd_budget()}  # the same for all SoCs
    return (*_known_sizes(path, options), *limits.items())


def _known_sizes(path: Path, options: CompileOptions) -> Facts:
    """Return sizes of weights and IO; empty for models that only the compiler can read."""
    from qnnmem.loader import kind_of, load

    if options.trust:  # a model library composes graphs only inside the QNN library
        return ()
    try:
        model = load(path, dims=options.dims, shapes=options.shapes, values=options.values)
    except FreeDimensions:
        raise
    except LoadError:
        if kind_of(path) != "onnx":
            raise
        _check_readable(path, options)
        return ()
    if options.calibration is not None:
        _check_samples(options.calibration, model)
    return (*_weights(model, options.precision), *_io(model))


def _check_readable(path: Path, options: CompileOptions) -> None:
    """Raise the errors that a compile raises for a model before the library is called."""
    with tempfile.TemporaryDirectory(".qnnmem") as folder:
        is_float = options.precision is HtpPrecision.FP16
        (model_source if is_float else fixed_source)(path, options, Path(folder))


def _check_samples(place: Path, model: Model) -> None:
    from qnnmem.calibration import Input, find_samples

    tensors = (model.tensors[name] for name in model.inputs)
    find_samples(place, [Input(t.name, t.dtype.value, t.shape) for t in tensors])


def _weights(model: Model, precision: HtpPrecision) -> Facts:
    constants = [model.tensors[name] for name in model.constants]
    stored = sum(tensor.nbytes for tensor in constants)
    floats = [tensor for tensor in constants if tensor.dtype.is_float]
    real = sum(tensor.nbytes for tensor in floats)
    bits = _BITS[precision]
    converted = sum(tensor.nbytes_at(min(bits, tensor.dtype.bits)) for tensor in floats)
    compiled = stored - real + converted
    source = "constants as stored in the file"
    sizes = [("weights in the file", Sourced(stored, Origin.COMPUTED, source))]
    if compiled != stored and 2 * real > stored:  # the floats of a quantized model are scales
        source = f"{bits // 8} bytes for each float" if bits > 8 else "1 byte for each float"
        source += ", before the compiler packs them"
        sizes.append((f"weights as {precision.value}", Sourced(compiled, Origin.COMPUTED, source)))
    return tuple(sizes)


def _io(model: Model) -> Facts:
    source = "elements times element size, without padding"
    sides = (("inputs", model.inputs), ("outputs", model.outputs))
    sizes = ((side, sum(model.tensors[name].nbytes for name in names)) for side, names in sides)
    return tuple((side, Sourced(size, Origin.COMPUTED, source)) for side, size in sizes)
