"""Ranges of files, read in place and never copied into memory as a whole."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from qnnmem.bounded_file import read_range, regular_size
from qnnmem.errors import Damaged, LoadError, OutputError
from qnnmem.text import quote

_PAGE = 1 << 16
_KEPT = 64  # pages in memory at the same time
_CHUNK = 1 << 20


class Piece(Struct, frozen=True):
    """A range of bytes of a file, and its name in reports."""

    file: Path
    start: int
    size: int
    name: str

    @classmethod
    def whole(cls, file: Path, name: str) -> Piece:
        """Return a piece that covers a whole file; raise LoadError unless the file is regular."""
        return cls(file, 0, regular_size(file), name)

    def head(self, count: int) -> bytes:
        """Return the first `count` bytes, or all bytes if the piece is shorter."""
        return read_range(self.file, self.start, min(count, self.size))

    def part(self, start: int, size: int, name: str) -> Piece:
        """Return a range within the piece; raise Damaged if the range reaches past the piece."""
        if start < 0 or size < 0 or start + size > self.size:
            problem = f"{name} is at bytes {start:,} to {start + size:,} of {self.size:,}"
            raise Damaged(f"{problem}, past the end of the file")
        return Piece(self.file, self.start + start, size, name)

    @property
    def place(self) -> tuple[Path, int, int]:
        """File, start and size, which identify the piece."""
        return self.file, self.start, self.size

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in chunks."""
        offset, end = self.start, self.start + self.size
        while offset < end and (chunk := read_range(self.file, offset, min(_CHUNK, end - offset))):
            yield chunk
            offset += len(chunk)

    def digest(self) -> str:
        """Return the SHA-256 of the bytes."""
        total = hashlib.sha256()
        for chunk in self.chunks():
            total.update(chunk)
        return total.hexdigest()

    def copy(self, target: Path) -> None:
        """Write the bytes to a new file."""
        try:
            with target.open("xb") as file:
                for chunk in self.chunks():
                    file.write(chunk)
        except OSError as exc:
            raise OutputError(f"{self.name} cannot be copied ({exc.strerror or exc})") from exc


@dataclass(slots=True)
class PieceBytes:
    """A piece that can be sliced like bytes; only a few pages are in memory at a time."""

    piece: Piece
    _pages: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    _handle: int = -1

    def __enter__(self) -> PieceBytes:
        try:
            self._handle = os.open(self.piece.file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as exc:
            raise LoadError(self.piece.file, f"cannot be read ({exc.strerror or exc})") from exc
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._handle)

    def __len__(self) -> int:
        return self.piece.size

    def __getitem__(self, part: slice, /) -> bytes:
        first, end = part.start, min(part.stop, self.piece.size)
        if first >= end:
            return b""
        pages = range(first // _PAGE, (end - 1) // _PAGE + 1)
        data = b"".join(map(self._page, pages))
        skipped = first - pages[0] * _PAGE
        return data[skipped : skipped + end - first]

    def _page(self, number: int) -> bytes:
        if number in self._pages:
            self._pages.move_to_end(number)
            return self._pages[number]
        start = number * _PAGE
        wanted = min(_PAGE, self.piece.size - start)
        try:
            os.lseek(self._handle, self.piece.start + start, os.SEEK_SET)
            data = os.read(self._handle, wanted)
        except OSError as exc:
            raise LoadError(self.piece.file, f"cannot be read ({exc.strerror or exc})") from exc
        if len(data) < wanted:
            raise Damaged(f"{quote(self.piece.name)} was truncated during the read")
        self._pages[number] = data
        if len(self._pages) > _KEPT:
            self._pages.popitem(last=False)
        return data


def check_apart(pieces: Iterable[Piece]) -> None:
    """Raise Damaged if two different ranges of a file overlap; two equal ranges are allowed."""
    ordered = sorted({piece.place: piece for piece in pieces if piece.size}.values(), key=_start)
    for before, after in pairwise(ordered):
        if before.file == after.file and before.start + before.size > after.start:
            raise Damaged(f"{before.name} and {after.name} overlap")


def _start(piece: Piece) -> tuple[str, int]:
    return str(piece.file), piece.start


def distinct(pieces: Iterable[Piece]) -> dict[tuple[Path, int, int], int]:
    """Return a number for the `place` of each piece; pieces with equal content share a number."""
    numbers: dict[tuple[Path, int, int], int] = {}
    sizes: dict[int, list[Piece]] = {}
    contents: dict[str, int] = {}
    for piece in pieces:
        if piece.place in numbers:
            continue
        alike = sizes.setdefault(piece.size, [])
        number = len(numbers)
        if alike:  # contents are hashed only if sizes are equal
            if len(alike) == 1:
                contents[alike[0].digest()] = numbers[alike[0].place]
            number = contents.setdefault(piece.digest(), number)
        alike.append(piece)
        numbers[piece.place] = number
    return numbers
