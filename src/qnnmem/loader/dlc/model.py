"""A QNN graph as a model: its tensors, each operator's effect on memory, and its IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qnnmem.deadline import ask_deadline
from qnnmem.errors import LoadError
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import STATIC, ComposedGraph, ComposedOp, ComposedTensor
from qnnmem.text import counted, quote

_INPUTS = {TensorType.APP_WRITE, TensorType.UPDATEABLE_APP_WRITE, TensorType.OPTIONAL_APP_WRITE}
_OUTPUTS = {TensorType.APP_READ, TensorType.UPDATEABLE_APP_READ, TensorType.OPTIONAL_APP_READ}
_BOTH = {
    TensorType.APP_READWRITE,
    TensorType.UPDATEABLE_APP_READWRITE,
    TensorType.OPTIONAL_APP_READWRITE,
}

# Output 0 is input 0 with other dimensions.
_VIEWS = frozenset({"Reshape", "ExpandDims", "Squeeze"})
# Each output element depends only on the input element at the same position.
_ELEMENTWISE = frozenset(
    {
        *("Cast", "Convert", "Quantize", "Dequantize", "Batchnorm", "Prelu", "HardSwish", "Gelu"),
        *("Elu", "Relu", "Relu1", "Relu6", "ReluMinMax", "Sigmoid", "Tanh", "Softplus"),
    }
)
_DTYPES = {
    DataType.BOOL_8: DType.BOOL,
    DataType.SFIXED_POINT_4: DType.INT4,
    DataType.UFIXED_POINT_4: DType.UINT4,
}


def as_model(path: Path, graph: ComposedGraph, others: tuple[str, ...] = ()) -> Model:
    """Return the model of a graph, with its operators in the order of composition."""
    names = names_of(graph)
    tensors = {
        names[one.id]: Tensor(names[one.id], _dtype(path, one), one.dimensions)
        for one in graph.tensors
        if one.id in names
    }
    ops = tuple(_op(path, place, op, names) for place, op in enumerate(graph.ops))
    for op in ops:
        _check_view(path, op, tensors)
    read = {name for op in ops for name in op.inputs}
    kinds = {names[one.id]: one.type for one in graph.tensors if one.id in names}
    constants = tuple(name for name, kind in kinds.items() if kind in STATIC and name in read)
    kept = {*read, *(name for op in ops for name in op.outputs)}
    kept |= {name for name, kind in kinds.items() if kind in _INPUTS | _OUTPUTS | _BOTH}
    return Model(
        graph.name or path.stem,
        "dlc",
        {name: tensor for name, tensor in tensors.items() if name in kept},
        ops,
        tuple(name for name, kind in kinds.items() if kind in _INPUTS | _BOTH),
        tuple(name for name, kind in kinds.items() if kind in _OUTPUTS | _BOTH),
        constants,
        notes=tuple(_notes(graph, others)),
        encodings={
            names[one.id]: (one.quantization.scales[0], -one.quantization.offsets[0])
            for one in graph.tensors
            if names.get(one.id) in kept and one.quantization and has_one_scale(one)
        },
    )


def has_one_scale(tensor: ComposedTensor) -> bool:
    """Return whether a fixed-point tensor has a single scale for all elements."""
    quant = tensor.quantization
    scaled = quant is not None and len(quant.scales) == len(quant.offsets) == 1
    return tensor.data_type.is_quantized and scaled


def _notes(graph: ComposedGraph, others: tuple[str, ...]) -> Iterator[str]:
    if others:
        listed = ", ".join(map(quote, others[:5])) + (", …" if len(others) > 5 else "")
        named = counted(len(others), "more graph")
        yield f"only graph {quote(graph.name)} was read; the file contains {named}: {listed}"


def names_of(graph: ComposedGraph) -> dict[int, str]:
    """Return a unique name for every tensor except omitted inputs, by tensor id."""
    found: dict[int, str] = {}
    taken: set[str] = set()
    for tensor in graph.tensors:
        if tensor.type is TensorType.NULL:  # represents an omitted input
            continue
        name = tensor.name or f"tensor {tensor.id}"
        found[tensor.id] = name if name not in taken else f"{name} ({tensor.id})"
        taken.add(found[tensor.id])
    return found


def _op(path: Path, place: int, op: ComposedOp, names: dict[int, str]) -> Op:
    ask_deadline()
    outputs = tuple(names[one] for one in op.outputs if one in names)
    if len(outputs) < len(op.outputs):
        raise LoadError(path, f"operator {quote(op.name)} writes a tensor that does not exist")
    inputs = tuple(names[one] for one in op.inputs if one in names)
    return Op(_shown(op), op.type, inputs, outputs, _effect(op), (place,))


def _check_view(path: Path, op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise LoadError if a view changes the number of elements."""
    if op.effect is Effect.VIEW and op.inputs and op.outputs:
        before, after = tensors[op.inputs[0]].elements, tensors[op.outputs[0]].elements
        if before != after:
            what = (
                f"operator {quote(op.name)} has {before:,} input elements but {after:,} output "
                "elements"
            )
            raise LoadError(path, what)


def _shown(op: ComposedOp) -> str:
    """Return the operator's name, with source node names if the converter renamed them."""
    others = [name for name in op.origins if name != op.name]
    return f"{op.name} (from {', '.join(others)})" if others else op.name


def _effect(op: ComposedOp) -> Effect:
    if op.type in _VIEWS:
        return Effect.VIEW
    alike = op.type.startswith("ElementWise") or op.type in _ELEMENTWISE
    return Effect.ELEMENTWISE if alike else Effect.COMPUTE


def _dtype(path: Path, tensor: ComposedTensor) -> DType:
    kind = tensor.data_type
    if kind in _DTYPES:
        return _DTYPES[kind]
    if kind.bits == 0:
        raise LoadError(
            path, (f"tensor {quote(tensor.name)} has type {kind.c_name}, which has no known size")
        )
    return DType(kind.numpy_name)
