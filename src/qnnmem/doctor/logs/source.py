"""Where logs come from: files, folders, standard input and URLs; plain or compressed."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

import msgspec

from qnnmem.errors import LoadError, UsageError

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
_WIDE = (b"\xff\xfe", b"\xfe\xff")

# A compressed log is ten to thirty times smaller. One that is this much smaller, and large, was
# made to waste time.
_BOMB_RATIO = 400
_BOMB_BYTES = 64 << 20
# Frames may ask for gigabytes of memory; what common levels write needs 8 MiB, and `xz -9` 65 MiB.
_ZSTD_WINDOW_LOG = 25
_XZ_MEMORY = 72 << 20
_MAX_FILES = 100_000
_STEP = 256 << 10
_CHUNK = 64 << 10

_INFIX = r"(.*?)[._-]([0-9]{2,6})(\.[A-Za-z].*)"  # dev.000.log, dev.001.log: oldest first
_SUFFIX = r"(.*?)\.([0-9]{1,4})((?:\.gz|\.zst)?)"  # logcat.3, logcat.2: oldest first
_SKIPPED = (".json", ".bin", ".onnx", ".so", ".tflite", ".png", ".html", ".md", ".dlc", ".zip")


class Stream(msgspec.Struct, frozen=True):
    """One log: a file, or the files that a rotating logger cut it into, oldest first."""

    parts: tuple[str, ...]


class OpenPart:
    """An open part: bytes come unpacked; `notes` says what was wrong with it."""

    def __init__(self, name: str, file: IO[bytes], packed: str) -> None:
        self.name, self.packed = name, packed
        self.notes: list[str] = []
        self._file = file
        self._out = 0
        self._packed = _Counted(file)
        self._read: Callable[[memoryview], int]
        if packed == "plain":
            self._read = _reader(file)
        elif packed == "wide":
            self._read = _Wide(file).readinto
        elif packed == "gzip":
            self._read = _Inflate(self._packed).readinto
        else:
            try:
                self._read = _Unpack(self._packed, _unpacker(packed)).readinto
            except ImportError as exc:
                raise LoadError(name, f"{packed} files need pip install 'qnnmem[fast]'") from exc

    def readinto(self, view: memoryview) -> int:
        """Fills the view as far as it can; 0 at the end."""
        try:
            got = self._read(view)
        except (EOFError, OSError, ValueError) as exc:
            return self._broken(exc)
        except Exception as exc:  # every decompressor has an error class of its own
            if self.packed in ("plain", "wide"):
                raise
            return self._broken(exc)
        self._out += got
        if self.packed not in ("plain", "wide") and self._out > _BOMB_BYTES:
            self._check_ratio()
        return got

    @property
    def size(self) -> int | None:
        """Bytes of a plain file; None when only reading will tell."""
        if self.packed != "plain":
            return None
        try:
            return os.fstat(self._file.fileno()).st_size or None
        except (OSError, ValueError, AttributeError):
            return None

    def seek(self, offset: int) -> None:
        """Goes to an offset of a plain part."""
        self._file.seek(offset)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def _broken(self, exc: BaseException) -> int:
        """A log may end in mid-frame because the phone died: what came before counts."""
        if self.packed in ("plain", "wide") or not self._out:
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            raise LoadError(self.name, f"cannot be read: {reason}") from exc
        self.notes.append(f"{self.name}: the {self.packed} data ends after {self._out:,} bytes")
        return 0

    def _check_ratio(self) -> None:
        packed = self._packed.bytes
        if self._out > _BOMB_RATIO * max(packed, 1):
            raise LoadError(
                self.name, f"unpacks to over {self._out:,} bytes from {packed:,}: a log does not"
            )


def open_part(name: str) -> OpenPart:
    """Opens a file, a URL or `-`, and finds out how it is packed by its first bytes."""
    try:
        file = _open(name)
        head = file.peek(8)[:8] if hasattr(file, "peek") else b""
    except LoadError:
        raise
    except (OSError, ValueError) as exc:
        raise LoadError(name, getattr(exc, "strerror", None) or str(exc)) from exc
    for magic, packed in _MAGIC.items():
        if head.startswith(magic):
            return OpenPart(name, file, packed)
    return OpenPart(name, file, "wide" if head.startswith(_WIDE) else "plain")


def size_of(name: str) -> int | None:
    """Bytes of a plain file or URL that can be read in ranges; None for everything else."""
    if name == "-":
        return None
    try:
        if "://" not in name and not os.path.isfile(name):  # noqa: PTH113
            return None  # opening a pipe would take its bytes
        with _open(name) as file:
            if file.read(8).startswith((*_MAGIC, *_WIDE)) or not file.seekable():
                return None
            return int(file.seek(0, os.SEEK_END))
    except (OSError, ValueError) as exc:
        raise LoadError(name, getattr(exc, "strerror", None) or str(exc)) from exc


def find_streams(names: Sequence[str]) -> list[Stream]:
    """The logs that are meant; the files of a folder that a logger rotated are one log."""
    streams: list[Stream] = []
    for name in names:
        if name == "-" or ("://" in name and not name.endswith("/")):
            streams.append(Stream((name,)))
        elif "://" in name:
            streams += _rotated(_remote_files(name))
        elif os.path.isdir(name):  # noqa: PTH112
            streams += _rotated(_files_below(name))
        else:
            streams.append(Stream((name,)))
    if not streams:
        raise UsageError("no log in " + ", ".join(names))
    return streams


def _open(name: str) -> Any:
    if name == "-":
        return sys.stdin.buffer
    if "://" in name:
        try:
            import fsspec
        except ImportError as exc:
            raise LoadError(name, "URLs need pip install 'qnnmem[cluster]'") from exc
        try:
            return io.BufferedReader(fsspec.open(name, "rb").open(), 1 << 16)
        except ImportError as exc:
            raise LoadError(name, f"{exc}") from exc
    return open(name, "rb", buffering=1 << 16)  # noqa: PTH123 - closed by OpenPart


def _reader(file: Any) -> Callable[[memoryview], int]:
    reader: Callable[[memoryview], int] = file.readinto
    return reader


class _Counted:
    """A packed file that counts what is read of it: pipes cannot tell."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def read(self) -> bytes:
        data = self._file.read(_CHUNK)
        self.bytes += len(data)
        return data


def _unpacker(packed: str) -> Callable[[], Any]:
    """Makes what unpacks one stream or frame, in bounded memory."""
    if packed == "xz":
        import lzma

        return lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    if packed == "bzip2":
        import bz2

        return bz2.BZ2Decompressor
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW_LOG}
    return lambda: zstd.ZstdDecompressor(options=options)


class _Unpack:
    """Streams one after the other, handed out in steps.

    An error at the end then takes nothing with it that came before.
    """

    def __init__(self, file: _Counted, new: Callable[[], Any]) -> None:
        self._file, self._new = file, new
        self._stream = new()

    def readinto(self, view: memoryview) -> int:
        while True:
            stream, packed = self._stream, b""
            if stream.eof:
                packed = (stream.unused_data or self._file.read()).lstrip(b"\0")
                if not packed:
                    return 0
                stream = self._stream = self._new()
            elif stream.needs_input:
                packed = self._file.read()
                if not packed:
                    raise EOFError("the compressed data breaks off")
            out = stream.decompress(packed, min(len(view), _STEP))
            if out:
                view[: len(out)] = out
                return len(out)


def _zlib() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return zlib
    return isal_zlib


class _Inflate:
    """Gzip, handed out as far as it goes.

    The file objects of both modules keep back what they have unpacked when the data breaks off, and
    that is where a log ends in a failure.
    """

    def __init__(self, file: _Counted) -> None:
        self._file, self._zlib = file, _zlib()
        self._member = self._zlib.decompressobj(wbits=31)
        self._packed = b""

    def readinto(self, view: memoryview) -> int:
        while True:
            out = self._member.decompress(self._packed, min(len(view), _STEP))
            self._packed = self._member.unconsumed_tail
            if out:
                view[: len(out)] = out
                return len(out)
            if self._member.eof:
                self._packed = (self._member.unused_data or self._file.read()).lstrip(b"\0")
                if not self._packed:
                    return 0
                self._member = self._zlib.decompressobj(wbits=31)
            elif not self._packed:
                self._packed = self._file.read()
                if not self._packed:
                    raise EOFError("the compressed data breaks off")


class _Wide:
    """UTF-16, as Windows shells write it, handed out as UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        import codecs

        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-16")("replace").decode
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


def _files_below(folder: str) -> list[str]:
    found = []
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if not name.startswith(".") and not name.lower().endswith(_SKIPPED):
                found.append(f"{where}/{name}")
        if len(found) > _MAX_FILES:
            raise UsageError(f"{folder}: more than {_MAX_FILES:,} files")
    return found


def _remote_files(url: str) -> list[str]:
    try:
        import fsspec
    except ImportError as exc:
        raise LoadError(url, "URLs need pip install 'qnnmem[cluster]'") from exc
    try:
        system, path = fsspec.core.url_to_fs(url)
        return sorted(system.unstrip_protocol(name) for name in system.find(path))
    except (OSError, ValueError, ImportError) as exc:
        raise LoadError(url, str(exc)) from exc


def _rotated(names: Sequence[str]) -> list[Stream]:
    """Files whose names differ in a running number only are one log."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        key, order = _place(name)
        groups.setdefault(key, []).append((order, name))
    return [Stream(tuple(name for _, name in sorted(group))) for group in groups.values()]


def _place(name: str) -> tuple[str, int]:
    if match := re.fullmatch(_INFIX, name):
        return f"{match[1]}\0{match[3]}", int(match[2])
    if match := re.fullmatch(_SUFFIX, name):
        return match[1], -int(match[2])
    bare = name.removesuffix(".gz").removesuffix(".zst")
    return bare if bare != name else name, 1
