"""Clients that keep every rule: cases start from one and then break a rule.

`Client` allocates each buffer, `Arena` cuts everything from one block, as C programs do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from qnnmem.contract.regions import ClientBuffer
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import AlignmentReq, Config, Mem, custom, custom_property
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.lpai.selftest.models import ELEMENTS, binary
from qnnmem.qnn.enums import BackendProperty, ContextOption, GraphOption, GraphProperty, MemType
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.units import round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCRATCH, PERSISTENT = GraphOption.SET_CFG_SCRATCH_MEM, GraphOption.SET_CFG_PERSISTENT_MEM
KEEP = Config(ContextOption.PERSISTENT_BINARY, 1)
_POOLS = (
    (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, SCRATCH),
    (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, PERSISTENT),
)
ARENA_BYTES = 256 << 10


class Client:
    """Backend, context and one graph; memory comes from a DDR heap, aligned as asked."""

    def __init__(
        self,
        graph: str = "counter",
        profile: Profile | None = None,
        configs: Iterable[Config | None] = (KEEP, None),
        *,
        ask: bool = True,
    ) -> None:
        self.heap = self.io_heap = Heap(MemType.DDR)
        self.backend = Backend.create(profile=profile)
        self.align = self.asked() if ask else AlignmentReq(64, 64)
        self.binary = self.buffer(len(binary()))
        self.binary.view[: len(binary())] = binary()
        content = self.binary.view[: len(binary())]
        self.context = Context.create_from_binary(self.backend, content, configs, trusted=True)
        self.graph = self.context.graph_retrieve(graph)
        self._pools: dict[GraphOption, HeapBuffer] = {}

    @property
    def rules(self) -> list[str]:
        """Rules broken so far."""
        return [found.rule for found in self.backend.findings]

    def buffer(self, size: int) -> HeapBuffer:
        """Aligned memory of at least `size` bytes."""
        return self._allocate(self.heap, size)

    def need(self, asked: GraphProperty) -> int:
        """Size of a pool."""
        question = custom_property(asked)
        self.graph.get_property([question, None])
        size: int = question.value.value
        return size

    @property
    def scratch(self) -> HeapBuffer:
        """Scratch as it was handed over last."""
        return self._pools[SCRATCH]

    @property
    def persistent(self) -> HeapBuffer:
        """Persistent as it was handed over last."""
        return self._pools[PERSISTENT]

    # What follows gives the client back, so that steps can be written as a chain.

    def give_scratch(self) -> Self:
        """Hand over scratch, if the graph needs any."""
        need = self.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
        return self.give(SCRATCH, self.buffer(need)) if need else self

    def give_persistent(self) -> Self:
        """Hand over persistent, if the graph needs any."""
        need = self.need(GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE)
        return self.give(PERSISTENT, self.buffer(need)) if need else self

    def give(self, option: GraphOption, buffer: HeapBuffer) -> Self:
        """Hand over a whole buffer."""
        self.set(custom(option, Mem(MemType.DDR, buffer.size, buffer)))
        self._pools[option] = buffer
        return self

    def set(self, *configs: Config | None) -> Self:
        """Set options of the graph."""
        self.graph.set_config([*configs, None])
        return self

    def finalize(self) -> Self:
        """Finalize the graph."""
        self.graph.finalize()
        return self

    def ready(self) -> Self:
        """Hand over what is needed and finalize."""
        return self.give_scratch().give_persistent().finalize()

    def on(self, graph: str) -> Self:
        """Go on with another graph of the context."""
        self.graph = self.context.graph_retrieve(graph)
        return self

    def executed(self, value: int = 1) -> Self:
        """Execute once."""
        self.run(value)
        return self

    def freed(self, *names: str) -> Self:
        """Free things of the client, in this order: scratch, persistent, binary, context, ..."""
        for name in names:
            getattr(self, name).free()
        return self

    def finish(self) -> Self:
        """Wait for everything that is queued."""
        self.context.queue.run(lambda: None)
        return self

    def tensors(self) -> tuple[list[QnnTensor], list[QnnTensor]]:
        """Inputs and outputs in buffers of the client, with their exact size."""
        groups = io_tensors(self.graph.compiled)
        for tensor in (*groups[0], *groups[1]):
            tensor.client_buf = self._allocate(self.io_heap, tensor.nbytes)
            tensor.data_size = tensor.nbytes
        return list(groups[0]), list(groups[1])

    def run(self, value: int = 1) -> NDArray[Any]:
        """Output for an input that holds one value everywhere."""
        inputs, outputs = self.tensors()
        numbers(inputs[0])[:] = value
        self.graph.execute(inputs, outputs)
        return numbers(outputs[0]).copy()

    def _allocate(self, heap: Heap, size: int) -> HeapBuffer:
        rounded = round_up(size, self.align.size_alignment)
        return heap.allocate(rounded, self.align.start_addr_alignment)

    def asked(self) -> AlignmentReq:
        """Ask for the alignment."""
        question = custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ)
        self.backend.get_property([question, None])
        found: AlignmentReq = question.value.value
        return found


def numbers(tensor: QnnTensor) -> NDArray[Any]:
    """The tensor's buffer as numbers."""
    import numpy

    found: NDArray[Any] = tensor.client_buf.array[: tensor.nbytes].view(numpy.int32)
    return found


def is_all(values: NDArray[Any], wanted: int) -> bool:
    """Whether an output holds one value everywhere."""
    return values.size >= ELEMENTS and bool((values == wanted).all())


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
