from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnmem import lpai
from qnnmem.errors import QnnError, QnnMemError, UsageError
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.descriptors import HwInfo
from qnnmem.lpai.selftest.client import KEEP, SCRATCH, Client, is_all, numbers
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import (
    ContextOption,
    DataType,
    HwVersion,
    LogLevel,
    MemType,
    Target,
    TensorMemType,
)
from qnnmem.qnn.tensor import QnnTensor

WAIT_S = 20.0
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "tutorials" / "lpai-runtime.md"
NAMES = DOCS / "reference" / "lpai-python.md"


def code_of(call: Callable[[], object]) -> tuple[int, str]:
    """Return the code and the rule of a call that fails."""
    with pytest.raises(QnnError) as caught:
        call()
    return caught.value.code, caught.value.finding.rule


# --- Arguments that make no sense ------------------------------------------------------------


def freed_buffer() -> lpai.HeapBuffer:
    """Return a freed buffer."""
    buffer = lpai.Heap(MemType.DDR).allocate(512)
    buffer.free()
    return buffer


def released_view() -> memoryview:
    """Return a released view."""
    view = memoryview(bytearray(512))
    view.release()
    return view


def raises(*_arguments: object) -> None:
    """A callback of the application that fails."""
    raise ZeroDivisionError


NONSENSE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "text",
    "empty text": lambda: "",
    "half a character": lambda: "\ud800",
    "bytes": lambda: b"abc",
    "negative": lambda: -1,
    "zero": lambda: 0,
    "one": lambda: 1,
    "over 32 bits": lambda: 1 << 32,
    "over 64 bits": lambda: 1 << 70,
    "fraction": lambda: 1.5,
    "not a number": lambda: float("nan"),
    "true": lambda: True,
    "list": lambda: [1, "a"],
    "list in a list": lambda: [[None]],
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "object": object,
    "class": lambda: int,
    "function": lambda: raises,
    "generator": lambda: (item for item in [object()]),
    "scalar array": lambda: np.zeros((), np.int32),
    "empty array": lambda: np.zeros(0),
    "array": lambda: np.zeros(4096, np.uint8),
    "array with gaps": lambda: np.zeros((64, 64))[::2, ::2],
    "read-only array": lambda: np.broadcast_to(np.uint8(1), (4096,)),
    "array of objects": lambda: np.zeros(100, object),
    "freed buffer": freed_buffer,
    "released view": released_view,
    "config": lambda: lpai.Config(0),
    "config of nonsense": lambda: lpai.Config([], {}),  # type: ignore[arg-type]  # on purpose
    "config in a config": lambda: lpai.custom("x"),  # type: ignore[arg-type]  # on purpose
    "property": lambda: lpai.Property(0, lpai.Property([])),  # type: ignore[arg-type]  # on purpose
    "memory": lambda: lpai.Mem(1, 256, None),
    "tensor": lambda: QnnTensor(0, "x", 0, 0x32, (1, 25)),  # type: ignore[arg-type]  # on purpose
    "enum": lambda: MemType.DDR,
}


def create(*configs: Any) -> lpai.Context:
    """Return a context with these configs in ARM mode, which accepts most of them."""
    backend = lpai.Backend.create(profile=profile("arm"))
    return lpai.Context.create_from_binary(backend, binary(), configs, trusted=True)


def create_with(make: Callable[[int, Any], lpai.Config], option: int, value: Any) -> lpai.Context:
    """Return a context with one config."""
    return create(make(option, value))


def execute_with(client: Client, group: int, field: str, value: Any, handle: bool = False) -> None:
    """Execute with one field of one tensor changed."""
    tensors = client.tensors()
    tensors[group][0].mem_type = TensorMemType(int(handle))
    setattr(tensors[group][0], field, value)
    client.graph.execute(*tensors)


def register(fd: int, **changes: Any) -> lpai.MemDescriptor:
    """Return a descriptor of one tensor with some fields changed."""
    fields = {
        "dimensions": (1, 25),
        "data_type": DataType.INT_32,
        "custom_info": lpai.MemInfoCustom(fd, 0),
    }
    return lpai.MemDescriptor(**{**fields, **changes})


def calls_before_a_graph() -> dict[str, Callable[[Any], object]]:
    """Return every call that creates backends, contexts and heaps, as one-argument functions."""
    calls: dict[str, Callable[[Any], object]] = {
        "backend configs": lpai.Backend.create,
        "backend config": lambda v: lpai.Backend.create([v]),
        "hardware info": lambda v: lpai.Backend.create([lpai.custom(0, v)]),
        "target": lambda v: lpai.Backend.create([lpai.custom(0, HwInfo(v, HwVersion.V6))]),
        "version": lambda v: lpai.Backend.create([lpai.custom(0, HwInfo(Target.X86, v))]),
        "profile": lambda v: lpai.Backend.create(profile=v),
        "log": lambda v: lpai.Backend.create(log=v),
        "properties": lambda v: lpai.Backend.create().get_property(v),
        "property": lambda v: lpai.Backend.create().get_property([v]),
        "custom property": lambda v: lpai.Backend.create().get_property([lpai.custom_property(v)]),
        "binary": lambda v: lpai.Context.create_from_binary(lpai.Backend.create(), v, trusted=True),
        "no backend": lambda v: lpai.Context.create_from_binary(v, binary(), trusted=True),
        "context config": create,
        "graph names": lambda v: create(lpai.Config(ContextOption.ENABLE_GRAPHS, [v])),
        "binary info": lpai.get_binary_info,
        "heap": lpai.Heap,
        "capacity": lambda v: lpai.Heap(MemType.DDR, v).allocate(1),
        "alignment": lambda v: lpai.Heap(MemType.DDR).allocate(1, v),
        "name": lambda v: lpai.Heap(MemType.DDR).allocate(1, 64, v),
        "path": lpai.open,
    }
    for option in range(11):
        calls[f"context option {option}"] = partial(create_with, lpai.Config, option)
        calls[f"context custom {option}"] = partial(create_with, lpai.custom, option + 1)
    return calls


def calls_of_a_graph(client: Client, fd: int) -> dict[str, Callable[[Any], object]]:
    """Return every call on a graph and its context, as one-argument functions."""
    graph, context, buffer = client.graph, client.context, client.buffer(512)

    def give(**changes: Any) -> None:
        fields = {"mem_type": 1, "size": 512, "addr": buffer}
        graph.set_config([lpai.custom(SCRATCH, lpai.Mem(**{**fields, **changes}))])

    def configure(option: int, value: Any) -> None:
        graph.set_config([lpai.custom(option, value)])

    def configure_plainly(option: int, value: Any) -> None:
        graph.set_config([lpai.Config(option, value)])

    calls: dict[str, Callable[[Any], object]] = {
        "retrieve": context.graph_retrieve,
        "create": context.graph_create,
        "configs": graph.set_config,
        "config": lambda v: graph.set_config([v]),
        "memory type": lambda v: give(mem_type=v),
        "memory size": lambda v: give(size=v),
        "memory": lambda v: give(addr=v),
        "fps": lambda v: configure(201, lpai.PerfCfg(v)),
        "ratio": lambda v: configure(201, lpai.PerfCfg(1, v)),
        "client": lambda v: configure(201, lpai.PerfCfg(1, 1, v)),
        "affinity": lambda v: configure(301, lpai.CoreAffinityCfg(v)),
        "cores": lambda v: configure(301, lpai.CoreAffinityCfg(1, v)),
        "properties": graph.get_property,
        "property": lambda v: graph.get_property([v]),
        "custom property": lambda v: graph.get_property([lpai.custom_property(v)]),
        "inputs": lambda v: graph.execute(v, client.tensors()[1]),
        "outputs": lambda v: graph.execute(client.tensors()[0], v),
        "input": lambda v: graph.execute([v], client.tensors()[1]),
        "signal": lambda v: graph.execute(*client.tensors(), v),
        "async tensors": lambda v: graph.execute_async(v, v),
        "async input": lambda v: graph.execute_async([v], client.tensors()[1]),
        "notify": lambda v: graph.execute_async(*client.tensors(), v),
        "view": graph.view,
        "restore": graph.restore,
        "restored bytes": lambda v: graph.restore((v, {})),
        "restored windows": lambda v: graph.restore((b"", v)),
        "register": context.mem_register,
        "descriptor": lambda v: context.mem_register([v]),
        "dimensions": lambda v: context.mem_register([register(fd, dimensions=v)]),
        "dimension": lambda v: context.mem_register([register(fd, dimensions=(1, v))]),
        "data type": lambda v: context.mem_register([register(fd, data_type=v)]),
        "register type": lambda v: context.mem_register([register(fd, mem_type=v)]),
        "place": lambda v: context.mem_register([register(fd, custom_info=v)]),
        "fd": lambda v: context.mem_register([register(fd, custom_info=lpai.MemInfoCustom(v))]),
        "offset": lambda v: context.mem_register(
            [register(fd, custom_info=lpai.MemInfoCustom(fd, v))]
        ),
        "deregister": context.mem_deregister,
        "handle": lambda v: context.mem_deregister([v]),
    }
    for option in (0, 3, 4, 5, 6):
        calls[f"option {option}"] = partial(configure_plainly, option)
    for option in (1, 101, 201, 301, 10001):
        calls[f"custom option {option}"] = partial(configure, option)
    for field in ("client_buf", "data_size", "mem_type", "mem_handle", "name", "dimensions"):
        for group in (0, 1):
            calls[f"tensor {group} {field}"] = partial(execute_with, client, group, field)
        calls[f"handle {field}"] = partial(execute_with, client, 0, field, handle=True)
    return calls


def answer(call: Callable[[Any], object], value: Any) -> None:
    """Make the call; only success or a one-line QnnMemError passes."""
    sentence = ""
    try:
        call(value)
    except QnnMemError as exc:
        sentence = str(exc)
    assert "\n" not in sentence


@pytest.mark.parametrize("make", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_before_there_is_a_graph_gives_a_sentence(make: Callable[[], Any]) -> None:
    """Any argument to a call before a graph exists ends in success or a one-line error."""
    for call in calls_before_a_graph().values():
        answer(call, make())


@pytest.mark.parametrize("make", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("graph", ["plain", "outside"])
def test_nonsense_for_a_graph_gives_a_sentence(graph: str, make: Callable[[], Any]) -> None:
    """Any argument to a graph call ends in success or an error, and the graph still runs."""
    client = Client(graph).ready()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        for call in calls_of_a_graph(client, file.fileno()).values():
            answer(call, make())
    client.give_scratch()  # an array may have been accepted as scratch and is gone by now
    assert is_all(client.run(2), 6)
    client.context.free()


def test_nonsense_for_a_session_gives_a_sentence(tmp_path: Path) -> None:
    """Any argument to a session ends in success or a one-line error, and the session still runs."""
    path = tmp_path / "all.bin"
    path.write_bytes(binary())
    with lpai.open(path, graph="plain", trusted=True) as session:
        calls: list[Callable[[Any], object]] = [
            session.run,
            session.feed,
            session.restore,
            lambda v: session.run({"x": v}),
            lambda v: list(session.stream(v)),
            lambda v: list(session.stream([v])),
            lambda v: lpai.open(path, graph=v, trusted=True).close(),
            lambda v: lpai.open(path, graph="plain", mem_type=v, trusted=True).close(),
            lambda v: lpai.open(path, graph="plain", profile=v, trusted=True).close(),
        ]
        for make in NONSENSE.values():
            for call in calls:
                answer(call, make())
        assert is_all(session.run({"x": np.full((1, 25), 2, np.int32)})["y"], 6)


# --- After free ------------------------------------------------------------------------------


def test_nothing_works_after_the_context_was_freed() -> None:
    """After the context is freed, every call on it and its graph fails with rule R16."""
    client = Client().ready()
    view, saved = client.graph.view("x"), client.graph.snapshot()
    client.context.free()
    client.persistent.free()
    calls: list[Callable[[], object]] = [
        client.graph.execute,
        client.graph.execute_async,
        client.graph.finalize,
        client.graph.reset,
        client.graph.snapshot,
        lambda: client.graph.restore(saved),
        lambda: client.graph.view("x"),
        lambda: view.array,
        lambda: client.graph.set_config([None]),
        lambda: client.graph.get_property([None]),
    ]
    assert {code_of(call) for call in calls} == {(6039, "R16")}
    handles: list[Callable[[], object]] = [
        client.context.free,
        lambda: client.context.graph_retrieve("counter"),
        lambda: client.context.mem_register([]),
        lambda: client.context.mem_deregister([]),
    ]
    assert {code_of(call) for call in handles} == {(5002, "R16")}
    assert not client.persistent.written_after_free()


def test_nothing_works_after_the_backend_was_freed() -> None:
    """After the backend is freed, every call on it fails with code 4011 and rule R16."""
    client = Client().ready()
    client.backend.free()
    calls: list[Callable[[], object]] = [
        client.backend.free,
        lambda: client.backend.get_property([None]),
        lambda: lpai.Context.create_from_binary(client.backend, binary(), trusted=True),
    ]
    assert {code_of(call) for call in calls} == {(4011, "R16")}
    assert code_of(client.graph.execute) == (6039, "R16")


def test_freed_buffers_cannot_be_handed_over() -> None:
    """A freed buffer is refused as scratch and as binary."""
    client = Client()
    gone = lpai.Mem(MemType.DDR, 512, freed_buffer())
    assert code_of(lambda: client.graph.set_config([lpai.custom(SCRATCH, gone)]))[0] == 6000
    made = lpai.Context.create_from_binary
    assert code_of(lambda: made(client.backend, freed_buffer(), trusted=True))[0] == 5005


def test_a_pool_freed_before_finalize_is_noticed_there() -> None:
    """A pool freed before finalize fails there with R8 and is not written."""
    client = Client()
    client.give_scratch()
    client.give_persistent()
    persistent = client.persistent
    persistent.free()
    assert code_of(client.graph.finalize) == (6039, "R8")
    assert not persistent.written_after_free()


@pytest.mark.parametrize("call", ["reset", "snapshot"])
def test_state_that_was_freed_is_not_touched(call: str) -> None:
    """`reset` and `snapshot` fail with R8 if the persistent pool was freed."""
    client = Client().ready()
    client.persistent.free()
    assert code_of(getattr(client.graph, call)) == (6039, "R8")


# --- Inputs and outputs ----------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[int]:
    """Return the descriptor of a file of one page."""
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        yield file.fileno()


def in_shared(client: Client, fd: int, *offsets: int) -> tuple[list[QnnTensor], list[QnnTensor]]:
    """Return the tensors of a graph in shared memory at these offsets."""
    inputs, outputs = client.tensors()
    places = [register(fd, custom_info=lpai.MemInfoCustom(fd, o)) for o in dict.fromkeys(offsets)]
    handles = dict(zip(dict.fromkeys(offsets), client.context.mem_register(places), strict=True))
    for tensor, offset in zip((inputs[0], outputs[0]), offsets, strict=True):
        tensor.mem_type, tensor.mem_handle = TensorMemType.MEMHANDLE, handles[offset]
    return inputs, outputs


@pytest.mark.parametrize("graph", ["plain", "outside"])
@pytest.mark.parametrize("offset", [0, 64])
def test_an_output_in_place_cannot_lie_on_the_input(graph: str, offset: int, shared: int) -> None:
    """An output in shared memory that overlaps the input is refused with R9."""
    client = Client(graph).ready()
    tensors = in_shared(client, shared, 0, offset)
    assert code_of(lambda: client.graph.execute(*tensors)) == (6004, "R9")


def test_outputs_that_are_copied_may_use_the_buffer_of_the_input() -> None:
    """With IO in scratch, one buffer may serve as input and output."""
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    outputs[0].client_buf = inputs[0].client_buf
    numbers(inputs[0])[:] = 2
    client.graph.execute(inputs, outputs)
    assert is_all(numbers(outputs[0]), 6)


def test_an_output_cannot_lie_on_state() -> None:
    """An output buffer on the persistent pool is refused with R9, and the state is kept."""
    client = Client().ready()
    client.run()
    inputs, outputs = client.tensors()
    outputs[0].client_buf = client.persistent
    assert code_of(lambda: client.graph.execute(inputs, outputs)) == (6004, "R9")
    assert is_all(client.run(), 4)


def test_shared_memory_made_shorter_is_a_code_and_not_the_end(shared: int) -> None:
    """Shared memory that was truncated fails with R9, where a plain access would crash."""
    client = Client("plain").ready()
    tensors = in_shared(client, shared, 0, 128)
    os.ftruncate(shared, 0)
    assert code_of(lambda: client.graph.execute(*tensors)) == (6004, "R9")


def test_memory_that_cannot_be_mapped_is_refused(tmp_path: Path) -> None:
    """A folder or a read-only file cannot be registered: code 8003, rule M2."""
    client = Client("plain")
    (file := tmp_path / "file").write_bytes(bytes(4096))
    for path in (tmp_path, file):
        fd = os.open(path, os.O_RDONLY)
        try:
            assert code_of(partial(client.context.mem_register, [register(fd)])) == (8003, "M2")
        finally:
            os.close(fd)


def test_an_fd_number_used_again_is_another_file() -> None:
    """A reused descriptor number can be registered again, since it is another file."""
    client = Client("plain")
    for _ in range(2):
        with tempfile.TemporaryFile() as file:
            file.truncate(4096)
            assert client.context.mem_register([register(file.fileno())])


def test_two_fds_of_one_file_are_the_same_memory(shared: int) -> None:
    """Two descriptors of one file count as the same memory: code 8002, rule M1."""
    client = Client("plain")
    client.context.mem_register([register(shared)])
    again = os.dup(shared)
    try:
        call = partial(client.context.mem_register, [register(again)])
        assert code_of(call) == (8002, "M1")
    finally:
        os.close(again)


def test_registration_is_all_or_nothing(shared: int) -> None:
    """A refused registration registers none of its descriptors."""
    client = Client("plain")
    good = [register(shared, custom_info=lpai.MemInfoCustom(shared, o)) for o in (0, 128)]
    bad = register(shared, custom_info=lpai.MemInfoCustom(shared, 32))
    assert code_of(lambda: client.context.mem_register([*good, bad])) == (8004, "M3")
    assert len(client.context.mem_register(good)) == 2


def test_deregistration_lets_every_valid_handle_go(shared: int) -> None:
    """Deregistering with an invalid handle fails, but the valid handles are deregistered."""
    client = Client("plain")
    handles = client.context.mem_register([register(shared)])
    bad: Any = [None, *handles]
    assert code_of(lambda: client.context.mem_deregister(bad)) == (8001, "M2")
    assert len(client.context.mem_register([register(shared)])) == 1


@pytest.mark.parametrize("count", [0, 2])
def test_the_number_of_tensors_must_be_right(count: int) -> None:
    """Zero or two tensors for one input are refused with R9."""
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    assert code_of(lambda: client.graph.execute(inputs * count, outputs)) == (6004, "R9")


def test_a_layout_cannot_execute() -> None:
    """Executing a layout, which has no program, fails with R14."""
    client = Client("layout").ready()
    assert code_of(client.graph.execute) == (1000, "R14")


# --- State -----------------------------------------------------------------------------------


def test_a_snapshot_fits_only_its_own_graph() -> None:
    """A snapshot of another graph raises UsageError and changes nothing."""
    counter, window = Client().ready(), Client("window").ready()
    counter.run()
    with pytest.raises(UsageError, match="not a snapshot"):
        counter.graph.restore(window.graph.snapshot())
    assert is_all(counter.run(), 4)


@pytest.mark.parametrize("present", [-1, 3, True, 1.0, "1"])
def test_a_window_cannot_hold_more_frames_than_it_has(present: Any) -> None:
    """A snapshot with an impossible number of frames raises UsageError."""
    client = Client("window").ready()
    state, _ = client.graph.snapshot()
    with pytest.raises(UsageError, match="not a snapshot"):
        client.graph.restore((state, {"window": present}))


def test_a_window_is_restored_with_its_frames() -> None:
    """A restored window continues with the frames that it held."""
    client = Client("window").ready()
    client.run(3)
    saved = client.graph.snapshot()
    first = client.run(4)
    client.run(9)
    client.graph.restore(saved)
    assert (client.run(4) == first).all()


def test_reset_is_for_finalized_graphs() -> None:
    """`reset` before finalize fails with R5."""
    assert code_of(Client().graph.reset) == (6023, "R5")


# --- Threads and notifications ---------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run the work in this many threads and return the exceptions."""
    wrong: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:
            wrong.append(exc)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return wrong


def test_contexts_of_several_threads_do_not_disturb_each_other() -> None:
    """Contexts in four threads compute independently."""

    def work(number: int) -> None:
        client = Client().ready()
        for turn in range(1, 26):
            assert is_all(client.run(number), 2 * number * turn)
        assert client.rules == []
        client.context.free()

    assert in_threads(4, work) == []


def test_threads_may_share_a_graph() -> None:
    """Executions of one graph from several threads run one after another; none is lost."""
    client = Client().ready()

    def work(_number: int) -> None:
        for _ in range(25):
            client.run(1)

    assert in_threads(4, work) == []
    assert is_all(client.run(0), 200)


def test_scratch_can_be_replaced_while_another_thread_executes() -> None:
    """Replacing scratch during an execution succeeds or fails with 1005; the results are right."""
    client = Client().ready()
    answers: set[int] = set()

    def work(number: int) -> None:
        for _ in range(50):
            if number:
                client.run(1)
                continue
            try:
                client.give(SCRATCH, client.buffer(256))
                answers.add(0)
            except QnnError as exc:
                answers.add(exc.code)

    assert in_threads(2, work) == []
    assert answers <= {0, 1005}
    assert is_all(client.run(0), 100)
    assert client.rules.count("X3") == 0


def test_a_notification_may_execute_and_ask_for_more() -> None:
    """A notification may execute the graph and queue more without a deadlock."""
    client = Client("plain").ready()
    done = threading.Event()
    codes: list[int] = []

    def again(code: int) -> None:
        codes.extend((code, client.graph.execute()))
        client.graph.reset()
        client.graph.execute_async(notify=lambda _code: done.set())

    client.graph.execute_async(notify=again)
    assert done.wait(WAIT_S)
    client.context.free()
    assert codes == [0, 0]


def test_a_notification_cannot_free_its_context() -> None:
    """A notification that frees its own context fails with 1005 instead of a deadlock."""
    client = Client("plain").ready()
    told: list[tuple[int, str]] = []
    client.graph.execute_async(notify=lambda _code: told.append(code_of(client.context.free)))
    client.graph.execute()
    assert told == [(1005, "R16")]
    client.context.free()


def test_a_notification_that_fails_is_logged_and_the_queue_goes_on() -> None:
    """An exception in a notification is logged, and the queue continues."""
    client = Client("plain").ready()
    lines: list[str] = []

    def log(level: LogLevel, text: str) -> None:
        lines.append(f"{level.name} {text}")

    client.backend.log = log
    client.graph.execute_async(notify=raises)
    client.graph.execute_async()
    assert client.graph.execute() == 0
    assert client.graph.counters.executions == 3
    assert lines == ["ERROR the notification of graph 'plain' raised ZeroDivisionError"]


def test_an_execution_that_fails_in_the_queue_tells_its_code() -> None:
    """If a queued execution fails, its notification gets the code."""
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    inputs[0].client_buf = "nothing"
    told: list[int] = []
    client.graph.execute_async(inputs, outputs, told.append)
    client.graph.execute()
    assert told == [6004]


def test_free_waits_for_what_is_queued() -> None:
    """Freeing a context first runs everything that is queued."""
    client = Client("plain").ready()
    told: list[int] = []
    for _ in range(5):
        client.graph.execute_async(notify=told.append)
    client.context.free()
    assert told == [0] * 5


def test_free_waits_for_an_execution_of_another_thread() -> None:
    """Freeing a context waits for a running execution in another thread."""
    client = Client("plain").ready()
    started, go, freed = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        go.wait(WAIT_S)

    def free() -> None:
        client.context.free()
        freed.set()

    works = (partial(client.context.queue.run, hold), free)
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    threads[0].start()
    assert started.wait(WAIT_S)
    threads[1].start()
    waited = not freed.wait(0.05)
    go.set()
    assert freed.wait(WAIT_S)
    assert waited
    for thread in threads:
        thread.join(WAIT_S)


def test_a_queue_that_is_being_closed_takes_no_more() -> None:
    """A queue that is closing refuses new executions with R16."""
    client = Client("plain").ready()
    held, go = threading.Event(), threading.Event()
    told: list[tuple[int, str]] = []

    def late(_code: int) -> None:
        held.set()
        go.wait(WAIT_S)
        told.append(code_of(client.graph.execute_async))

    client.graph.execute_async(notify=late)
    assert held.wait(WAIT_S)
    closing = threading.Thread(target=client.context.queue.close, daemon=True)
    closing.start()
    while not client.context.queue.is_closed:
        closing.join(0.001)
    go.set()
    closing.join(WAIT_S)
    assert told == [(6039, "R16")]


def test_several_threads_may_queue_at_once() -> None:
    """Four threads may queue at once, and every notification arrives."""
    client = Client("plain").ready()
    told: list[int] = []

    def work(_number: int) -> None:
        for _ in range(20):
            client.graph.execute_async(notify=told.append)

    assert in_threads(4, work) == []
    client.context.free()
    assert told == [0] * 80


def test_of_two_frees_one_is_too_many() -> None:
    """Of two simultaneous frees, one succeeds and the other fails with 5002."""
    client = Client("plain").ready()
    codes = [
        exc.code
        for exc in in_threads(2, lambda _n: client.context.free())
        if isinstance(exc, QnnError)
    ]
    assert codes == [5002]


def test_a_log_that_configures_the_graph_does_not_hang() -> None:
    """A log callback that configures the graph does not deadlock."""
    client = Client("plain").ready()
    mem = lpai.Mem(MemType.DDR, 0, None)
    depth: list[int] = []

    def log(_level: LogLevel, _text: str) -> None:
        if not depth:
            depth.append(1)
            client.graph.set_config([None])

    client.backend.log = log
    assert code_of(lambda: client.graph.set_config([lpai.custom(SCRATCH, mem)])) == (6000, "R7")
    assert depth == [1]


# --- Options ---------------------------------------------------------------------------------


def test_hardware_info_changes_only_the_hardware() -> None:
    """Hardware info changes the mode and the version; the rest of the profile stays."""
    own = profile("x86", start_alignment=128, core_count=5, inference_us=7)
    backend = lpai.Backend.create([lpai.custom(0, HwInfo(Target.ADSP, HwVersion.V7))], profile=own)
    made = backend.profile
    assert (made.mode.value, made.hw_version) == ("adsp", HwVersion.V7)
    assert (made.start_alignment, made.core_count, made.inference_us) == (128, 5, 7)
    assert made.require_persistent_binary


@pytest.mark.parametrize("version", [HwVersion.NA, HwVersion.V3, HwVersion.UNKNOWN, 99])
def test_hardware_that_qnn_does_not_execute_on_is_refused(version: Any) -> None:
    """A hardware version that QNN does not run on fails with code 4012."""
    info = lpai.custom(0, HwInfo(Target.X86, version))
    assert code_of(lambda: lpai.Backend.create([info])) == (4012, "R14")


def test_several_memory_types_in_direct_mode() -> None:
    """In direct mode, scratch may be in any heap; on the host, TCM is refused."""
    client = Client(profile=profile("adsp"))
    for kind in (MemType.DDR, MemType.LLC, MemType.TCM, MemType.PSRAM):
        made = lpai.Heap(kind).allocate(512)
        client.graph.set_config([lpai.custom(SCRATCH, lpai.Mem(kind, 512, made))])
    buffer = client.buffer(512)
    bad = lpai.custom(SCRATCH, lpai.Mem(MemType.UNDEFINED, 512, buffer))
    assert code_of(lambda: client.graph.set_config([bad])) == (6000, "R14")
    desk = Client()
    tcm = lpai.custom(SCRATCH, lpai.Mem(MemType.TCM, 512, buffer))
    assert code_of(lambda: desk.graph.set_config([tcm])) == (1000, "R14")


def test_scratch_and_persistent_must_be_apart() -> None:
    """One buffer as scratch and persistent pool is refused with X6."""
    client = Client()
    buffer = client.buffer(512)
    mem = lpai.Mem(MemType.DDR, 512, buffer)
    both = [lpai.custom(1, mem), lpai.custom(101, mem), None]
    assert code_of(lambda: client.graph.set_config(both)) == (6000, "X6")
    assert client.graph.scratch is None


def test_read_only_memory_is_no_pool() -> None:
    """Read-only memory as scratch is refused with R4."""
    client = Client()
    mem = lpai.Mem(MemType.DDR, 256, client.buffer(256).view.toreadonly())
    assert code_of(lambda: client.graph.set_config([lpai.custom(SCRATCH, mem)])) == (6000, "R4")


def test_findings_are_bounded() -> None:
    """The backend keeps at most 1,000 findings."""
    client = Client(configs=[KEEP])
    for _ in range(1100):
        code_of(client.graph.execute)
    assert len(client.backend.findings) == 1000


# --- The page --------------------------------------------------------------------------------


def test_the_page_is_one_program_that_prints_what_it_says(tmp_path: Path) -> None:
    """The tutorial's snippets run in order and print the output that the page shows."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(text for kind, text in blocks if kind == "py"), "utf-8")
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "".join(text for kind, text in blocks if kind == "text")


def test_the_page_names_everything_that_is_public() -> None:
    """The reference page names every public name of the module."""
    page = NAMES.read_text("utf-8")
    assert [name for name in lpai.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_a_paused_graph_waits_until_it_is_resumed() -> None:
    """A paused graph holds its queue until it is resumed; a paused context can be freed."""
    client = Client().ready()
    codes: list[int] = []
    done = threading.Event()
    client.graph.pause()

    def told(code: int) -> None:
        codes.append(code)
        done.set()

    client.graph.execute_async(notify=told)
    assert not done.wait(0.05)
    client.graph.resume()
    assert done.wait(WAIT_S)
    assert codes == [0]
    client.graph.pause()
    client.context.free()
    assert code_of(client.graph.pause) == (6039, "R16")
