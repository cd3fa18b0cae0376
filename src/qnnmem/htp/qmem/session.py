"""Open, run and close a binary with all memory registered and freed in the right order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qnnmem.arguments import expect_mapping
from qnnmem.errors import OutputError, UsageError
from qnnmem.finding import Finding
from qnnmem.htp.qmem.client import HtpBackend, HtpClientContext
from qnnmem.htp.qmem.layer import Compute, numpy_type
from qnnmem.htp.qmem.memory import HtpMemDescriptor, SharedBuffer, packed_offsets
from qnnmem.htp.qmem.rpcmem import (
    RPCMEM_DEFAULT_FLAGS,
    RPCMEM_HEAP_ID_SYSTEM,
    rpcmem_alloc,
    rpcmem_free,
)
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.results.qmem import Inference, IoMode
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHOWN = 8


class HtpSession:
    """One graph of an HTP context binary, ready to run.

    With `io` memhandle all inputs and outputs lie in one shared buffer, registered once for every
    run; with raw they are plain memory, which the backend copies. Values are as the graph stores
    them: a quantized tensor takes and gives its integers.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        graph: str | None = None,
        io: str = "memhandle",
        soc: str | None = None,
        compute: Compute | None = None,
    ) -> None:
        if io not in [mode.value for mode in IoMode]:
            raise UsageError(
                f"inputs and outputs are handed over raw or memhandle, not {quote(io)}"
            )
        self.backend = HtpBackend.create(compute=compute)
        self.context = HtpClientContext.create_from_binary(self.backend, path, soc=soc)
        try:
            self.graph = self.context.graph_retrieve(graph)
        except BaseException:  # nobody has a session to close
            self.context.free()
            self.backend.free()
            raise
        self.last: Inference | None = None  # what the latest run reserved and copied
        self._inputs, self._outputs = self.graph.tensors()
        self._views: dict[str, memoryview] = {}
        self._buffer: SharedBuffer | None = None
        self._handles: list[MemHandle] = []
        self._set_up(IoMode(io))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the outputs of one inference; the arrays are copies."""
        import numpy

        given = expect_mapping(feeds, "inputs are given as a mapping from their names to arrays")
        inputs = {tensor.name: tensor for tensor in self.graph.described.inputs}
        for name in given.keys() ^ inputs.keys():
            known = ", ".join(map(quote, list(inputs)[:_SHOWN]))
            raise UsageError(f"inputs are {known}; {quote(name)} is missing or not among them")
        for name, value in given.items():
            self._views[name][:] = _stored(inputs[name], value)
        self.last = self.graph.execute(self._inputs, self._outputs)
        return {
            tensor.name: numpy.frombuffer(bytes(self._views[tensor.name]), numpy_type(tensor))
            .reshape(tensor.dimensions)
            .copy()
            for tensor in self.graph.described.outputs
        }

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Rules that were broken so far."""
        return self.backend.findings

    def close(self) -> None:
        """Free handles, buffer, context and backend, in that order."""
        if self.context.is_freed:
            return
        if self._handles:
            self.context.mem_deregister(self._handles)
        self._views.clear()
        rpcmem_free(self._buffer)
        self.context.free()
        self.backend.free()

    def __enter__(self) -> HtpSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _set_up(self, mode: IoMode) -> None:
        tensors = [*self._inputs, *self._outputs]
        if mode is IoMode.RAW:
            for tensor in tensors:
                memory = bytearray(tensor.nbytes)
                tensor.mem_type, tensor.client_buf = TensorMemType.RAW, memory
                self._views[tensor.name] = memoryview(memory)
            return
        offsets, end = packed_offsets(tensor.nbytes for tensor in tensors)
        self._buffer = rpcmem_alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, end)
        if self._buffer is None:
            raise OutputError(f"{end:,} bytes of shared memory cannot be had here")
        descriptors = [
            HtpMemDescriptor.inside(self._buffer, tensor.dimensions, tensor.data_type, offset)
            for tensor, offset in zip(tensors, offsets, strict=True)
        ]
        self._handles = self.context.mem_register(descriptors)
        for tensor, handle in zip(tensors, self._handles, strict=True):
            tensor.mem_type, tensor.mem_handle = TensorMemType.MEMHANDLE, handle
            self._views[tensor.name] = handle.view


def _stored(tensor: TensorInfo, value: Any) -> bytes:
    """The bytes of an input, whose type and shape must be the tensor's."""
    import numpy

    array = numpy.asarray(value)
    kind = numpy_type(tensor)
    if array.dtype.name != kind or array.shape != tensor.dimensions:
        what = f"input {quote(tensor.name)} is {kind} {list(tensor.dimensions)}"
        raise UsageError(f"{what}, but was given as {array.dtype.name} {list(array.shape)}")
    return array.tobytes()
