"""Cases about scratch and persistent: R1 to R4, R6 to R8."""

from __future__ import annotations

from typing import Any

from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, Mem, PerfCfg, custom
from qnnmem.lpai.selftest.case import FINDING, Steps, Trial, breaks, keeps
from qnnmem.lpai.selftest.client import PERSISTENT, SCRATCH, Client
from qnnmem.qnn.enums import GraphConfigOption, GraphOption, GraphProperty, MemType, Priority

_PERF = GraphOption.SET_CFG_PERF_CFG
_NULL = custom(SCRATCH, Mem(MemType.DDR, 0, None))


def gives(wanted: int, graph: str = "counter", given: int = 1, **settings: Any) -> Steps:
    """A client that does everything right gets the right result."""
    return lambda t: t.gives(Client(graph, **settings).ready(), wanted, given)


def _scratch(client: Client, size: int, start: int) -> Config:
    """Scratch that says `size` bytes more than needed and starts `start` bytes off."""
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    block = client.heap.allocate(need + 64, 64)
    return custom(SCRATCH, Mem(MemType.DDR, need + size, block.view[start:]))


def _wrong_scratch(size: int = 0, start: int = 0) -> Steps:
    def steps(t: Trial) -> None:
        client = Client()
        t.refused(client.set, _scratch(client, size, start))
        t.check(client.graph.scratch is None, "the refused buffer was taken")

    return steps


def _nothing_needed(t: Trial) -> None:
    client = Client("bare").set(custom(SCRATCH, Mem()), custom(PERSISTENT, Mem()))
    client.graph.finalize()
    t.gives(client, 6, given=3)


def _arm_brings_none(t: Trial) -> None:
    client = Client(profile=profile("arm"))
    client.graph.finalize()
    t.gives(client, 2)


def _no_scratch(t: Trial) -> None:
    client = Client()
    client.give_persistent()
    t.refused(client.graph.finalize)
    client.give_scratch()
    client.graph.finalize()


def _no_persistent(t: Trial) -> None:
    client = Client()
    client.give_scratch()
    t.refused(client.graph.finalize)
    t.check(not client.graph.is_finalized, "the graph counts as finalized")


def _each_alignment(t: Trial) -> None:
    for name in ("default", "conservative", "v4-era"):
        t.gives(Client(profile=profile(alignment=name)).ready(), 2)


def _lenient(t: Trial) -> None:
    client = Client(profile=profile(lenient_scratch=True))
    t.noted(client, lambda c: c.set(_scratch(c, 0, 16)))


def _exact(t: Trial) -> None:
    client = Client()
    buffer = client.buffer(client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE))
    t.check(client.give(SCRATCH, buffer) is buffer, "the buffer was not taken")


def _later_configs(t: Trial) -> None:
    client = Client().ready()
    client.give_scratch()
    affinity = custom(GraphOption.SET_CFG_CORE_AFFINITY, CoreAffinityCfg(core_selection=1))
    priority = Config(GraphConfigOption.PRIORITY, Priority.HIGH)
    client.set(custom(_PERF, PerfCfg(fps=30)), affinity, priority)
    t.check(client.graph.perf.fps == 30, "the performance config did not arrive")
    t.check(client.graph.priority is Priority.HIGH, "the priority did not arrive")


def _late_persistent(t: Trial) -> None:
    client = Client().ready()
    client.run()
    t.refused(client.give_persistent)
    t.gives(client, 4)


def _replaced(t: Trial) -> None:
    client = Client().ready()
    client.run()
    old = client.scratch
    client.give_scratch()
    old.free()
    t.gives(client, 4)
    t.no_findings(client)
    t.check(not old.written_after_free(), "the old buffer is still written")


def _null_scratch(t: Trial) -> None:
    client = Client().ready()
    for null in (_NULL, custom(SCRATCH, Mem(MemType.DDR, 256, None))):
        t.refused(client.set, null)
    t.gives(client, 2)


def _all_or_nothing(t: Trial) -> None:
    client = Client().ready()
    t.refused(client.set, custom(_PERF, PerfCfg(fps=7)), _NULL)
    t.check(client.graph.perf.fps == 1, "half of a refused call took effect")


def _last_wins(t: Trial) -> None:
    client = Client().ready()
    fps = [custom(_PERF, PerfCfg(fps=n)) for n in (7, 8, 9)]
    client.set(fps[0], fps[1], None, fps[2])
    t.check(client.graph.perf.fps == 8, f"{client.graph.perf.fps} fps instead of 8")
    client.set(custom(SCRATCH, Mem()), _scratch(client, 0, 0))
    t.gives(client, 2)


def _replaced_during_execution(t: Trial) -> None:
    client = Client().ready()
    with t.held(client):
        client.graph.execute_async()  # waits behind the notification, so it is surely not over
        t.refused(client.give_scratch)
    client.finish()
    client.give_scratch()


def _scratch_freed(t: Trial) -> None:
    client = Client("plain").ready()
    client.scratch.free()
    t.refused(client.run)


def _persistent_kept(t: Trial) -> None:
    client = Client().ready()
    for wanted in (2, 4, 6):
        t.gives(client, wanted)
    client.context.free()
    client.persistent.free()
    t.no_findings(client)


def _persistent_freed(t: Trial) -> None:
    client = Client().ready()
    client.persistent.free()
    t.refused(client.run)


def _persistent_dropped(t: Trial) -> None:
    import numpy

    client = Client()
    client.give_scratch()
    block = numpy.zeros(client.need(GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE) + 64, numpy.uint8)
    start = -block.__array_interface__["data"][0] % 64
    memory = block[start : start + block.size - 64]
    client.set(custom(PERSISTENT, Mem(MemType.DDR, memory.size, memory)))
    client.graph.finalize()
    t.gives(client, 2)
    del block, memory
    t.refused(client.run)


POOLS = (
    keeps("R1", "alignment asked first", lambda t: t.no_findings(Client().ready())),
    breaks(
        "R1",
        "memory handed over without ever asking",
        FINDING,
        lambda t: t.noted(Client(ask=False), Client.give_scratch),
    ),
    keeps("R2", "both pools handed over, then finalize", gives(2)),
    keeps("R2", "NULL descriptors where the need is 0", _nothing_needed),
    keeps("R2", "no pools at all in ARM mode", _arm_brings_none),
    breaks("R2", "finalize without scratch", 6022, _no_scratch),
    breaks("R2", "finalize without persistent", 6022, _no_persistent),
    keeps("R3", "start and size as asked, in each alignment profile", _each_alignment),
    keeps("R3", "lenient profile takes plain malloc, with a finding", _lenient),
    breaks("R3", "start address 16 bytes off", 6000, _wrong_scratch(start=16)),
    breaks("R3", "size that is no multiple of the size alignment", 6000, _wrong_scratch(63)),
    keeps("R4", "exactly the size asked for", _exact),
    breaks("R4", "64 bytes too few", 6000, _wrong_scratch(-64)),
    breaks("R4", "a descriptor that claims more than the buffer has", 6000, _wrong_scratch(128)),
    keeps("R6", "scratch, performance, affinity and priority after finalize", _later_configs),
    breaks("R6", "new persistent memory after finalize", 6024, _late_persistent),
    breaks(
        "R6",
        "prepare options after finalize",
        6024,
        lambda t: t.refused(Client().ready().set, custom(GraphOption.SET_CFG_PREPARE)),
    ),
    keeps("R7", "scratch replaced between executions, old buffer freed", _replaced),
    breaks("R7", "NULL in place of scratch", 6000, _null_scratch),
    breaks("R7", "one bad option among good ones: nothing changes", 6000, _all_or_nothing),
    keeps("R7", "of equal options the last counts, behind NULL nothing does", _last_wins),
    breaks(
        "R7", "scratch replaced while an execution is under way", 1005, _replaced_during_execution
    ),
    breaks("R7", "scratch freed and not replaced", 6039, _scratch_freed),
    keeps("R8", "persistent kept until the context is freed", _persistent_kept),
    breaks("R8", "heap buffer of persistent freed too early", 6039, _persistent_freed),
    breaks("R8", "the only reference to persistent dropped too early", 6039, _persistent_dropped),
)
