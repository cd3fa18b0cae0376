"""Cases about scratch and persistent: R1 to R4, R6 to R8."""

from __future__ import annotations

from threading import Event

from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, Mem, PerfCfg, custom
from qnnmem.lpai.selftest.case import Suite, check, noted, refused
from qnnmem.lpai.selftest.client import PERSISTENT, SCRATCH, Client, is_all
from qnnmem.qnn.enums import GraphConfigOption, GraphOption, GraphProperty, MemType, Priority

POOLS = Suite([])
_SCRATCH_SIZE = GraphProperty.GET_PROP_SCRATCH_MEM_SIZE
_WAIT_S = 10.0


@POOLS.keeps("R1", "alignment asked first")
def _asked() -> None:
    client = Client().ready()
    check("R1" not in client.rules, "a client that asked was blamed for not asking")


@POOLS.breaks("R1", "memory handed over without ever asking")
def _never_asked() -> None:
    client = Client(ask=False)
    with noted(client.backend, "R1"):
        client.give_scratch()


@POOLS.keeps("R2", "both pools handed over, then finalize")
def _both_pools() -> None:
    check(is_all(Client().ready().run(), 2), "wrong result")


@POOLS.keeps("R2", "NULL descriptors where the need is 0")
def _null_where_nothing_is_needed() -> None:
    client = Client("bare")
    client.graph.set_config([custom(SCRATCH, Mem()), custom(PERSISTENT, Mem()), None])
    client.graph.finalize()
    check(is_all(client.run(3), 6), "wrong result")


@POOLS.keeps("R2", "no pools at all in ARM mode")
def _arm_brings_none() -> None:
    client = Client(profile=profile("arm"))
    client.graph.finalize()
    check(is_all(client.run(), 2), "wrong result")


@POOLS.breaks("R2", "finalize without scratch")
def _no_scratch() -> None:
    client = Client()
    client.give_persistent()
    with refused(6022, "R2"):
        client.graph.finalize()
    client.give_scratch()
    client.graph.finalize()


@POOLS.breaks("R2", "finalize without persistent")
def _no_persistent() -> None:
    client = Client()
    client.give_scratch()
    with refused(6022, "R2"):
        client.graph.finalize()
    check(not client.graph.is_finalized, "the graph counts as finalized")


@POOLS.keeps("R3", "start and size as asked, in each alignment profile")
def _aligned() -> None:
    for name in ("default", "conservative", "v4-era"):
        client = Client(profile=profile(alignment=name)).ready()
        check(is_all(client.run(), 2), f"wrong result with alignment {name}")


@POOLS.keeps("R3", "lenient profile takes plain malloc, with a finding")
def _lenient() -> None:
    client = Client(profile=profile(lenient_scratch=True))
    off = client.heap.allocate(client.need(_SCRATCH_SIZE) + 64, 64)
    with noted(client.backend, "R3"):
        client.graph.set_config([custom(SCRATCH, Mem(1, off.size - 64, off.view[16:])), None])


@POOLS.breaks("R3", "start address 16 bytes off")
def _misaligned_start() -> None:
    client = Client()
    off = client.heap.allocate(client.need(_SCRATCH_SIZE) + 64, 64)
    with refused(6000, "R3"):
        client.graph.set_config([custom(SCRATCH, Mem(1, off.size - 64, off.view[16:])), None])
    check(client.graph.scratch is None, "the misaligned buffer was taken")


@POOLS.breaks("R3", "size that is no multiple of the size alignment")
def _misaligned_size() -> None:
    client = Client()
    buffer = client.buffer(client.need(_SCRATCH_SIZE) + 64)
    with refused(6000, "R3"):
        client.graph.set_config([custom(SCRATCH, Mem(1, buffer.size - 1, buffer)), None])


@POOLS.keeps("R4", "exactly the size asked for")
def _exact() -> None:
    client = Client()
    buffer = client.buffer(client.need(_SCRATCH_SIZE))
    check(client.give(SCRATCH, buffer) is buffer, "the buffer was not taken")


@POOLS.breaks("R4", "64 bytes too few")
def _too_small() -> None:
    client = Client()
    buffer = client.buffer(client.need(_SCRATCH_SIZE))
    with refused(6000, "R4"):
        client.graph.set_config([custom(SCRATCH, Mem(1, buffer.size - 64, buffer)), None])


@POOLS.breaks("R4", "a descriptor that claims more than the buffer has")
def _claims_too_much() -> None:
    client = Client()
    buffer = client.buffer(client.need(_SCRATCH_SIZE))
    with refused(6000, "R4"):
        client.graph.set_config([custom(SCRATCH, Mem(1, buffer.size + 64, buffer)), None])


@POOLS.keeps("R6", "scratch, performance, affinity and priority after finalize")
def _later_configs() -> None:
    client = Client().ready()
    client.give_scratch()
    configs = (
        custom(GraphOption.SET_CFG_PERF_CFG, PerfCfg(fps=30)),
        custom(GraphOption.SET_CFG_CORE_AFFINITY, CoreAffinityCfg(core_selection=1)),
        Config(GraphConfigOption.PRIORITY, Priority.HIGH),
    )
    client.graph.set_config([*configs, None])
    check(client.graph.perf.fps == 30, "the performance config did not arrive")
    check(client.graph.priority is Priority.HIGH, "the priority did not arrive")


@POOLS.breaks("R6", "new persistent memory after finalize")
def _late_persistent() -> None:
    client = Client().ready()
    client.run()
    with refused(6024, "R6"):
        client.give_persistent()
    check(is_all(client.run(), 4), "the state was lost")


@POOLS.breaks("R6", "prepare options after finalize")
def _late_prepare() -> None:
    client = Client().ready()
    with refused(6024, "R6"):
        client.graph.set_config([custom(GraphOption.SET_CFG_PREPARE), None])


@POOLS.keeps("R7", "scratch replaced between executions, old buffer freed")
def _replaced() -> None:
    client = Client().ready()
    client.run()
    old = client.scratch
    client.give_scratch()
    if old is not None:
        old.free()
    check(is_all(client.run(), 4), "the result changed")
    check(client.rules == [], f"findings: {', '.join(client.rules)}")
    check(old is not None and not old.written_after_free(), "the old buffer is still written")


@POOLS.breaks("R7", "NULL in place of scratch")
def _null_scratch() -> None:
    client = Client().ready()
    for bad in (Mem(MemType.DDR, 0, None), Mem(MemType.DDR, 256, None)):
        with refused(6000, "R7"):
            client.graph.set_config([custom(SCRATCH, bad), None])
    check(is_all(client.run(), 2), "the old scratch is not in use any more")


@POOLS.breaks("R7", "one bad option among good ones: nothing changes")
def _all_or_nothing() -> None:
    client = Client().ready()
    perf = custom(GraphOption.SET_CFG_PERF_CFG, PerfCfg(fps=7))
    with refused(6000, "R7"):
        client.graph.set_config([perf, custom(SCRATCH, Mem(MemType.DDR, 0, None)), None])
    check(client.graph.perf.fps == 1, "half of a refused call took effect")


@POOLS.keeps("R7", "of equal options the last counts, behind NULL nothing does")
def _last_wins() -> None:
    client = Client().ready()
    fps = [custom(GraphOption.SET_CFG_PERF_CFG, PerfCfg(fps=n)) for n in (7, 8, 9)]
    client.graph.set_config([fps[0], fps[1], None, fps[2]])
    check(client.graph.perf.fps == 8, f"{client.graph.perf.fps} fps instead of 8")
    client.graph.set_config([custom(SCRATCH, Mem()), _scratch(client), None])
    check(is_all(client.run(), 2), "the last scratch is not in use")


@POOLS.breaks("R7", "scratch replaced while an execution is under way")
def _replaced_during_execution() -> None:
    client = Client().ready()
    told, go = Event(), Event()

    def hold(_code: int) -> None:
        told.set()
        go.wait(_WAIT_S)

    client.graph.execute_async(notify=hold)
    check(told.wait(_WAIT_S), "the execution never ended")
    client.graph.execute_async()  # waits behind the notification, so it is surely not over
    try:
        with refused(1005, "R7"):
            client.give_scratch()
    finally:
        go.set()
    client.context.queue.run(lambda: None)
    client.give_scratch()


@POOLS.breaks("R7", "scratch freed and not replaced")
def _scratch_freed() -> None:
    client = Client("plain").ready()
    if client.scratch is not None:
        client.scratch.free()
    with refused(6039, "R7"):
        client.run()


@POOLS.keeps("R8", "persistent kept until the context is freed")
def _persistent_kept() -> None:
    client = Client().ready()
    check([int(client.run()[0]) for _ in range(3)] == [2, 4, 6], "state did not survive")
    client.context.free()
    if client.persistent is not None:
        client.persistent.free()
    check(client.rules == [], f"findings: {', '.join(client.rules)}")


@POOLS.breaks("R8", "heap buffer of persistent freed too early")
def _persistent_freed() -> None:
    client = Client().ready()
    if client.persistent is not None:
        client.persistent.free()
    with refused(6039, "R8"):
        client.run()


@POOLS.breaks("R8", "the only reference to persistent dropped too early")
def _persistent_dropped() -> None:
    import numpy

    client = Client()
    client.give_scratch()
    block = numpy.zeros(client.need(GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE) + 64, numpy.uint8)
    start = -block.__array_interface__["data"][0] % 64
    memory = block[start : start + block.size - 64]
    client.graph.set_config([custom(PERSISTENT, Mem(MemType.DDR, memory.size, memory)), None])
    client.graph.finalize()
    check(is_all(client.run(), 2), "wrong result")
    del block, memory
    with refused(6039, "R8"):
        client.run()


def _scratch(client: Client) -> Config:
    buffer = client.buffer(client.need(_SCRATCH_SIZE))
    return custom(SCRATCH, Mem(MemType.DDR, buffer.size, buffer))
