"""A client as C programs are written: one block, and everything cut from it by offset."""

from __future__ import annotations

from typing import Any

from qnnmem.contract.regions import ClientBuffer
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import Mem, custom, custom_property
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.lpai.selftest.client import KEEP, PERSISTENT, SCRATCH
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import BackendProperty, GraphProperty, MemType
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.units import round_up

_POOLS = (
    (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, SCRATCH),
    (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, PERSISTENT),
)
ARENA_BYTES = 256 << 10


class Tenant:
    """A context of its own with one graph; all its memory lies in the block."""

    def __init__(self, arena: Arena, name: str) -> None:
        content = arena.cut(len(binary()))
        content[:] = binary()
        self.context = Context.create_from_binary(arena.backend, content, [KEEP], trusted=True)
        self.graph: Graph = self.context.graph_retrieve(name)
        self.pools: dict[int, memoryview] = {}
        for asked, option in _POOLS:
            question = custom_property(asked)
            self.graph.get_property([question, None])
            if question.value.value:
                self.pools[option] = memory = arena.cut(question.value.value)
                mem = Mem(MemType.DDR, memory.nbytes, memory)
                self.graph.set_config([custom(option, mem), None])
        self.graph.finalize()
        self.inputs, self.outputs = map(list, io_tensors(self.graph.compiled))
        for tensor in self.tensors:
            tensor.client_buf, tensor.data_size = arena.cut(tensor.nbytes), tensor.nbytes

    @property
    def tensors(self) -> list[QnnTensor]:
        """Inputs and outputs."""
        return [*self.inputs, *self.outputs]

    def execute(self) -> int:
        """Execute once, whatever the input holds."""
        return self.graph.execute(self.inputs, self.outputs)


class Arena:
    """A block of one heap; `cut` gives its next aligned piece."""

    def __init__(self, profile: Profile | None = None, size: int = ARENA_BYTES) -> None:
        self.backend = Backend.create(profile=profile)
        question = custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ)
        self.backend.get_property([question, None])
        self.align: Any = question.value.value
        self.heap = Heap(MemType.DDR)
        self.block = self.heap.allocate(size, self.align.start_addr_alignment, "arena")
        self.offset = 0

    def cut(self, size: int) -> memoryview:
        """The next piece, as `base + offset` gives it in C."""
        start = round_up(self.offset, self.align.start_addr_alignment)
        self.offset = start + round_up(size, self.align.size_alignment)
        return self.block.view[start : start + size]

    @property
    def rules(self) -> list[str]:
        """Rules broken so far."""
        return [found.rule for found in self.backend.findings]


def address_of(view: memoryview) -> int:
    """The pointer that a view stands for."""
    return ClientBuffer(view).address
