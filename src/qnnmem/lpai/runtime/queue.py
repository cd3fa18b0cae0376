"""The execution order of a context: one queue for execute and executeAsync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from queue import Full, Queue
from threading import Lock, RLock, Thread, current_thread, get_ident
from typing import NoReturn

from qnnmem.contract.leaks import of_process
from qnnmem.contract.rules import finding
from qnnmem.errors import UsageError
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import LogLevel

Work = Callable[[], None]

DEFAULT_DEPTH = 16  # queue depth if no config sets it


class Signal:
    """`QnnSignal`, which can watch one execution at a time and must be freed."""

    def __init__(self, backend: Backend | None = None) -> None:
        if not isinstance(backend, Backend | None):
            raise UsageError("create a signal with a backend or without arguments")
        self._lock = Lock()
        self._backend = backend
        make = of_process().part if backend is None else backend.makes
        self._resource = make("signal", "L4", "the signal made at {at}")
        self.in_use = self.is_freed = False

    def take(self) -> bool:
        """Reserve the signal for an execution; return False if the signal is in use."""
        with self._lock:
            if self.is_freed:
                self._fail(9003, "the signal was freed", "QnnGraph_execute")
            if self.in_use:
                return False
            self.in_use = True
            return True

    def release(self) -> None:
        """End the reservation of the signal."""
        self.in_use = False

    def free(self) -> None:
        """Free the signal (`QnnSignal_free`); fail if it is in use or already freed."""
        with self._lock:
            if self.is_freed:
                self._fail(9003, "the signal was already freed", "QnnSignal_free")
            if self.in_use:
                self._fail(9000, "the signal still watches an execution", "QnnSignal_free")
            self.is_freed = True
        self._resource.freed()

    def _fail(self, code: int, sentence: str, call: str) -> NoReturn:
        found = finding("L4", sentence, call=call)
        if self._backend is not None:
            self._backend.fail(code, found)
        raise qnn_error(code, found)


class ExecutionQueue:
    """FIFO queue of executions; the first asynchronous execution starts the worker thread."""

    def __init__(self, backend: Backend, depth: int) -> None:
        self._backend, self.depth = backend, depth or DEFAULT_DEPTH
        self._turn = RLock()
        self._holder: int | None = None  # thread that executes
        self._notified: int | None = None  # thread that runs a notification for the worker
        self._waiting: Queue[Work | None] = Queue(self.depth)
        self._worker: Thread | None = None
        self._starting = Lock()
        self.is_closed = False

    @property
    def is_worker(self) -> bool:
        """True if this thread is the worker (as in a notification) or acts for the worker."""
        return current_thread() is self._worker or self._notified == get_ident()

    @contextmanager
    def notification(self) -> Iterator[None]:
        """Let this thread act for the worker, which waits for a notification in another process."""
        before, self._notified = self._notified, get_ident()
        try:
            yield
        finally:
            self._notified = before

    def run(self, work: Work) -> None:
        """Run `work` after everything that is already queued.

        Inside a notification the work runs immediately, because the notification already owns the
        queue.
        """
        if self._worker is not None and not self.is_worker and self._holder != get_ident():
            self._waiting.join()
        with nullcontext() if self._notified == get_ident() else self._turn:  # the worker has it
            outer, self._holder = self._holder, get_ident()
            try:
                work()
            finally:
                self._holder = outer

    def submit(self, work: Work) -> None:
        """Queue `work`; if the queue is full, wait or fail, depending on the profile."""
        try:
            if self.is_worker:
                self._put(work, block=False)  # waiting would block the worker forever
            else:
                with self._starting:  # otherwise the queue could be closed before the work is added
                    self._put(work, block=self._backend.profile.async_blocks)
        except Full:
            sentence = f"the queue already has {self.depth} executions, its limit"
            self._backend.refuse(6025, "R17", sentence, "QnnGraph_executeAsync")

    def _put(self, work: Work, *, block: bool) -> None:
        if self.is_closed:
            sentence = "the context is being freed and accepts no executions"
            self._backend.refuse(6039, "R16", sentence, "QnnGraph_executeAsync")
        if self._worker is None:
            self._worker = Thread(target=self._serve, name="lpai queue", daemon=True)
            self._worker.start()
        self._waiting.put(work, block=block)

    def refuse(self) -> None:
        """Close the queue to new work; this fails inside a notification or an execution."""
        if self.is_worker or self._holder == get_ident():
            caller = "a notification" if self.is_worker else "an execution"
            sentence = f"{caller} cannot free the context of its own queue"
            cure = "free the context from another thread"
            self._backend.refuse(1005, "R16", sentence, "QnnContext_free", cure=cure)
        self.is_closed = True

    def close(self) -> None:
        """Wait until all queued work is done, then end the worker."""
        self.is_closed = True
        with self._starting:
            if self._worker is not None:
                self._waiting.put(None)
                self._worker.join()
                self._worker = None

    def _serve(self) -> None:
        ending = False
        # A notification may have queued work after the end marker.
        while not (ending and self._waiting.empty()):
            work = self._waiting.get()
            try:
                if work is None:
                    ending = True
                    continue
                with self._turn:
                    work()
            except Exception as exc:  # without its worker the queue would hang forever
                self._backend.log(LogLevel.ERROR, f"an execution raised {type(exc).__name__}")
            finally:
                self._waiting.task_done()
