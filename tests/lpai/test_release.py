"""After `QnnContext_free`, all memory belongs to the application alone."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from qnnmem import lpai
from qnnmem.lpai.selftest.client import KEEP, PERSISTENT, SCRATCH, Client
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import GraphOption, GraphProperty, MemType

POOLS = {
    SCRATCH: GraphProperty.GET_PROP_SCRATCH_MEM_SIZE,
    PERSISTENT: GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE,
}


@pytest.mark.parametrize("option", POOLS)
def test_a_pool_can_be_closed_after_the_context(option: GraphOption) -> None:
    """Scratch and persistent memory can be closed after the context is freed."""
    client = Client().give_scratch().give_persistent()
    size = client.need(POOLS[option])
    pool = mmap.mmap(-1, size)
    client.set(lpai.custom(option, lpai.Mem(MemType.DDR, size, pool)))
    client.finalize().run()
    view = client.graph.view(client.graph.compiled.inputs[0])
    assert view.array.size
    client.context.free()
    client.backend.free()
    pool.close()
    assert client.rules == []


@pytest.mark.parametrize("graph", ["plain", "counter"])
def test_a_binary_can_be_closed_after_the_context(graph: str) -> None:
    """The binary can be closed after the context is freed, though constants were views of it."""
    content = binary()
    memory = mmap.mmap(-1, len(content))
    memory[: len(content)] = content
    client = Client(graph)
    context = lpai.Context.create_from_binary(client.backend, memory, [KEEP], trusted=True)
    client.graph = context.graph_retrieve(graph)
    client.ready().run()
    context.free()
    memory.close()
    assert client.rules == []


def test_a_bytearray_can_grow_after_the_context() -> None:
    """A bytearray used as scratch can grow after the context is freed."""
    client = Client("plain")
    size = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    block = bytearray(size + 64)
    start = -np.frombuffer(block, np.uint8).__array_interface__["data"][0] % 64
    mem = lpai.Mem(MemType.DDR, size, memoryview(block)[start : start + size])
    client.set(lpai.custom(SCRATCH, mem))
    client.finalize().run()
    mem.addr.release()
    client.context.free()
    block.extend(b"more")
    assert len(block) == size + 68
