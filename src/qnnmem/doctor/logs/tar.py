"""Listing of the members of a tar archive, which is read from its start, header by header.

    header of 512 bytes: name, size, kind -> data, filled up to 512 bytes -> next header

In current Python versions, `tarfile` takes quadratic time for hostile headers, holds headers of any
size in memory, and follows chains of headers recursively. This module examines every byte once and
holds only one header at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Protocol

import msgspec

from qnnmem.doctor.logs.unpack import CountedBytes, bomb_words, is_bomb, unpacking
from qnnmem.errors import LoadError

BLOCK = 512
MAX_UNPACKED = 64 << 30  # bytes
_STEP = 64 << 10
_NOWHERE = 1 << 62  # offset after every member
_LONGEST = 1 << 20  # bytes of a header with a long name
_MAGIC = b"ustar"
_FILES = b"0\x007"
_PARTS = b"xgLK"  # headers with more information about the next member
_KINDS = {b"1": "a link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a pipe"}
_WITHOUT_DATA = b"123456"


class DamagedTar(ValueError):
    """Raised for an invalid header, or if an archive lacks its end mark."""

    def __init__(self, why: str = "the archive is damaged or truncated") -> None:
        super().__init__(why)


class TarBytes(Protocol):
    """Interface of a decompressed archive that is only read forwards."""

    at: int

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        ...

    def go(self, offset: int) -> None:
        """Skip forwards to an offset."""
        ...


class TarMember(msgspec.Struct, frozen=True):
    """Member of an archive, such as a file; `why` is the reason if it must be skipped."""

    name: bytes
    offset: int
    size: int
    why: str = ""
    unread: bool = False  # True: it may contain a log, but is not read


class PackedTar:
    """Compressed tar archive, which can be read only from its start."""

    def __init__(self, path: str, file: IO[bytes], packed: str) -> None:
        self._path, self._file, self.counted = path, file, CountedBytes(file)
        self._unpacked = unpacking(packed, self.counted)
        self.at = 0

    def readinto(self, view: memoryview) -> int:
        """Fill the view as far as possible; return 0 at the end."""
        try:
            got = self._unpacked(view)
        except BaseException:
            self.at = _NOWHERE  # the position is unknown after an error
            raise
        self.at += got
        if is_bomb(self.at, self.counted.bytes):
            raise LoadError(self._path, bomb_words(self.at, self.counted.bytes))
        if self.at > MAX_UNPACKED:
            raise LoadError(self._path, f"unpacks to more than {MAX_UNPACKED:,} bytes")
        return got

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        room, fill = memoryview(bytearray(size)), 0
        while fill < size and (got := self.readinto(room[fill:])):
            fill += got
        return bytes(room[:fill])

    def go(self, offset: int) -> None:
        """Skip forwards to an offset, or to the end if that comes first."""
        room = memoryview(bytearray(_STEP))
        while self.at < offset and self.readinto(room[: offset - self.at]):
            pass

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        """Close the file when a reader that was cached for further members is dropped."""
        self.close()


class PlainTar:
    """Uncompressed tar archive."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.at = file, 0

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        data = self._file.read(size)
        self.at += len(data)
        return data

    def go(self, offset: int) -> None:
        """Seek to an offset, which is allowed to be beyond the end."""
        self.at = self._file.seek(offset)


def is_tar(head: bytes) -> bool:
    """Return True if a file with these first bytes is a tar archive."""
    return head[257:262] == _MAGIC and _is_header(head[:BLOCK])


def members(tar: TarBytes) -> Iterator[TarMember]:
    """Yield an archive's members except folders; raise `DamagedTar` if the archive is damaged."""
    said: dict[bytes, bytes] = {}
    while any(block := tar.take(BLOCK)):
        if len(block) < BLOCK or not _is_header(block):
            raise DamagedTar
        kind, size = block[156:157], _number(block[124:136])
        if kind == b"S":
            _pass_map(tar, block)
        start = tar.at
        if kind in _PARTS:
            said |= _said(kind, _header(tar, size))
        else:
            size = _decimal(said[b"size"]) if b"size" in said else size
            if kind != b"5":
                why, unread = _why(kind, said)
                yield TarMember(_name(block, said), start, size, why, unread)
            said = {}
        # A link has no data, though some writers record the size of its target.
        tar.go(start + (0 if kind in _WITHOUT_DATA else -(-size // BLOCK) * BLOCK))
    if not block:
        raise DamagedTar


def _header(tar: TarBytes, size: int) -> bytes:
    if size > _LONGEST:
        raise DamagedTar(f"a header in the archive takes more than {_LONGEST:,} bytes")
    return tar.take(size)


def _pass_map(tar: TarBytes, block: bytes) -> None:
    """Skip the extension headers of a sparse file, which precede its data."""
    more = block[482:483]
    while more.strip(b"\0"):
        more = tar.take(BLOCK)[504:505]


def _said(kind: bytes, data: bytes) -> dict[bytes, bytes]:
    if kind == b"x":
        return _records(data)
    return {b"path": data.partition(b"\0")[0]} if kind == b"L" else {}


def _records(data: bytes) -> dict[bytes, bytes]:
    """Parse pax records `length key=value`; return only the relevant keys and values."""
    found = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 12)
        digits = data[at : max(space, at)]
        end = at + int(digits) if digits.isdigit() else at
        if not at < space < end <= len(data):
            raise DamagedTar
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        if key in (b"path", b"size", b"GNU.sparse.name") or key.startswith(b"GNU.sparse.m"):
            found[key] = value
        at = end
    return found


def _why(kind: bytes, said: dict[bytes, bytes]) -> tuple[str, bool]:
    """Return why a member is skipped (empty if it is not), and whether it might be a log."""
    if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in said):
        return "a sparse file, which is not supported", True
    if kind in _FILES:
        return "", False
    return (_KINDS[kind], False) if kind in _KINDS else ("of an unknown kind", True)


def _name(block: bytes, said: dict[bytes, bytes]) -> bytes:
    if long := said.get(b"GNU.sparse.name") or said.get(b"path"):
        return long
    name, prefix = (field.partition(b"\0")[0] for field in (block[:100], block[345:500]))
    # GNU tar stores times in place of a name prefix, and has another magic.
    return prefix + b"/" + name if prefix and block[257:263] == _MAGIC + b"\0" else name


def _is_header(block: bytes) -> bool:
    """Return True if the checksum, which counts its own bytes as blanks, is correct."""
    try:
        written = _number(block[148:156])
    except DamagedTar:
        return False
    return written == sum(block[:148]) + 8 * 32 + sum(block[156:])


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0").partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise DamagedTar
    return int(digits or b"0", 8)


def _decimal(value: bytes) -> int:
    if not value.isdigit() or len(value) > 20:
        raise DamagedTar
    return int(value)
