"""The container of a context binary: offsets of metadata and blob. Only its head is read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from qnnmem.errors import Damaged, LoadError
from qnnmem.htp.binary.context import ContainerFacts
from qnnmem.htp.binary.flatbuffer import FlatBuffer
from qnnmem.units import MAX_BYTES

MAX_METADATA = 64 << 20  # real files have a few kilobytes
_FORMATS = ((2, 2), (2, 3))
_VERSION = struct.Struct(">II")
_PLACES = struct.Struct("<QQQ")  # metadata size, blob offset, blob size
_WORDS = struct.Struct("<QQQ")  # blob version, the first bytes of the blob
_LENGTH = struct.Struct("<Q")
_START_2_2 = 16
_START_2_3 = 40
_BLOB_SLOT_2_2 = 2
_FIRST_LOOK = 1 << 16


@dataclass(frozen=True, slots=True)
class Container(ContainerFacts):
    """The parts of a context binary; the blob itself stays in the file."""

    metadata: bytes
    blob_offset: int


class BinarySource:
    """Random access to a context binary, or to the range of a file that holds one."""

    def __init__(self, file: BinaryIO, size: int, start: int = 0) -> None:
        self._file, self.size, self._start = file, size, start

    def read(self, offset: int, count: int, what: str) -> bytes:
        """Return `count` bytes at an offset; raise Damaged if the file has fewer."""
        self._file.seek(self._start + offset)
        data = self._file.read(min(count, max(self.size - offset, 0)))
        if len(data) < count:
            raise Damaged(f"the file ends at byte {offset + len(data):,}, inside {what}")
        return data


def is_context_binary(head: bytes) -> bool:
    """Return True if these first bytes start a context binary of a known version."""
    return len(head) >= _VERSION.size and _VERSION.unpack_from(head) in _FORMATS


def open_container(source: BinarySource, path: Path) -> Container:
    """Return the parts of a context binary."""
    head = source.read(0, min(_START_2_2, source.size), "the header")
    if not is_context_binary(head):
        raise LoadError(path, _what_else(head))
    if source.size <= _START_2_3:
        raise Damaged(f"the file ends inside the header, at byte {source.size:,}")
    major, minor = _VERSION.unpack_from(head)
    found = _container_2_3(source) if minor == 3 else _container_2_2(source)
    metadata, offset, size = found
    words = _WORDS.unpack(source.read(offset, _WORDS.size, "the blob"))
    return Container((major, minor), words, size, source.size, metadata, offset)


def _container_2_3(source: BinarySource) -> tuple[bytes, int, int]:
    size, offset, blob = _PLACES.unpack(source.read(_START_2_2, _PLACES.size, "the header"))
    _check_metadata_size(size)
    if offset < _START_2_3 + size:
        raise Damaged(f"the blob begins at byte {offset:,}, inside the metadata")
    _check_end(offset, blob, source.size)
    return source.read(_START_2_3, size, "the metadata"), offset, blob


def _container_2_2(source: BinarySource) -> tuple[bytes, int, int]:
    """Return metadata, blob offset and blob size of a 2.2 file, whose root table has the offset."""
    count = min(_FIRST_LOOK, source.size - _START_2_2)
    flat = FlatBuffer(source.read(_START_2_2, count, "the metadata"))
    field = flat.root("the root table").field(_BLOB_SLOT_2_2, 8, "blob")
    if field is None:
        raise Damaged("the root table has no blob field")
    size = field + flat.unpack(_LENGTH, field, "the offset of the blob")[0]
    _check_metadata_size(size)
    length = source.read(_START_2_2 + size, _LENGTH.size, "the size of the blob")
    blob, offset = _LENGTH.unpack(length)[0], _START_2_2 + size + _LENGTH.size
    _check_end(offset, blob, source.size)
    return source.read(_START_2_2, size, "the metadata"), offset, blob


def _check_metadata_size(size: int) -> None:
    if not 16 <= size <= MAX_METADATA:
        raise Damaged(f"the metadata has {size:,} bytes; allowed: 16 to {MAX_METADATA:,}")


def _check_end(offset: int, blob: int, file_bytes: int) -> None:
    if blob < _WORDS.size or blob > MAX_BYTES:
        raise Damaged(f"the blob has {blob:,} bytes, which is impossible")
    missing = offset + blob - file_bytes
    if missing > 0:
        raise Damaged(f"{missing:,} of {offset + blob:,} bytes are missing at the end of the file")
    if missing < 0:
        raise Damaged(f"{-missing:,} bytes follow the end of the blob at byte {offset + blob:,}")


def _what_else(head: bytes) -> str:
    if len(head) >= _VERSION.size and head[:4] == b"\0\0\0\2":
        major, minor = _VERSION.unpack_from(head)
        known = " and ".join(f"{a}.{b}" for a, b in _FORMATS)
        return (
            f"is a QNN context binary of format {major}.{minor}, which is not supported; "
            f"supported: {known}"
        )
    return "is not a QNN context binary: its first bytes are wrong"
