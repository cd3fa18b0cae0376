"""The container of a context binary: every size and boundary, to the byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from context_writer import FlatWriter, TableOf, example_context, old_context, pack_context

from qnnmem.errors import Damaged, LoadError
from qnnmem.htp.binary import container
from qnnmem.htp.binary.container import is_context_binary, open_container
from qnnmem.htp.binary.pieces import Piece, PieceBytes
from qnnmem.units import MAX_BYTES

HEAD = struct.pack(">IIQ", 2, 3, 1)


def opened(data: bytes) -> container.Container:
    """Open a container from bytes."""
    return open_container(data, "c.bin")


def made(metadata: int, offset: int, blob: int, length: int) -> bytes:
    """Return a file of version 2.3 with these numbers in its header."""
    return (HEAD + struct.pack("<QQQ", metadata, offset, blob)).ljust(length, b"\1")


def refused(data: bytes) -> str:
    """Return the sentence that refuses these bytes."""
    with pytest.raises((Damaged, LoadError)) as caught:
        opened(data)
    return str(caught.value)


def test_the_smallest_container_opens() -> None:
    """The smallest container has 16 bytes of metadata and a blob of 24 bytes."""
    found = opened(made(16, 56, 24, 80))
    assert (found.blob_offset, found.blob_bytes, found.file_bytes) == (56, 24, 80)
    assert found.metadata == b"\1" * 16
    assert found.format_version == (2, 3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (made(15, 56, 24, 80), "the metadata has 15 bytes; allowed: 16 to 67,108,864"),
        (made((64 << 20) + 1, 56, 24, 80), "the metadata has 67,108,865 bytes"),
        (made(64 << 20, (64 << 20) + 40, 24, 80), "bytes are missing at the end of the file"),
        (made(16, 55, 25, 80), "the blob begins at byte 55, inside the metadata"),
        (made(16, 56, 23, 79), "the blob has 23 bytes, which is impossible"),
        (made(16, 56, int(MAX_BYTES) + 1, 80), "which is impossible"),
        (made(16, 56, int(MAX_BYTES), 80), "are missing at the end of the file"),
        (made(16, 56, 25, 80), "1 of 81 bytes are missing at the end of the file"),
        (made(16, 56, 24, 81), "1 bytes follow the end of the blob at byte 80"),
        (made(16, 56, 24, 80)[:40], "the file ends inside the header, at byte 40"),
        (HEAD, "the file ends inside the header, at byte 16"),
        (HEAD[:8], "the file ends inside the header, at byte 8"),
        (HEAD[:7], "is not a QNN context binary"),
        (
            struct.pack(">IIQ", 2, 4, 0),
            ("of format 2.4, which is not supported; supported: 2.2 and 2.3"),
        ),
        (b"\0\0\0\2", "is not a QNN context binary"),
    ],
)
def test_each_number_is_checked(data: bytes, words: str) -> None:
    """A header with an impossible number is refused with that number."""
    assert words in refused(data)


def test_eight_bytes_tell_a_context_binary() -> None:
    """Eight bytes identify a context binary; seven bytes do not."""
    assert is_context_binary(HEAD[:8])
    assert not is_context_binary(HEAD[:7])
    assert not is_context_binary(struct.pack(">II", 2, 1))


def test_the_largest_metadata_are_64_mib() -> None:
    """The metadata limit is 64 MiB, as SECURITY.md states."""
    assert container.MAX_METADATA == 64 << 20
    container._check_metadata_size(64 << 20)
    container._check_metadata_size(16)


@pytest.mark.parametrize("version", ["2.2", "2.3"])
def test_every_cut_is_noticed(version: str) -> None:
    """A container that is truncated anywhere, or one byte too long, is refused."""
    context = example_context(blob_bytes=64) if version == "2.3" else old_context(blob_bytes=64)
    data = pack_context(context)
    assert opened(data).blob_bytes == 64
    for size in {0, 7, 8, 15, 16, 39, 40, 41, len(data) // 2, len(data) - 65, len(data) - 1}:
        refused(data[:size])
    assert "1 bytes follow the end of the blob" in refused(data + b"\0")


def test_a_range_of_a_file_is_read_from_its_start(tmp_path: Path) -> None:
    """A binary inside another file is read from its start to its end."""
    file = tmp_path / "c.bin"
    file.write_bytes(b"xyz" + made(16, 56, 24, 80) + b"more")
    with PieceBytes(Piece(file, 3, 80, "c.bin")) as data:
        assert open_container(data, "c.bin").blob_bytes == 24
        with pytest.raises(Damaged, match="the file ends at byte 80"):
            container._part(data, 79, 2, "it")
        assert container._part(data, 79, 1, "it") == b"\1"


def test_a_root_table_without_a_blob_is_damaged() -> None:
    """A 2.2 root table without a blob field is damaged: only that field locates the blob."""
    writer = FlatWriter()
    writer.finish(TableOf({}))
    head = pack_context(old_context())[: container._START_2_2]
    assert ("the root table has no blob field") in refused(
        head + bytes(writer.data).ljust(64, b"\0")
    )
