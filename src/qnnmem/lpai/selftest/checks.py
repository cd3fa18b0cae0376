"""Cases about what the sanitiser, the heaps and the TCM pool watch: X1 to X6, H1, T1 to T4."""

from __future__ import annotations

from dataclasses import replace

from qnnmem.errors import TcmFatal
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.context_config import ContextConfig
from qnnmem.lpai.runtime.descriptors import Mem, custom
from qnnmem.lpai.runtime.extensions import Extensions
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.lpai.runtime.sanitizer import Sanitizer
from qnnmem.lpai.selftest.case import Suite, Unexpected, check, noted, refused
from qnnmem.lpai.selftest.client import PERSISTENT, Client, is_all
from qnnmem.lpai.selftest.models import context, graph
from qnnmem.plan import Pool
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.targets import tcm_pool
from qnnmem.units import Offset

CHECKS = Suite([])
_INVALID_TYPE = ["Invalid memory type", "Memory type only supports DDR & TCM"]


@CHECKS.keeps("X1", "the plan of every graph")
def _good_plans() -> None:
    for name in ("counter", "plain", "outside", "window"):
        client = Client(name).ready()
        client.run()
        check(client.rules == [], f"{name}: findings {', '.join(client.rules)}")


@CHECKS.breaks("X1", "a tensor moved onto another that is still needed")
def _moved_tensor() -> None:
    broken = _moved(graph("plain"), "t", onto="x")
    compiled = replace(context(), graphs=(broken,))
    backend = Backend.create()
    made = Context(backend, compiled, ContextConfig()).graph_retrieve("plain")
    client = Client("plain")
    buffer = client.buffer(broken.scratch_bytes)
    made.set_config([custom(1, Mem(MemType.DDR, buffer.size, buffer)), None])
    with refused(6022, "X1"):
        made.finalize()
    check(not made.is_finalized, "the graph counts as finalized")


@CHECKS.keeps("X2", "every byte of a pool written, none beside it")
def _within() -> None:
    client = Client("plain")
    buffer = client.give_scratch()
    if buffer is not None:
        buffer.array[:] = 0x11
    client.graph.finalize()
    client.run()
    check("X2" not in client.rules, "a whole guard counts as broken")


@CHECKS.breaks("X2", "one byte behind scratch")
def _overrun() -> None:
    from numpy.lib.stride_tricks import as_strided

    client = Client("plain").ready()
    if client.scratch is None:
        raise Unexpected("the graph needs no scratch")
    size = client.scratch.size
    as_strided(client.scratch.array, (size + 1,), (1,))[size] = 0
    with noted(client.backend, "X2"):
        client.run()


@CHECKS.keeps("X3", "only living tensors written")
def _poison_whole() -> None:
    watch, _ = _watched()
    for step, op in enumerate(graph("plain").model.ops):
        watch.before(step, op)
        watch.after(step, op)
    watch.end()
    check(watch.findings == [], "a finding without a reason")


@CHECKS.breaks("X3", "a write into scratch that no tensor owns")
def _poison_touched() -> None:
    watch, offset = _watched(touch=True)
    watch.end()
    found = [(f.rule, f.address) for f in watch.findings]
    check(found == [("X3", offset)], f"findings were {found}")


@CHECKS.keeps("X4", "views fetched again after scratch was replaced")
def _fresh_view() -> None:
    client = Client("plain").ready()
    client.give_scratch()
    client.graph.view("x").array[:] = 2
    client.graph.execute()
    check(is_all(client.graph.view("y").array, 6), "wrong result")


@CHECKS.breaks("X4", "a view used after scratch was replaced")
def _stale_view() -> None:
    client = Client("plain").ready()
    view = client.graph.view("y")
    check(view.array.size > 0, "the view is empty")
    client.give_scratch()
    with refused(6004, "X4"):
        _ = view.array


@CHECKS.keeps("X5", "each graph with a buffer of its own")
def _own_state() -> None:
    client = Client("counter").ready()
    counter, counter_state = client.graph, client.persistent
    client.graph = client.context.graph_retrieve("double")
    client.ready()
    check(is_all(client.run(5), 10), "wrong result")
    check("X5" not in client.rules and counter_state is not None, "blamed without a reason")
    client.graph = counter
    check(is_all(client.run(1), 2), "wrong result")


@CHECKS.breaks("X5", "two graphs with one buffer")
def _shared_state() -> None:
    client = Client("counter").ready()
    if client.persistent is None:
        raise Unexpected("the graph needs no persistent memory")
    client.graph = client.context.graph_retrieve("double")
    with noted(client.backend, "X5"):
        client.give(PERSISTENT, client.persistent)


@CHECKS.keeps("X6", "state changed by its graph, reset and restored through it")
def _state_through_graph() -> None:
    client = Client().ready()
    client.run()
    saved = client.graph.snapshot()
    client.run()
    client.graph.restore(saved)
    check(is_all(client.run(), 4), "the restored state is another")
    client.graph.reset()
    check(is_all(client.run(), 2), "the state was not reset")
    check(client.rules == [], f"findings: {', '.join(client.rules)}")


@CHECKS.breaks("X6", "state changed by somebody else")
def _state_touched() -> None:
    client = Client().ready()
    client.run()
    if client.persistent is not None:
        client.persistent.array[0] ^= 1
    with noted(client.backend, "X6"):
        client.run()


@CHECKS.keeps("H1", "every byte of a heap, and again after it was freed")
def _whole_heap() -> None:
    heap = Heap(MemType.LLC, 4096)
    for _ in range(2):
        with heap.allocate(4096) as buffer:
            check(buffer.size == heap.used == 4096, "the heap does not give all it has")


@CHECKS.breaks("H1", "one byte more than a heap has")
def _heap_full() -> None:
    heap = Heap(MemType.LLC, 4096)
    with refused(1002, "H1"):
        heap.allocate(4097)
    check(heap.used == 0, "the refused buffer takes room")


@CHECKS.keeps("T1", "an exact fit of the pool")
def _exact_fit() -> None:
    tcm, lines = _tcm()
    size = tcm_pool().size.value
    tcm.allocate(size, "binary")
    wanted = [f"TCM pool current size: 0 max_size: {size}", f"Allocate size {size} from tcm pool 0"]
    check(lines == wanted, f"the log is {lines}")


@CHECKS.breaks("T1", "one byte more than the pool has")
def _one_too_many() -> None:
    tcm, lines = _tcm()
    size = tcm_pool().size.value
    with refused(1002, "T1"):
        tcm.allocate(size + 1, "binary")
    wanted = f"TCM memory allocation failure: required size: {size + 64}"
    check(lines[-1] == wanted, f"the log ends with {lines[-1]!r}")


@CHECKS.keeps("T2", "32 allocations")
def _all_allocations() -> None:
    tcm, lines = _tcm()
    for number in range(32):
        tcm.allocate(64, f"tensor {number}")
    check(len(lines) == 33, f"the log has {len(lines)} lines")


@CHECKS.breaks("T2", "the 33rd allocation")
def _one_allocation_more() -> None:
    tcm, _ = _tcm()
    for number in range(32):
        tcm.allocate(64, f"tensor {number}")
    try:
        tcm.allocate(64, "tensor 33")
    except TcmFatal as exc:
        check(exc.exit_code == 134, f"exit status {exc.exit_code} instead of 134")
    else:
        raise Unexpected("the 33rd allocation succeeded")


@CHECKS.keeps("T3", "TCM in direct mode on v6 and v7")
def _tcm_allowed() -> None:
    for version in ("v6", "v7"):
        found = Extensions(Backend.create(profile=profile("adsp", version)), "tcm")
        check(found.mem_type is MemType.TCM, "the memory is not TCM")


@CHECKS.breaks("T3", "TCM in x86 and ARM mode, and on v5")
def _tcm_not_allowed() -> None:
    for mode, version in (("x86", "v6"), ("arm", "v6"), ("adsp", "v5_1")):
        with refused(1000, "T3"):
            Extensions(Backend.create(profile=profile(mode, version)), "tcm")


@CHECKS.keeps("T4", "ddr in every mode")
def _ddr() -> None:
    for mode in ("x86", "arm", "adsp"):
        found = Extensions(Backend.create(profile=profile(mode)), "ddr").allocate(100, "x")
        check(found.mem_type is MemType.DDR, "the memory is not DDR")


@CHECKS.breaks("T4", "any other word: two messages, no memory")
def _other_word() -> None:
    tcm, lines = _tcm("TCM")
    with refused(1002, "T4"):
        tcm.allocate(64, "binary")
    check(lines == _INVALID_TYPE, f"the log is {lines}")


def _moved(good: CompiledGraph, name: str, *, onto: str) -> CompiledGraph:
    offset = next(b.offset for b in good.buffers if b.name == onto)
    moved = tuple(replace(b, offset=offset) if b.name == name else b for b in good.buffers)
    return replace(good, buffers=moved)


def _watched(*, touch: bool = False) -> tuple[Sanitizer, int]:
    """A sanitiser over scratch, and the address of a byte that belongs to nobody."""
    import numpy

    plain = graph("plain")
    scratch = numpy.zeros(plain.scratch_bytes, numpy.uint8)
    places = plain.places()
    views = {
        name: scratch[place.offset : place.offset + plain.model.tensors[name].nbytes]
        for name, place in places.items()
        if place.pool is Pool.SCRATCH
    }
    watch = Sanitizer(plain, scratch, views)
    watch.begin()
    gap = Offset(places["x"].offset + plain.model.tensors["x"].nbytes)  # rounding, nobody's
    if touch:
        scratch[gap] = 1
    return watch, scratch.__array_interface__["data"][0] + gap


def _tcm(mem_type: str = "tcm") -> tuple[Extensions, list[str]]:
    lines: list[str] = []

    def log(level: LogLevel, text: str) -> None:
        if not text.startswith(("[", "QNN_")):  # findings have lines of their own
            lines.append(text)

    backend = Backend.create(profile=profile("adsp"), log=log)
    return Extensions(backend, mem_type), lines
