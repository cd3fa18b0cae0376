"""Cases about memory handed over as C does it: pointers into blocks, arenas, types of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qnnmem.errors import TcmFatal
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.context_config import ContextConfig
from qnnmem.lpai.runtime.descriptors import Config, Mem, custom
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.lpai.selftest.case import FINDING, Steps, Trial, TrialClient, breaks, keeps
from qnnmem.lpai.selftest.client import (
    KEEP,
    PERSISTENT,
    SCRATCH,
    Arena,
    Client,
    Tenant,
    address_of,
    numbers,
)
from qnnmem.lpai.selftest.models import binary, context, graph
from qnnmem.qnn.enums import ContextCustomOption, GraphOption, GraphProperty, MemType
from qnnmem.targets import tcm_pool
from qnnmem.units import Bytes

_NAMES = ("counter", "double", "plain", "window")
_TCM, _MOST = tcm_pool().size.value, tcm_pool().max_allocations.value
_SAID = custom(ContextCustomOption.MODEL_BUFFER_MEM_TYPE, MemType.TCM)

Pointer = Callable[[HeapBuffer], Any]


def _view_of_a_view(buffer: HeapBuffer) -> Any:
    import numpy

    return numpy.frombuffer(buffer.array[:].data[:], numpy.int32).reshape(-1, 8).data


def _pool_freed(option: GraphOption, pointer: Pointer) -> Steps:
    """A pool is given by a pointer, then its block is freed."""

    def steps(t: Trial) -> None:
        client = t.client().give_scratch().give_persistent()
        pool = client.scratch if option == SCRATCH else client.persistent
        client.set(custom(option, Mem(MemType.DDR, pool.size, pointer(pool)))).finalize().gives(2)
        pool.free()
        client.refused(Client.run)

    return steps


def _input_freed(t: Trial) -> None:
    client = t.client("plain").ready()
    inputs, outputs = client.tensors()
    block = client.buffer(512)
    inputs[0].client_buf = block.array[128:][:128].data
    t.check(client.graph.execute(inputs, outputs) == 0, "a slice is no input")
    block.free()
    t.refused(client.graph.execute, inputs, outputs)


def _two_backends(t: Trial) -> None:
    client = t.client("plain").give_scratch()
    later = t.client("plain")
    client.context.free()
    later.give(SCRATCH, client.scratch).finalize().gives(6, 2).no_findings()


def _asked_late(t: Trial) -> None:
    client = t.client("plain", ask=False)
    buffer = client.buffer(client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE))
    client.asked()
    client.noted(lambda c: c.give(SCRATCH, buffer))


def _io_unasked(t: Trial) -> None:
    client = t.client("bare", ask=False).finalize()
    client.noted(Client.run)


def _planned_for_16(t: Trial) -> None:
    """A plan of 272 bytes on a platform whose sizes are multiples of 64."""
    small = replace(graph("plain"), scratch_bytes=Bytes(272))
    made = Context(Backend.create(), replace(context(), graphs=(small,)), ContextConfig())
    client = t.client("plain")
    client.graph = made.graph_retrieve("plain")
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    client.give(SCRATCH, client.heap.allocate(need, 64)).finalize()
    t.check(need == 320, f"{need} bytes are asked for instead of 320")


def _all_in_one_block(t: Trial) -> None:
    arena = Arena()
    tenants = [Tenant(arena, name) for name in _NAMES]
    codes = [tenant.execute() for tenant in tenants]
    for tenant in tenants:
        tenant.context.free()
    arena.block.free()
    t.check(codes == [0, 0, 0, 6038], f"the codes are {codes}")
    t.check(not arena.rules, f"findings: {', '.join(arena.rules)}")


def _shared_scratch(t: Trial) -> None:
    platform = profile(shared_scratch=True)
    client = t.client("plain", profile=platform).ready()
    shared = client.scratch
    client.on("counter").give(SCRATCH, shared).give_persistent().finalize().gives(2).no_findings()


def _scratch_on_state(t: Trial) -> None:
    arena = Arena()
    tenant, other = Tenant(arena, "counter"), Tenant(arena, "plain")
    size = other.pools[SCRATCH].nbytes
    wrong = custom(SCRATCH, Mem(MemType.DDR, size, address_of(tenant.pools[PERSISTENT])))
    t.refused(other.graph.set_config, [wrong, None], code=6000)


def _io_in_scratch(t: Trial) -> None:
    client = t.client("plain").ready()
    inputs, outputs = client.tensors()
    outputs[0].client_buf = client.scratch.view[128:256]
    t.refused(client.graph.execute, inputs, outputs, code=6004)


def _binary_on_scratch(t: Trial) -> None:
    arena = Arena()
    tenant = Tenant(arena, "plain")
    start = address_of(tenant.pools[SCRATCH]) - arena.block.address
    content = arena.block.view[start : start + len(binary())]
    made = Context.create_from_binary
    t.refused(made, arena.backend, content, [KEEP], trusted=True, code=5000)


def _one_offset_for_two(t: Trial) -> None:
    client = t.client("plain").ready()
    client.on("bare").on("outside").noted(lambda c: c.give(SCRATCH, client.scratch))


def _in_tcm(t: Trial) -> TrialClient:
    """A client in direct mode whose model is in TCM."""
    client = t.client("plain", profile=profile("adsp"))
    content = Heap(MemType.TCM).allocate(len(binary()))
    content.view[:] = binary()
    configs = [KEEP, _SAID]
    client.context = Context.create_from_binary(client.backend, content, configs, trusted=True)
    return client.on("plain").ready()


def _io_in_tcm(client: TrialClient) -> TrialClient:
    client.io_heap = Heap(MemType.TCM)
    return client


def _mixed(t: Trial) -> None:
    _in_tcm(t).refused(Client.run)
    _io_in_tcm(t.client("plain", profile=profile("adsp")).ready()).refused(Client.run)


def _said(kind: MemType, heap: MemType) -> Callable[[Client], Any]:
    def give(client: Client) -> None:
        buffer = Heap(heap).allocate(client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE))
        client.set(custom(SCRATCH, Mem(kind, buffer.size, buffer.view)))

    return give


def _wrong_type(t: Trial) -> None:
    client = t.client("plain", profile=profile("adsp"))
    client.refused(_said(MemType.TCM, MemType.DDR), 6000)
    client.refused(_said(MemType.DDR, MemType.TCM), 6000)
    content = client.buffer(len(binary())).view[: len(binary())]
    content[:] = binary()
    made, configs = Context.create_from_binary, [KEEP, _SAID]
    t.refused(made, client.backend, content, configs, trusted=True, code=5010)


def _whole_pool(t: Trial) -> None:
    lines: list[str] = []
    heap = Heap(MemType.TCM, log=lambda _, text: lines.append(text))
    with heap.allocate(_TCM):
        pass
    opened = f"TCM pool current size: 0 max_size: {_TCM}"
    t.check(lines == [opened, f"Allocate size {_TCM} from tcm pool 0"], f"the log is {lines}")


def _two_heaps(t: Trial) -> None:
    with Heap(MemType.TCM).allocate(_TCM - 64):
        t.refused(Heap(MemType.TCM).allocate, 65)


def _two_heaps_too_many(t: Trial) -> None:
    heaps = Heap(MemType.TCM), Heap(MemType.TCM)
    made = [heaps[number % 2].allocate(1) for number in range(_MOST)]
    try:
        heaps[0].allocate(1)
    except TcmFatal as exc:
        t.check(exc.exit_code == 134, f"exit status {exc.exit_code} instead of 134")
    else:
        t.check(False, f"allocation {_MOST + 1} succeeded")
    for buffer in made:
        buffer.free()


def _by_address(t: Trial) -> None:
    client = t.client("plain")
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    block = client.heap.allocate(need + 128)
    config: Config = custom(SCRATCH, Mem(MemType.DDR, need, block.address + 64))
    client.set(config).finalize().gives(6, 2)
    inputs, outputs = client.tensors()
    numbers(inputs[0])[:] = 3
    inputs[0].client_buf = inputs[0].client_buf.address
    t.check(client.graph.execute(inputs, outputs) == 0, "an address is no input")


# fmt: off
POINTERS = (
    keeps("R1", "one block for two backends that ask for the same", _two_backends),
    breaks("R1", "alignment asked after the buffer was made", FINDING, _asked_late),
    breaks("R1", "inputs and outputs allocated without asking", FINDING, _io_unasked),
    keeps("R3", "exactly the size asked for, planned for another alignment", _planned_for_16),
    keeps("R4", "pointers as addresses, with an offset", _by_address),
    breaks("R7", "scratch given as a slice, its block freed", 6039,
           _pool_freed(SCRATCH, lambda b: b.view[:])),
    breaks("R8", "persistent given as a view of a view, its block freed", 6039,
           _pool_freed(PERSISTENT, _view_of_a_view)),
    breaks("R9", "an input given as a slice of a slice, its block freed", 6004, _input_freed),
    keeps("X8", "four graphs with all they need in one block", _all_in_one_block),
    keeps("X8", "one scratch for two graphs, where the profile allows it", _shared_scratch),
    breaks("X8", "scratch on the state of another graph", 6000, _scratch_on_state),
    breaks("X8", "an output inside scratch", 6004, _io_in_scratch),
    breaks("X8", "a binary on scratch", 5000, _binary_on_scratch),
    breaks("X8", "one scratch for two graphs", FINDING, _one_offset_for_two),
    keeps("T1", "Heap(MemType.TCM) is the pool, to its last byte", _whole_pool),
    breaks("T1", "two heaps of TCM have one pool", 1002, _two_heaps),
    breaks("T2", "two heaps of TCM have one limit", FINDING, _two_heaps_too_many),
    keeps("T5", "memory of the type that is said",
          lambda t: [_said(kind, kind)(t.client("plain", profile=profile("adsp")))
                     for kind in (MemType.DDR, MemType.LLC, MemType.TCM, MemType.PSRAM)]),
    breaks("T5", "TCM said and DDR given, the reverse, and a binary", (6000, 5010), _wrong_type),
    keeps("T6", "model and IO in TCM",
          lambda t: _io_in_tcm(_in_tcm(t)).gives(6, 2).no_findings()),
    breaks("T6", "model in TCM with IO in DDR, and the reverse", 6004, _mixed),
)
