"""Incidents on their way out: in memory while they are few, then in a temporary file."""

from __future__ import annotations

from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

_IN_MEMORY = 256


class Spool:
    """Keeps texts, each with its place and its kind, and hands them out in order of the places."""

    def __init__(self) -> None:
        self._few: list[tuple[int, int, int, str]] = []
        self._file: IO[bytes] | None = None
        # Stream, offset, kind, where in the file, how long.
        self._places: array[int] = array("q")
        self._end = 0

    def __len__(self) -> int:
        return len(self._places) // 5 if self._file else len(self._few)

    def put(self, stream: int, offset: int, kind: int, text: str) -> None:
        """Takes a text, its place and its kind."""
        if self._file is None and len(self._few) < _IN_MEMORY:
            self._few.append((stream, offset, kind, text))
            return
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            few, self._few = self._few, []
            for row in few:
                self._write(*row)
        self._write(stream, offset, kind, text)

    def _write(self, stream: int, offset: int, kind: int, text: str) -> None:
        assert self._file is not None  # noqa: S101 - for the type checker
        data = text.encode()
        self._places.extend((stream, offset, kind, self._end, len(data)))
        self._end += self._file.write(data)

    def rows(self) -> Iterator[tuple[int, str]]:
        """Kind and text of all, in the order of their places."""
        if self._file is None:
            yield from ((kind, text) for _, _, kind, text in sorted(self._few))
            return
        places = self._places
        order = sorted(range(0, len(places), 5), key=lambda k: (places[k], places[k + 1]))
        for row in order:
            self._file.seek(places[row + 3])
            yield places[row + 2], self._file.read(places[row + 4]).decode()
        self._file.seek(0, 2)

    def close(self) -> None:
        """Lets go of the temporary file."""
        if self._file is not None:
            self._file.close()
