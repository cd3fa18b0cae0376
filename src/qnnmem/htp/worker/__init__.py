"""The HTP library in a child process: requests, and what became of each.

The process is one of this machine, or a worker that a command starts wherever the library is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from qnnmem.child import memory_limit as child_memory_limit
from qnnmem.deadline import Deadline
from qnnmem.htp.library import Library, find_library
from qnnmem.htp.remote.parcel import SharedPlace, with_shared
from qnnmem.htp.requests import AnyRequest, CallTensor, OutcomeKind, RequestOutcome, Served, Tick
from qnnmem.htp.worker.outcome import Watch, outcome_of
from qnnmem.htp.worker.process import LibraryProcess
from qnnmem.htp.worker.remote import RemoteLibrary, RequestLimits

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
        self._remote = RemoteLibrary(self.library) if self.library.command else None
        if warm and self._remote is None:  # it imports while the caller reads a model
            self._child = LibraryProcess(warm)

    @classmethod
    def ready(cls, library: Library) -> Worker:
        """A worker whose child was started, or that has a connection to where the library is."""
        made = cls(warm=True, library=library)
        if made._remote is not None:
            made._remote.connect()
        return made

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
        """End the child, or the connection to a worker elsewhere, and whatever it is doing."""
        if self._remote is not None:
            self._remote.close()
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    @property
    def pid(self) -> int | None:
        """The child, or the command that leads to a worker elsewhere, while there is one."""
        if self._remote is not None:
            return self._remote.pid
        return None if self._child is None else self._child.pid

    @property
    def memory_limit(self) -> int:
        """Address space that a request may take at most where the library is, in bytes."""
        return default_memory_limit() if self._remote is None else self._remote.memory_limit

    def ask(
        self,
        request: AnyRequest,
        *,
        places: Sequence[SharedPlace] = (),
        time_limit_s: float = TIME_LIMIT_S,
        memory_limit: int | None = None,
        stop_at: bytes | None = None,
        log_file: Path | None = None,
        progress: Callable[[Tick], None] | None = None,
    ) -> RequestOutcome:
        """Have a request served.

        `places` is the memory that tensors share with the caller. `memory_limit` is address space
        in bytes, by default three quarters of the machine. A log line with `stop_at` ends the
        request: it counts as refused. `log_file` gets the whole log.
        """
        with self._lock:
            watch = Watch(Deadline.after(time_limit_s), progress)
            if self._remote is not None:
                with _sink(log_file) as keep:
                    limits = RequestLimits(memory_limit, stop_at)
                    wanted = None if log_file is None else keep
                    return self._remote.ask(request, places, watch, limits, wanted)
            self._count += 1
            served = Served(
                self._count,
                memory_limit or default_memory_limit(),
                self.library.folder.absolute(),
                with_files(request, places),
            )
            if self._child is None or not self._child.is_alive:
                self.close()
                self._child = LibraryProcess(self._warm)
            with _sink(log_file) as keep:
                self._child.tap.begin(self._count, stop_at, keep)
                ended = self._child.serve(served, watch)
                outcome = outcome_of(request, ended, self._child.tap, watch)
            if not self._child.is_alive:
                self.close()
            return outcome


def with_files(request: AnyRequest, places: Sequence[SharedPlace]) -> AnyRequest:
    """A request for a child of this machine: shared memory is a file of this process."""

    def file(tensor: CallTensor, place: SharedPlace) -> CallTensor:
        path = Path(f"/proc/{os.getpid()}/fd/{place.fd}")
        return msgspec.structs.replace(tensor, shared=None, file=path, offset=place.offset)

    return with_shared(request, places, file)


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
