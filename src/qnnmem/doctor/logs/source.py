"""Sources of logs: files, folders, archives, standard input, URLs; plain or compressed."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple, TypeVar

import msgspec

from qnnmem.doctor.folder import LeftOut, files_in, open_regular, reason
from qnnmem.doctor.logs.archive import (
    archive_kind,
    check_size,
    contents,
    detour,
    name_of,
    split_name,
)
from qnnmem.doctor.logs.envelope import LOOKED_AT, Step, Unwrapping, steps_of, wide_name
from qnnmem.doctor.logs.unpack import CountedBytes, bomb_words, is_bomb, packing_of, unpacking
from qnnmem.errors import LoadError, UsageError
from qnnmem.loader.file_kind import KINDS, kind_of_bytes, wrong_kind

_WIDE = (b"\xff\xfe", b"\xfe\xff")
_AS_IT_IS = ("plain", "wide", "wrapped")  # not compressed

# Kinds of files that the doctor reads.
_READ_KINDS = frozenset(kind.name for kind in KINDS.values() if "doctor" in kind.verbs)
_TEXT = KINDS["text"].name
_TELLING = 64  # bytes: a writer may begin with less than a line

_MAX_FILES = 100_000
_SAID = 20  # skipped files named in notes
_CHUNK = 64 << 10

_INFIX = r"(.*?)[._-]([0-9]{2,6})(\.[A-Za-z].*)"  # dev.000.log, dev.001.log: oldest first
_SUFFIX = r"(.*?)\.([0-9]{1,4})((?:\.gz|\.zst)?)"  # logcat.3, logcat.2: oldest first
_SKIPPED = (
    *(".json", ".bin", ".onnx", ".so", ".tflite", ".png", ".html", ".md", ".dlc"),
    *(".py", ".c", ".cc", ".cpp", ".h", ".hpp", ".o", ".java", ".kt", ".rs", ".sh", ".toml"),
    *(".csv", ".raw", ".npy", ".npz", ".pt", ".pth", ".yaml", ".yml", ".eaix", ".pdf", ".apk"),
)
# Suffixes of archives. An archive in a folder is opened; an archive inside an archive is not.
_ARCHIVES = (
    *(".zip", ".tar", ".tgz", ".tbz2", ".txz", ".tzst"),
    *(".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"),
)
_NESTED = "an archive inside an archive; unpack the outer archive"
_NO_LOGS_IN = ("visible_windows.zip",)  # screen content in an Android bug report
# Limits on decompressing a tar again for rotated logs: bytes, and passes.
_AGAIN_BYTES = 256 << 20
_AGAIN_PASSES = 8
_T = TypeVar("_T")
_ONLY_FILES = "archives can be read only from a local file; give the path of the file"


class Stream(msgspec.Struct, frozen=True):
    """One log: a file, or all files of a rotating logger, oldest first."""

    parts: tuple[str, ...]
    named: bool = True  # True: named by the user; files of a folder must be regular


class FoundLogs(msgspec.Struct, frozen=True):
    """Logs that were found by name, and notes about other content of the given folders."""

    streams: tuple[Stream, ...]
    unread: tuple[LoadError, ...] = ()  # files that may be logs but are not read
    notes: tuple[str, ...] = ()  # about skipped files that are not logs


class _Rest(NamedTuple):
    """Content of folders and archives that is not read as logs."""

    left_out: list[LeftOut]
    notes: list[str]
    broken: list[LoadError]  # archives that cannot be read


class OpenPart:
    """Part of a log that is decompressed while it is read; `notes` lists its defects."""

    def __init__(self, name: str, file: IO[bytes], packed: str) -> None:
        self.name, self.packed = name, packed
        self.notes: list[str] = getattr(file, "notes", [])  # only archive members have notes
        self.start = _peeked(file) if packed == "wrapped" else b""  # first unprocessed bytes
        self._file = file
        self._out = 0
        self._packed = CountedBytes(file)
        self._read: Callable[[memoryview], int]
        # Returns the difference between a line's number in the file and in the log; None if there
        # is none.
        self.shift: Callable[[int], int] | None = None
        if packed == "plain":
            self._read = _reader(file)
        elif packed == "wrapped":
            self._unwrap(file.read, steps_of(self.start, _bytes_of(file)))
        elif packed == "wide":
            self._read = _Wide(file, wide_name(_peeked(file)) or "utf-16").readinto
        else:
            try:
                self._read = unpacking(packed, self._packed)
            except ImportError as exc:
                from qnnmem.installation import command_for

                raise LoadError(name, f"{packed} files need {command_for('fast')}") from exc

    def readinto(self, view: memoryview) -> int:
        """Fill the view as far as possible; return 0 at the end."""
        try:
            got = self._read(view)
        except (EOFError, OSError, ValueError) as exc:
            return self._broken(exc)
        except Exception as exc:  # every decompressor has its own errors
            if self.packed in _AS_IT_IS:
                raise
            return self._broken(exc)
        if not self._out and self.packed not in ("plain", "wrapped"):
            got = self._looked_at(view, got)
        self._out += got
        if self.packed not in _AS_IT_IS and is_bomb(self._out, packed := self._taken()):
            raise LoadError(self.name, bomb_words(self._out, packed))
        return got

    def _taken(self) -> int:
        """Return how many compressed bytes have been read; for a member, bytes of the archive."""
        return min(self._packed.bytes, getattr(self._file, "taken", self._packed.bytes))

    @property
    def size(self) -> int | None:
        """Size of a plain file; None if the size is known only after reading."""
        return _bytes_of(self._file) if self.packed == "plain" else None

    def _unwrap(self, read: Callable[[int], bytes], steps: tuple[Step, ...]) -> None:
        unwrapping = Unwrapping(read, steps)
        self._read, self.shift = unwrapping.readinto, unwrapping.shift

    def _looked_at(self, view: memoryview, got: int) -> int:
        """Start unwrapping if the first bytes require it; return how many bytes `view` contains."""
        first = bytes(view[:got])
        _refuse_archive(self.name, first)
        if not (steps := steps_of(first, None)):
            return got
        packed, room = self._read, memoryview(bytearray(_CHUNK))

        def read(_size: int) -> bytes:
            nonlocal first
            if first:
                data, first = first, b""
                return data
            return bytes(room[: packed(room)])

        self._unwrap(read, steps)
        return self._read(view)

    def seek(self, offset: int) -> None:
        """Seek to an offset of a plain part."""
        self._file.seek(offset)

    def close(self) -> None:
        """Close the file."""
        _close(self._file)

    def _broken(self, exc: BaseException) -> int:
        """Return 0 (end of the log) if readable data precedes the damage; else raise LoadError."""
        if self.packed in _AS_IT_IS or not self._out:
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            raise LoadError(self.name, f"cannot be read: {reason}") from exc
        self.notes.append(f"{self.name}: the {self.packed} data ends after {self._out:,} bytes")
        return 0


def open_part(name: str, named: bool = True) -> OpenPart:
    """Open a file, URL or `-` (standard input); recognise its compression by the first bytes."""
    try:
        file = _open(name, named)
        try:
            head = _peeked(file)
            _refuse_archive(name, head)
            return OpenPart(name, file, _packing(head, _bytes_of(file)))
        except BaseException:
            with suppress(OSError):  # report the first error
                _close(file)
            raise
    except (OSError, ValueError) as exc:
        raise LoadError(name, reason(exc)) from exc


def _close(file: IO[bytes]) -> None:
    if sys.stdin is None or file is not sys.stdin.buffer:
        file.close()


def _refuse_archive(name: str, head: bytes) -> None:
    """Raise LoadError for an archive in standard input or at a URL."""
    if (name == "-" or _local(name) is None) and kind_of_bytes(head).name in ("zip", "tar"):
        raise LoadError(name, _ONLY_FILES)


def _packing(head: bytes, size: int | None) -> str:
    """Return the name of a file's compression or wrapping, given its first bytes."""
    if packed := packing_of(head):
        return packed
    if head.startswith(_WIDE) or wide_name(head):
        return "wide"
    return "wrapped" if steps_of(head, size) else "plain"


def _peeked(file: Any) -> bytes:
    """Return the first bytes of an open file without consuming them."""
    return bytes(file.peek(LOOKED_AT)[:LOOKED_AT]) if hasattr(file, "peek") else b""


def _bytes_of(file: Any) -> int | None:
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError, AttributeError):
        return getattr(file, "size", None)  # set by archive members


def size_of(name: str, readable: Sequence[str] = ("plain",)) -> int | None:
    """Return the size of a file or URL that can be read in ranges, else None."""
    if name == "-":
        return None
    try:
        path = _local(name)
        if path is not None and os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
            return None  # opening a pipe would consume its bytes
        if path is not None and split_name(path):
            return None  # members are read only from the start
        with _open(name, named=False) as file:
            head = file.read(LOOKED_AT)
            if not file.seekable():
                return None
            size = int(file.seek(0, os.SEEK_END))
            return size if _packing(head, size) in readable else None
    except (OSError, ValueError) as exc:
        raise LoadError(name, reason(exc)) from exc


def find_streams(names: Sequence[str]) -> list[Stream]:
    """Return the logs that have these names; the files of a rotating logger form one log."""
    return list(find_logs(names).streams)


def find_logs(names: Sequence[str]) -> FoundLogs:
    """Return the logs that have these names, and what is skipped in folders and archives."""
    streams: list[Stream] = []
    rest = _Rest([], [], [])
    for name in names:
        path = _local(name)
        if name == "-" or (path is None and not name.endswith("/")):
            streams.append(Stream((name,)))
        elif path is None:
            from qnnmem.doctor.logs.remote import list_urls

            streams += _rotated(_few(name, list_urls(name)))
        elif os.path.isdir(path):  # noqa: PTH112
            archives: list[str] = []
            streams += _rotated(_files_below(name, path, archives, rest))
            for archive in archives:
                streams += _few(name, _logs_in(archive, rest))
        elif os.path.isfile(path) and (kind := archive_kind(path)):  # noqa: PTH113
            logs = _logs_in(name, rest)
            # A named file of another kind without logs is refused later; that error names its kind.
            streams += logs if logs or kind in ("zip", "tar") else [Stream((name,))]
        else:
            streams.append(Stream((name,)))
    return _found(names, streams, rest)


def _found(names: Sequence[str], streams: list[Stream], rest: _Rest) -> FoundLogs:
    # A folder may contain a hundred thousand pipes: name the first, count the rest.
    rest.left_out.sort(key=lambda one: not one.unread)
    said, notes = rest.left_out[:_SAID], rest.notes
    if more := len(rest.left_out[_SAID:]):
        notes.append(f"skipped: {more:,} more")
    unread = (*rest.broken, *(LoadError(one.path, one.why) for one in said if one.unread))
    notes[:0] = [f"skipped: {one.path}: {one.why}" for one in said if not one.unread]
    if not streams and len(names) == len(rest.broken) == 1:
        raise rest.broken[0]
    if not streams:
        raise UsageError("; ".join(["no log in " + ", ".join(names), *map(str, unread), *notes]))
    return FoundLogs(tuple(streams), unread, tuple(notes))


def _local(name: str) -> str | None:
    """Return the local path that a name denotes; None for a remote URL."""
    for scheme in ("file://", "local://"):
        if name.startswith(scheme):
            return name.removeprefix(scheme)
    return None if "://" in name else name


def _open(name: str, named: bool) -> Any:
    if name == "-":
        return standard_input()
    path = _local(name)
    if path is None:
        from qnnmem.doctor.logs.remote import open_url

        return open_url(name)
    if found := split_name(path):
        from qnnmem.doctor.logs.member import open_member

        return open_member(name, *found)
    way = _open_named if named else open_regular
    # Closed by OpenPart.
    return open(path, "rb", buffering=1 << 16, opener=lambda path, _: way(path))


def standard_input() -> Any:
    """Return standard input in binary mode; raise an error for a closed or endless input."""
    if sys.stdin is None:
        raise OSError("standard input is closed")
    file = sys.stdin.buffer
    with suppress(io.UnsupportedOperation):  # no file descriptor
        try:
            os.read(file.fileno(), 0)  # fails if it is closed or open only for writing
        except OSError as exc:
            raise OSError("standard input is closed") from exc
        if not file.isatty():
            _refuse_device(os.fstat(file.fileno()))
    return file


def _open_named(path: str) -> int:
    """Open a file that the user named; if it is a pipe, wait for its writer."""
    _refuse_device(os.stat(path))  # noqa: PTH116 - avoids importing pathlib
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        _refuse_device(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_device(state: os.stat_result) -> None:
    """Raise OSError for a device other than /dev/null, because it might be endless."""
    device = stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)
    if device and state.st_rdev != os.stat(os.devnull).st_rdev:  # noqa: PTH116
        raise OSError("a device, not a log")


def _reader(file: Any) -> Callable[[memoryview], int]:
    reader: Callable[[memoryview], int] = file.readinto
    return reader


class _Wide:
    """Reader that converts UTF-16, which Windows shells write, to UTF-8."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        import codecs

        self._file = file
        self._decode = codecs.getincrementaldecoder(name)("replace").decode
        self._left = b""

    def readinto(self, view: memoryview) -> int:
        while not self._left:
            data = self._file.read(1 << 16)
            self._left = self._decode(data, not data).encode("utf-8", "replace")
            if not data:
                break
        got = min(len(view), len(self._left))
        view[:got], self._left = self._left[:got], self._left[got:]
        return got


def _files_below(name: str, folder: str, archives: list[str], rest: _Rest) -> Iterator[str]:
    """Yield the names of logs below a folder; add other files to `archives` or `rest`."""
    url = name.removesuffix(folder)
    seen = others = 0
    for found in files_in(folder.rstrip("/") or "/", below=True):
        archive = isinstance(found, str) and _is_named_archive(found) and archive_kind(found)
        # A file named .zip that contains no logs is a model, or irrelevant.
        if not archive and (_is_no_log(found) or _path_of(found).lower().endswith(".zip")):
            others += 1
            continue
        seen += 1
        if seen > _MAX_FILES:
            raise UsageError(f"{name}: more than {_MAX_FILES:,} files")
        if not isinstance(found, str):
            rest.left_out.append(found)
        elif archive:
            archives.append(url + found)
        else:
            yield url + found
    _note_others(name, others, rest)


def _logs_in(name: str, rest: _Rest) -> list[Stream]:
    """Return the logs in an archive, chosen as in a folder; add other members to `rest`."""
    path = _local(name) or name
    try:
        archive = contents(path)
        logs = [one for one in archive.members if not _is_no_log(one) and not _is_nested(one)]
        if not archive.packed:
            logs.sort(key=_as_in_a_folder)
        check_size(path, archive, logs)
    except LoadError as exc:
        rest.broken.append(exc)
        return []
    nested = [LeftOut(one, _NESTED, unread=True) for one in archive.members if _is_nested(one)]
    others = len(archive.members) - len(logs) - len(nested)
    for one in (*archive.left_out, *nested):
        if one.path and _is_no_log(one):
            others += 1
        else:
            full = name_of(name, one.path)
            rest.left_out.append(msgspec.structs.replace(one, path=full))
    _note_others(name, others, rest)
    streams = _rotated(logs)
    again = detour(archive, [part for stream in streams for part in stream.parts])
    if again > _AGAIN_BYTES and again > _AGAIN_PASSES * archive.last:
        why = "rotated files are read as separate logs; unpack the archive to join them"
        rest.notes.append(f"{name}: {why}")
        streams = [Stream((log,), named=False) for log in logs]
    return [
        Stream(tuple(name_of(name, part) for part in stream.parts), named=False)
        for stream in streams
    ]


def _as_in_a_folder(member: str) -> list[tuple[bool, str]]:
    """Return a sort key that gives the order of `files_in`, in which subfolders come last."""
    *folders, name = member.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _note_others(name: str, others: int, rest: _Rest) -> None:
    if others:
        rest.notes.append(f"skipped: files in {name} that are not named like logs: {others:,}")


def _is_named_archive(name: str) -> bool:
    return name.lower().endswith(_ARCHIVES) and not name.endswith(_NO_LOGS_IN)


def _is_nested(member: str) -> bool:
    return _is_named_archive(member) and not _is_no_log(member)


def _path_of(found: str | LeftOut) -> str:
    return found.path if isinstance(found, LeftOut) else found


def _is_no_log(found: str | LeftOut) -> bool:
    """Return True if a name shows that a file is not a log; always False for folders."""
    if isinstance(found, LeftOut) and found.folder:
        return False
    name = _path_of(found).rpartition("/")[2]
    return name.startswith(".") or name.lower().endswith((*_SKIPPED, *_NO_LOGS_IN))


def _few(name: str, found: list[_T]) -> list[_T]:
    if len(found) > _MAX_FILES:
        raise UsageError(f"{name}: more than {_MAX_FILES:,} files")
    return found


def _rotated(names: Iterable[str]) -> list[Stream]:
    """Join files whose names differ only in a running number; return the resulting logs."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        key, order = _place(name)
        groups.setdefault(key, []).append((order, name))
    return [
        Stream(tuple(name for _, name in sorted(group)), named=False) for group in groups.values()
    ]


def _place(name: str) -> tuple[str, int]:
    if match := re.fullmatch(_INFIX, name):
        return f"{match[1]}\0{match[3]}", int(match[2])
    if match := re.fullmatch(_SUFFIX, name):
        return match[1], -int(match[2])
    bare = name.removesuffix(".gz").removesuffix(".zst")
    return bare if bare != name else name, 1


def without_other_kinds(found: FoundLogs) -> FoundLogs:
    """Return the logs that are text; raise LoadError if none of the named files is text."""
    kept: list[Stream] = []
    refused: list[LoadError] = []
    for stream in found.streams:
        fault = _refusal(stream.parts[0]) if stream.named else None
        if fault is None:
            kept.append(stream)
        else:
            refused.append(fault)
    if refused and not kept and not found.unread:
        raise refused[0]
    return msgspec.structs.replace(found, streams=tuple(kept), unread=(*found.unread, *refused))


def _refusal(name: str) -> LoadError | None:
    """Return an error if a file is not a log; URLs and special files are not checked."""
    if name == "-":
        return _piped()
    if not os.path.isfile(name):  # noqa: PTH113 - the name may be a URL
        return None
    try:
        part, view = open_part(name), memoryview(bytearray(LOOKED_AT))
    except LoadError as exc:
        return exc  # the other logs are read anyway
    try:
        head = part.start or bytes(view[: part.readinto(view)])
    finally:
        part.close()
    kind = kind_of_bytes(head)
    if kind.name in _READ_KINDS and (kind.name == _TEXT or part.packed in _AS_IT_IS):
        return None
    if head and part.packed not in _AS_IT_IS:
        return LoadError(name, f"is not a log: it contains {kind.words} in {part.packed} form")
    return wrong_kind(name, kind, "which qnnmem doctor does not read")


def _piped() -> LoadError | None:
    """Return an error if standard input is not a log, without consuming any of its bytes."""
    try:
        file = standard_input()
        head = file.peek(LOOKED_AT) if hasattr(file, "peek") else None
    except OSError:
        return None  # its reader reports the error
    if head is None or (head and len(head) < _TELLING):
        return None
    kind = kind_of_bytes(bytes(head))
    if kind.name in _READ_KINDS:
        return None
    return wrong_kind("standard input", kind, "which qnnmem doctor does not read")
