"""Execute an HTP context binary with registered memory, then forget to deregister it.

    python examples/qmem_client.py model.bin

The graph is executed by the real HTP library, so this needs the extra `htp` on Linux x86-64. The
lines follow those of a client in C: rpcmem, QnnMem_register, QnnGraph_execute, QnnMem_deRegister.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qnnmem import htp
from qnnmem.errors import QnnError
from qnnmem.qnn.enums import MemRegisterType, TensorMemType
from qnnmem.qnn.shared_memory import MemHandle

ALIGNMENT = 64


def register(
    context: htp.HtpClientContext, graph: htp.HtpClientGraph
) -> tuple[htp.SharedBuffer, list[MemHandle]]:
    """Register one shared buffer for all tensors; return a handle for each tensor."""
    tensors = graph.described.tensors
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    buffer = htp.rpcmem_alloc(htp.RPCMEM_HEAP_ID_SYSTEM, htp.RPCMEM_DEFAULT_FLAGS, sum(sizes))
    if buffer is None:
        sys.exit("rpcmem_alloc gave NULL")
    descriptors = [
        htp.HtpMemDescriptor(
            tensor.dimensions or (1,),
            tensor.data_type,
            htp.rpcmem_to_fd(buffer),
            MemRegisterType.CUSTOM,
            htp.HtpMemType.SHARED_BUFFER,
            buffer.size,
            sum(sizes[:number]),
        )
        for number, tensor in enumerate(tensors)
    ]
    return buffer, context.mem_register(descriptors)


def main(path: Path) -> None:
    """Execute twice with the same handles, then free them in the wrong order."""
    backend = htp.HtpBackend.create()
    context = htp.HtpClientContext.create_from_binary(backend, path)
    graph = context.graph_retrieve()
    buffer, handles = register(context, graph)
    inputs, outputs = graph.tensors()
    for tensor, handle in zip([*inputs, *outputs], handles, strict=True):
        tensor.mem_type, tensor.mem_handle = TensorMemType.MEMHANDLE, handle
    for number in range(2):  # a handle serves any number of executions
        ran = graph.execute(inputs, outputs)
        print(f"execution {number}: {ran.copied_in + ran.copied_out} bytes copied")
    context.mem_deregister(handles)
    try:
        graph.execute(inputs, outputs)
    except QnnError as error:
        print(f"code {error.code}, rule {error.finding.rule}: {error.finding.sentence}")
        print(f"cure: {error.finding.cure}")
    (kept,) = context.mem_register(
        [
            htp.HtpMemDescriptor(
                inputs[0].dimensions or (1,), inputs[0].data_type, htp.rpcmem_to_fd(buffer)
            )
        ]
    )
    htp.rpcmem_free(buffer)  # too early: `kept` is still registered
    context.free()
    print(f"{kept.size} bytes were never deregistered:")
    for finding in backend.free():
        print(f"[{finding.rule}] {finding.sentence}")
        print(f"    {finding.line}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
