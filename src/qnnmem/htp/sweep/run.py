"""Running a sweep: a table over points, or the search for the largest value that will do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from qnnmem.cache import ResultCache
from qnnmem.errors import OutputError, UsageError, WorkerError
from qnnmem.htp.compile import Progress, no_progress
from qnnmem.htp.kept import key_of, to_kept
from qnnmem.htp.sweep.rows import (
    Axis,
    Largest,
    Question,
    SweepOutcome,
    SweepPoint,
    SweepRow,
    kept_outcome,
    show,
)
from qnnmem.htp.sweep.search import last_that_meets
from qnnmem.htp.worker.slots import Slots


class PointCompiler(Protocol):
    """Compiles points one after another."""

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Compile a point; whatever happens to the library, a result comes back."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What results depend on besides the point."""

    digest: str  # of the model
    soc: int
    library: str
    fixed: SweepPoint  # what is not varied

    def key(self, point: SweepPoint) -> str:
        """Name of a result in the cache."""
        return key_of(self.digest, self.soc, {**self.fixed, **point}, self.library)


class Sweep:
    """Compiles points; finished results are on disk before the next one starts.

    Of one compiler there are as many as `jobs` says; several compilers, each of another worker, are
    given as a list.
    """

    def __init__(
        self,
        compilers: Callable[[], PointCompiler] | Sequence[Callable[[], PointCompiler]],
        cache: ResultCache,
        identity: Identity,
        *,
        jobs: int = 1,
        progress: Progress | None = None,
    ) -> None:
        makers = [compilers] if callable(compilers) else list(compilers)
        self._slots: Slots[PointCompiler] = Slots([make for make in makers for _ in range(jobs)])
        self._cache, self._identity = cache, identity
        self._progress = progress or no_progress
        self._lock = threading.Lock()
        self.rows: list[SweepRow] = []  # finished, in the order of their ends

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_error: object) -> None:
        self._slots.close()

    def table(self, points: Sequence[SweepPoint]) -> tuple[SweepRow, ...]:
        """One row for each point, in their order."""
        total = len(points)
        if self._slots.count == 1:
            return tuple(self._row(point, total) for point in points)
        with ThreadPoolExecutor(self._slots.count) as pool:
            jobs = [pool.submit(self._row, point, total) for point in points]
            try:
                return tuple(job.result() for job in jobs)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._slots.close()  # ends compiles whose rows are not wanted any more
                raise

    def largest(
        self,
        axis: Axis,
        rest: SweepPoint,
        until: Question = Question.FITS,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[Largest, tuple[SweepRow, ...]]:
        """The largest value that meets a question if all smaller ones do, and every row compiled.

        With `limits` of pools, in bytes, the value is predicted from the first rows.
        """
        values = sorted(axis.values) if not isinstance(axis.values, range) else axis.values
        rows: dict[int, SweepRow] = {}

        def compiled(at: int) -> SweepOutcome:
            rows[at] = self._row({**rest, axis.name: values[at]}, None)
            return rows[at].result

        found = last_that_meets(values, compiled, until.is_met, limits or {})
        place = found.place
        over = min((at for at in rows if at > place), default=None)
        answer = Largest(
            name=axis.name,
            point=rest,
            value=values[place] if place >= 0 else None,
            next_value=None if over is None else values[over],
            next_reason="" if over is None else rows[over].result.reason,
            until=until.value,
            predicted=None if found.predicted is None else values[found.predicted],
            halved=found.halved,
            is_open=found.is_open,
        )
        return answer, tuple(rows[at] for at in sorted(rows))

    def _row(self, point: SweepPoint, total: int | None) -> SweepRow:
        key = self._identity.key(point)
        kept = kept_outcome(self._cache.get(key))
        if kept is None:
            of = "" if total is None else f" of {total}"
            self._progress(f"{len(self.rows) + 1}{of}: {show(point)}")
            result = self._compile(point)
            if result.is_final:
                self._cache.put(key, to_kept(result))
        row = SweepRow(point, kept or result, kept is not None)
        with self._lock:
            self.rows.append(row)
        return row

    def _compile(self, point: SweepPoint) -> SweepOutcome:
        """A compiler that breaks costs its own row only; a worker that is lost, not even that."""
        try:
            return self._slots.use(lambda compiler: compiler.run(point))
        except (UsageError, OutputError):
            raise
        except WorkerError as exc:
            if self._slots.count:
                return SweepOutcome("failed", str(exc))
            more = f"; {len(self.rows)} rows are kept, and the same command goes on from there"
            raise WorkerError(f"{exc}{more}") from exc
        except OSError as exc:
            return SweepOutcome("failed", f"the compile could not be started: {exc}")
