"""Incidents on their way out: in memory while they are few, then in a temporary file."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import IO

from qnnmem.doctor.incident import Incident, from_json, to_json

_IN_MEMORY = 256


class Spool:
    """Keeps incidents, each with its place, and hands them out in order of the places."""

    def __init__(self) -> None:
        self._few: list[tuple[int, int, Incident]] = []
        self._file: IO[bytes] | None = None
        # Stream, offset, where in the file, how long.
        self._places: array[int] = array("q")
        self._end = 0

    def __len__(self) -> int:
        return len(self._places) // 4 if self._file else len(self._few)

    def put(self, stream: int, offset: int, incident: Incident) -> None:
        """Takes an incident and its place."""
        if self._file is None and len(self._few) < _IN_MEMORY:
            self._few.append((stream, offset, incident))
            return
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            few, self._few = self._few, []
            for row in few:
                self._write(self._file, *row)
        self._write(self._file, stream, offset, incident)

    def _write(self, file: IO[bytes], stream: int, offset: int, incident: Incident) -> None:
        data = to_json(incident).encode("ascii")
        self._places.extend((stream, offset, self._end, len(data)))
        self._end += file.write(data)

    def incidents(self) -> Iterator[Incident]:
        """All incidents, in the order of their places."""
        if self._file is None:
            yield from (one for _, _, one in sorted(self._few, key=lambda row: row[:2]))
            return
        places = self._places
        order = sorted(range(0, len(places), 4), key=lambda k: (places[k], places[k + 1]))
        for row in order:
            self._file.seek(places[row + 2])
            yield from_json(self._file.read(places[row + 3]))
        self._file.seek(0, 2)

    def close(self) -> None:
        """Lets go of the temporary file."""
        if self._file is not None:
            self._file.close()
