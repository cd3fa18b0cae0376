"""Cases about inputs, outputs, queue and shared memory: R3, R4, R9, R17, R18, M1 to M4."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.descriptors import Config, MemDescriptor, MemInfoCustom
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION
from qnnmem.lpai.runtime.queue import Signal
from qnnmem.lpai.selftest.case import Suite, check, refused
from qnnmem.lpai.selftest.client import KEEP, Client, is_all, numbers
from qnnmem.lpai.selftest.models import ELEMENTS
from qnnmem.qnn.enums import ContextOption, DataType, MemRegisterType, TensorMemType
from qnnmem.qnn.tensor import QnnTensor

IO = Suite([])
_WAIT_S = 10.0
_ROOM = 4096


@IO.keeps("R3", "inputs and outputs on aligned addresses")
def _aligned() -> None:
    check(is_all(Client("outside").ready().run(2), 6), "wrong result")


@IO.breaks("R3", "an input 4 bytes off")
def _misaligned() -> None:
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    inputs[0].client_buf = client.buffer(256).view[4:104]
    with refused(6004, "R3"):
        client.graph.execute(inputs, outputs)
    check(is_all(client.run(2), 6), "the graph does not work any more")


@IO.keeps("R4", "data size exact, rounded up, or between")
def _sizes() -> None:
    client = Client("plain").ready()
    for size in (100, 101, 128):
        inputs, outputs = client.tensors()
        inputs[0].data_size = outputs[0].data_size = size
        client.graph.execute(inputs, outputs)


@IO.breaks("R4", "data size below the tensor's or above the rounded one")
def _wrong_sizes() -> None:
    client = Client("plain").ready()
    for size in (0, 99, 129, -1):
        inputs, outputs = client.tensors()
        outputs[0].data_size = size
        with refused(6004, "R4"):
            client.graph.execute(inputs, outputs)


@IO.keeps("R9", "NULL data uses the tensors in scratch, without a copy")
def _in_scratch() -> None:
    client = Client("plain").ready()
    client.graph.view("x").array[:] = 5
    client.graph.execute()
    check(is_all(client.graph.view("y").array, 15), "wrong result")
    check(client.graph.counters.copied_bytes == 0, "bytes were copied")


@IO.keeps("R9", "6038 leaves the output alone until the window is full")
def _early() -> None:
    client = Client("window").ready()
    inputs, outputs = client.tensors()
    numbers(inputs[0])[:] = 4
    numbers(outputs[0])[:] = -1
    first = client.graph.execute(inputs, outputs)
    check(first == EARLY_TERMINATION, f"{first} instead of 6038")
    check(is_all(numbers(outputs[0]), -1), "the output was touched")
    check(client.graph.execute(inputs, outputs) == 0, "the window is full, but does not answer")
    check(is_all(numbers(outputs[0]), 8), "wrong result")


@IO.breaks("R9", "NULL data where IO is not in scratch")
def _null_outside() -> None:
    client = Client("outside").ready()
    with refused(6004, "R9"):
        client.graph.execute()


@IO.breaks("R9", "an output freed before the execution, also in the queue")
def _freed_output() -> None:
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    outputs[0].client_buf.free()
    with refused(6004, "R9"):
        client.graph.execute(inputs, outputs)
    told: list[int] = []
    client.graph.execute_async(inputs, outputs, told.append)
    client.context.queue.run(lambda: None)
    check(told == [6004], f"the notification said {told}")


@IO.keeps("R17", "a full queue makes the next call wait")
def _waits() -> None:
    client = _queued(blocks=True)
    done = Event()

    def third() -> None:
        client.graph.execute_async()
        done.set()

    with _held(client):
        client.graph.execute_async()
        thread = Thread(target=third, daemon=True)
        thread.start()
        check(not done.wait(0.02), "the call did not wait")
    check(done.wait(_WAIT_S), "the call never returned")
    client.context.queue.run(lambda: None)
    check(client.graph.counters.executions == 3, "an execution was lost")


@IO.keeps("R17", "executions end in the order they were asked for")
def _in_order() -> None:
    client = Client("plain").ready()
    order: list[int] = []
    for number in range(8):
        client.graph.execute_async(notify=lambda code, n=number: order.append(code or n))  # type: ignore[misc]  # a default binds the number
    client.graph.execute()
    check(order == list(range(8)), f"the order was {order}")


@IO.breaks("R17", "a full queue in a profile that does not wait")
def _full() -> None:
    client = _queued(blocks=False)
    told: list[int] = []
    with _held(client):
        client.graph.execute_async(notify=told.append)
        with refused(6025, "R17"):
            client.graph.execute_async(notify=told.append)
    client.context.queue.run(lambda: None)
    check(told == [0], f"notifications said {told} instead of one 0")


@IO.keeps("R18", "one signal for one call after the other")
def _signal_again() -> None:
    client, signal = Client("plain").ready(), Signal()
    client.graph.execute(signal=signal)
    client.graph.execute(signal=signal)
    check(not signal.in_use, "the signal is still taken")


@IO.breaks("R18", "one signal for two calls at once")
def _signal_twice() -> None:
    client, signal = Client("plain").ready(), Signal()
    told: list[int] = []
    with _held(client):
        client.graph.execute_async(notify=told.append, signal=signal)
        with refused(6030, "R18"):
            client.graph.execute(signal=signal)
        with refused(6030, "R18"):
            client.graph.execute_async(notify=told.append, signal=signal)
    client.context.queue.run(lambda: None)
    check(told == [0] and not signal.in_use, "the first call suffered")


@IO.keeps("M1", "two ranges of one fd, registered once each")
def _two_ranges() -> None:
    client = Client("plain").ready()
    with _shared() as fd:
        handles = client.context.mem_register([_range(fd, 0), _range(fd, 128)])
        inputs, outputs = client.tensors()
        for tensor, handle in zip((inputs[0], outputs[0]), handles, strict=True):
            _use(tensor, handle)
        handles[0].array.view("int32")[:] = 4
        client.graph.execute(inputs, outputs)
        check(is_all(handles[1].array.view("int32"), 12), "wrong result")
        check(client.graph.counters.copied_bytes == 0, "bytes were copied")
        client.context.mem_deregister(handles)


@IO.breaks("M1", "the same range twice; nothing of that call stays")
def _registered_twice() -> None:
    client = Client("plain").ready()
    with _shared() as fd:
        client.context.mem_register([_range(fd, 0)])
        with refused(8002, "M1"):
            client.context.mem_register([_range(fd, 128), _range(fd, 0)])
        client.context.mem_register([_range(fd, 128)])


@IO.keeps("M2", "a range that ends with its fd")
def _up_to_the_end() -> None:
    client = Client("plain")
    with _shared() as fd:
        check(bool(client.context.mem_register([_range(fd, _ROOM - 128, 32)])), "no handle")


@IO.breaks("M2", "a range past the end, an fd that is not open, a handle that is gone")
def _outside_the_fd() -> None:
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    with _shared() as fd:
        with refused(8003, "M2"):
            client.context.mem_register([_range(fd, _ROOM - 64)])
        handles = client.context.mem_register([_range(fd, 0)])
    with refused(8003, "M2"):
        client.context.mem_register([_range(-1, 0)])
    client.context.mem_deregister(handles)
    with refused(8001, "M2"):
        client.context.mem_deregister(handles)
    _use(inputs[0], handles[0])
    with refused(6004, "M2"):
        client.graph.execute(inputs, outputs)


@IO.keeps("M3", "an offset on the start alignment")
def _aligned_offset() -> None:
    client = Client("plain", profile=profile(alignment="conservative"))
    with _shared() as fd:
        check(bool(client.context.mem_register([_range(fd, 256)])), "no handle")


@IO.breaks("M3", "an offset between two multiples")
def _misaligned_offset() -> None:
    client = Client("plain")
    with _shared() as fd, refused(8004, "M3"):
        client.context.mem_register([_range(fd, 32)])


@IO.keeps("M4", "ION in ARM mode")
def _ion() -> None:
    client = Client("plain", profile=profile("arm"))
    with _shared() as fd:
        made = client.context.mem_register([_range(fd, 0, kind=MemRegisterType.ION)])
        check(bool(made), "no handle")


@IO.breaks("M4", "ION and DMA_BUF in x86 mode")
def _no_ion() -> None:
    client = Client("plain")
    with _shared() as fd:
        for kind in (MemRegisterType.ION, MemRegisterType.DMA_BUF):
            with refused(8005, "M4"):
                client.context.mem_register([_range(fd, 0, kind=kind)])


def _queued(*, blocks: bool) -> Client:
    depth = Config(ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, 1)
    return Client("plain", profile(async_blocks=blocks), [KEEP, depth]).ready()


@contextmanager
def _held(client: Client) -> Iterator[None]:
    """Keep the queue's worker in a notification, so that what follows stays queued."""
    told, go = Event(), Event()

    def hold(_code: int) -> None:
        told.set()
        go.wait(_WAIT_S)

    client.graph.execute_async(notify=hold)
    check(told.wait(_WAIT_S), "the execution never ended")
    try:
        yield
    finally:
        go.set()


@contextmanager
def _shared() -> Iterator[int]:
    """An fd with room for some tensors."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_ROOM)
        yield file.fileno()


def _range(
    fd: int,
    offset: int,
    elements: int = ELEMENTS,
    kind: MemRegisterType = MemRegisterType.CUSTOM,
) -> MemDescriptor:
    return MemDescriptor((1, elements), DataType.INT_32, kind, MemInfoCustom(fd, offset))


def _use(tensor: QnnTensor, handle: object) -> None:
    tensor.mem_type, tensor.mem_handle, tensor.client_buf = TensorMemType.MEMHANDLE, handle, None
