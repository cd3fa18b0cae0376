"""Incidents on their way out: in memory while they are few, then in a temporary file."""

from __future__ import annotations

from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

_IN_MEMORY = 256


class Spool:
    """Keeps texts and hands them out sorted by where they belong."""

    def __init__(self) -> None:
        self._few: list[tuple[int, int, str]] = []
        self._file: IO[bytes] | None = None
        self._places: array[int] = array("q")  # stream, offset, where in the file, how long

    def __len__(self) -> int:
        return len(self._places) // 4 if self._file else len(self._few)

    def put(self, stream: int, offset: int, text: str) -> None:
        """Takes a text and its place."""
        if self._file is None and len(self._few) < _IN_MEMORY:
            self._few.append((stream, offset, text))
            return
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            few, self._few = self._few, []
            for row in few:
                self._write(*row)
        self._write(stream, offset, text)

    def _write(self, stream: int, offset: int, text: str) -> None:
        assert self._file is not None  # noqa: S101 - for the type checker
        data = text.encode()
        self._places.extend((stream, offset, self._file.tell(), len(data)))
        self._file.write(data)

    def texts(self) -> Iterator[str]:
        """All texts in the order of their places."""
        if self._file is None:
            yield from (text for *_, text in sorted(self._few))
            return
        rows = range(0, len(self._places), 4)
        for row in sorted(rows, key=lambda k: (self._places[k], self._places[k + 1])):
            self._file.seek(self._places[row + 2])
            yield self._file.read(self._places[row + 3]).decode()
        self._file.seek(0, 2)

    def close(self) -> None:
        """Lets go of the temporary file."""
        if self._file is not None:
            self._file.close()
