"""Where logs come from: files, folders, standard input and URLs; plain or compressed."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

from qnnmem.doctor.folder import LeftOut, files_in, open_regular, reason
from qnnmem.doctor.logs.envelope import LOOKED_AT, Step, Unwrapping, steps_of, wide_name
from qnnmem.doctor.logs.remote import list_urls, open_url
from qnnmem.doctor.logs.unpack import Counted, bomb_words, is_bomb, packing_of, unpacking
from qnnmem.errors import LoadError, UsageError

_WIDE = (b"\xff\xfe", b"\xfe\xff")
AS_IT_IS = ("plain", "wide", "wrapped")  # not compressed

_MAX_FILES = 100_000
_SAID = 20  # things left out that are named
_CHUNK = 64 << 10

_INFIX = r"(.*?)[._-]([0-9]{2,6})(\.[A-Za-z].*)"  # dev.000.log, dev.001.log: oldest first
_SUFFIX = r"(.*?)\.([0-9]{1,4})((?:\.gz|\.zst)?)"  # logcat.3, logcat.2: oldest first
_SKIPPED = (
    *(".json", ".bin", ".onnx", ".so", ".tflite", ".png", ".html", ".md", ".dlc", ".zip"),
    *(".py", ".c", ".cc", ".cpp", ".h", ".hpp", ".o", ".java", ".kt", ".rs", ".sh", ".toml"),
    *(".csv", ".raw", ".npy", ".npz", ".pt", ".pth", ".yaml", ".yml", ".eaix", ".pdf", ".apk"),
)


class Stream(msgspec.Struct, frozen=True):
    """One log: a file, or the files that a rotating logger cut it into, oldest first."""

    parts: tuple[str, ...]
    named: bool = True  # by the user; what a folder holds must be regular files


class FoundLogs(msgspec.Struct, frozen=True):
    """The logs that are meant, and what their folders hold besides."""

    streams: tuple[Stream, ...]
    unread: tuple[LoadError, ...] = ()  # may be logs, but are not read
    notes: tuple[str, ...] = ()  # about what is left out and is no log


class OpenPart:
    """An open part: bytes come unpacked; `notes` says what was wrong with it."""

    def __init__(self, name: str, file: IO[bytes], packed: str) -> None:
        self.name, self.packed = name, packed
        self.notes: list[str] = []
        self.start = _peeked(file) if packed == "wrapped" else b""  # of the file as it is
        self._file = file
        self._out = 0
        self._packed = Counted(file)
        self._read: Callable[[memoryview], int]
        self._unwrapping: Unwrapping | None = None
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
        """Fills the view as far as it can; 0 at the end."""
        try:
            got = self._read(view)
        except (EOFError, OSError, ValueError) as exc:
            return self._broken(exc)
        except Exception as exc:  # every decompressor has an error class of its own
            if self.packed in AS_IT_IS:
                raise
            return self._broken(exc)
        if not self._out and self.packed not in ("plain", "wrapped"):
            got = self._looked_at(view, got)
        self._out += got
        if self.packed not in AS_IT_IS and is_bomb(self._out, self._packed.bytes):
            raise LoadError(self.name, bomb_words(self._out, self._packed.bytes))
        return got

    @property
    def size(self) -> int | None:
        """Bytes of a plain file; None when only reading will tell."""
        return _bytes_of(self._file) if self.packed == "plain" else None

    @property
    def shift(self) -> Callable[[int], int] | None:
        """What to add to the number of a line for that in the file, where it is not the same."""
        return None if self._unwrapping is None else self._unwrapping.shift

    def _unwrap(self, read: Callable[[int], bytes], steps: tuple[Step, ...]) -> None:
        self._unwrapping = Unwrapping(read, steps)
        self._read = self._unwrapping.readinto

    def _looked_at(self, view: memoryview, got: int) -> int:
        """Looks at the first bytes of what is unpacked: that may be wrapped in turn."""
        first = bytes(view[:got])
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
        """Goes to an offset of a plain part."""
        self._file.seek(offset)

    def close(self) -> None:
        """Lets go of the file."""
        if sys.stdin is None or self._file is not sys.stdin.buffer:
            self._file.close()

    def _broken(self, exc: BaseException) -> int:
        """A log may end in mid-frame because the phone died: what came before counts."""
        if self.packed in AS_IT_IS or not self._out:
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            raise LoadError(self.name, f"cannot be read: {reason}") from exc
        self.notes.append(f"{self.name}: the {self.packed} data ends after {self._out:,} bytes")
        return 0


def open_part(name: str, named: bool = True) -> OpenPart:
    """Opens a file, a URL or `-`, and finds out how it is packed by its first bytes."""
    try:
        file = _open(name, named)
        head, size = _peeked(file), _bytes_of(file)
    except (OSError, ValueError) as exc:
        raise LoadError(name, reason(exc)) from exc
    return OpenPart(name, file, _packing(head, size))


def _packing(head: bytes, size: int | None) -> str:
    """How a file that begins so is packed."""
    if packed := packing_of(head):
        return packed
    if head.startswith(_WIDE) or wide_name(head):
        return "wide"
    return "wrapped" if steps_of(head, size) else "plain"


def _peeked(file: Any) -> bytes:
    """The first bytes of what is open, which stay there."""
    return bytes(file.peek(LOOKED_AT)[:LOOKED_AT]) if hasattr(file, "peek") else b""


def _bytes_of(file: Any) -> int | None:
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError, AttributeError):
        return None


def size_of(name: str, readable: Sequence[str] = ("plain",)) -> int | None:
    """Bytes of a plain file or URL that can be read in ranges; None for everything else."""
    if name == "-":
        return None
    try:
        path = _local(name)
        if path is not None and os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
            return None  # opening a pipe would take its bytes
        with _open(name, named=False) as file:
            head = file.read(LOOKED_AT)
            if not file.seekable():
                return None
            size = int(file.seek(0, os.SEEK_END))
            return size if _packing(head, size) in readable else None
    except (OSError, ValueError) as exc:
        raise LoadError(name, reason(exc)) from exc


def find_streams(names: Sequence[str]) -> list[Stream]:
    """The logs that are meant; the files of a folder that a logger rotated are one log."""
    return list(find_logs(names).streams)


def find_logs(names: Sequence[str]) -> FoundLogs:
    """The logs that are meant, and what of their folders is left out."""
    streams: list[Stream] = []
    left_out: list[LeftOut] = []
    notes: list[str] = []
    for name in names:
        path = _local(name)
        if name == "-" or (path is None and not name.endswith("/")):
            streams.append(Stream((name,)))
        elif path is None:
            streams += _rotated(_few(name, list_urls(name)))
        elif os.path.isdir(path):  # noqa: PTH112
            streams += _rotated(_files_below(name, path, left_out, notes))
        else:
            streams.append(Stream((name,)))
    # A folder may hold a hundred thousand pipes: the first ones are named, the rest is counted.
    left_out.sort(key=lambda one: not one.unread)
    said = left_out[:_SAID]
    if more := len(left_out[_SAID:]):
        notes.append(f"left out: {more:,} more")
    unread = tuple(LoadError(one.path, one.why) for one in said if one.unread)
    notes[:0] = [f"left out: {one.path}: {one.why}" for one in said if not one.unread]
    if not streams:
        raise UsageError("; ".join(["no log in " + ", ".join(names), *map(str, unread), *notes]))
    return FoundLogs(tuple(streams), unread, tuple(notes))


def _local(name: str) -> str | None:
    """The path that a name stands for; None for a URL of a store."""
    for scheme in ("file://", "local://"):
        if name.startswith(scheme):
            return name.removeprefix(scheme)
    return None if "://" in name else name


def _open(name: str, named: bool) -> Any:
    if name == "-":
        return standard_input()
    path = _local(name)
    if path is None:
        return open_url(name)
    way = _open_named if named else open_regular
    # Closed by OpenPart.
    return open(path, "rb", buffering=1 << 16, opener=lambda path, _: way(path))


def standard_input() -> Any:
    """Standard input as bytes, if it is open and ends some time."""
    if sys.stdin is None:
        raise OSError("standard input is closed")
    file = sys.stdin.buffer
    with suppress(io.UnsupportedOperation):  # not a file of the system
        try:
            os.read(file.fileno(), 0)  # fails where it is closed, or open for writing only
        except OSError as exc:
            raise OSError("standard input is closed") from exc
        if not file.isatty():
            _refuse_device(os.fstat(file.fileno()))
    return file


def _open_named(path: str) -> int:
    """Opens what the user named; the other end of a pipe is waited for."""
    _refuse_device(os.stat(path))  # noqa: PTH116 - pathlib is not needed otherwise
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
    """A device may have no end; the one that is always empty is no danger."""
    device = stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)
    if device and state.st_rdev != os.stat(os.devnull).st_rdev:  # noqa: PTH116
        raise OSError("a device, not a log")


def _reader(file: Any) -> Callable[[memoryview], int]:
    reader: Callable[[memoryview], int] = file.readinto
    return reader


class _Wide:
    """UTF-16, as Windows shells write it, handed out as UTF-8."""

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


def _files_below(
    name: str, folder: str, left_out: list[LeftOut], notes: list[str]
) -> Iterator[str]:
    """Names of the logs below a folder; what else is there goes to the lists."""
    url = name.removesuffix(folder)
    seen = others = 0
    for found in files_in(folder.rstrip("/") or "/", below=True):
        if _is_no_log(found):
            others += 1
            continue
        seen += 1
        if seen > _MAX_FILES:
            raise UsageError(f"{name}: more than {_MAX_FILES:,} files")
        if isinstance(found, str):
            yield url + found
        else:
            left_out.append(found)
    if others:
        notes.append(f"left out: files in {name} that are no logs by their names: {others:,}")


def _is_no_log(found: str | LeftOut) -> bool:
    """Whether its name says so; a folder of any name may hold logs."""
    if isinstance(found, LeftOut) and found.folder:
        return False
    path = found.path if isinstance(found, LeftOut) else found
    name = path.rpartition("/")[2]
    return name.startswith(".") or name.lower().endswith(_SKIPPED)


def _few(name: str, found: list[str]) -> list[str]:
    if len(found) > _MAX_FILES:
        raise UsageError(f"{name}: more than {_MAX_FILES:,} files")
    return found


def _rotated(names: Iterable[str]) -> list[Stream]:
    """Files whose names differ in a running number only are one log."""
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
