from __future__ import annotations

import array
import mmap
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any, TypeAlias

import numpy as np
import pytest

from qnnmem.contract.regions import ClientBuffer, release
from qnnmem.errors import UsageError
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.qnn.enums import MemType

# Memory that an application may own, and the part that it passes.
Make: TypeAlias = Callable[[], Any]
Part: TypeAlias = Callable[[Any], Any]


def whole(owner: Any) -> Any:
    """Return the whole owner."""
    return owner


def in_a_record() -> np.ndarray[Any, Any]:
    """Return an array with two fields."""
    return np.zeros(100, [("left", "i4"), ("right", "f4")])


OWNERS: dict[str, tuple[Make, Part]] = {
    "bytearray": (lambda: bytearray(200), whole),
    "array": (lambda: array.array("i", bytes(200)), whole),
    "mmap": (lambda: mmap.mmap(-1, 4096), whole),
    "view of an mmap": (lambda: mmap.mmap(-1, 4096), lambda o: memoryview(o)[64:]),
    "memoryview": (lambda: memoryview(bytearray(200)), whole),
    "slice of a memoryview": (lambda: memoryview(bytearray(200)), lambda o: o[64:]),
    "slice of a slice of a memoryview": (
        lambda: memoryview(bytearray(200)),
        lambda o: o[64:][8:],
    ),
    "view of a bytearray": (lambda: bytearray(200), lambda o: memoryview(o)[64:]),
    "numpy": (lambda: np.zeros(200, np.uint8), whole),
    "numpy of floats": (lambda: np.zeros((10, 10), np.float32), whole),
    "numpy of records": (in_a_record, whole),
    "scalar array": (lambda: np.zeros((), np.int64), whole),
    "slice of numpy": (lambda: np.zeros(200, np.uint8), lambda o: o[64:128]),
    "slice of a slice of numpy": (lambda: np.zeros(200, np.uint8), lambda o: o[8:][8:]),
    "reshaped numpy": (lambda: np.zeros(200, np.uint8), lambda o: o.reshape(10, 20)),
    "other type of numpy": (lambda: np.zeros(200, np.uint8), lambda o: o.view(np.int32)),
    "data of numpy": (lambda: np.zeros(200, np.uint8), lambda o: o.data),
    "numpy over a bytearray": (lambda: np.frombuffer(bytearray(200), np.uint8), whole),
    "slice of numpy over a bytearray": (
        lambda: np.frombuffer(bytearray(200), np.uint8),
        lambda o: o[64:],
    ),
    "numpy over an mmap": (lambda: np.frombuffer(mmap.mmap(-1, 4096), np.uint8), whole),
    "buffer below numpy": (lambda: bytearray(200), lambda o: np.frombuffer(o, np.uint8)),
}
owners = pytest.mark.parametrize(("make", "part"), OWNERS.values(), ids=OWNERS)


@owners
def test_memory_that_is_held_counts_as_there(make: Make, part: Part) -> None:
    """Memory that the application still holds is never released."""
    owner = make()
    lease = ClientBuffer(part(owner))
    assert [lease.is_released for _ in range(3)] == [False] * 3
    assert owner is not None


@owners
def test_memory_that_was_dropped_is_kept(make: Make, part: Part) -> None:
    """A dropped reference is not a release: the lease keeps the bytes."""
    owner = make()
    lease = ClientBuffer(part(owner)).watch()
    del owner
    assert not lease.is_released
    assert lease.array.size == lease.size


@owners
def test_memory_that_was_given_back_counts_as_released(make: Make, part: Part) -> None:
    """After `release`, any lease of the memory is released, and its bytes stay mapped."""
    owner = make()
    lease = ClientBuffer(part(owner)).watch()
    release(owner)
    assert lease.is_released
    assert lease.array.size == lease.size


@owners
def test_a_part_that_was_given_back_counts_as_released(make: Make, part: Part) -> None:
    """After `release`, each existing lease is released; a later lease counts as new memory."""
    held = part(make())
    leases = [ClientBuffer(held).watch() for _ in range(3)]
    release(held)
    assert all(lease.is_released for lease in leases)
    assert not ClientBuffer(held).watch().is_released


def test_only_what_shares_bytes_is_released() -> None:
    """Releasing part of a block releases only overlapping leases; the whole block, all."""
    block = np.zeros(300, np.uint8)
    leases = [ClientBuffer(block[at : at + 100]).watch() for at in (0, 100, 200)]
    release(block[150:160])
    assert [lease.is_released for lease in leases] == [False, True, False]
    assert not leases[0].overlaps(leases[1])
    release(block)
    assert all(lease.is_released for lease in leases)


def test_memory_of_a_heap_is_not_given_back() -> None:
    """`release` refuses memory of a heap and names the heap's `free`."""
    buffer = Heap(MemType.DDR).allocate(128)
    for memory in (buffer, buffer.view[64:], buffer.address):
        with pytest.raises(UsageError, match="with the `free` method of its heap"):
            release(memory)
    assert not buffer.freed


def test_a_heap_buffer_is_released_by_freeing_it() -> None:
    """A heap buffer is released only by its `free`, whatever references exist."""
    heap = Heap(MemType.DDR)
    buffer = heap.allocate(128)
    lease = ClientBuffer(buffer)
    assert (lease.address, lease.size) == (buffer.address, 128)
    assert lease.allocation is buffer.allocation
    assert not lease.is_released
    buffer.free()
    assert lease.is_released


@pytest.mark.parametrize("part", [whole, lambda o: o[64:128], lambda o: o.data[64:]])
def test_an_array_that_was_given_other_memory_counts_as_released(part: Part) -> None:
    """An array that is resized in place is released, as after realloc."""
    owner = np.zeros(1 << 12, np.uint8)
    lease = ClientBuffer(part(owner))
    assert not lease.is_released
    owner.resize(1 << 22, refcheck=False)
    assert lease.is_released


def test_shared_memory_that_is_held_counts_as_there() -> None:
    """A held block of shared memory is not released."""
    block = SharedMemory(create=True, size=4096)
    lease = ClientBuffer(block.buf)
    held = not lease.is_released
    del lease
    block.close()
    block.unlink()
    assert held


@pytest.mark.parametrize("size", [1, 64, 100])
def test_address_and_size_are_those_of_the_memory(size: int) -> None:
    """A write through the lease appears in the owner at the stated address."""
    owner = np.zeros(size + 3, np.uint8)
    lease = ClientBuffer(owner[3:])
    lease.array[0] = 7
    assert owner[3] == 7
    assert lease.address == owner[3:].__array_interface__["data"][0]
    assert (lease.size, lease.readonly) == (size, False)


def test_read_only_memory_is_known_as_such() -> None:
    """Bytes and locked arrays can be leased and are marked read-only."""
    locked = np.zeros(10, np.uint8)
    locked.flags.writeable = False
    assert ClientBuffer(b"abc").readonly
    assert ClientBuffer(locked).readonly


@pytest.mark.parametrize(
    "memory",
    [
        None,
        "text",
        5,
        [1, 2],
        np.zeros(10)[::2],
        np.zeros(10)[::-1],
        np.zeros((3, 4)).T,
        np.zeros(3, object),
        np.zeros(3, [("a", object)]),
        np.zeros(3, object).data,
        np.zeros(3, "M8[s]"),
    ],
    ids=lambda memory: type(memory).__name__,
)
def test_what_is_no_memory_in_one_piece_is_refused(memory: object) -> None:
    """Memory with gaps, reversed order, Python objects or no bytes is refused in one sentence."""
    with pytest.raises(UsageError, match="cannot be used as memory"):
        ClientBuffer(memory)


def test_memory_that_is_gone_is_refused() -> None:
    """A closed mmap and a released view cannot be leased."""
    closed, released = mmap.mmap(-1, 4096), memoryview(bytearray(3))
    closed.close()
    released.release()
    for memory in (closed, released):
        with pytest.raises(UsageError):
            ClientBuffer(memory)


def test_empty_memory_has_no_bytes_and_overlaps_nothing() -> None:
    """Empty memory has size 0 and overlaps nothing."""
    lease = ClientBuffer(np.zeros((0, 4)))
    assert lease.size == 0
    assert not lease.overlaps(ClientBuffer(bytearray(10)))
