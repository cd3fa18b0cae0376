from __future__ import annotations

import ctypes  # noqa: TID251 - the client passes ctypes values
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from qnnmem.contract.regions import GUARD_BYTES
from qnnmem.errors import QnnError, UsageError
from qnnmem.lpai.runtime.heap import BASE, Heap, HeapBuffer
from qnnmem.qnn.enums import MemType


def byte_at(buffer: HeapBuffer, offset: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return one byte relative to the start of a buffer, possibly outside it."""
    step = 1 if offset >= 0 else -1
    return as_strided(buffer.array, (abs(offset) + 1,), (step,))[abs(offset) :]


@pytest.mark.parametrize("align", [1, 16, 64, 256, 4096])
@pytest.mark.parametrize("size", [1, 63, 64, 1000])
def test_a_buffer_is_aligned_and_of_the_exact_size(size: int, align: int) -> None:
    """A buffer has its exact size, and its real and simulated addresses are aligned."""
    heap = Heap(MemType.DDR)
    heap.allocate(1)
    buffer = heap.allocate(size, align)
    assert buffer.address % align == buffer.heap_address % align == 0
    assert (buffer.array.nbytes, buffer.view.nbytes, buffer.size) == (size, size, size)
    assert buffer.address == buffer.array.__array_interface__["data"][0]


def test_array_and_view_are_the_same_writable_bytes() -> None:
    """A buffer's array and view show the same writable bytes."""
    buffer = Heap(MemType.LLC).allocate(4)
    buffer.view[1] = 7
    buffer.array[2] = 9
    assert bytes(buffer.view) == b"\0\x07\x09\0"


def test_an_address_tells_its_heap() -> None:
    """Each type of heap starts at its own simulated address."""
    assert {kind: Heap(kind).allocate(1).heap_address for kind in BASE} == BASE


def test_untouched_guards_are_whole() -> None:
    """Writing every byte of a buffer breaks no guard."""
    buffer = Heap(MemType.DDR).allocate(100)
    buffer.array[:] = 0xFF
    assert buffer.guards_broken() == ()


@pytest.mark.parametrize("size", [1, 100, 128])
@pytest.mark.parametrize(
    ("distance", "side"),
    [(0, "behind"), (GUARD_BYTES - 1, "behind"), (-1, "before"), (-GUARD_BYTES, "before")],
)
def test_writing_past_a_buffer_breaks_a_guard(size: int, distance: int, side: str) -> None:
    """A write to the first or last byte of a guard zone is found, with its side."""
    buffer = Heap(MemType.DDR).allocate(size)
    byte_at(buffer, distance if distance < 0 else size + distance)[0] = 1
    assert buffer.guards_broken() == (side,)


def test_freed_bytes_are_poisoned_and_still_there() -> None:
    """Freed bytes are poisoned but stay mapped, so a late write is found."""
    buffer = Heap(MemType.DDR).allocate(64)
    buffer.free()
    assert buffer.freed
    assert bytes(buffer.view) == b"\xff" * 64
    assert not buffer.written_after_free()
    buffer.view[5] = 0
    assert buffer.written_after_free()


def test_a_buffer_is_freed_once() -> None:
    """A second free of a buffer raises UsageError with the buffer's name."""
    buffer = Heap(MemType.DDR).allocate(64, name="scratch")
    buffer.free()
    with pytest.raises(UsageError, match="'scratch' was already freed"):
        buffer.free()


def test_a_late_second_free_does_not_free_the_next_buffer() -> None:
    """A second free of an old buffer leaves the new buffer at its address allocated."""
    heap = Heap(MemType.DDR)
    old = heap.allocate(64)
    old.free()
    new = heap.allocate(64)
    assert new.heap_address == old.heap_address
    with pytest.raises(UsageError):
        old.free()
    assert heap.live == (new,)


def test_leaving_a_block_frees_its_buffer() -> None:
    """A `with` block frees its buffer, unless the buffer is already freed."""
    heap = Heap(MemType.DDR)
    with heap.allocate(64) as buffer, heap.allocate(64) as other:
        other.free()
    assert buffer.freed
    assert heap.live == ()


def test_an_exact_fit_passes_and_one_byte_more_is_code_1002() -> None:
    """A full heap refuses one more byte with code 1002, the need and the remaining bytes."""
    heap = Heap(MemType.TCM, 256)
    heap.allocate(128)
    heap.allocate(128)
    with pytest.raises(QnnError, match="TCM heap of 256 bytes has no room for 1 bytes") as caught:
        heap.allocate(1, name="x")
    assert caught.value.code == 1002
    assert (caught.value.finding.need, caught.value.finding.given) == (1, 0)


def test_freed_room_is_used_again() -> None:
    """Freed memory can be allocated again without limit."""
    heap = Heap(MemType.TCM, 128)
    for _ in range(100):
        heap.allocate(128).free()
    assert heap.used == 0


def test_a_hole_of_the_exact_size_is_filled() -> None:
    """A gap between two live buffers can be allocated to its last byte."""
    heap = Heap(MemType.TCM, 192)
    _, hole, _ = (heap.allocate(64) for _ in range(3))
    hole.free()
    assert heap.allocate(64).heap_address == hole.heap_address


def test_more_than_the_machine_has_is_code_1002() -> None:
    """A size beyond the machine's memory fails with code 1002."""
    with pytest.raises(QnnError, match="1002"):
        Heap(MemType.DDR).allocate(1 << 60)


@pytest.mark.parametrize(("size", "align"), [(-1, 64), (1 << 61, 64), (64, 0), (64, 48)])
def test_impossible_requests_are_bad_usage(size: int, align: int) -> None:
    """A negative or huge size, or an alignment that is not a power of two, raises UsageError."""
    with pytest.raises(UsageError):
        Heap(MemType.DDR).allocate(size, align)


@pytest.mark.parametrize("null", [None, 0, ctypes.c_void_p()])
def test_freeing_null_does_nothing(null: object) -> None:
    """Freeing a null pointer does nothing, as in C."""
    heap = Heap(MemType.DDR)
    buffer = heap.allocate(64)
    heap.free(null)
    assert heap.live == (buffer,)


def test_there_is_no_heap_of_undefined_type() -> None:
    """A heap of type UNDEFINED raises UsageError."""
    with pytest.raises(UsageError, match="DDR, LLC, TCM or PSRAM"):
        Heap(MemType.UNDEFINED)


def test_a_buffer_shows_what_it_is() -> None:
    """The `repr` of a buffer shows name, size, heap and state, with control characters escaped."""
    buffer = Heap(MemType.TCM).allocate(64, name="a\x1bb")
    buffer.free()
    assert repr(buffer) == "<HeapBuffer 'a\\x1bb' 64 bytes at TCM 0x3000000, freed>"


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 300), st.sampled_from([1, 16, 64, 256])),
        max_size=40,
    )
)
def test_living_buffers_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    """In any order of calls, live buffers never overlap and stay within the heap."""
    heap = Heap(MemType.TCM, 2048)
    for free, size, align in steps:
        if free and heap.live:
            heap.live[size % len(heap.live)].free()
        elif not free:
            try:
                buffer = heap.allocate(size, align)
            except QnnError:
                continue
            assert buffer.heap_address % align == 0
    ranges = [(b.heap_address, b.heap_address + b.size) for b in heap.live]
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert all(end <= BASE[MemType.TCM] + 2048 for _, end in ranges)
