"""Qmem: registration, the four combinations and the table, also with the real library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from context_writer import example_context, example_graph, pack_context
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from qnnmem.contract.rules import QMEM, rules
from qnnmem.errors import CannotTell, QnnError, UsageError
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.provoke import small_convolution
from qnnmem.htp.qmem.layer import IoLayer, Places, numpy_type
from qnnmem.htp.qmem.memory import HtpMemDescriptor, HtpMemType, MemRegistry, SharedBuffer
from qnnmem.htp.qmem.table import (
    COMBINATIONS,
    QmemTable,
    advise,
    measure_copy,
    qmem_of,
    qmem_of_file,
    random_inputs,
    run_row,
    traps,
)
from qnnmem.provenance import Origin
from qnnmem.qnn.enums import DataType, MemRegisterType, TensorMemType, TensorType
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.qnn.tensor import SCALE_OFFSET, Quantization, TensorInfo
from qnnmem.results.qmem import CopyTime, IoMode
from qnnmem.targets.socs import find_soc

RAW, MEMHANDLE = IoMode.RAW, IoMode.MEMHANDLE
U8 = DataType.UFIXED_POINT_8
HALVES = Quantization(SCALE_OFFSET, (0.5,), (0,))


def tensor(name: str, *dimensions: int, mem_type: TensorMemType = TensorMemType.RAW) -> TensorInfo:
    """Return an 8-bit tensor; a name from y on is an output."""
    kind = TensorType.APP_READ if name >= "y" else TensorType.APP_WRITE
    return TensorInfo(1, name, kind, U8, dimensions, HALVES, mem_type)


def graph(mem_type: TensorMemType = TensorMemType.RAW) -> HtpGraph:
    """Return a graph with inputs of 100 and 9000 bytes and an output of 300."""
    inputs = (tensor("a", 100, mem_type=mem_type), tensor("b", 9000, mem_type=mem_type))
    return HtpGraph("g", inputs, (tensor("y", 300, mem_type=mem_type),))


def shift(inputs: Places, outputs: Places) -> None:
    """Compute the output from both inputs."""
    first, values = inputs["a"].view[0], inputs["b"].view[:300]
    outputs["y"].view[:] = bytes((first + value) % 256 for value in values)


@pytest.fixture
def made() -> Iterator[ExitStack]:
    """Return a stack that closes the objects of a test."""
    with ExitStack() as stack:
        yield stack


def shared(made: ExitStack, size: int = 65536) -> SharedBuffer:
    """Return a shared buffer."""
    buffer = SharedBuffer(size)
    made.callback(buffer.close)
    return buffer


def custom(buffer: SharedBuffer, size: int, offset: int = 0, **changes: Any) -> HtpMemDescriptor:
    """Return a descriptor of bytes in a shared buffer."""
    kind = MemRegisterType.CUSTOM
    return replace(
        HtpMemDescriptor((size,), U8, buffer.fd, kind, total_size=buffer.size, offset=offset),
        **changes,
    )


def refused(code: int, rule: str, call: Any, *arguments: Any) -> None:
    """Check that a call is refused with this code and a rule that lists the code."""
    with pytest.raises(QnnError) as caught:
        call(*arguments)
    assert (caught.value.code, caught.value.finding.rule) == (code, rule)
    assert code in rules(QMEM)[rule].codes


# --- Registration --------------------------------------------------------------------------------


def test_many_tensors_share_one_buffer(made: ExitStack) -> None:
    """Bytes in the application's mapping appear in the handle; the mapping counts once."""
    buffer, registry = shared(made), MemRegistry()
    first, second = registry.register([custom(buffer, 100), custom(buffer, 50, 128)])
    buffer.view[128] = 7
    assert (second.view[0], len(second.view), len(first.view)) == (7, 50, 100)
    assert registry.mapped_bytes == 65536
    registry.deregister([first, second])
    assert registry.mapped_bytes == 0
    assert registry.free() == ()


def test_ion_is_a_whole_buffer(made: ExitStack) -> None:
    """An ION handle covers one tensor at the start of the buffer."""
    registry = MemRegistry()
    (handle,) = registry.register([HtpMemDescriptor((10, 10), U8, shared(made).fd)])
    assert (handle.offset, handle.size) == (0, 100)
    registry.deregister([handle])


def test_double_registration_is_8002(made: ExitStack) -> None:
    """Registering the same place twice is refused with 8002, until the first is deregistered."""
    buffer, registry = shared(made), MemRegistry()
    handles = registry.register([custom(buffer, 100)])
    refused(8002, "Q1", registry.register, [custom(buffer, 100)])
    registry.deregister(handles)
    registry.deregister(registry.register([custom(buffer, 100)]))


def test_a_bad_fd_is_8003(made: ExitStack) -> None:
    """An invalid fd and a file that cannot be mapped are refused with 8003."""
    registry, buffer = MemRegistry(), shared(made)
    refused(8003, "Q2", registry.register, [custom(buffer, 100, fd=-1)])
    reading, writing = os.pipe()
    made.callback(os.close, reading)
    made.callback(os.close, writing)
    refused(8003, "Q2", registry.register, [custom(buffer, 100, fd=reading)])


def test_a_full_process_domain_is_8003(made: ExitStack) -> None:
    """A buffer counts once against the room; without room, the next one is refused with 8003."""
    registry, first, second = MemRegistry(room=8192), shared(made, 8192), shared(made, 4096)
    handles = registry.register([custom(first, 100), custom(first, 100, 4096)])
    refused(8003, "Q2", registry.register, [custom(second, 100)])
    registry.deregister(handles)
    registry.deregister(registry.register([custom(second, 100)]))


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1},
        {"offset": -64},
        {"dimensions": ()},
        {"dimensions": (0,)},
        {"dimensions": (65537,)},
        {"offset": 65536},
        {"total_size": 99},
        {"total_size": 65537},
    ],
    ids=str,
)
def test_shape_alignment_and_size_are_8004(made: ExitStack, changes: dict[str, Any]) -> None:
    """A descriptor of unaligned bytes, or bytes outside the buffer, is refused with 8004."""
    descriptor = replace(custom(shared(made), 100), **changes)
    refused(8004, "Q3", MemRegistry().register, [descriptor])


@pytest.mark.parametrize(
    "changes",
    [
        {"mem_type": MemRegisterType.DMA_BUF},
        {"mem_type": 99},
        {"htp_type": HtpMemType.QURT},
        {"htp_type": HtpMemType.WEIGHTS_BUFFER},
    ],
    ids=str,
)
def test_other_memory_is_8005(made: ExitStack, changes: dict[str, Any]) -> None:
    """Memory types other than ION and HTP shared buffer are refused with 8005."""
    descriptor = replace(custom(shared(made), 100), **changes)
    refused(8005, "Q4", MemRegistry().register, [descriptor])


def test_no_descriptor_and_no_type_are_8000(made: ExitStack) -> None:
    """An empty list and a data type without a size are refused with 8000."""
    refused(8000, "Q6", MemRegistry().register, [])
    descriptor = custom(shared(made), 100, data_type=DataType.UNDEFINED)
    refused(8000, "Q6", MemRegistry().register, [descriptor])


@pytest.mark.parametrize("changes", [{"fd": None}, {"dimensions": ("3",)}, {"offset": 0.5}])
def test_malformed_descriptors_are_8000(made: ExitStack, changes: dict[str, Any]) -> None:
    """A malformed descriptor is refused with 8000, like in QNN."""
    descriptor = replace(custom(shared(made), 100), **changes)
    refused(8000, "Q6", MemRegistry().register, [descriptor])
    refused(8000, "Q6", MemRegistry().register, ["descriptor"])


def test_registering_is_all_or_nothing(made: ExitStack) -> None:
    """One bad descriptor leaves nothing registered, so the good one can be registered again."""
    buffer, registry = shared(made), MemRegistry()
    refused(8004, "Q3", registry.register, [custom(buffer, 100), custom(buffer, 100, 1)])
    assert registry.mapped_bytes == 0
    registry.deregister(registry.register([custom(buffer, 100)]))


def test_dead_handles_and_contexts_are_8001(made: ExitStack) -> None:
    """Deregistering twice, and any call after the context is freed, is refused with 8001."""
    buffer, registry = shared(made), MemRegistry()
    first, second = registry.register([custom(buffer, 10), custom(buffer, 10, 64)])
    registry.deregister([first])
    refused(8001, "Q5", registry.deregister, [first, second])
    assert second not in registry  # a refused list still deregisters its valid handles
    assert [finding.rule for finding in registry.free()] == ["Q5"]
    refused(8001, "Q5", registry.register, [custom(buffer, 10)])


def test_a_leak_is_reported_when_the_context_is_freed(made: ExitStack) -> None:
    """Freeing the context reports each handle that is still registered."""
    registry, buffer = MemRegistry(), shared(made)
    registry.register([custom(buffer, 10), custom(buffer, 10, 64)])
    assert [finding.rule for finding in registry.free()] == ["Q9", "Q9"]


def test_freeing_a_registered_buffer_is_reported() -> None:
    """The registry notices a closed fd, even if a new buffer reuses its number."""
    buffer, registry = SharedBuffer(4096), MemRegistry()
    handles = registry.register([custom(buffer, 10)])
    number = buffer.fd
    buffer.close()
    other = SharedBuffer(4096)
    assert other.fd == number
    registry.deregister(handles)
    other.close()
    assert [finding.rule for finding in registry.findings] == ["Q8"]


# --- The IO layer --------------------------------------------------------------------------------


def expected() -> bytes:
    """Return the output for the inputs of `client`."""
    return bytes((5 + value % 251) % 256 for value in range(300))


def client() -> dict[str, bytearray]:
    """Return raw buffers with inputs."""
    b = bytearray(value % 251 for value in range(9000))
    return {"a": bytearray([5] * 100), "b": b, "y": bytearray(300)}


@pytest.mark.parametrize(
    ("prepared", "executed", "at_load", "at_first", "copied"),
    [
        (RAW, RAW, 32768, 0, (9100, 300)),
        (RAW, MEMHANDLE, 32768, 0, (0, 0)),
        (MEMHANDLE, RAW, 0, 32768, (9100, 300)),
        (MEMHANDLE, MEMHANDLE, 0, 0, (0, 0)),
    ],
)
def test_the_four_combinations(
    prepared: IoMode, executed: IoMode, at_load: int, at_first: int, copied: tuple[int, int]
) -> None:
    """Memory is reserved at load, in the first inference or never; raw execution copies."""
    inputs = {name: bytes(blob) for name, blob in client().items() if name != "y"}
    row = run_row(graph(), shift, inputs, prepared, executed)
    assert row.reserved_at_load == at_load
    assert [once.reserved for once in row.inferences] == [at_first, 0]
    assert {(once.copied_in, once.copied_out) for once in row.inferences} == {copied}
    assert row.findings == ()


def test_all_rows_compute_the_same() -> None:
    """All four combinations compute the same output."""
    inputs = {name: bytes(blob) for name, blob in client().items() if name != "y"}
    rows = [run_row(graph(), shift, inputs, *modes) for modes in COMBINATIONS]
    assert len({row.sha256 for row in rows}) == 1


def test_the_binary_says_how_each_tensor_was_prepared() -> None:
    """The layer reserves memory only for the tensors that the binary prepares as raw."""
    mixed = structs.replace(graph(), outputs=(tensor("y", 300, mem_type=TensorMemType.MEMHANDLE),))
    layer = IoLayer(mixed, shift, MemRegistry())
    assert layer.reserved_at_load == 8192 + 16384
    memory = client()
    assert layer.execute(memory, memory).reserved == 8192
    assert memory["y"] == expected()
    layer.close()


def test_raw_and_handles_mix_in_one_execution(made: ExitStack) -> None:
    """In a mixed execution only raw tensors are copied, and the output lands at its handle."""
    registry, buffer = MemRegistry(), shared(made)
    (handle,) = registry.register([custom(buffer, 300, 64)])
    layer = IoLayer(graph(), shift, registry, MEMHANDLE)
    ran = layer.execute(client(), {"y": handle})
    assert (ran.copied_in, ran.copied_out, ran.reserved) == (9100, 0, 8192 + 16384)
    assert bytes(buffer.view[64:364]) == expected()
    layer.close()
    registry.deregister([handle])


@pytest.mark.parametrize(
    "memory",
    [None, bytearray(299), bytes(300), memoryview(bytearray(600))[::2], 7],
    ids=["none", "short", "read-only", "strided", "number"],
)
def test_bad_raw_memory_is_6004(memory: Any) -> None:
    """An output without enough writable bytes is refused with 6004 before any reservation."""
    layer = IoLayer(graph(), shift, MemRegistry(), MEMHANDLE)
    refused(6004, "Q7", layer.execute, client(), {"y": memory})
    assert layer.reserved == 0


def test_use_after_deregister_is_6004(made: ExitStack) -> None:
    """Executing with a deregistered handle is refused with 6004."""
    registry, buffer = MemRegistry(), shared(made)
    (handle,) = registry.register([custom(buffer, 300)])
    registry.deregister([handle])
    layer = IoLayer(graph(), shift, registry, MEMHANDLE)
    refused(6004, "Q7", layer.execute, client(), {"y": handle})


def test_a_handle_may_be_larger_but_not_smaller(made: ExitStack) -> None:
    """A handle may be larger than its tensor; a smaller one is refused with 6004."""
    registry, buffer = MemRegistry(), shared(made)
    small, large = registry.register([custom(buffer, 299), custom(buffer, 301, 320)])
    layer = IoLayer(graph(), shift, registry, MEMHANDLE)
    refused(6004, "Q7", layer.execute, client(), {"y": small})
    assert layer.execute(client(), {"y": large}).copied_out == 0
    layer.close()
    registry.deregister([small, large])


def test_executing_with_a_freed_buffer_is_6004() -> None:
    """A registered buffer that was closed or truncated is refused with 6004, not touched."""
    registry, buffer = MemRegistry(), SharedBuffer(65536)
    (handle,) = registry.register([custom(buffer, 300, 8192)])
    layer = IoLayer(graph(), shift, registry, MEMHANDLE)
    os.ftruncate(buffer.fd, 4096)
    refused(6004, "Q8", layer.execute, client(), {"y": handle})
    buffer.close()
    refused(6004, "Q8", layer.execute, client(), {"y": handle})
    registry.deregister([handle])


@given(st.lists(st.sampled_from(list(IoMode)), min_size=3, max_size=3), st.booleans())
def test_copied_bytes_are_those_of_raw_tensors(modes: list[IoMode], hinted: bool) -> None:
    """In any mix of modes, each raw tensor is copied once and no handle is copied."""
    with ExitStack() as made:
        registry, buffer, memory = MemRegistry(), shared(made), dict[str, Any](client())
        sizes = {"a": 100, "b": 9000, "y": 300}
        by_handle = [name for name, mode in zip(sizes, modes, strict=True) if mode is MEMHANDLE]
        for number, name in enumerate(by_handle):
            blob = memory[name]
            buffer.view[number * 9024 : number * 9024 + len(blob)] = blob
            memory[name] = registry.register([custom(buffer, len(blob), number * 9024)])[0]
        layer = IoLayer(graph(), shift, registry, MEMHANDLE if hinted else RAW)
        ran = layer.execute(memory, memory)
        raw = sum(size for name, size in sizes.items() if name not in by_handle)
        result = memory["y"].view if isinstance(memory["y"], MemHandle) else memory["y"]
        assert (ran.copied_in + ran.copied_out, bytes(result)) == (raw, expected())
        layer.close()
        registry.deregister([memory[name] for name in by_handle])
        assert registry.free() == ()


# --- The table -----------------------------------------------------------------------------------


def nanoseconds(size: int) -> CopyTime:
    """Return a copy time of one nanosecond per byte."""
    return CopyTime(size, Origin.MEASURED, "made up")


def table(*graphs: HtpGraph) -> Any:
    """Return the table of a context."""
    context = example_context(*graphs)
    return qmem_of(context, bill_of(context), nanoseconds)


def full(given: HtpGraph) -> HtpGraph:
    """Return a graph with the sizes that a binary stores."""
    changes = {"inputs": given.inputs, "outputs": given.outputs, "io": 32768}
    made: HtpGraph = example_graph(given.name, **changes)
    return made


def test_the_table_agrees_with_what_is_carried_out() -> None:
    """The table predicts the same bytes as the emulated execution, in each row."""
    inputs = {name: bytes(blob) for name, blob in client().items() if name != "y"}
    for row in table(full(graph())).rows:
        ran = run_row(graph(), shift, inputs, row.prepared, row.executed)
        first = ran.inferences[0]
        assert (row.reserved_at_load.value, row.reserved_at_first_inference.value) == (
            ran.reserved_at_load,
            first.reserved,
        )
        assert (row.copied_in.value, row.copied_out.value) == (first.copied_in, first.copied_out)


def test_exact_and_stored_sizes_are_told_apart() -> None:
    """Stored IO counts units of 8192 bytes; copies count the exact bytes."""
    found = table(full(graph()))
    assert (found.io_exact.value, found.io_stored.value) == (9400, 32768)
    assert (found.io_exact.origin, found.io_stored.origin) == (Origin.COMPUTED, Origin.MEASURED)
    assert [row.copy_time.nanoseconds for row in found.rows] == [9400, 0, 9400, 0]


def test_memhandle_twice_is_best_and_leaves_most_room() -> None:
    """Memhandle for both steps is the best row; an unused internal buffer leaves the least room."""
    found = table(full(graph()))
    assert (found.best.prepared, found.best.executed) == (MEMHANDLE, MEMHANDLE)
    room = {(row.prepared, row.executed): row.process_domain_left.value for row in found.rows}
    assert max(room.values()) == room[MEMHANDLE, MEMHANDLE]
    # 9400 bytes take 64 + 64 + 64 aligned parts: 9472 bytes, three pages.
    assert room[RAW, RAW] - room[RAW, MEMHANDLE] == 12288


@pytest.mark.parametrize(
    ("given", "mode", "words"),
    [
        (graph(), RAW, "prepare and execute with memhandle"),
        (graph(TensorMemType.MEMHANDLE), MEMHANDLE, "prepared for memhandle: pass registered"),
        (
            structs.replace(graph(TensorMemType.MEMHANDLE), outputs=(tensor("y", 300),)),
            None,
            "2 of 3",
        ),
    ],
)
def test_the_advice_follows_the_binary(given: HtpGraph, mode: IoMode | None, words: str) -> None:
    """The advice depends on how the binary is prepared."""
    found = table(full(given))
    assert found.prepared is mode
    assert advise(found).startswith(words)
    assert any("never used" in trap for trap in traps(found))


def test_graphs_of_a_context_add_up() -> None:
    """The table adds up the IO memory of all graphs of a context."""
    one = full(graph())
    found = table(one, structs.replace(one, name="h"))
    assert found.row(RAW, RAW).reserved_at_load.value == 65536
    assert found.row(RAW, RAW).copied == 18800


def test_an_unknown_type_cannot_be_told() -> None:
    """A tensor of unknown data type makes the table fail with CannotTell."""
    strange = structs.replace(tensor("a", 3), data_type=DataType.UNDEFINED)
    with pytest.raises(CannotTell, match="data type of tensor 'a'"):
        table(full(structs.replace(graph(), inputs=(strange,))))


def test_copies_of_any_size_are_measured_in_bounded_time() -> None:
    """Copying zero bytes takes no time; a terabyte is extrapolated, and the source says so."""
    assert measure_copy(0).nanoseconds == 0
    huge = measure_copy(1 << 40)
    assert huge.nanoseconds > measure_copy(1 << 20).nanoseconds
    assert "scaled up" in huge.source


# --- Elements ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (DataType.UFIXED_POINT_8, "uint8"),
        (DataType.SFIXED_POINT_16, "int16"),
        (DataType.INT_32, "int32"),
        (DataType.UINT_8, "uint8"),
        (DataType.FLOAT_16, "float16"),
        (DataType.FLOAT_32, "float32"),
        (DataType.BOOL_8, "bool"),
    ],
)
def test_types_are_those_of_numpy(kind: DataType, name: str) -> None:
    """Each QNN type has a NumPy type of the same size; quantized values are plain integers."""
    import numpy

    found = numpy_type(structs.replace(tensor("a", 1), data_type=kind))
    assert (found, numpy.dtype(found).itemsize) == (name, kind.nbytes(1))


def test_four_bits_cannot_be_handed_over() -> None:
    """A 4-bit tensor is refused, because NumPy has no 4-bit type."""
    with pytest.raises(CannotTell, match="SFIXED_POINT_4"):
        numpy_type(structs.replace(tensor("a", 1), data_type=DataType.SFIXED_POINT_4))


def test_made_up_inputs_have_the_right_size() -> None:
    """Random inputs have the right size, depend only on the seed, and keep integers at 0 or 1."""
    whole = structs.replace(tensor("a", 4), data_type=DataType.INT_32)
    real = structs.replace(tensor("b", 2, 3), data_type=DataType.FLOAT_16)
    inputs = random_inputs(structs.replace(graph(), inputs=(whole, real)), 3)
    assert {name: len(blob) for name, blob in inputs.items()} == {"a": 16, "b": 12}
    assert set(inputs["a"]) <= {0, 1}
    assert inputs == random_inputs(structs.replace(graph(), inputs=(whole, real)), 3)


# --- Files ---------------------------------------------------------------------------------------


def quiet(_text: str) -> None:
    """Ignore the text."""


def test_running_is_for_binaries_of_one_graph(tmp_path: Path) -> None:
    """Running a binary with two graphs is refused; the table alone works."""
    path = tmp_path / "two.bin"
    graphs = (full(graph()), structs.replace(full(graph()), name="h"))
    path.write_bytes(pack_context(example_context(*graphs)))
    if has_library():
        with pytest.raises(UsageError, match="has 2 graphs"):
            qmem_of_file(path, None, CompileOptions(), run=True, progress=quiet)
    table_only = qmem_of_file(path, None, CompileOptions(), progress=quiet)
    assert isinstance(table_only, QmemTable)
    assert not table_only.result.compiled


@pytest.mark.slow
@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_the_real_library_agrees_in_all_rows(tmp_path: Path) -> None:
    """All four rows of the real library give the same bits and the predicted bytes."""
    path = tmp_path / "small.onnx"
    path.write_bytes(small_convolution())
    found = qmem_of_file(path, find_soc("SM8650"), CompileOptions(), run=True, progress=quiet)
    assert isinstance(found, QmemTable)
    result, ran_rows = found.result, found.result.run
    assert ran_rows is not None
    assert (ran_rows.agrees, ran_rows.binaries, len(ran_rows.rows)) == (True, 2, 4)
    for row, ran in zip(result.rows, ran_rows.rows, strict=True):
        assert (row.reserved_at_load.value, row.copied) == (
            ran.reserved_at_load,
            ran.inferences[1].copied_in + ran.inferences[1].copied_out,
        )
