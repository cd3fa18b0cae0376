"""Cases about memory: pools, pointers into blocks, arenas, heaps, TCM, and the sanitizer.

Rules R1 to R4, R6 to R9, X1 to X6, X8, H1 and T1 to T6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qnnmem.contract.regions import array_address, release
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, Mem, PerfCfg, custom
from qnnmem.lpai.runtime.heap import Extensions, Heap, HeapBuffer, aligned_array
from qnnmem.lpai.runtime.sanitizer import Sanitizer
from qnnmem.lpai.selftest.client import (
    FINDING,
    KEEP,
    PERSISTENT,
    SCRATCH,
    Arena,
    Client,
    Steps,
    Tenant,
    Trial,
    TrialClient,
    address_of,
    breaks,
    is_all,
    keeps,
    numbers,
    retrieved,
)
from qnnmem.lpai.selftest.models import binary, graph
from qnnmem.planner import Pool
from qnnmem.qnn.enums import (
    ContextCustomOption,
    GraphConfigOption,
    GraphOption,
    GraphProperty,
    MemType,
    Priority,
)
from qnnmem.targets import tcm_pool
from qnnmem.units import Bytes

_PERF = GraphOption.SET_CFG_PERF_CFG
_NULL = (custom(SCRATCH, Mem()), custom(PERSISTENT, Mem()))
_TCM, _MOST = tcm_pool().size.value, tcm_pool().max_allocations.value
_OPENED = f"TCM pool current size: 0 max_size: {_TCM}"
_NO_SCRATCH = custom(SCRATCH, Mem(MemType.DDR, 0, None))
_NO_ADDRESS = custom(SCRATCH, Mem(MemType.DDR, 256, None))
_PREPARE = custom(GraphOption.SET_CFG_PREPARE)
_ONE_CORE = custom(GraphOption.SET_CFG_CORE_AFFINITY, CoreAffinityCfg(core_selection=1))
_HIGH = Config(GraphConfigOption.PRIORITY, Priority.HIGH)
_NOT_FINALIZED = (
    lambda c: not c.graph.is_finalized,
    "the graph is finalized although finalize failed",
)

_NAMES = ("counter", "double", "plain", "window")
_SAID = custom(ContextCustomOption.MODEL_BUFFER_MEM_TYPE, MemType.TCM)
Pointer = Callable[[HeapBuffer], Any]


def _fps(number: int) -> Config:
    return custom(_PERF, PerfCfg(fps=number))


def _scratch(client: Client, size: int = 0, start: int = 0) -> Config:
    """Return a config for scratch, misaligned by `start`, that claims `size` extra bytes."""
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    block = client.heap.allocate(need + 64, 64)
    return custom(SCRATCH, Mem(MemType.DDR, need + size, block.view[start:]))


def _wrong_scratch(size: int = 0, start: int = 0) -> Steps:
    return lambda t: (
        t.client()
        .refused(lambda c: c.set(_scratch(c, size, start)))
        .holds(lambda c: c.graph.scratch is None, "the refused buffer took effect")
    )


def _replaced(t: Trial) -> None:
    client = t.client().ready().executed()
    old = client.scratch
    client.give_scratch()
    old.free()
    client.gives(4).no_findings()
    t.check(not old.written_after_free(), "the old buffer is still written")


def _last_wins(t: Trial) -> None:
    client = t.client().ready().set(_fps(7), _fps(8), None, _fps(9))
    t.check(client.graph.perf.fps == 8, f"{client.graph.perf.fps} fps instead of 8")
    client.set(_NULL[0], _scratch(client)).gives(2)


def _replaced_during_execution(t: Trial) -> None:
    client = t.client().ready()
    with client.held():
        client.graph.execute_async()  # queued after the notification, so it cannot have ended yet
        client.refused(Client.give_scratch)
    client.give_scratch()


def _persistent_released(t: Trial) -> None:
    client = t.client().give_scratch()
    memory = aligned_array(client.need(GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE))
    client.set(custom(PERSISTENT, Mem(MemType.DDR, memory.size, memory))).finalize().gives(2)
    release(memory)
    client.refused(Client.run)


def _moved_tensor(t: Trial) -> None:
    good = graph("plain")
    offset = good.buffer_of["x"].offset
    moved = (replace(b, offset=offset) if b.name == "t" else b for b in good.buffers)
    client = t.client("plain")
    client.graph = retrieved(replace(good, buffers=tuple(moved)))
    client.give_scratch().refused(Client.finalize).holds(*_NOT_FINALIZED)


def _within(t: Trial) -> None:
    client = t.client("plain").give_scratch()
    client.scratch.array[:] = 0x11
    client.finalize().executed().no_findings()


def _overrun(t: Trial) -> None:
    from numpy.lib.stride_tricks import as_strided

    client = t.client("plain").ready()
    size = client.scratch.size
    as_strided(client.scratch.array, (size + 1,), (1,))[size] = 0
    client.noted(Client.run)


def _poison(t: Trial, *, touch: bool = False) -> None:
    """Execute under the sanitizer; `touch` writes to the padding after the input."""
    import numpy

    plain = graph("plain")
    scratch = numpy.zeros(plain.scratch_bytes, numpy.uint8)
    buffers, tensors = plain.buffer_of, plain.model.tensors
    offsets = {name: b.offset for name, b in buffers.items() if b.pool is Pool.SCRATCH}
    views = {name: scratch[o : o + tensors[name].nbytes] for name, o in offsets.items()}
    sanitizer, free = Sanitizer(plain, scratch, views), offsets["x"] + tensors["x"].nbytes
    sanitizer.begin()
    if touch:
        scratch[free] = 1
    for step, op in enumerate(plain.model.ops if not touch else ()):
        sanitizer.before(step, op)
        sanitizer.after(step, op)
    sanitizer.end()
    findings = [(f.rule, f.address) for f in sanitizer.findings]
    expected = [("X3", array_address(scratch) + free)] if touch else []
    t.check(findings == expected, f"findings were {findings}")


def _fresh_view(t: Trial) -> None:
    handle = t.client("plain").ready().give_scratch().graph
    handle.view("x").array[:] = 2
    handle.execute()
    t.check(is_all(handle.view("y").array, 6), "wrong result")


def _stale_view(t: Trial) -> None:
    client = t.client("plain").ready()
    view = client.graph.view("y")
    t.check(view.array.size > 0, "the view is empty")
    client.give_scratch().refused(lambda _: view.array)


def _own_state(t: Trial) -> None:
    client = t.client("counter").ready()
    pool = client.persistent  # keeps the owner of the memory alive
    client.on("double").ready().gives(10, 5).no_findings().on("counter").gives(2)
    t.check(not pool.freed, "the first buffer was freed")


def _restored(t: Trial) -> None:
    client = t.client().ready().executed()
    saved = client.graph.snapshot()
    client.executed().graph.restore(saved)
    client.gives(4).graph.reset()
    client.gives(2).no_findings()


def _state_touched(t: Trial) -> None:
    client = t.client().ready().executed()
    client.persistent.array[0] ^= 1
    client.noted(Client.run)


def _whole_heap(t: Trial) -> None:
    heap = Heap(MemType.LLC, 4096)
    for _ in range(2):
        with heap.allocate(4096) as buffer:
            t.check(buffer.size == heap.used == 4096, "the heap does not allocate all its bytes")


def _heap_full(t: Trial) -> None:
    heap = Heap(MemType.LLC, 4096)
    t.refused(heap.allocate, 4097)
    t.check(heap.used == 0, "the refused buffer takes space")


def _extensions(mode: str = "adsp", version: str = "v6", kind: str = "tcm") -> Extensions:
    return Extensions(Backend.create(profile=profile(mode, version)), kind)


def _tcm(t: Trial, sizes: list[int], wanted: list[str], kind: str = "tcm") -> None:
    """Allocate TCM and check the log; if the case breaks a rule, the last allocation must fail."""
    lines: list[str] = []
    backend = Backend.create(profile=profile("adsp"), log=lambda _, text: lines.append(text))
    extensions = Extensions(backend, kind)
    for size in sizes[:-1] if t.codes else sizes:
        extensions.allocate(size, "binary")
    if t.codes:
        t.refused(extensions.allocate, sizes[-1], "binary")
    log = [line for line in lines if not line.startswith(("[", "QNN_"))]  # without findings
    t.check(log == wanted, f"the log is {log}")


def _one_allocation_more(t: Trial) -> None:
    t.is_fatal(lambda: _tcm(t, [64] * 33, []), "the 33rd allocation succeeded")


def _view_of_a_view(buffer: HeapBuffer) -> Any:
    import numpy

    return numpy.frombuffer(buffer.array[:].data[:], numpy.int32).reshape(-1, 8).data


def _pool_freed(option: GraphOption, pointer: Pointer) -> Steps:
    """Return steps that pass a pointer into a block as a pool, then free the block."""

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
    t.check(client.graph.execute(inputs, outputs) == 0, "a slice was refused as an input")
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
    """Check that a plan of 272 bytes is reported as a multiple of 64 bytes."""
    client = t.client("plain")
    client.graph = retrieved(replace(graph("plain"), scratch_bytes=Bytes(272)))
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    client.give(SCRATCH, client.heap.allocate(need, 64)).finalize()
    t.check(need == 320, f"the reported size is {need} bytes instead of 320")


def _all_in_one_block(t: Trial) -> None:
    arena = Arena()
    tenants = [Tenant(arena, name) for name in _NAMES]
    codes = [tenant.execute() for tenant in tenants]
    for tenant in tenants:
        tenant.context.free()
    arena.block.free()
    t.check(codes == [0, 0, 0, 6038], f"execute returned {codes}")
    t.check(not arena.rules, f"findings: {', '.join(arena.rules)}")


def _shared_scratch(t: Trial) -> None:
    client = t.client("plain").ready()
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
    create = Context.create_from_binary
    t.refused(create, arena.backend, content, [KEEP], trusted=True, code=5000)


def _one_offset_for_two(t: Trial) -> None:
    client = t.client("plain", profile=profile(shared_scratch=False)).ready()
    client.on("bare").on("outside").noted(lambda c: c.give(SCRATCH, client.scratch))


def _in_tcm(t: Trial) -> TrialClient:
    """Return a client in direct mode whose model is in TCM."""
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
    create, configs = Context.create_from_binary, [KEEP, _SAID]
    t.refused(create, client.backend, content, configs, trusted=True, code=5010)


def _whole_pool(t: Trial) -> None:
    lines: list[str] = []
    heap = Heap(MemType.TCM, log=lambda _, text: lines.append(text))
    with heap.allocate(_TCM):
        pass
    t.check(lines == [_OPENED, f"Allocate size {_TCM} from tcm pool 0"], f"the log is {lines}")


def _two_heaps(t: Trial) -> None:
    with Heap(MemType.TCM).allocate(_TCM - 64):
        t.refused(Heap(MemType.TCM).allocate, 65)


def _two_heaps_too_many(t: Trial) -> None:
    heaps = Heap(MemType.TCM), Heap(MemType.TCM)
    buffers = [heaps[number % 2].allocate(1) for number in range(_MOST)]
    t.is_fatal(lambda: heaps[0].allocate(1), f"allocation {_MOST + 1} succeeded")
    for buffer in buffers:
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
    t.check(client.graph.execute(inputs, outputs) == 0, "an address was refused as an input")


# fmt: off
MEMORY = (
    keeps("R1", "alignment queried first", lambda t: t.client().ready().no_findings()),
    breaks("R1", "memory passed before the alignment was queried", FINDING,
           lambda t: t.client(ask=False).noted(Client.give_scratch)),
    keeps("R2", "both pools passed, then finalize called", lambda t: t.client().ready().gives(2)),
    keeps("R2", "NULL descriptors for pools whose required size is 0",
          lambda t: t.client("bare").set(*_NULL).finalize().gives(6, 3)),
    keeps("R2", "no pools passed, in an ARM profile that does not require them",
          lambda t: t.client(profile=profile("arm", client_brings_pools=False)).finalize()
          .gives(2)),
    breaks("R2", "no pools passed in ARM mode", 6022,
           lambda t: t.client(profile=profile("arm")).refused(Client.finalize).ready().gives(2)),
    breaks("R2", "finalize without scratch", 6022,
           lambda t: t.client().give_persistent().refused(Client.finalize).ready()),
    breaks("R2", "finalize without persistent memory", 6022,
           lambda t: t.client().give_scratch().refused(Client.finalize).holds(*_NOT_FINALIZED)),
    keeps("R3", "an aligned start and size, in each alignment profile",
          lambda t: [t.client(profile=profile(alignment=name)).ready().gives(2)
                     for name in ("default", "conservative", "v4-era")]),
    keeps("R3", "a lenient profile accepts misaligned memory, with a finding",
          lambda t: t.client(profile=profile(lenient_scratch=True)).noted(
              lambda c: c.set(_scratch(c, start=16)))),
    breaks("R3", "a start address 16 bytes past alignment", 6000, _wrong_scratch(start=16)),
    breaks("R3", "a size that is not a multiple of the size alignment", 6000, _wrong_scratch(63)),
    keeps("R4", "exactly the required size",
          lambda t: t.client().give_scratch().holds(
              lambda c: c.graph.scratch is not None, "the buffer was not accepted")),
    breaks("R4", "a buffer 64 bytes too small", 6000, _wrong_scratch(-64)),
    breaks("R4", "a descriptor that claims more bytes than the buffer has",
           6000, _wrong_scratch(128)),
    keeps("R6", "scratch, performance, affinity and priority set after finalize",
          lambda t: t.client().ready().give_scratch().set(_fps(30), _ONE_CORE, _HIGH)
          .holds(lambda c: c.graph.perf.fps == 30, "the performance config had no effect")
          .holds(lambda c: c.graph.priority is Priority.HIGH, "the priority had no effect")),
    breaks("R6", "new persistent memory set after finalize", 6024,
           lambda t: t.client().ready().executed().refused(Client.give_persistent).gives(4)),
    breaks("R6", "prepare options set after finalize", 6024,
           lambda t: t.client().ready().refused(lambda c: c.set(_PREPARE))),
    keeps("R7", "scratch replaced between executions, then the old buffer freed", _replaced),
    breaks("R7", "NULL in place of scratch", 6000,
           lambda t: t.client().ready().refused(lambda c: c.set(_NO_SCRATCH))
           .refused(lambda c: c.set(_NO_ADDRESS)).gives(2)),
    breaks("R7", "an invalid option among valid options: nothing changes", 6000,
           lambda t: t.client().ready().refused(lambda c: c.set(_fps(7), _NO_SCRATCH))
           .holds(lambda c: c.graph.perf.fps == 1, "half of a refused call took effect")),
    keeps("R7", "an option given twice: the last value counts; options after NULL are ignored",
          _last_wins),
    breaks("R7", "scratch replaced during an execution", 1005,
           _replaced_during_execution),
    breaks("R7", "scratch freed and not replaced", 6039,
           lambda t: t.client("plain").ready().refused(lambda c: c.freed("scratch").run())),
    keeps("R8", "persistent memory kept until the context is freed",
          lambda t: t.client().ready().gives(2).gives(4).gives(6)
          .freed("context", "persistent").no_findings()),
    breaks("R8", "persistent memory from a heap, freed while its context still exists", 6039,
           lambda t: t.client().ready().refused(lambda c: c.freed("persistent").run())),
    breaks("R8", "persistent memory outside the heaps, released while its context still exists",
           6039,
           _persistent_released),
    keeps("X1", "the unchanged plan of every graph",
          lambda t: [t.client(name).ready().executed().no_findings()
                     for name in ("counter", "plain", "outside", "window")]),
    breaks("X1", "a plan that places a tensor over another that is still needed",
           6022, _moved_tensor),
    keeps("X2", "every byte of a pool written, but none outside the pool", _within),
    breaks("X2", "one byte written after the end of scratch", FINDING, _overrun),
    keeps("X3", "no bytes written except those of live tensors", _poison),
    breaks("X3", "a byte of scratch written that belongs to no live tensor", FINDING,
           lambda t: _poison(t, touch=True)),
    keeps("X4", "new views requested after scratch was replaced", _fresh_view),
    breaks("X4", "a view used after scratch was replaced", 6004, _stale_view),
    keeps("X5", "separate persistent memory for each graph", _own_state),
    breaks("X5", "the same persistent memory for two graphs", FINDING,
           lambda t: t.client().ready().on("double").noted(
               lambda c: c.give(PERSISTENT, c.persistent))),
    keeps("X6", "state changed, reset and restored only by its graph", _restored),
    breaks("X6", "state changed by something other than its graph", FINDING, _state_touched),
    keeps("H1", "every byte of a heap allocated, freed, and allocated again", _whole_heap),
    breaks("H1", "an allocation one byte larger than the heap", 1002, _heap_full),
    keeps("T1", "an allocation of exactly the TCM pool's size",
          lambda t: _tcm(t, [_TCM], [_OPENED, f"Allocate size {_TCM} from tcm pool 0"])),
    breaks("T1", "an allocation one byte larger than the TCM pool", 1002,
           lambda t: _tcm(t, [_TCM + 1], [
               _OPENED, f"TCM memory allocation failure: required size: {_TCM + 64}"])),
    keeps("T2", "32 allocations",
          lambda t: _tcm(t, [64] * 32, [_OPENED, *["Allocate size 64 from tcm pool 0"] * 32])),
    breaks("T2", "the 33rd allocation", FINDING, _one_allocation_more),
    keeps("T3", "TCM in direct mode on v6 and v7",
          lambda t: [t.check(_extensions("adsp", v).mem_type is MemType.TCM, "not in TCM")
                     for v in ("v6", "v7")]),
    breaks("T3", "TCM in x86 or ARM mode, or on v5", 1000,
           lambda t: [t.refused(_extensions, *where)
                      for where in (("x86", "v6"), ("arm", "v6"), ("adsp", "v5_1"))]),
    keeps("T4", "ddr in every mode",
          lambda t: [t.check(_extensions(m, kind="ddr").allocate(9, "x").mem_type is MemType.DDR,
                             "not in DDR") for m in ("x86", "arm", "adsp")]),
    breaks("T4", "any other memory type in the config: two log messages and no memory", 1002,
           lambda t: _tcm(t, [64], ["Invalid memory type", "Memory type only supports DDR & TCM"],
                          "TCM")),
    keeps("R1", "one block used with two backends that have the same requirements", _two_backends),
    breaks("R1", "the alignment queried after a buffer was allocated", FINDING, _asked_late),
    breaks("R1", "inputs and outputs allocated without querying the alignment",
           FINDING, _io_unasked),
    keeps("R3", "exactly the reported size, for a plan made with another alignment",
          _planned_for_16),
    keeps("R4", "pointers passed as integer addresses, with an offset", _by_address),
    breaks("R7", "scratch passed as a slice of a block that is then freed", 6039,
           _pool_freed(SCRATCH, lambda b: b.view[:])),
    breaks("R8", "persistent memory passed as a view of a view of a block that is then freed", 6039,
           _pool_freed(PERSISTENT, _view_of_a_view)),
    breaks("R9", "an input passed as a slice of a slice of a block that is then freed",
           6004, _input_freed),
    keeps("X8", "four graphs with all their memory in one block", _all_in_one_block),
    keeps("X8", "one scratch for two graphs that execute one after the other", _shared_scratch),
    breaks("X8", "scratch that overlaps another graph's persistent memory",
           6000, _scratch_on_state),
    breaks("X8", "an output buffer that overlaps scratch", 6004, _io_in_scratch),
    breaks("X8", "a binary that overlaps scratch", 5000, _binary_on_scratch),
    breaks("X8", "one scratch for two graphs, in a profile that forbids it",
           FINDING, _one_offset_for_two),
    keeps("T1", "Heap(MemType.TCM) offers every byte of the TCM pool", _whole_pool),
    breaks("T1", "two TCM heaps that together need more than the pool they share",
           1002, _two_heaps),
    breaks("T2", "two TCM heaps that together exceed the limit on allocations",
           FINDING, _two_heaps_too_many),
    keeps("T5", "memory of the declared type",
          lambda t: [_said(kind, kind)(t.client("plain", profile=profile("adsp")))
                     for kind in (MemType.DDR, MemType.LLC, MemType.TCM, MemType.PSRAM)]),
    breaks("T5", "TCM declared but DDR passed, the reverse, or a binary not in the declared type",
           (6000, 5010), _wrong_type),
    keeps("T6", "the model and its IO in TCM",
          lambda t: _io_in_tcm(_in_tcm(t)).gives(6, 2).no_findings()),
    breaks("T6", "the model in TCM with IO in DDR, or the reverse", 6004, _mixed),
)
