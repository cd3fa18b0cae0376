"""The container of a context binary: offsets of metadata and blob. Only the file's head is read."""

from __future__ import annotations

import struct

from qnnmem.errors import Damaged, LoadError
from qnnmem.htp.binary.context import ContainerFacts
from qnnmem.htp.binary.flatbuffer import FlatBuffer, Octets
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


class Container(ContainerFacts, frozen=True):
    """The parts of a context binary; the blob itself stays in the file."""

    metadata: bytes
    blob_offset: int


def is_context_binary(head: bytes) -> bool:
    """Return True if these first bytes start a context binary of a known version."""
    return len(head) >= _VERSION.size and _VERSION.unpack_from(head) in _FORMATS


def open_container(data: Octets, name: str) -> Container:
    """Return the parts of a context binary; `name` is the name of the binary in errors."""
    head = data[0:_START_2_2]
    if not is_context_binary(head):
        raise LoadError(name, _other_kind(head))
    if len(data) <= _START_2_3:
        raise Damaged(f"the file ends inside the header, at byte {len(data):,}")
    major, minor = _VERSION.unpack_from(head)
    metadata, offset, size = _container_2_3(data) if minor == 3 else _container_2_2(data)
    words = _WORDS.unpack(_part(data, offset, _WORDS.size, "the blob"))
    return Container((major, minor), words, size, len(data), metadata, offset)


def _part(data: Octets, offset: int, count: int, where: str) -> bytes:
    """Return `count` bytes at an offset; raise Damaged if the file ends earlier."""
    part = data[offset : offset + count]
    if len(part) < count:
        raise Damaged(f"the file ends at byte {offset + len(part):,}, inside {where}")
    return part


def _container_2_3(data: Octets) -> tuple[bytes, int, int]:
    """Return the metadata, blob offset and blob size of a file of format 2.3."""
    size, offset, blob = _PLACES.unpack(_part(data, _START_2_2, _PLACES.size, "the header"))
    _check_metadata_size(size)
    if offset < _START_2_3 + size:
        raise Damaged(f"the blob begins at byte {offset:,}, inside the metadata")
    _check_end(offset, blob, len(data))
    return _part(data, _START_2_3, size, "the metadata"), offset, blob


def _container_2_2(data: Octets) -> tuple[bytes, int, int]:
    """Return the metadata, blob offset and blob size of a file of format 2.2."""
    flat = FlatBuffer(data[_START_2_2 : _START_2_2 + _FIRST_LOOK])
    field = flat.root("the root table").field(_BLOB_SLOT_2_2, 8, "blob")
    if field is None:
        raise Damaged("the root table has no blob field")
    size = field + flat.unpack(_LENGTH, field, "the offset of the blob")[0]
    _check_metadata_size(size)
    length = _part(data, _START_2_2 + size, _LENGTH.size, "the size of the blob")
    blob, offset = _LENGTH.unpack(length)[0], _START_2_2 + size + _LENGTH.size
    _check_end(offset, blob, len(data))
    return _part(data, _START_2_2, size, "the metadata"), offset, blob


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


def _other_kind(head: bytes) -> str:
    """Return why a file with these first bytes cannot be read, as the end of a sentence."""
    if len(head) >= _VERSION.size and head[:4] == b"\0\0\0\2":
        major, minor = _VERSION.unpack_from(head)
        known = " and ".join(f"{a}.{b}" for a, b in _FORMATS)
        return (
            f"is a QNN context binary of format {major}.{minor}, which is not supported; "
            f"supported: {known}"
        )
    return "is not a QNN context binary: its first bytes are wrong"
