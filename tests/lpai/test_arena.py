from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from seeds import share

from qnnmem import lpai
from qnnmem.errors import QnnError
from qnnmem.lpai.selftest.client import KEEP, PERSISTENT, SCRATCH, Arena, Client, Tenant, address_of
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import GraphOption, MemType

NAMES = ("counter", "double", "plain", "window")
ORDERS = list(permutations(range(4)))


def code_of(call: Callable[..., object], *arguments: Any) -> tuple[int, str]:
    """Return the code and the rule of a call that fails."""
    with pytest.raises(QnnError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.finding.rule


def tenants(arena: Arena) -> list[Tenant]:
    """Return four graphs that have been executed once."""
    made = [Tenant(arena, name) for name in NAMES]
    for tenant in made:
        tenant.execute()
    return made


def scratch(memory: Any, size: int) -> list[lpai.Config | None]:
    """Return configs that set scratch."""
    return [lpai.custom(SCRATCH, lpai.Mem(MemType.DDR, size, memory)), None]


@pytest.mark.parametrize("order", share(ORDERS, 5), ids=str)
@pytest.mark.parametrize("early", [0, 1, 2, 3])
def test_a_block_freed_before_its_last_graph_is_found(order: tuple[int, ...], early: int) -> None:
    """After the shared block is freed, each remaining context fails with code 6039 and rule R10."""
    arena = Arena()
    graphs = tenants(arena)
    for number in order[:early]:
        graphs[number].context.free()
    assert arena.rules == []
    arena.block.free()
    for number in order[early:]:
        assert code_of(graphs[number].execute) == (6039, "R10")


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_it_is_found_though_nothing_executes(order: tuple[int, ...]) -> None:
    """Without another execution, each context freed after its block reports R10 and R7."""
    arena, early = Arena(), order[0]  # each number comes first in six orders
    graphs = tenants(arena)
    for place, number in enumerate(order):
        if place == early:
            arena.block.free()
        graphs[number].context.free()
    assert arena.rules.count("R10") == arena.rules.count("R7") == 4 - early


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_block_freed_after_its_last_graph_is_right(order: tuple[int, ...]) -> None:
    """Freeing four contexts in any order and then the block gives no finding."""
    arena = Arena()
    graphs = tenants(arena)
    for number in order:
        graphs[number].context.free()
    arena.block.free()
    arena.backend.free()
    assert arena.rules == []


@pytest.mark.parametrize(
    "order", list(permutations(("context", "scratch", "persistent", "binary")))
)
def test_of_all_orders_those_that_begin_with_the_context_are_right(order: tuple[str, ...]) -> None:
    """Of 24 orders of freeing, only the six with the context first give no finding."""
    client = Client().ready().executed()
    client.freed(*order)
    gone = set(order[: order.index("context")])
    wanted = {"scratch": "R7", "persistent": "R8", "binary": "R10"}
    assert set(client.rules) == {wanted[name] for name in gone}
    assert len(client.rules) == len(gone)


def test_what_an_execution_said_is_not_said_again() -> None:
    """Memory freed too early is reported once, not again when the context is freed."""
    client = Client("plain").ready()
    client.scratch.free()
    assert code_of(client.run) == (6039, "R7")
    client.context.free()
    assert client.rules == ["R7"]


def test_scratch_may_be_replaced_inside_the_block() -> None:
    """After scratch moves within the block, another graph may use the old scratch as input."""
    arena = Arena()
    tenant, other = Tenant(arena, "plain"), Tenant(arena, "plain")
    old = tenant.pools[SCRATCH]
    new = arena.cut(old.nbytes)
    tenant.graph.set_config(scratch(new, new.nbytes))
    other.inputs[0].client_buf = old[:128]
    assert (tenant.execute(), other.execute(), arena.rules) == (0, 0, [])


def holdings(graphs: list[Tenant]) -> dict[str, int]:
    """Return the addresses of all memory that the graphs hold."""
    found = {}
    for tenant in graphs:
        name = tenant.graph.name
        found[f"{name} binary"] = next(iter(tenant.context.holdings())).buffer.address
        for option, view in tenant.pools.items():
            found[f"{name} {GraphOption(option).name}"] = address_of(view)
    return found


@pytest.mark.parametrize("off", [-64, 0, 64])
@pytest.mark.parametrize("wrong", [SCRATCH, PERSISTENT], ids=["scratch", "persistent"])
def test_one_wrong_offset_is_found(wrong: GraphOption, off: int) -> None:
    """A pool that overlaps memory of another graph is reported as X5 or X8 when it is set."""
    arena = Arena()
    arena.cut(4096)
    make = lpai.Context.create_from_binary
    graphs = [Tenant(arena, name) for name in ("counter", "double")]
    for name, address in holdings(graphs).items():
        arena.backend.findings.clear()
        graph = make(arena.backend, binary(), trusted=True).graph_retrieve("window")
        mem = lpai.Mem(MemType.DDR, 512, address + off)
        with suppress(QnnError):
            graph.set_config([lpai.custom(wrong, mem), None])
        same = name.endswith(wrong.name)
        refused = graph.scratch is graph.persistent is None
        # The block is dense: a shifted pool may also overlap the neighbour.
        assert set(arena.rules) in ({"X5"}, {"X8"}), name
        assert refused or same, name


def test_a_refused_pool_is_not_taken() -> None:
    """A refused pool is not set, and all graphs still run with their old pools."""
    arena = Arena()
    first, second = Tenant(arena, "counter"), Tenant(arena, "plain")
    wrong = scratch(address_of(first.pools[PERSISTENT]), second.pools[SCRATCH].nbytes)
    assert code_of(second.graph.set_config, wrong) == (6000, "X8")
    assert (first.execute(), second.execute()) == (0, 0)


def test_pools_in_a_block_of_numpy_are_kept_apart_as_well() -> None:
    """Overlapping pools are refused in a NumPy block too."""
    block = np.zeros(8192, np.uint8)
    block = block[-block.__array_interface__["data"][0] % 64 :]
    first, second = Client("plain"), Client("counter")
    first.set(lpai.custom(SCRATCH, lpai.Mem(MemType.DDR, 512, block[:512])))
    mem = lpai.Mem(MemType.DDR, 128, block[448:576])
    call = second.graph.set_config
    assert code_of(call, [lpai.custom(PERSISTENT, mem), None]) == (6000, "X8")


def test_a_graph_that_is_gone_holds_nothing() -> None:
    """After its context is freed, a graph's memory may serve another graph."""
    client = Client("plain").ready()
    memory = client.scratch
    client.context.free()
    other = Client("plain").give(SCRATCH, memory).finalize()
    other.run()
    assert other.rules == []


# --- Inputs and outputs ----------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("what", ["scratch", "persistent", "binary"])
def test_io_on_what_a_graph_holds_is_refused(side: int, what: str) -> None:
    """An input or output on scratch, state or the binary of a graph is refused."""
    client = Client("counter").ready()
    tensors = client.tensors()
    tensors[side][0].client_buf = getattr(client, what).view[:128]
    rule = "R9" if (side, what) == (1, "persistent") else "X8"
    assert code_of(client.graph.execute, *tensors) == (6004, rule)


def test_the_place_of_a_tensor_in_scratch_is_its_own() -> None:
    """A tensor's own memory in scratch, from `Graph.view`, may be used as a buffer."""
    client, other = Client("plain").ready(), Client("plain").ready()
    tensors = client.tensors()
    for tensor in (*tensors[0], *tensors[1]):
        tensor.client_buf = client.graph.view(tensor.name).array
    assert client.graph.execute(*tensors) == 0
    inputs, outputs = other.tensors()
    inputs[0].client_buf = client.graph.view("y").array
    assert other.graph.execute(inputs, outputs) == 0
    assert client.rules == other.rules == []


def test_a_place_that_nobody_was_told_is_a_mistake() -> None:
    """An input buffer inside scratch without `Graph.view` is refused with X8."""
    client = Client("plain").ready()
    offset = client.graph.compiled.buffer_of["x"].offset
    tensors = client.tensors()
    tensors[0][0].client_buf = client.scratch.view[offset : offset + 128]
    assert code_of(client.graph.execute, *tensors) == (6004, "X8")


@pytest.mark.parametrize(("offset", "wanted"), [(0, []), (64, ["X8"]), (128, [])])
def test_an_output_partly_on_its_input_is_a_wrong_offset(offset: int, wanted: list[str]) -> None:
    """An output that partly overlaps its input is reported once; a full overlap is allowed."""
    client = Client("plain").ready()
    block = client.buffer(512)
    tensors = client.tensors()
    tensors[0][0].client_buf = block.view[:128]
    tensors[1][0].client_buf = block.view[offset : offset + 128]
    for _ in range(3):
        assert client.graph.execute(*tensors) == 0
    assert client.rules == wanted


def test_a_binary_on_living_pools_is_refused() -> None:
    """A kept binary that overlaps a live pool is refused; a copied one is accepted."""
    arena = Arena()
    tenant = Tenant(arena, "plain")
    start = address_of(tenant.pools[SCRATCH]) - arena.block.address
    content = arena.block.view[start : start + len(binary())]
    content[:] = binary()
    make = lpai.Context.create_from_binary
    assert code_of(lambda: make(arena.backend, content, [KEEP], trusted=True)) == (5000, "X8")
    make(arena.backend, content, trusted=True)


def test_several_contexts_may_read_one_binary() -> None:
    """Several contexts may share one binary, since it is read-only."""
    client = Client("plain").ready()
    content = client.binary.view[: len(binary())]
    lpai.Context.create_from_binary(client.backend, content, [KEEP], trusted=True)
    assert client.rules == []


def test_pieces_of_a_block_touch_and_do_not_overlap() -> None:
    """Pieces cut from the test block do not overlap."""
    arena = Arena()
    spans = [(address_of(piece), piece.nbytes) for piece in map(arena.cut, (1, 64, 100, 256))]
    assert all(a + size <= b for (a, size), (b, _) in combinations(spans, 2))
