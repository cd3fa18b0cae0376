"""The HTP library at arm's length: requests to a child process, and what became of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from qnnmem.child import memory_limit as child_memory_limit
from qnnmem.htp.library import Library, find_library
from qnnmem.htp.worker.outcome import OutcomeKind, RequestOutcome, Tick, Watch, outcome_of
from qnnmem.htp.worker.process import LibraryProcess

__all__ = ["OutcomeKind", "RequestOutcome", "Tick", "Worker", "default_memory_limit"]

TIME_LIMIT_S = 600.0
MAX_LOG_FILE = 256 << 20


class Worker:
    """Serves many requests, one after another; whatever a request does, the next one works."""

    def __init__(self, *, warm: bool = False, library: Library | None = None) -> None:
        self.library = find_library() if library is None else library
        self._warm, self._count = warm, 0
        self._lock = threading.Lock()
        self._child: LibraryProcess | None = None
        if warm:  # it imports while the caller reads a model
            self._child = LibraryProcess(warm)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child and whatever it is doing."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    @property
    def pid(self) -> int | None:
        """The child, while there is one."""
        return None if self._child is None else self._child.pid

    def ask(
        self,
        verb: str,
        options: Mapping[str, Any],
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_limit: int | None = None,
        stop_at: bytes | None = None,
        log_file: Path | None = None,
        progress: Callable[[Tick], None] | None = None,
    ) -> RequestOutcome:
        """Have a request served.

        `memory_limit` is address space in bytes, by default three quarters of the machine. A log
        line with `stop_at` ends the request: it counts as refused. `log_file` gets the whole log.
        """
        with self._lock:
            self._count += 1
            request = {
                "id": self._count,
                "verb": verb,
                "options": {"library": str(self.library.folder.absolute()), **options},
                "memory_limit": memory_limit or default_memory_limit(),
            }
            if self._child is None or not self._child.is_alive:
                self.close()
                self._child = LibraryProcess(self._warm)
            watch = Watch(time_limit_s, progress)
            with _sink(log_file) as keep:
                self._child.tap.begin(self._count, stop_at, keep)
                ended = self._child.serve(request, watch)
                outcome = outcome_of(ended, self._child.tap, watch)
            if not self._child.is_alive:
                self.close()
            return outcome


def default_memory_limit() -> int:
    """Address space of a request: three quarters of the machine, however large that is.

    Other children end at the bound of `qnnmem.child`, which is enough for ONNX files of 2 GiB. The
    compiler takes models with weights in files of their own: a graph at the limit of 3.5 GiB has
    twice that in 32-bit floats, and each of ONNX Runtime, the compiler and the binary has a copy.
    """
    return child_memory_limit(most=None)


@contextmanager
def _sink(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Where the whole log goes: a file or nowhere."""
    if path is None:
        yield lambda _chunk: None
        return
    left = MAX_LOG_FILE
    with path.open("wb") as file:

        def keep(chunk: bytes) -> None:
            nonlocal left
            with suppress(OSError):  # a full disk costs the log, not the result
                file.write(chunk[:left])
            left = max(0, left - len(chunk))

        yield keep
