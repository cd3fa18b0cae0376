"""Cases about what the sanitiser, the heaps and the TCM pool watch: X1 to X6, H1, T1 to T4."""

from __future__ import annotations

from dataclasses import replace

from qnnmem.errors import TcmFatal
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.context_config import ContextConfig
from qnnmem.lpai.runtime.descriptors import Mem, custom
from qnnmem.lpai.runtime.extensions import Extensions
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.lpai.runtime.sanitizer import Sanitizer
from qnnmem.lpai.selftest.case import FINDING, Trial, breaks, keeps
from qnnmem.lpai.selftest.client import PERSISTENT, SCRATCH, Client, is_all
from qnnmem.lpai.selftest.models import context, graph
from qnnmem.plan import Pool
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.targets import tcm_pool


def _good_plans(t: Trial) -> None:
    for name in ("counter", "plain", "outside", "window"):
        client = Client(name).ready()
        client.run()
        t.no_findings(client)


def _moved_tensor(t: Trial) -> None:
    good = graph("plain")
    offset = good.places()["x"].offset
    moved = (replace(b, offset=offset) if b.name == "t" else b for b in good.buffers)
    compiled = replace(context(), graphs=(replace(good, buffers=tuple(moved)),))
    made = Context(Backend.create(), compiled, ContextConfig()).graph_retrieve("plain")
    buffer = Client("plain").buffer(good.scratch_bytes)
    made.set_config([custom(SCRATCH, Mem(MemType.DDR, buffer.size, buffer)), None])
    t.refused(made.finalize)
    t.check(not made.is_finalized, "the graph counts as finalized")


def _within(t: Trial) -> None:
    client = Client("plain")
    client.give_scratch()
    client.scratch.array[:] = 0x11
    client.graph.finalize()
    client.run()
    t.check("X2" not in client.rules, "a whole guard counts as broken")


def _overrun(t: Trial) -> None:
    from numpy.lib.stride_tricks import as_strided

    client = Client("plain").ready()
    size = client.scratch.size
    as_strided(client.scratch.array, (size + 1,), (1,))[size] = 0
    t.noted(client, Client.run)


def _sanitized(*, touch: bool = False) -> tuple[Sanitizer, int]:
    """A sanitiser over scratch, and the address of a byte that no tensor owns."""
    import numpy

    plain = graph("plain")
    scratch = numpy.zeros(plain.scratch_bytes, numpy.uint8)
    places, tensors = plain.places(), plain.model.tensors
    ends = {name: place.offset + tensors[name].nbytes for name, place in places.items()}
    views = {
        name: scratch[place.offset : ends[name]]
        for name, place in places.items()
        if place.pool is Pool.SCRATCH
    }
    sanitizer = Sanitizer(plain, scratch, views)
    sanitizer.begin()
    if touch:
        scratch[ends["x"]] = 1  # what rounding leaves free behind the input
    return sanitizer, scratch.__array_interface__["data"][0] + ends["x"]


def _poison_whole(t: Trial) -> None:
    sanitizer, _ = _sanitized()
    for step, op in enumerate(graph("plain").model.ops):
        sanitizer.before(step, op)
        sanitizer.after(step, op)
    sanitizer.end()
    t.check(sanitizer.findings == [], "a finding without a reason")


def _poison_touched(t: Trial) -> None:
    sanitizer, address = _sanitized(touch=True)
    sanitizer.end()
    found = [(f.rule, f.address) for f in sanitizer.findings]
    t.check(found == [("X3", address)], f"findings were {found}")


def _fresh_view(t: Trial) -> None:
    client = Client("plain").ready()
    client.give_scratch()
    client.graph.view("x").array[:] = 2
    client.graph.execute()
    t.check(is_all(client.graph.view("y").array, 6), "wrong result")


def _stale_view(t: Trial) -> None:
    client = Client("plain").ready()
    view = client.graph.view("y")
    t.check(view.array.size > 0, "the view is empty")
    client.give_scratch()
    t.refused(lambda: view.array)


def _own_state(t: Trial) -> None:
    client = Client("counter").ready()
    counter, kept = client.graph, client.persistent
    client.graph = client.context.graph_retrieve("double")
    t.gives(client.ready(), 10, given=5)
    t.check("X5" not in client.rules, "blamed without a reason")
    client.graph = counter
    t.gives(client, 2)
    t.check(not kept.freed, "the first buffer was freed")


def _shared_state(t: Trial) -> None:
    client = Client("counter").ready()
    client.graph = client.context.graph_retrieve("double")
    t.noted(client, lambda c: c.give(PERSISTENT, c.persistent))


def _state_through_graph(t: Trial) -> None:
    client = Client().ready()
    client.run()
    saved = client.graph.snapshot()
    client.run()
    client.graph.restore(saved)
    t.gives(client, 4)
    client.graph.reset()
    t.gives(client, 2)
    t.no_findings(client)


def _state_touched(t: Trial) -> None:
    client = Client().ready()
    client.run()
    client.persistent.array[0] ^= 1
    t.noted(client, Client.run)


def _whole_heap(t: Trial) -> None:
    heap = Heap(MemType.LLC, 4096)
    for _ in range(2):
        with heap.allocate(4096) as buffer:
            t.check(buffer.size == heap.used == 4096, "the heap does not give all it has")


def _heap_full(t: Trial) -> None:
    heap = Heap(MemType.LLC, 4096)
    t.refused(heap.allocate, 4097)
    t.check(heap.used == 0, "the refused buffer takes room")


def _extensions(mem_type: str = "tcm") -> tuple[Extensions, list[str]]:
    """What qnn-net-run allocates with in aDSP mode, and the lines that it logs."""
    lines: list[str] = []

    def log(level: LogLevel, text: str) -> None:
        if not text.startswith(("[", "QNN_")):  # findings have lines of their own
            lines.append(text)

    return Extensions(Backend.create(profile=profile("adsp"), log=log), mem_type), lines


def _exact_fit(t: Trial) -> None:
    (tcm, lines), size = _extensions(), tcm_pool().size.value
    tcm.allocate(size, "binary")
    wanted = [f"TCM pool current size: 0 max_size: {size}", f"Allocate size {size} from tcm pool 0"]
    t.check(lines == wanted, f"the log is {lines}")


def _one_too_many(t: Trial) -> None:
    (tcm, lines), size = _extensions(), tcm_pool().size.value
    t.refused(tcm.allocate, size + 1, "binary")
    wanted = f"TCM memory allocation failure: required size: {size + 64}"
    t.check(lines[-1] == wanted, f"the log ends with {lines[-1]!r}")


def _all_allocations(t: Trial) -> Extensions:
    tcm, lines = _extensions()
    for number in range(32):
        tcm.allocate(64, f"tensor {number}")
    t.check(len(lines) == 33, f"the log has {len(lines)} lines")
    return tcm


def _one_allocation_more(t: Trial) -> None:
    tcm = _all_allocations(t)
    try:
        tcm.allocate(64, "tensor 33")
    except TcmFatal as exc:
        t.check(exc.exit_code == 134, f"exit status {exc.exit_code} instead of 134")
    else:
        t.check(False, "the 33rd allocation succeeded")


def _tcm_allowed(t: Trial) -> None:
    for version in ("v6", "v7"):
        found = Extensions(Backend.create(profile=profile("adsp", version)), "tcm")
        t.check(found.mem_type is MemType.TCM, "the memory is not TCM")


def _tcm_not_allowed(t: Trial) -> None:
    for mode, version in (("x86", "v6"), ("arm", "v6"), ("adsp", "v5_1")):
        t.refused(Extensions, Backend.create(profile=profile(mode, version)), "tcm")


def _ddr(t: Trial) -> None:
    for mode in ("x86", "arm", "adsp"):
        found = Extensions(Backend.create(profile=profile(mode)), "ddr").allocate(100, "x")
        t.check(found.mem_type is MemType.DDR, "the memory is not DDR")


def _other_word(t: Trial) -> None:
    tcm, lines = _extensions("TCM")
    t.refused(tcm.allocate, 64, "binary")
    wanted = ["Invalid memory type", "Memory type only supports DDR & TCM"]
    t.check(lines == wanted, f"the log is {lines}")


MEMORY = (
    keeps("X1", "the plan of every graph", _good_plans),
    breaks("X1", "a tensor moved onto another that is still needed", 6022, _moved_tensor),
    keeps("X2", "every byte of a pool written, none beside it", _within),
    breaks("X2", "one byte behind scratch", FINDING, _overrun),
    keeps("X3", "only living tensors written", _poison_whole),
    breaks("X3", "a write into scratch that no tensor owns", FINDING, _poison_touched),
    keeps("X4", "views fetched again after scratch was replaced", _fresh_view),
    breaks("X4", "a view used after scratch was replaced", 6004, _stale_view),
    keeps("X5", "each graph with a buffer of its own", _own_state),
    breaks("X5", "two graphs with one buffer", FINDING, _shared_state),
    keeps("X6", "state changed by its graph, reset and restored through it", _state_through_graph),
    breaks("X6", "state changed by somebody else", FINDING, _state_touched),
    keeps("H1", "every byte of a heap, and again after it was freed", _whole_heap),
    breaks("H1", "one byte more than a heap has", 1002, _heap_full),
    keeps("T1", "an exact fit of the pool", _exact_fit),
    breaks("T1", "one byte more than the pool has", 1002, _one_too_many),
    keeps("T2", "32 allocations", _all_allocations),
    breaks("T2", "the 33rd allocation", FINDING, _one_allocation_more),
    keeps("T3", "TCM in direct mode on v6 and v7", _tcm_allowed),
    breaks("T3", "TCM in x86 and ARM mode, and on v5", 1000, _tcm_not_allowed),
    keeps("T4", "ddr in every mode", _ddr),
    breaks("T4", "any other word: two messages, no memory", 1002, _other_word),
)
