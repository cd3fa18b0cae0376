"""The content of a context binary, nested the way qnn-context-binary-utility nests it.

Programs that read the vendor's JSON find the fields that they know. qnnmem's own fields are under
the key `qnnmem`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from qnnmem.ir import DType
from qnnmem.lpai.binary import MAJOR, MINOR
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.tcm import judge_binary
from qnnmem.planner import Io, PlacedBuffer, Pool
from qnnmem.planner.tcm_pool import TcmVerdict
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.tensor import SCALE_OFFSET, Quantization, TensorInfo
from qnnmem.results.context import VendorBinaryInfo, VendorGraph, VendorGraphInfo
from qnnmem.results.inspect import (
    InspectDocument,
    InspectedBinary,
    InspectedBuffer,
    InspectedGraph,
    InspectedState,
    InspectedTensor,
)

# The interface that this runtime follows: QNN headers of SDK 2.36.
CORE_API = "2.27.0"
LPAI_API = "2.19.0"
BLOB_VERSION = "1.0.0"
_LPAI: Final = 12  # backend id

_PACKED = {DType.INT4: DataType.SFIXED_POINT_4, DType.UINT4: DataType.UFIXED_POINT_4}
_QNN_TYPES = {(data.numpy_name, data.is_quantized): data for data in DataType if data.bits >= 8}


def binary_info(context: CompiledContext, file_bytes: int) -> InspectDocument:
    """Return the description of a context, without the bytes of programs and constants.

    `file_bytes` is the size of the context's binary.
    """
    tcm = judge_binary(context, file_bytes)
    info = VendorBinaryInfo(
        backend_id=_LPAI,
        build_id=context.producer,
        core_api_version=CORE_API,
        backend_api_version=LPAI_API,
        context_blob_version=BLOB_VERSION,
        context_blob_size=file_bytes,
        num_graphs=len(context.graphs),
        graphs=tuple(
            VendorGraph(VendorGraphInfo.of(graph.name, *io_tensors(graph), with_mem_type=False))
            for graph in context.graphs
        ),
    )
    ours = InspectedBinary(
        producer=context.producer,
        hw_version=context.hw_version,
        format_version=f"{MAJOR}.{MINOR}",
        file_bytes=file_bytes,
        constants_bytes=context.constants.nbytes,
        tcm=None if tcm.together is None else tcm.together.answer,
        graphs=tuple(map(_inspected, context.graphs, tcm.graphs)),
    )
    return InspectDocument(info=info, qnnmem=ours)


def data_type(dtype: DType, quantized: bool) -> DataType:
    """Return the QNN type of a tensor; quantized integers have a fixed-point type."""
    if dtype in _PACKED:
        return _PACKED[dtype]
    plain = _QNN_TYPES.get((dtype.value, False), DataType.UNDEFINED)
    return _QNN_TYPES.get((dtype.value, True), plain) if quantized else plain


def io_tensors(graph: CompiledGraph) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Return the inputs and the outputs of a graph, without state."""

    def infos(names: Iterable[str], kind: TensorType, first: int) -> tuple[TensorInfo, ...]:
        return tuple(_tensor(graph, name, kind, number) for number, name in enumerate(names, first))

    outputs = infos(graph.outputs, TensorType.APP_READ, len(graph.inputs))
    return infos(graph.inputs, TensorType.APP_WRITE, 0), outputs


def _tensor(graph: CompiledGraph, name: str, kind: TensorType, number: int) -> TensorInfo:
    tensor, quant = graph.model.tensors[name], graph.quants.get(name)
    encoding = None
    if quant is not None:  # QNN adds its offset, ONNX subtracts its zero point
        encoding = Quantization(SCALE_OFFSET, (quant.scale,), (-quant.zero_point,))
    dtype = data_type(tensor.dtype, quant is not None)
    return TensorInfo(number, name, kind, dtype, tensor.shape, encoding)


# --- The fields of qnnmem ------------------------------------------------------------------------


def _inspected(graph: CompiledGraph, tcm: TcmVerdict | None) -> InspectedGraph:
    def rows(names: Iterable[str]) -> tuple[InspectedTensor, ...]:
        return tuple(_tensor_row(graph, name) for name in names)

    return InspectedGraph(
        name=graph.name,
        ops=len(graph.model.ops),
        float_ops=graph.float_ops,
        program_bytes=len(graph.program),
        in_order=graph.in_order,
        align=graph.align,
        io=graph.io.value,
        pools=_pools(graph),
        inputs=rows(graph.inputs),
        outputs=rows(graph.outputs),
        states=tuple(InspectedState(*rows(pair)) for pair in graph.states),
        windows=graph.windows,
        constants=len(graph.constants),
        buffers=tuple(map(_buffer, graph.buffers)),
        notes=graph.notes,
        tcm=None if tcm is None else tcm.answer,
    )


def _pools(graph: CompiledGraph) -> dict[str, int]:
    ends = [buffer.offset + buffer.size for buffer in graph.buffers if buffer.pool is Pool.IO]
    pools = {"scratch": int(graph.scratch_bytes), "persistent": int(graph.persistent_bytes)}
    if graph.io is Io.OUTSIDE:
        pools["io"] = max(ends, default=0)
    # Graphs may share constants, so a shared range counts once.
    stored = {(constant.offset, constant.size) for constant in graph.constants}
    return pools | {"constants": sum(size for _, size in stored)}


def _tensor_row(graph: CompiledGraph, name: str) -> InspectedTensor:
    tensor, quant = graph.model.tensors[name], graph.quants.get(name)
    buffer = graph.buffer_of.get(name)
    return InspectedTensor(
        name=name,
        data_type=data_type(tensor.dtype, quant is not None).name,
        shape=tensor.shape,
        bytes=tensor.nbytes,
        scale=quant.scale if quant else None,
        zero_point=quant.zero_point if quant else None,
        pool=buffer.pool.value if buffer else Pool.CONSTANTS.value,
        offset=buffer.offset if buffer else None,
    )


def _buffer(buffer: PlacedBuffer) -> InspectedBuffer:
    return InspectedBuffer(
        name=buffer.name,
        pool=buffer.pool.value,
        offset=buffer.offset,
        size=buffer.size,
        first_step=buffer.live.lower,
        end_step=buffer.live.upper,
        aliases=buffer.aliases,
    )
