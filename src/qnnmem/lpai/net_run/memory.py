"""The memory of a run: binary, pools, and IO in plain memory of a heap or shared by fd."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import LoadError
from qnnmem.lpai.binary import map_file
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import (
    Mem,
    MemDescriptor,
    MemInfoCustom,
    custom,
    custom_property,
)
from qnnmem.lpai.runtime.extensions import Extensions
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.heap import HeapBuffer
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.qnn.enums import (
    GraphOption,
    GraphProperty,
    MemRegisterType,
    MemType,
    TensorMemType,
)
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.units import round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.qnn.shared_memory import MemHandle


@dataclass(slots=True)
class IoBuffers:
    """Memory for all inputs and outputs of one execution."""

    inputs: Sequence[QnnTensor]
    outputs: Sequence[QnnTensor]
    input_bytes: dict[str, NDArray[Any]]
    output_bytes: dict[str, NDArray[Any]]
    # Memory that is lent to an execution must stay alive.
    held: list[HeapBuffer] = field(default_factory=list)
    handles: list[MemHandle] = field(default_factory=list)
    fd: int | None = None

    def close(self) -> None:
        """Lets go of the file descriptor, once the context is freed."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class RunMemory:
    """What a run allocates; everything is held until the run is over."""

    def __init__(self, extensions: Extensions, times: ApiTimes) -> None:
        self._extensions, self._times = extensions, times
        self._held: list[HeapBuffer] = []

    @property
    def mem_type(self) -> MemType:
        """The memory of binary and IO."""
        return self._extensions.mem_type

    def load_binary(self, path: Path, size: int, *, use_mmap: bool) -> Any:
        """The binary in memory of the run's type, or mapped where that is asked for."""
        if use_mmap and self.mem_type is MemType.DDR:
            return map_file(path)
        buffer = self._extensions.allocate(size, "model binary")
        self._held.append(buffer)
        view = buffer.view[:size]
        try:
            with path.open("rb") as file:
                read = file.readinto(view)
        except OSError as exc:
            raise LoadError(path, f"cannot be read ({exc.strerror or exc})") from exc
        if read != size:
            raise LoadError(path, "became shorter while it was read")
        return view

    def allocate_io(
        self, context: Context, graph: CompiledGraph, shared: MemRegisterType | None
    ) -> IoBuffers:
        """Buffers for one execution, registered with the context where they are shared."""
        if shared is None:
            return heap_io(self._extensions, graph)
        with self._times.timed("QnnMem_register"):
            return shared_io(context, graph, shared)

    def hand_over_pools(self, graph: Graph) -> None:
        """Ask for the sizes of scratch and persistent, allocate them aligned, hand them over."""
        pools = (
            (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, GraphOption.SET_CFG_SCRATCH_MEM),
            (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, GraphOption.SET_CFG_PERSISTENT_MEM),
        )
        for asked, option in pools:
            question = custom_property(asked)
            with self._times.timed("QnnGraph_getProperty"):
                graph.get_property([question, None])
            size = question.value.value
            if not size:
                continue
            buffer = self._extensions.allocate_pool(size, option.name)
            self._held.append(buffer)
            config = custom(option, Mem(MemType.DDR, buffer.size, buffer))
            with self._times.timed("QnnGraph_setConfig"):
                graph.set_config([config, None])

    def broken_guards(self) -> list[str]:
        """Buffers that something wrote past."""
        return self._extensions.broken_guards()


def heap_io(extensions: Extensions, graph: CompiledGraph) -> IoBuffers:
    """Buffers in the memory of the run's `mem_type`, inputs first, in the graph's order."""
    inputs, outputs = io_tensors(graph)
    found = IoBuffers(inputs, outputs, {}, {})
    groups = (("input", inputs, found.input_bytes), ("output", outputs, found.output_bytes))
    for kind, tensors, views in groups:
        for tensor in tensors:
            size = graph.model.tensors[tensor.name].nbytes
            buffer = extensions.allocate(size, f"{kind} {tensor.name[:80]}")
            tensor.client_buf, tensor.data_size = buffer, size
            views[tensor.name] = buffer.array[:size]
            found.held.append(buffer)
    return found


def shared_io(context: Context, graph: CompiledGraph, kind: MemRegisterType) -> IoBuffers:
    """Buffers in one file descriptor, registered with the context: nothing is copied."""
    inputs, outputs = io_tensors(graph)
    tensors = (*inputs, *outputs)
    sizes = [graph.model.tensors[tensor.name].nbytes for tensor in tensors]
    offsets, total = _offsets(sizes, context.backend.profile.start_alignment)
    fd = _memory_fd(total)
    try:
        handles = context.mem_register(
            [
                MemDescriptor(t.dimensions, t.data_type, kind, MemInfoCustom(fd, offset))
                for t, offset in zip(tensors, offsets, strict=True)
            ]
        )
    except BaseException:
        os.close(fd)
        raise
    for tensor, handle in zip(tensors, handles, strict=True):
        tensor.mem_type, tensor.mem_handle = TensorMemType.MEMHANDLE, handle
    first = len(inputs)
    return IoBuffers(
        inputs,
        outputs,
        {t.name: h.array for t, h in zip(inputs, handles[:first], strict=True)},
        {t.name: h.array for t, h in zip(outputs, handles[first:], strict=True)},
        handles=handles,
        fd=fd,
    )


def _offsets(sizes: Iterable[int], align: int) -> tuple[list[int], int]:
    """Places one after the other, and the room for all of them."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = round_up(end + max(size, 1), align)
    return offsets, max(end, mmap.PAGESIZE)


def _memory_fd(size: int) -> int:
    """A file descriptor of `size` bytes that has no name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("qnnmem-io")
    else:  # pragma: no cover - systems other than Linux
        with tempfile.TemporaryFile(prefix="qnnmem-io-") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
