"""Storage for incidents: in memory while they are few, then in a temporary file."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import IO

from qnnmem.results.incident import Incident, from_json, to_json, to_json_bytes

_IN_MEMORY = 256
_BUFFER = 1 << 18  # bytes of the file buffer, to make system calls rare
_HEAD = struct.Struct("<qqq")  # stream, offset, number of following bytes


class Spool:
    """Stores incidents with their positions, and yields them in the order of the positions.

    In the file, consecutive incidents that are already in order form a run. Runs are merged while
    they are read, so the memory needed depends on the number of runs, not of incidents.
    """

    def __init__(self) -> None:
        self._few: list[tuple[int, int, Incident]] = []
        self._file: IO[bytes] | None = None
        self._runs: array[int] = array("q")  # start of each run in the file
        self._last = (-1, -1)
        self._count = self._end = 0

    def __len__(self) -> int:
        return self._count

    def put(self, stream: int, offset: int, incident: Incident) -> None:
        """Store an incident that is at `offset` in the log with number `stream`."""
        self._count += 1
        if self._file is None and len(self._few) < _IN_MEMORY:
            self._few.append((stream, offset, incident))
            return
        if self._file is None:
            import tempfile

            # Closed by close().
            self._file = tempfile.TemporaryFile(buffering=_BUFFER)  # noqa: SIM115
            few, self._few = self._few, []
            for row in few:
                self._write(self._file, *row)
        self._write(self._file, stream, offset, incident)

    def _write(self, file: IO[bytes], stream: int, offset: int, incident: Incident) -> None:
        data = to_json_bytes(incident)
        if not self._runs or (stream, offset) < self._last:
            self._runs.append(self._end)
        self._last = stream, offset
        self._end += file.write(_HEAD.pack(stream, offset, len(data)) + data)

    def incidents(self) -> Iterator[Incident]:
        """Yield all incidents, ordered by log and offset."""
        if self._file is None:
            yield from (one for _, _, one in sorted(self._few, key=lambda row: row[:2]))
            return
        yield from map(from_json, self._stored(self._file))

    def rows(self) -> Iterator[str]:
        """Yield all incidents as JSON, ordered by log and offset."""
        if self._file is None:
            yield from map(to_json, self.incidents())
        else:
            yield from (data.decode("ascii") for data in self._stored(self._file))

    def _stored(self, file: IO[bytes]) -> Iterator[bytes]:
        import heapq

        ends = [*self._runs[1:], self._end]
        runs = [
            _rows(file, *run, alone=len(ends) == 1) for run in zip(self._runs, ends, strict=True)
        ]
        for _, _, data in heapq.merge(*runs, key=lambda row: row[:2]) if len(runs) > 1 else runs[0]:
            yield data
        file.seek(0, 2)

    def close(self) -> None:
        """Close the temporary file."""
        if self._file is not None:
            self._file.close()


def _rows(
    file: IO[bytes], start: int, end: int, *, alone: bool
) -> Iterator[tuple[int, int, bytes]]:
    """Yield log number, offset and JSON of a run's incidents; `alone` if there is no other run."""
    file.seek(start)
    while start < end:
        if not alone and file.tell() != start:  # a seek discards the data read ahead
            file.seek(start)
        stream, offset, length = _HEAD.unpack(file.read(_HEAD.size))
        start += _HEAD.size + length
        yield stream, offset, file.read(length)
