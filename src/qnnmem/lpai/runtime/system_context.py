"""`QnnSystemContext`: what a binary holds, without creating a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qnnmem.lpai.binary import MALFORMED_BINARY, unpack
from qnnmem.lpai.compiled import CompiledGraph, Quant
from qnnmem.lpai.inspect import data_type
from qnnmem.lpai.runtime.client_buffer import ClientBuffer
from qnnmem.qnn.enums import TensorType
from qnnmem.qnn.tensor import QnnTensor, ScaleOffset


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """`QnnSystemContext_GraphInfo_t`: tensors are copies that the caller may change."""

    graph_name: str
    graph_inputs: tuple[QnnTensor, ...]
    graph_outputs: tuple[QnnTensor, ...]


def get_binary_info(binary: Any) -> tuple[GraphInfo, ...]:
    """`QnnSystemContext_getBinaryInfo`: graphs and their tensors; 30010 for a damaged binary."""
    context = unpack(ClientBuffer(binary).array.data, MALFORMED_BINARY)
    return tuple(GraphInfo(graph.name, *io_tensors(graph)) for graph in context.graphs)


def io_tensors(graph: CompiledGraph) -> tuple[tuple[QnnTensor, ...], tuple[QnnTensor, ...]]:
    """Descriptors of inputs and outputs, state not among them."""
    inputs = tuple(
        _tensor(graph, name, TensorType.APP_WRITE, at) for at, name in enumerate(graph.inputs)
    )
    first = len(inputs)
    outputs = tuple(
        _tensor(graph, name, TensorType.APP_READ, first + at)
        for at, name in enumerate(graph.outputs)
    )
    return inputs, outputs


def _tensor(graph: CompiledGraph, name: str, kind: TensorType, number: int) -> QnnTensor:
    tensor, quant = graph.model.tensors[name], graph.quants.get(name)
    return QnnTensor(
        id=number,
        name=name,
        type=kind,
        data_type=data_type(tensor.dtype, quant is not None),
        dimensions=tensor.shape,
        quantize_params=_encoding(quant),
    )


def _encoding(quant: Quant | None) -> ScaleOffset | None:
    return None if quant is None else ScaleOffset(quant.scale, -quant.zero_point)
