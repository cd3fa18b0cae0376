from __future__ import annotations

import ctypes  # noqa: TID251 - the client passes ctypes values
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qnnmem import lpai
from qnnmem.contract.regions import ClientBuffer, find_allocation
from qnnmem.errors import QnnError, TcmFatal, UsageError
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.graph_io import UnchangedTensors
from qnnmem.lpai.selftest.client import KEEP, PERSISTENT, SCRATCH, Client
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import (
    BackendProperty,
    ContextCustomOption,
    GraphOption,
    GraphProperty,
    MemType,
    TensorMemType,
)

Pointer = Callable[[lpai.HeapBuffer], Any]

# Ways to pass the same memory to a call.
POINTERS: dict[str, Pointer] = {
    "buffer": lambda b: b,
    "view": lambda b: b.view,
    "array": lambda b: b.array,
    "slice of the view": lambda b: b.view[:],
    "slice of the array": lambda b: b.array[0:],
    "view of the array": lambda b: memoryview(b.array),  # type: ignore[arg-type]  # it is a buffer
    "array over the view": lambda b: np.frombuffer(b.view, np.uint8),
    "array over an array over the view": lambda b: np.asarray(np.frombuffer(b.view, np.int32)),
    "other shape": lambda b: b.array.reshape(-1, 4),
    "other type": lambda b: b.array.view(np.int16).view(np.int32),
    "no copy": lambda b: b.array.astype(np.uint8, copy=False),
    "transposed twice": lambda b: b.array.reshape(1, -1).T.T,
    "records": lambda b: b.array.view([("a", "i4"), ("b", "f4")]),
    "ndarray by hand": lambda b: np.ndarray(b.size, np.uint8, b.view),
    "array of C": lambda b: (ctypes.c_uint8 * b.size).from_buffer(b.view),
    "pickled in place": lambda b: pickle.PickleBuffer(b.view),
    "address": lambda b: b.address,
    "address of numpy": lambda b: np.uint64(b.address),
    "pointer of C": lambda b: ctypes.c_void_p(b.address),
}
every_pointer = pytest.mark.parametrize("pointer", POINTERS.values(), ids=POINTERS)


def code_of(call: Callable[..., object], *arguments: Any) -> tuple[int, str]:
    """Return the code and the rule of a call that fails."""
    with pytest.raises(QnnError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.finding.rule


# --- Whose memory it is ----------------------------------------------------------------------


@every_pointer
@pytest.mark.parametrize(
    ("option", "rule"), [(SCRATCH, "R7"), (PERSISTENT, "R8")], ids=["scratch", "persistent"]
)
def test_a_pool_ends_with_its_block(pointer: Pointer, option: GraphOption, rule: str) -> None:
    """An execution after its scratch or persistent pool was freed fails, for every pointer type."""
    client = Client().give_scratch().give_persistent()
    pool = client.scratch if option == SCRATCH else client.persistent
    client.set(lpai.custom(option, lpai.Mem(MemType.DDR, pool.size, pointer(pool))))
    client.finalize().run()
    assert client.rules == []
    pool.free()
    assert code_of(client.run) == (6039, rule)


@every_pointer
@pytest.mark.parametrize("side", [0, 1], ids=["input", "output"])
def test_io_ends_with_its_block(pointer: Pointer, side: int) -> None:
    """An execution after its input or output was freed fails, for every pointer type."""
    client = Client("plain").ready()
    tensors, block = client.tensors(), client.buffer(128)
    tensors[side][0].client_buf = pointer(block)
    assert client.graph.execute(*tensors) == 0
    block.free()
    assert code_of(client.graph.execute, *tensors) == (6004, "R9")


@every_pointer
def test_a_binary_ends_with_its_block(pointer: Pointer) -> None:
    """An execution after its kept binary was freed fails, for every pointer type."""
    content = binary() + bytes(-len(binary()) % 8)
    block = lpai.Heap(MemType.DDR).allocate(len(content))
    block.view[:] = content
    made = lpai.Context.create_from_binary(
        lpai.Backend.create(), pointer(block), [KEEP], trusted=True
    )
    graph = made.graph_retrieve("bare")
    graph.finalize()
    block.free()
    assert code_of(graph.execute) == (6039, "R10")


@every_pointer
def test_freed_memory_cannot_be_handed_over(pointer: Pointer) -> None:
    """A pointer to a freed block is refused at once with R7."""
    client, block = Client("plain"), lpai.Heap(MemType.DDR).allocate(512)
    old = pointer(block)
    block.free()
    mem = lpai.Mem(MemType.DDR, 512, old)
    assert code_of(client.set, lpai.custom(SCRATCH, mem)) == (6000, "R7")


def test_a_view_outlives_the_buffer_and_its_heap() -> None:
    """A view keeps its block allocated, and the heap's memory type stays known."""
    view = lpai.Heap(MemType.LLC).allocate(256).view[64:]
    gc.collect()
    lease = ClientBuffer(view)
    assert lease.mem_type is MemType.LLC
    assert not lease.is_released


def test_blocks_that_are_unmapped_are_forgotten() -> None:
    """The address of an unmapped block belongs to no block."""
    address = lpai.Heap(MemType.DDR).allocate(1 << 20).address
    gc.collect()
    assert find_allocation(address) is None
    with pytest.raises(UsageError, match="no heap block contains it"):
        ClientBuffer(address)


def test_memory_that_is_copied_has_another_owner() -> None:
    """A copy of a block does not belong to the block."""
    block = lpai.Heap(MemType.DDR).allocate(256)
    copy = bytearray(block.view)
    block.free()
    assert not ClientBuffer(copy).is_released


@pytest.mark.parametrize("offset", [-64, 256])
def test_a_pointer_into_a_guard_zone_is_no_memory(offset: int) -> None:
    """A pointer into a guard zone is refused, as an address and as a view."""
    block = lpai.Heap(MemType.DDR).allocate(256)
    with pytest.raises(UsageError, match="no heap block contains it"):
        ClientBuffer(block.address + offset)
    longer = np.lib.stride_tricks.as_strided(block.array, (257,), (1,))
    with pytest.raises(UsageError, match="reaches 1 bytes past its allocation of 256"):
        ClientBuffer(longer)


@pytest.mark.parametrize(
    ("cut", "sentence"),
    [
        (lambda b: b.view[:-1], "states 512 bytes, but the buffer has 511"),
        (lambda b: b.array[::-1], "cannot be used as memory"),
        (lambda b: b.array[::2], "cannot be used as memory"),
        (lambda b: b.view.toreadonly(), "is read-only memory"),
        (lambda b: b.address + 64, "states 512 bytes, but the buffer has 448"),
        (lambda b: 0, "address 0x0 cannot be used"),
    ],
)
def test_a_wrong_piece_is_one_clear_finding(cut: Pointer, sentence: str) -> None:
    """A wrong piece of memory gives one R4 finding, never a NumPy exception."""
    client, block = Client("plain"), lpai.Heap(MemType.DDR).allocate(512)
    with pytest.raises(QnnError, match=sentence) as caught:
        client.set(lpai.custom(SCRATCH, lpai.Mem(MemType.DDR, 512, cut(block))))
    assert (caught.value.code, caught.value.finding.rule) == (6000, "R4")
    assert len(client.rules) == 1


def test_reallocated_scratch_has_to_be_handed_over_again() -> None:
    """A new block at the old simulated address must be set as scratch again."""
    client = Client("plain").ready()
    old = client.scratch
    old.free()
    new = client.heap.allocate(old.size)
    assert code_of(client.run) == (6039, "R7")
    client.give(SCRATCH, new)
    client.run()


@every_pointer
def test_a_heap_frees_by_pointer(pointer: Pointer) -> None:
    """`Heap.free` accepts any pointer to the start, once."""
    heap = lpai.Heap(MemType.DDR)
    block = heap.allocate(256)
    given = pointer(block)
    heap.free(given)
    assert block.freed
    with pytest.raises(UsageError, match="was already freed"):
        heap.free(given)
    with pytest.raises(UsageError, match="was already freed"):
        block.free()


def test_only_the_start_of_a_block_of_the_heap_can_be_freed() -> None:
    """`Heap.free` refuses a pointer inside a block, another heap's memory and other objects."""
    heap = lpai.Heap(MemType.DDR)
    block = heap.allocate(256)
    with pytest.raises(UsageError, match="64 bytes into the block of 256 bytes"):
        heap.free(block.view[64:])
    for other in (bytearray(4), lpai.Heap(MemType.DDR).allocate(64), 5):
        with pytest.raises(UsageError, match="is not from this heap"):
            heap.free(other)
    with pytest.raises(UsageError, match="str cannot be freed"):
        heap.free("block")
    assert heap.live == (block,)


# --- Types of memory -------------------------------------------------------------------------

SAID = lpai.custom(ContextCustomOption.MODEL_BUFFER_MEM_TYPE, MemType.TCM)


def in_heap(heap: lpai.Heap) -> memoryview:
    """Return a view of the binary in this heap."""
    view = heap.allocate(len(binary())).view
    view[:] = binary()
    return view


@pytest.mark.parametrize("said", [MemType.DDR, MemType.LLC, MemType.TCM, MemType.PSRAM])
@pytest.mark.parametrize("given", [MemType.DDR, MemType.LLC, MemType.TCM, MemType.PSRAM])
@pytest.mark.parametrize("option", [SCRATCH, PERSISTENT])
def test_the_type_is_that_of_the_heap(said: MemType, given: MemType, option: GraphOption) -> None:
    """The stated memory type must be the heap's type; otherwise the pool is refused with T5."""
    client, block = Client(profile=profile("adsp")), lpai.Heap(given).allocate(512)
    config = lpai.custom(option, lpai.Mem(said, 512, block.view))
    if said is given:
        client.set(config)
    else:
        assert code_of(client.set, config) == (6000, "T5")


def test_memory_from_outside_is_what_the_client_says() -> None:
    """Memory from outside the heaps has the type that the client states."""
    block = np.zeros(1024, np.uint8)
    start = -block.__array_interface__["data"][0] % 64
    client = Client(profile=profile("adsp"))
    client.set(lpai.custom(SCRATCH, lpai.Mem(MemType.LLC, 512, block[start : start + 512])))
    assert client.rules == []


def test_the_type_of_the_model_is_compared() -> None:
    """A binary in memory of another type than stated gets T5, in both directions."""
    make, backend = lpai.Context.create_from_binary, lpai.Backend.create(profile=profile("adsp"))
    wrong = in_heap(lpai.Heap(MemType.DDR))
    assert code_of(lambda: make(backend, wrong, [KEEP, SAID], trusted=True)) == (5010, "T5")
    backend.findings.clear()
    make(backend, in_heap(lpai.Heap(MemType.TCM)), [KEEP], trusted=True)
    assert [found.rule for found in backend.findings] == ["T5"]
    desk = lpai.Backend.create()
    given = in_heap(lpai.Heap(MemType.TCM))
    assert code_of(lambda: make(desk, given, [KEEP], trusted=True)) == (1000, "T3")


@pytest.mark.parametrize("io", [MemType.DDR, MemType.TCM, None])
@pytest.mark.parametrize("model", [MemType.DDR, MemType.TCM])
def test_model_and_io_are_in_one_type(model: MemType, io: MemType | None) -> None:
    """Model and IO must have one memory type; memory from outside the heaps counts as DDR."""
    client = Client("plain", profile=profile("adsp"))
    configs = [KEEP, SAID] if model is MemType.TCM else [KEEP]
    content = in_heap(lpai.Heap(model))
    client.context = lpai.Context.create_from_binary(client.backend, content, configs, trusted=True)
    client.on("plain").ready()
    client.io_heap = lpai.Heap(io or MemType.DDR)
    inputs, outputs = client.tensors()
    if io is None:
        block = np.zeros(512, np.uint8)
        start = -block.__array_interface__["data"][0] % 64
        inputs[0].client_buf = block[start : start + 128]
    if model is (io or MemType.DDR):
        assert client.graph.execute(inputs, outputs) == 0
    else:
        assert code_of(client.graph.execute, inputs, outputs) == (6004, "T6")
    assert client.graph.execute() == 0  # IO inside scratch has scratch's type


def test_shared_buffers_are_no_tcm(tmp_path: Any) -> None:
    """A model in TCM refuses registered memory for its IO."""
    client = Client("plain", profile=profile("adsp"))
    content = in_heap(lpai.Heap(MemType.TCM))
    client.context = lpai.Context.create_from_binary(
        client.backend, content, [KEEP, SAID], trusted=True
    )
    client.on("plain").ready()
    client.io_heap = lpai.Heap(MemType.TCM)
    with (tmp_path / "shared").open("w+b") as file:
        file.truncate(4096)
        inputs, outputs = client.tensors()
        place = lpai.MemInfoCustom(file.fileno(), 0)
        descriptor = lpai.MemDescriptor((1, 25), inputs[0].data_type, custom_info=place)
        inputs[0].mem_type = TensorMemType.MEMHANDLE
        (inputs[0].mem_handle,) = client.context.mem_register([descriptor])
        assert code_of(client.graph.execute, inputs, outputs) == (6004, "T6")


# --- The TCM pool ----------------------------------------------------------------------------


def test_every_heap_of_tcm_is_the_one_pool() -> None:
    """All TCM heaps share one pool of 2,035,712 bytes and 32 buffers."""
    first, second = lpai.Heap(MemType.TCM), lpai.Heap(MemType.TCM)
    whole = first.allocate(2_035_712)
    with pytest.raises(
        QnnError, match="TCM memory allocation failure: required size: 64"
    ) as caught:
        second.allocate(1)
    assert (caught.value.code, caught.value.finding.rule) == (1002, "T1")
    whole.free()
    made = [heap.allocate(1) for _ in range(16) for heap in (first, second)]
    with pytest.raises(TcmFatal, match="limit of 32 buffers"):
        second.allocate(1)
    for buffer in made:
        buffer.free()


def test_a_heap_of_tcm_speaks() -> None:
    """A TCM heap logs the documented lines with rounded sizes."""
    lines: list[str] = []
    heap = lpai.Heap(MemType.TCM, log=lambda level, text: lines.append(f"{level.name} {text}"))
    with heap.allocate(100):
        pass
    with pytest.raises(QnnError):
        heap.allocate(3_000_000)
    assert lines == [
        "INFO TCM pool current size: 0 max_size: 2035712",
        "INFO Allocate size 128 from tcm pool 0",
        "INFO TCM pool current size: 0 max_size: 2035712",
        "ERROR TCM memory allocation failure: required size: 3000000",
    ]


def test_a_heap_that_is_dropped_gives_its_room_back() -> None:
    """A TCM heap that is garbage collected returns its memory."""
    lpai.Heap(MemType.TCM).allocate(2_000_000)
    with lpai.Heap(MemType.TCM).allocate(2_000_000) as buffer:
        assert buffer.size == 2_000_000


def test_sessions_share_the_pool_and_give_it_back(tmp_path: Any) -> None:
    """A session in TCM refuses to open if the pool is short, and returns its memory at the end."""
    path = tmp_path / "all.bin"
    path.write_bytes(binary())
    options: dict[str, Any] = {"graph": "plain", "profile": profile("adsp"), "mem_type": "tcm"}
    with lpai.open(path, trusted=True, **options) as session:
        assert session.findings == ()
        left = 2_035_712 - 128 * 2 - len(binary()) // 64 * 64 - 64
        rest = lpai.Heap(MemType.TCM).allocate(left)
        with pytest.raises(QnnError, match="T1"):
            lpai.open(path, trusted=True, **options)
        rest.free()
    with lpai.Heap(MemType.TCM).allocate(2_035_712):
        pass


# --- Alignment -------------------------------------------------------------------------------


def ask(client: Client) -> None:
    """Query the alignment once more."""
    question = lpai.custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ)
    client.backend.get_property([question, None])


@pytest.mark.parametrize("option", [SCRATCH, PERSISTENT])
def test_asking_after_the_allocation_is_too_late(option: GraphOption) -> None:
    """An alignment query after the allocation is too late and gives R1."""
    client = Client(ask=False)
    block = client.buffer(512)
    ask(client)
    client.give(option, block)
    assert client.rules == ["R1"]
    assert "before the alignment was queried" in client.backend.findings[0].sentence


def test_io_is_asked_for_as_well() -> None:
    """R1 also covers IO buffers, once per tensor."""
    client = Client("bare", ask=False).finalize()
    for _ in range(3):
        client.run()
    assert client.rules == ["R1", "R1"]
    late = Client("bare", ask=False).finalize()
    tensors = late.tensors()
    ask(late)
    late.graph.execute(*tensors)
    assert late.rules == ["R1", "R1"]


@pytest.mark.parametrize("unit", [64, 128, 4096])
def test_memory_of_exactly_the_size_asked_for_is_good(unit: int) -> None:
    """Memory of exactly the queried size is accepted, whatever the platform's alignment."""
    client = Client(profile=profile(start_alignment=64, size_alignment=unit))
    for asked, option in (
        (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, SCRATCH),
        (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, PERSISTENT),
    ):
        need = client.need(asked)
        assert need % unit == 0
        client.give(option, client.heap.allocate(need, 64))
    client.finalize().run()
    assert client.rules == []


# --- Memory by address alone, and scratch that is replaced -----------------------------------


@pytest.mark.parametrize("form", ["array", "contents", "numpy"])
def test_memory_that_ctypes_points_to_is_not_accused(form: str) -> None:
    """Memory known only by its ctypes address gives no finding."""
    client = Client()
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    block = np.zeros(need + 64, np.uint8)
    kind = ctypes.c_uint8 * need
    address = -(-block.__array_interface__["data"][0] // 64) * 64
    forms: dict[str, Callable[[], Any]] = {
        "array": lambda: kind.from_address(address),
        "contents": lambda: ctypes.cast(address, ctypes.POINTER(kind)).contents,
        "numpy": lambda: np.ctypeslib.as_array(kind.from_address(address))[:],
    }
    client.set(lpai.custom(SCRATCH, lpai.Mem(MemType.DDR, need, forms[form]())))
    client.give_persistent().finalize().run()
    client.context.free()
    assert client.rules == []
    assert block.size


def test_an_array_of_ctypes_can_be_released() -> None:
    """A ctypes array is released through any array at the same address."""
    block = (ctypes.c_uint8 * 64)()
    for same in (block, type(block).from_address(ctypes.addressof(block))):
        lease = ClientBuffer(block).watch()
        lpai.release(same)
        assert lease.is_released


@pytest.mark.parametrize("early", [True, False])
def test_scratch_is_freed_after_its_replacement_is_there(early: bool) -> None:
    """Scratch freed before its replacement is set gives R7; afterwards it is allowed."""
    client = Client("plain").ready()
    old = client.scratch
    if early:
        old.free()
    client.give_scratch()
    if not early:
        old.free()
    client.run()
    assert client.rules == (["R7"] if early else [])


@pytest.mark.parametrize(
    ("ask_first", "offset", "rules"),
    [(True, 0, []), (False, 0, ["R1"]), (True, 4, ["R3"]), (False, 4, ["R1", "R3"])],
)
def test_a_binary_of_a_heap_is_allocated_as_the_backend_asks(
    ask_first: bool, offset: int, rules: list[str]
) -> None:
    """A binary needs an earlier alignment query and an aligned start, else R1 or R3."""
    client = Client("plain")
    backend, content = lpai.Backend.create(profile=profile(start_alignment=64)), binary()
    question = lpai.custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ)
    if ask_first:
        backend.get_property([question, None])
    block = client.heap.allocate(len(content) + 64)
    backend.get_property([question, None])
    given = block.view[offset : offset + len(content)]
    given[:] = content
    lpai.Context.create_from_binary(backend, given, [KEEP], trusted=True)
    assert [found.rule for found in backend.findings] == rules


def test_unchanged_tensors_are_checked_again_once_other_memory_is_held() -> None:
    """An unchanged output that became scratch since its last check is refused with X8."""
    client = Client("plain").ready()
    inputs, outputs = map(UnchangedTensors, client.tensors())
    buffers = [client.graph._io.buffers(inputs, outputs, None) for _ in range(2)]
    assert buffers[0] is buffers[1]
    assert client.graph._io.buffers(list(inputs), outputs, None) is not buffers[0]
    assert [client.graph.execute(inputs, outputs) for _ in range(2)] == [0, 0]
    need = client.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    both = client.buffer(need + outputs[0].client_buf.size)
    outputs[0].client_buf = both
    outputs = UnchangedTensors(outputs)
    assert client.graph.execute(inputs, outputs) == 0
    client.give(SCRATCH, both)
    with pytest.raises(QnnError, match="X8"):
        client.graph.execute(inputs, outputs)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_unchanged_tensors_are_checked_again_once_a_buffer_is_freed(kind: str) -> None:
    """An execution with a freed buffer fails before the graph runs, so the state is kept."""
    client = Client("counter").ready()
    inputs, outputs = map(UnchangedTensors, client.tensors())
    assert [client.graph.execute(inputs, outputs) for _ in range(2)] == [0, 0]
    state = client.graph.snapshot()
    (inputs if kind == "input" else outputs)[0].client_buf.free()
    with pytest.raises(QnnError, match=f"{kind} '.*' was freed before the execution"):
        client.graph.execute(inputs, outputs)
    assert client.graph.snapshot() == state
