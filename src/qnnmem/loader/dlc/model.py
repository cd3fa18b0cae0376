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
    known = {names[tensor.id]: tensor for tensor in graph.tensors if tensor.id in names}
    tensors = {
        name: Tensor(name, _dtype(path, tensor), tensor.dimensions)
        for name, tensor in known.items()
    }
    ops = tuple(_op(path, position, op, names) for position, op in enumerate(graph.ops))
    for op in ops:
        _check_view(path, op, tensors)
    read = {name for op in ops for name in op.inputs}
    inputs = tuple(name for name, tensor in known.items() if tensor.type in _INPUTS | _BOTH)
    outputs = tuple(name for name, tensor in known.items() if tensor.type in _OUTPUTS | _BOTH)
    kept = {*read, *inputs, *outputs, *(name for op in ops for name in op.outputs)}
    return Model(
        graph.name or path.stem,
        "dlc",
        {name: tensor for name, tensor in tensors.items() if name in kept},
        ops,
        inputs,
        outputs,
        tuple(name for name, tensor in known.items() if tensor.type in STATIC and name in read),
        notes=tuple(_notes(graph, others)),
        encodings={
            name: (tensor.quantization.scales[0], -tensor.quantization.offsets[0])
            for name, tensor in known.items()
            if name in kept and tensor.quantization and has_one_scale(tensor)
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
    names: dict[int, str] = {}
    taken: set[str] = set()
    for tensor in graph.tensors:
        if tensor.type is TensorType.NULL:  # stands for an omitted input
            continue
        name = tensor.name or f"tensor {tensor.id}"
        names[tensor.id] = name if name not in taken else f"{name} ({tensor.id})"
        taken.add(names[tensor.id])
    return names


def _op(path: Path, position: int, op: ComposedOp, names: dict[int, str]) -> Op:
    ask_deadline()
    outputs = tuple(names[number] for number in op.outputs if number in names)
    if len(outputs) < len(op.outputs):
        raise LoadError(path, f"operator {quote(op.name)} writes a tensor that does not exist")
    inputs = tuple(names[number] for number in op.inputs if number in names)
    return Op(_shown(op), op.type, inputs, outputs, _effect(op), (position,))


def _check_view(path: Path, op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise LoadError if a view changes the number of elements."""
    if op.effect is Effect.VIEW and op.inputs and op.outputs:
        before, after = tensors[op.inputs[0]].elements, tensors[op.outputs[0]].elements
        if before != after:
            counts = f"{before:,} input elements but {after:,} output elements"
            raise LoadError(path, f"operator {quote(op.name)} has {counts}")


def _shown(op: ComposedOp) -> str:
    """Return the operator's name, followed by the names of its source nodes if they differ."""
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
            path, f"tensor {quote(tensor.name)} has type {kind.c_name}, which has no known size"
        )
    return DType(kind.numpy_name)
