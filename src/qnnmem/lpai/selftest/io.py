"""Cases about inputs, outputs, queue, shared memory and what is freed in the end.

Rules R3, R4, R9, R17, R18, M1 to M4 and L1 to L4.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from qnnmem.contract.leaks import leaks
from qnnmem.lpai.profiles import Profile, profile
from qnnmem.lpai.runtime.descriptors import Config, MemDescriptor, MemInfoCustom
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION
from qnnmem.lpai.runtime.queue import Signal
from qnnmem.lpai.selftest.case import FINDING, WAIT_S, Steps, Trial, TrialClient, breaks, keeps
from qnnmem.lpai.selftest.client import KEEP, is_all, numbers
from qnnmem.lpai.selftest.models import ELEMENTS
from qnnmem.qnn.enums import ContextOption, DataType, MemRegisterType, TensorMemType
from qnnmem.qnn.tensor import QnnTensor

_ROOM = 4096
_CUSTOM, _ION, _DMA_BUF = MemRegisterType.CUSTOM, MemRegisterType.ION, MemRegisterType.DMA_BUF


def _misaligned(t: Trial) -> None:
    client = t.client("plain").ready()
    inputs, outputs = client.tensors()
    inputs[0].client_buf = client.buffer(256).view[4:104]
    t.refused(client.graph.execute, inputs, outputs)
    client.gives(6, given=2)


def _sizes(t: Trial) -> None:
    client = t.client("plain").ready()
    for size in (100, 101, 128):
        inputs, outputs = client.tensors()
        inputs[0].data_size = outputs[0].data_size = size
        t.check(client.graph.execute(inputs, outputs) == 0, f"{size} bytes do not execute")


def _wrong_sizes(t: Trial) -> None:
    client = t.client("plain").ready()
    for size in (0, 99, 129, -1):
        inputs, outputs = client.tensors()
        outputs[0].data_size = size
        t.refused(client.graph.execute, inputs, outputs)


def _in_scratch(t: Trial) -> None:
    graph = t.client("plain").ready().graph
    graph.view("x").array[:] = 5
    graph.execute()
    t.check(is_all(graph.view("y").array, 15), "wrong result")
    t.check(graph.counters.copied_bytes == 0, "bytes were copied")


def _early(t: Trial) -> None:
    client = t.client("window").ready()
    inputs, outputs = client.tensors()
    numbers(inputs[0])[:] = 4
    numbers(outputs[0])[:] = -1
    first = client.graph.execute(inputs, outputs)
    t.check(first == EARLY_TERMINATION, f"{first} instead of 6038")
    t.check(is_all(numbers(outputs[0]), -1), "the output was touched")
    t.check(client.graph.execute(inputs, outputs) == 0, "the window is full, but does not answer")
    t.check(is_all(numbers(outputs[0]), 8), "wrong result")


def _freed_output(t: Trial) -> None:
    client = t.client("plain").ready()
    inputs, outputs = client.tensors()
    outputs[0].client_buf.free()
    t.refused(client.graph.execute, inputs, outputs)
    told: list[int] = []
    client.graph.execute_async(inputs, outputs, told.append)
    client.finish()
    t.check(told == [6004], f"the notification said {told}")


def _queued(t: Trial, *, blocks: bool) -> TrialClient:
    depth = Config(ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, 1)
    platform = profile(async_blocks=blocks)
    return t.client("plain", profile=platform, configs=[KEEP, depth]).ready()


def _waits(t: Trial) -> None:
    client, done = _queued(t, blocks=True), Event()

    def third() -> None:
        client.graph.execute_async()
        done.set()

    with client.held():
        client.graph.execute_async()
        Thread(target=third, daemon=True).start()
        t.check(not done.wait(0.02), "the call did not wait")
    t.check(done.wait(WAIT_S), "the call never returned")
    client.finish()
    t.check(client.graph.counters.executions == 3, "an execution was lost")


def _in_order(t: Trial) -> None:
    client, order = t.client("plain").ready(), list[int]()
    for number in range(8):
        client.graph.execute_async(notify=lambda code, n=number: order.append(code or n))  # type: ignore[misc]  # a default binds the number
    client.graph.execute()
    t.check(order == list(range(8)), f"the order was {order}")


def _full(t: Trial) -> None:
    client, told = _queued(t, blocks=False), list[int]()
    with client.held():
        client.graph.execute_async(notify=told.append)
        t.refused(client.graph.execute_async, notify=told.append)
    t.check(told == [0], f"notifications said {told} instead of one 0")


def _signal_again(t: Trial) -> None:
    client, signal = t.client("plain").ready(), Signal()
    client.graph.execute(signal=signal)
    client.graph.execute(signal=signal)
    t.check(not signal.in_use, "the signal is still taken")


def _signal_twice(t: Trial) -> None:
    client, signal, told = t.client("plain").ready(), Signal(), list[int]()
    with client.held():
        client.graph.execute_async(notify=told.append, signal=signal)
        t.refused(client.graph.execute, signal=signal)
        t.refused(client.graph.execute_async, notify=told.append, signal=signal)
    t.check(told == [0] and not signal.in_use, "the first call suffered")


@contextmanager
def _shared() -> Iterator[int]:
    """An fd with room for some tensors."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_ROOM)
        yield file.fileno()


def _range(
    fd: int, offset: int, elements: int = ELEMENTS, kind: MemRegisterType = _CUSTOM
) -> MemDescriptor:
    return MemDescriptor((1, elements), DataType.INT_32, kind, MemInfoCustom(fd, offset))


def _registers(
    offset: int,
    elements: int = ELEMENTS,
    kind: MemRegisterType = _CUSTOM,
    platform: Profile | None = None,
) -> Steps:
    """One range of a shared buffer is registered."""

    def steps(t: Trial) -> None:
        with _shared() as fd:
            made = t.client(profile=platform).context
            t.check(bool(made.mem_register([_range(fd, offset, elements, kind)])), "no handle")

    return steps


def _registers_not(offset: int, *kinds: MemRegisterType) -> Steps:
    """One range of a shared buffer is refused, whichever kind it is."""

    def steps(t: Trial) -> None:
        with _shared() as fd:
            for kind in kinds:
                t.refused(t.client().context.mem_register, [_range(fd, offset, kind=kind)])

    return steps


def _use(tensor: QnnTensor, handle: object) -> None:
    tensor.mem_type, tensor.mem_handle, tensor.client_buf = TensorMemType.MEMHANDLE, handle, None


def _two_ranges(t: Trial) -> None:
    client = t.client("plain").ready()
    with _shared() as fd:
        handles = client.context.mem_register([_range(fd, 0), _range(fd, 128)])
        inputs, outputs = client.tensors()
        for tensor, handle in zip((inputs[0], outputs[0]), handles, strict=True):
            _use(tensor, handle)
        handles[0].array.view("int32")[:] = 4
        client.graph.execute(inputs, outputs)
        t.check(is_all(handles[1].array.view("int32"), 12), "wrong result")
        t.check(client.graph.counters.copied_bytes == 0, "bytes were copied")
        client.context.mem_deregister(handles)


def _registered_twice(t: Trial) -> None:
    made = t.client("plain").ready().context
    with _shared() as fd:
        made.mem_register([_range(fd, 0)])
        t.refused(made.mem_register, [_range(fd, 128), _range(fd, 0)])
        made.mem_register([_range(fd, 128)])


def _outside_the_fd(t: Trial) -> None:
    client = t.client("plain").ready()
    made, (inputs, outputs) = client.context, client.tensors()
    with _shared() as fd:
        t.refused(made.mem_register, [_range(fd, _ROOM - 64)], code=8003)
        handles = made.mem_register([_range(fd, 0)])
    t.refused(made.mem_register, [_range(-1, 0)], code=8003)
    made.mem_deregister(handles)
    t.refused(made.mem_deregister, handles, code=8001)
    _use(inputs[0], handles[0])
    t.refused(client.graph.execute, inputs, outputs, code=6004)


def _left(t: Trial, *wanted: str) -> None:
    """What is not freed now, each with the line that made it."""
    found = leaks()
    rules = [one.rule for one in found]
    t.check(rules == list(wanted), f"not freed: {rules} instead of {list(wanted)}")
    t.check(all(" at " in one.sentence for one in found), "a line is missing")


def _freed_in_order(t: Trial) -> None:
    t.client().ready().executed().freed("context", "backend").no_findings()
    _left(t)


def _never(t: Trial) -> None:
    client = t.client().ready()
    _left(t, "L1", "L2", "L2")  # the backend, its context, and the graph of that
    client.context.free()
    _left(t, "L1")
    client.backend.free()
    _left(t)


def _registered_memory(t: Trial, *, deregister: bool) -> None:
    client = t.client("plain")
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        info = MemInfoCustom(file.fileno(), 0)
        handles = client.context.mem_register(
            [MemDescriptor((1, 25), DataType.INT_32, custom_info=info)]
        )
        if deregister:
            client.context.mem_deregister(handles)
            client.freed("context").no_findings()
        else:
            client.noted(lambda c: c.context.free())


def _signals(t: Trial) -> None:
    client = t.client("plain").ready()
    for signal in (Signal(), Signal(client.backend)):
        client.graph.execute(signal=signal)
        signal.free()
    client.freed("context", "backend").no_findings()
    _left(t)


def _signals_left(t: Trial) -> None:
    client = t.client("plain").ready()
    Signal()
    signal = Signal(client.backend)
    with client.held():
        client.graph.execute_async(signal=signal)
        t.refused(signal.free, code=9000)
    signal.free()
    t.refused(signal.free, code=9003)
    t.refused(client.graph.execute, signal=signal, code=9003)
    client.freed("context", "backend")
    _left(t, "L4")


# fmt: off
IO = (
    keeps("R3", "inputs and outputs on aligned addresses",
          lambda t: t.client("outside").ready().gives(6, 2)),
    breaks("R3", "an input 4 bytes off", 6004, _misaligned),
    keeps("R4", "data size exact, rounded up, or between", _sizes),
    breaks("R4", "data size below the tensor's or above the rounded one", 6004, _wrong_sizes),
    keeps("R9", "NULL data uses the tensors in scratch, without a copy", _in_scratch),
    keeps("R9", "6038 leaves the output alone until the window is full", _early),
    breaks("R9", "NULL data where IO is not in scratch", 6004,
           lambda t: t.client("outside").ready().refused(lambda c: c.graph.execute())),
    breaks("R9", "an output freed before the execution, also in the queue", 6004, _freed_output),
    keeps("R17", "a full queue makes the next call wait", _waits),
    keeps("R17", "executions end in the order they were asked for", _in_order),
    breaks("R17", "a full queue in a profile that does not wait", 6025, _full),
    keeps("R18", "one signal for one call after the other", _signal_again),
    breaks("R18", "one signal for two calls at once", 6030, _signal_twice),
    keeps("M1", "two ranges of one fd, registered once each", _two_ranges),
    breaks("M1", "the same range twice; nothing of that call stays", 8002, _registered_twice),
    keeps("M2", "a range that ends with its fd", _registers(_ROOM - 128, elements=32)),
    breaks("M2", "a range past the end, an fd that is not open, a handle that is gone",
           (8003, 8001, 6004), _outside_the_fd),
    keeps("M3", "an offset on the start alignment",
          _registers(256, platform=profile(alignment="conservative"))),
    breaks("M3", "an offset between two multiples", 8004, _registers_not(32, _CUSTOM)),
    keeps("M4", "ION in ARM mode", _registers(0, kind=_ION, platform=profile("arm"))),
    breaks("M4", "ION and DMA_BUF in x86 mode", 8005, _registers_not(0, _ION, _DMA_BUF)),
    keeps("L1", "context, then backend", _freed_in_order),
    breaks("L1", "the backend before its context", FINDING,
           lambda t: t.client().ready().noted(lambda c: c.backend.free())),
    keeps("L2", "a context freed after its last execution", _freed_in_order),
    breaks("L2", "a context and its graph never freed", FINDING, _never),
    keeps("L3", "memory deregistered, then the context freed",
          lambda t: _registered_memory(t, deregister=True)),
    breaks("L3", "memory still registered when the context is freed", FINDING,
           lambda t: _registered_memory(t, deregister=False)),
    keeps("L4", "every signal freed", _signals),
    breaks("L4", "signals freed in use, twice, never, or used later", (9000, 9003), _signals_left),
)
