from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from qnnmem.errors import Fault, UsageError
from qnnmem.qnn.enums import DataType
from qnnmem.qnn.shared_memory import (
    RegisteredMemory,
    SharedRange,
    shared_file,
    tensor_bytes,
)


@pytest.fixture
def fd() -> Iterator[int]:
    """Return an open file of one page."""
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        yield file.fileno()


def places(fd: int, *offsets: int) -> list[SharedRange]:
    """Return ranges of 64 bytes."""
    return [SharedRange(shared_file(fd), offset, 64) for offset in offsets]


def same(place: SharedRange) -> SharedRange:
    """Accept a range unchanged."""
    return place


def test_tensors_of_one_file_share_a_mapping(fd: int) -> None:
    """Tensors of one file share one mapping, and the file counts once."""
    memory = RegisteredMemory()
    first, second = memory.register(places(fd, 0, 32), same)
    first.view[32] = 7
    assert second.array[0] == 7
    assert first.mapped is second.mapped
    assert memory.mapped_bytes == 4096


def test_a_file_that_grew_is_mapped_again(fd: int) -> None:
    """A file that grew is mapped again, so a tensor behind the old end has all its bytes."""
    memory = RegisteredMemory()
    memory.register(places(fd, 0), same)
    os.ftruncate(fd, 8192)
    (later,) = memory.register(places(fd, 8128), same)
    assert len(later.view) == 64
    assert not later.is_shortened


def test_one_refused_descriptor_leaves_nothing_registered(fd: int) -> None:
    """One refused descriptor leaves nothing registered."""

    def refuse_second(place: SharedRange) -> SharedRange:
        if place.offset:
            raise UsageError("refused")
        return place

    memory = RegisteredMemory()
    with pytest.raises(UsageError, match="refused"):
        memory.register(places(fd, 0, 64), refuse_second)
    assert (memory.handles, memory.mapped_bytes) == ((), 0)


def test_valid_handles_go_even_if_others_are_not_valid(fd: int) -> None:
    """Deregistering a list frees the valid handles and counts the invalid ones."""
    memory = RegisteredMemory()
    handles = memory.register(places(fd, 0, 64), same)
    assert memory.deregister([handles[0], None, handles[0], handles[1]]) == 2
    assert memory.handles == ()


def test_a_deregistered_handle_gives_no_bytes(fd: int) -> None:
    """After deregistration an existing array still works, and a new one is refused."""
    memory = RegisteredMemory()
    (handle,) = memory.register(places(fd, 0), same)
    array = handle.array
    memory.deregister([handle])
    array[0] = 1
    assert os.pread(fd, 1, 0) == b"\1"
    with pytest.raises(UsageError, match="deregistered"):
        _ = handle.array


def test_a_handle_knows_that_its_file_was_closed_or_shortened(fd: int) -> None:
    """A handle reports that its file was closed or truncated."""
    copy = os.dup(fd)
    memory = RegisteredMemory()
    (handle,) = memory.register(places(copy, 4032), same)
    assert (handle.is_freed, handle.is_shortened) == (False, False)
    os.ftruncate(copy, 1024)
    assert handle.is_shortened
    os.close(copy)
    assert handle.is_freed


def test_files_that_cannot_be_shared_are_faults(fd: int) -> None:
    """A closed descriptor, an empty file and a read-only file cannot be shared."""
    with pytest.raises(Fault, match="is not open"):
        shared_file(-1)
    os.ftruncate(fd, 0)
    with pytest.raises(Fault, match="has no bytes"):
        shared_file(fd)
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(64)
        closed = os.open(file.name, os.O_RDONLY)
        try:
            with pytest.raises(Fault, match="cannot be mapped"):
                RegisteredMemory().register(places(closed, 0), same)
        finally:
            os.close(closed)


def test_a_tensor_is_as_large_as_its_descriptor_says() -> None:
    """A tensor's bytes follow from its shape and type; an unknown type has no size."""
    assert tensor_bytes((3, 5), DataType.INT_16) == 30
    assert tensor_bytes((3,), DataType.UFIXED_POINT_4) == 2
    assert tensor_bytes((3,), DataType.STRING) is None
    assert tensor_bytes((3,), 0x9999) is None
