"""Archives of logs: the members of a zip or tar file.

    bugreport.zip -> its members -> logs named "bugreport.zip: FS/data/a.log", opened like files

Member names are only displayed and looked up; they are never used as paths.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import IO, Any

import msgspec

from qnnmem.doctor.folder import LeftOut, kind_of, open_regular, reason
from qnnmem.doctor.logs import tar
from qnnmem.doctor.logs.unpack import bomb_words, is_bomb, packing_of
from qnnmem.errors import LoadError
from qnnmem.loader.file_kind import kind_of_bytes
from qnnmem.text import printable, sentence

MAX_MEMBERS = 20_000
MAX_LIST = 4 << 20  # bytes of a list of members, or of their names
_BETWEEN = ": "
_HEAD = 4096
_ZIPS = ("zip", "task", "npz")  # kinds of zip files that may also contain logs
_NO_MEMBERS = b"PK\x05\x06"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1
_UNIX = 3
_UNSHOWN = "\N{REPLACEMENT CHARACTER}"
_CUT = "a damaged or truncated zip archive: the list of members at its end is missing"


class Member(msgspec.Struct, frozen=True):
    """Member of an archive: its position, size and compression."""

    offset: int  # of its data in the decompressed tar, of its header in the zip
    size: int
    packed: int  # bytes in the zip, or in the decompressed tar
    deflated: bool = False
    checksum: int | None = None  # only members of a zip have a checksum


class Contents(msgspec.Struct, frozen=True):
    """Files in an archive by name, and the members that are skipped."""

    members: dict[str, Member]
    left_out: tuple[LeftOut, ...]  # by name in the archive; the empty name stands for the rest
    packed: str  # compression of a tar; empty if members are directly accessible
    last: int  # offset of the last member


def archive_kind(path: str) -> str:
    """Return the type of a local archive that might contain logs; empty for other files."""
    try:
        with opened(path) as file:
            head = file.read(_HEAD)
            if packed := packing_of(head):
                file.seek(0)
                head = tar.PackedTar(path, file, packed).take(tar.BLOCK)
            elif head.startswith(_NO_MEMBERS):
                return "zip"
            elif (kind := kind_of_bytes(head).name) in _ZIPS:
                return kind
            return "tar" if tar.is_tar(head) else ""
    except Exception:  # decompressors have many errors; the reader reports them
        return ""


def split_name(name: str) -> tuple[str, str] | None:
    """Split a name into archive and member; return None if it does not name a member."""
    at = name.find(_BETWEEN)
    if at < 0 or os.path.lexists(name):
        return None
    while at >= 0:
        if os.path.isfile(name[:at]):  # noqa: PTH113 - only names are used here
            return name[:at], name[at + len(_BETWEEN) :]
        at = name.find(_BETWEEN, at + 1)
    return None


def name_of(archive: str, member: str) -> str:
    """Return the name to display for a member, or for the archive if `member` is empty."""
    return f"{archive}{_BETWEEN}{member}" if member else archive


def absolute(name: str) -> str:
    """Return the absolute name of a log, for workers with a different current folder."""
    archive, member = split_name(name) or (name, "")
    return name_of(os.path.abspath(archive), member)  # noqa: PTH100


def contents(path: str) -> Contents:
    """Return the contents of an archive; they are cached until its file changes."""
    try:
        state = os.stat(path)  # noqa: PTH116
        return _contents(path, (state.st_ino, state.st_mtime_ns, state.st_size))
    except (OSError, ValueError) as exc:
        raise LoadError(path, reason(exc)) from exc


def check_size(path: str, archive: Contents, names: Sequence[str]) -> None:
    """Raise LoadError if the members together unpack to too much, e.g. because they overlap."""
    logs = [archive.members[name] for name in names]
    if not logs or logs[0].checksum is None:
        return  # tar members cannot overlap; a compressed tar is checked during decompression
    total, size = sum(log.size for log in logs), os.path.getsize(path)  # noqa: PTH202
    if total > tar.MAX_UNPACKED:
        raise LoadError(path, f"unpacks to more than {tar.MAX_UNPACKED:,} bytes")
    if is_bomb(total, size):
        raise LoadError(path, bomb_words(total, size))


def detour(archive: Contents, names: Sequence[str]) -> int:
    """Return how many bytes are decompressed again if members are read in this order."""
    if not archive.packed:
        return 0
    again = at = 0
    for member in (archive.members[name] for name in names):
        again += member.offset if member.offset < at else 0
        at = member.offset + member.size
    return again


def opened(path: str) -> IO[bytes]:
    """Open an archive's file."""
    return open(path, "rb", opener=lambda path, _: open_regular(path))


@lru_cache(maxsize=4)
def _contents(path: str, _state: tuple[int, int, int]) -> Contents:
    with opened(path) as file:
        head = file.read(_HEAD)
        file.seek(0)
        packed = packing_of(head)
        found: Iterator[tuple[str, Member | LeftOut]]
        if packed:
            found = _in_tar(lambda: tar.PackedTar(path, file, packed))
        elif tar.is_tar(head):
            found = _in_tar(lambda: tar.PlainTar(file))
        else:
            found = _in_zip(path, file)
        return _gathered(path, found, packed)


def _gathered(path: str, found: Iterator[tuple[str, Member | LeftOut]], packed: str) -> Contents:
    """Return the contents by name; if several members have the same name, the last one counts."""
    members: dict[str, Member] = {}
    left_out: list[LeftOut] = []
    count = letters = last = 0
    for name, member in found:
        count, letters = count + 1, letters + len(name)
        if count > MAX_MEMBERS:
            raise LoadError(path, f"more than {MAX_MEMBERS:,} members")
        if letters > MAX_LIST:
            raise LoadError(path, _too_long())
        if isinstance(member, LeftOut):
            left_out.append(member)
            continue
        if members.pop(name, None):
            left_out.append(LeftOut(name, "another member has the same name", unread=True))
        members[name] = member
        last = max(last, member.offset)
    return Contents(members, tuple(left_out), packed, last)


def _too_long() -> str:
    return f"its list of members takes more than {MAX_LIST:,} bytes"


def _shown(name: str) -> str:
    """Return a member's name made safe to display: without control characters, never a URL."""
    name = printable(name).replace("://", f":/{_UNSHOWN}/")
    return name.removeprefix("./") or _UNSHOWN


def _in_tar(
    open_tar: Callable[[], tar.PackedTar | tar.PlainTar],
) -> Iterator[tuple[str, Member | LeftOut]]:
    try:
        for one in tar.members(open_tar()):
            name = _shown(one.name.decode("utf-8", "replace"))
            if one.why:
                yield name, LeftOut(name, one.why, one.unread)
            else:
                yield name, Member(one.offset, one.size, one.size)
    except LoadError:
        raise
    except Exception as exc:  # every decompressor has its own errors
        yield "", LeftOut("", sentence(exc), unread=True)


def _in_zip(path: str, file: IO[bytes]) -> Iterator[tuple[str, Member | LeftOut]]:
    import zipfile

    bounded: Any = _BoundedFile(path, file)
    try:
        with zipfile.ZipFile(bounded) as archive:
            infos = archive.infolist()
    except LoadError:
        raise
    except Exception as exc:  # errors of struct, of codecs, of the archive: all mean damage
        raise LoadError(path, _CUT) from exc
    for info in infos:
        if not info.filename.endswith("/"):
            name = _shown(info.filename)
            why, unread = _why_not(info)
            deflated = info.compress_type == _DEFLATED
            yield (
                name,
                (
                    LeftOut(name, why, unread)
                    if why
                    else Member(
                        info.header_offset, info.file_size, info.compress_size, deflated, info.CRC
                    )
                ),
            )


def _why_not(info: Any) -> tuple[str, bool]:
    """Return why a zip member is skipped (empty if it is not), and whether it might be a log."""
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "a link" if stat.S_ISLNK(mode) else kind_of(mode), False
    if info.flag_bits & _ENCRYPTED:
        return "encrypted", True
    if info.compress_type not in (_STORED, _DEFLATED):
        return f"compressed with zip method {info.compress_type}, which is not supported", True
    if is_bomb(info.file_size, info.compress_size):
        return bomb_words(info.file_size, info.compress_size), True
    return "", False


class _BoundedFile:
    """File that refuses large reads, because zipfile loads the whole member list into memory."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or up to `MAX_LIST` if `size` is negative; refuse larger sizes."""
        if size > MAX_LIST:
            raise LoadError(self._path, _too_long())
        return self._file.read(size if size >= 0 else MAX_LIST)
