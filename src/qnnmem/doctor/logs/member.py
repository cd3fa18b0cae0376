"""One member of an archive as a file that is neither on disk nor completely in memory.

A compressed tar can only be read from its start. The position after the last member that was read
is remembered, so that reading members in archive order needs a single pass.
"""

from __future__ import annotations

import io
import threading
from typing import IO, Any

from qnnmem.doctor.folder import reason
from qnnmem.doctor.logs.archive import Contents, Member, contents, opened
from qnnmem.doctor.logs.tar import PackedTar
from qnnmem.doctor.logs.unpack import CountedBytes, ReadInto, unpacking
from qnnmem.errors import LoadError
from qnnmem.text import sentence

_STEP = 64 << 10
_LOCAL, _LOCAL_SIZE = b"PK\x03\x04", 30  # start of the header before the data of a zip member


def open_member(name: str, path: str, member: str) -> MemberFile:
    """Open a member of an archive; notes and errors call it `name`."""
    archive = contents(path)
    found = archive.members.get(member)
    if found is None:
        raise LoadError(name, "no such file in the archive")
    try:
        if archive.packed:
            return MemberFile(_Unrolled(name, found, path, archive))
        return MemberFile(_Reached(name, found, opened(path)))
    except LoadError:
        raise
    except Exception as exc:  # every decompressor has its own errors
        raise LoadError(name, f"cannot be read: {reason(exc)}") from exc


class _MemberBytes(io.RawIOBase):
    """Decompressed bytes of a member; if they end too early, a note reports where."""

    def __init__(self, name: str, member: Member, read: ReadInto) -> None:
        self.name, self.member = name, member
        self.notes: list[str] = []
        self._read, self._left, self._sum = read, member.size, 0

    @property
    def taken(self) -> int:
        """Bytes of the archive read so far."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int:
        if not self._left:
            return 0
        out = self.member.size - self._left
        room = memoryview(view)[: min(len(view), self._left, _STEP)]
        why = "the archive is truncated"
        try:
            got = self._read(room)
        except LoadError:
            raise
        except Exception as exc:  # every decompressor has its own errors
            got, why = 0, sentence(exc)
        if not got:
            if not out:
                raise OSError(f"cannot be read: {why}")
            self.notes.append(f"{self.name}: the data ends after {out:,} bytes")
        self._left = self._left - got if got else 0
        if self.member.checksum is not None and got:
            self._check(room[:got], self.member.checksum)
        return got

    def _check(self, data: memoryview, checksum: int) -> None:
        from zlib import crc32

        self._sum = crc32(data, self._sum)
        if not self._left and self._sum != checksum:
            self.notes.append(f"{self.name}: damaged: the checksum does not match")


class _Reached(_MemberBytes):
    """Bytes of a member of a zip or of an uncompressed tar."""

    def __init__(self, name: str, member: Member, file: IO[bytes]) -> None:
        self._file: Any = file
        self._rest = member.packed
        read = unpacking("deflate", CountedBytes(self)) if member.deflated else self._plain
        super().__init__(name, member, read)
        try:
            file.seek(member.offset if member.checksum is None else _data_of(file, member))
        except BaseException:
            file.close()
            raise

    @property
    def taken(self) -> int:
        return self.member.packed - self._rest

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` stored bytes of this member, never of the next."""
        data: bytes = self._file.read(min(size, self._rest))
        self._rest -= len(data)
        return data

    def _plain(self, view: memoryview) -> int:
        got = int(self._file.readinto(view[: self._rest]))
        self._rest -= got
        return got

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


class _Unrolled(_MemberBytes):
    """Bytes of a member of a compressed tar."""

    def __init__(self, name: str, member: Member, path: str, archive: Contents) -> None:
        reader = _tar_before(path, archive, member)
        super().__init__(name, member, reader.readinto)
        self._path, self._archive, self._tar = path, archive, reader
        reader.go(member.offset)
        self._before = reader.counted.bytes

    @property
    def taken(self) -> int:
        return self._tar.counted.bytes - self._before

    def close(self) -> None:
        if not self.closed:
            if self._tar.at <= self._archive.last:
                _here.kept = (self._path, self._archive, self._tar)
            else:
                self._tar.close()
            super().close()


class MemberFile(io.BufferedReader):
    """Archive member that is read like a file; `notes` lists defects found while reading."""

    def __init__(self, raw: _MemberBytes) -> None:
        super().__init__(raw, _STEP)
        self.notes, self.size, self._bytes = raw.notes, raw.member.size, raw

    @property
    def taken(self) -> int:
        """Bytes of the archive read so far."""
        return self._bytes.taken


# For each thread, the compressed tar whose member was read last.
_here = threading.local()


def _tar_before(path: str, archive: Contents, member: Member) -> PackedTar:
    """Return a tar reader at or before the member; reuse the last reader if possible."""
    kept, _here.kept = getattr(_here, "kept", None), None
    if kept is not None and kept[0] == path and kept[1] is archive:
        reader: PackedTar = kept[2]
        if reader.at <= member.offset:
            return reader
    return PackedTar(path, opened(path), archive.packed)


def _data_of(file: IO[bytes], member: Member) -> int:
    """Return the offset at which a zip member's data starts."""
    file.seek(member.offset)
    header = file.read(_LOCAL_SIZE)
    if len(header) < _LOCAL_SIZE or not header.startswith(_LOCAL):
        raise ValueError("its header is damaged")
    lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return member.offset + _LOCAL_SIZE + sum(lengths)
