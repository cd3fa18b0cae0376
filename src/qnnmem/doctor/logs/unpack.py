"""Decompression of gzip, zstd, xz and bzip2 data, and of members of zip archives.

Data is returned in steps of bounded size, using bounded memory. If the input breaks off or is
damaged, the data before that point is still returned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

ReadInto: TypeAlias = Callable[[memoryview], int]

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
# A compressed log is ten to thirty times smaller; a single repeated line three hundred times with
# gzip. A large file with a higher ratio is a decompression bomb.
BOMB_RATIO = 250
BOMB_BYTES = 64 << 20
# Frames may request gigabytes of memory; common levels need 8 MiB, and `xz -9` 65 MiB.
_ZSTD_WINDOW_LOG = 25
_XZ_MEMORY = 72 << 20
_STEP = 256 << 10
_CHUNK = 64 << 10
_GZIP, _RAW = 31, -15  # zlib's window bits


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class CountedBytes:
    """Compressed file that counts how many bytes are read, because pipes have no position."""

    def __init__(self, file: _Bytes) -> None:
        self._file = file
        self.bytes = 0

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        data = self._file.read(_CHUNK)
        self.bytes += len(data)
        return data


def packing_of(head: bytes) -> str:
    """Return a file's compression, given its first bytes; empty if it is not compressed."""
    return next((packed for magic, packed in _MAGIC.items() if head.startswith(magic)), "")


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return True if the compression ratio is too high for a log."""
    return unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * max(packed, 1)


def bomb_words(unpacked: int, packed: int) -> str:
    """Return the reason for refusing a decompression bomb."""
    return f"unpacks from {packed:,} to over {unpacked:,} bytes; no log compresses so well"


def unpacking(packed: str, file: CountedBytes) -> ReadInto:
    """Return a function that fills a view with decompressed bytes and returns their number."""
    if packed == "gzip":
        return _Inflate(file, _GZIP).readinto
    if packed == "deflate":
        return _Inflate(file, _RAW).readinto
    return _Unpack(file, _unpacker(packed)).readinto


def _unpacker(packed: str) -> Callable[[], Any]:
    """Return a factory for decompressors; each decompresses one stream in bounded memory."""
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
    """Decompressor for consecutive streams that works in steps of bounded size.

    Therefore the data before an error is not lost.
    """

    def __init__(self, file: CountedBytes, new: Callable[[], Any]) -> None:
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
                    raise EOFError("the compressed data is truncated")
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
    """Decompressor for gzip or raw deflate that returns all data up to where the input breaks off.

    The file objects of zlib and isal do not return such data, and logs of failures often break off.
    """

    def __init__(self, file: CountedBytes, form: int) -> None:
        self._file, self._zlib, self._form = file, _zlib(), form
        self._member = self._zlib.decompressobj(wbits=form)
        self._packed = b""

    def readinto(self, view: memoryview) -> int:
        while True:
            out = self._member.decompress(self._packed, min(len(view), _STEP))
            # At the end of a member `unconsumed_tail` is stale, and its bytes would be decompressed
            # twice.
            self._packed = b"" if self._member.eof else self._member.unconsumed_tail
            if out:
                view[: len(out)] = out
                return len(out)
            if self._member.eof:
                if self._form == _RAW:  # raw deflate has a single stream
                    return 0
                self._packed = (self._member.unused_data or self._file.read()).lstrip(b"\0")
                if not self._packed:
                    return 0
                self._member = self._zlib.decompressobj(wbits=self._form)
            elif not self._packed:
                self._packed = self._file.read()
                if not self._packed:
                    raise EOFError("the compressed data is truncated")
