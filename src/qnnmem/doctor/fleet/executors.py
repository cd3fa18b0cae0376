"""Executors that read logs: threads or processes of this machine, or a Dask cluster."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
import time
from concurrent.futures import Executor, Future
from contextlib import suppress
from types import TracebackType
from typing import Any

from qnnmem.errors import Setting, UsageError
from qnnmem.installation import command_for
from qnnmem.text import sentence

_CONNECT_S = 10
_ANSWER_S = 5
_LARGE = 512 << 20  # bytes; two processes take 0.6 s more CPU time than one reader
_WIDTH = 16  # workers of an executor with an unknown number of workers


def cluster_executor(address: str) -> Executor:
    """Return an executor for the workers of a running Dask cluster."""
    try:
        from distributed import Client
    except ImportError as exc:
        raise UsageError(f"a cluster needs {command_for('cluster')}") from exc
    if not address.strip():  # an empty address would start a new cluster
        raise UsageError((Setting("cluster"), " takes the address of a Dask scheduler"))
    try:
        return DaskWorkers(Client(address, timeout=_CONNECT_S))  # type: ignore[no-untyped-call]
    except Exception as exc:  # each kind of address has its own exceptions
        why = sentence(exc)
    finally:
        # This process repeats lost tasks, so do not log a broken connection.
        for handler in logging.getLogger("distributed").handlers:
            handler.setLevel(logging.CRITICAL + 1)
    # A failed client closes when it is garbage-collected. If the next client is then starting, the
    # close blocks forever, so collect now.
    gc.collect()
    raise UsageError(f"no Dask cluster answers at {address}: {why}")


def jobs_executor(jobs: int, size: int = 0) -> Executor:
    """Return an executor on this machine, chosen for `size` bytes of logs.

    Threads start immediately, but only the text search runs in parallel, and only with an engine
    that releases the interpreter lock. Processes take a moment to start, which does not matter for
    large logs.
    """
    if jobs < 1:
        raise UsageError((Setting("jobs"), " must be at least 1"))
    if size >= _LARGE:
        return Processes(jobs)
    try:
        import hyperscan  # noqa: F401 - releases the interpreter lock while it scans
    except ImportError:
        return Processes(jobs)
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(jobs)


class DaskWorkers(Executor):
    """Executor for the workers of a Dask cluster; tolerates the loss of the scheduler."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor: Executor = client.get_executor(pure=False, retries=3)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call to a worker; return its future."""
        return self._executor.submit(fn, *args, **kwargs)

    def cores(self) -> int:
        """Return the number of cores of all workers; 0 if no worker or scheduler is reachable."""
        if self._client.status != "running":
            return 0
        try:
            found = self._client.sync(self._client.scheduler.ncores, callback_timeout=_ANSWER_S)
            return int(sum(found.values()))
        except Exception:  # a broken connection raises many kinds of errors
            return 0

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down the executor if any worker is alive, then close the client."""
        with suppress(Exception):
            if self.cores():
                self._executor.shutdown(wait=wait and not cancel_futures)
        with suppress(Exception):
            self._client.close(timeout=_ANSWER_S)


class Processes(Executor):
    """Process pool that replaces itself with a new pool when one of its workers dies."""

    def __init__(self, jobs: int) -> None:
        self._max_workers = jobs
        self._pool: Executor = self._new()

    def _new(self) -> Executor:
        from concurrent.futures import ProcessPoolExecutor, wait
        from multiprocessing import get_context

        pool = ProcessPoolExecutor(
            self._max_workers,
            mp_context=get_context("fork" if _may_fork() else "spawn"),
            initializer=_settle,
        )
        # Start all workers now: a pool that starts a worker while another dies may hang.
        wait([pool.submit(time.sleep, 0.1) for _ in range(self._max_workers)])
        return pool

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call to a worker; return its future."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except (RuntimeError, OSError):  # the pool is broken, or breaking at this moment
            self.shutdown(wait=False)
            self._pool = self._new()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down the workers; kill them first if the pool is broken.

        A killed worker might have held a lock for which the other workers wait forever.
        """
        if getattr(self._pool, "_broken", False):
            self._kill()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Shut down the pool; after an error or Ctrl-C, kill its workers first."""
        if kind is not None:
            self._kill()
        super().__exit__(kind, error, trace)

    def _kill(self) -> None:
        workers = getattr(self._pool, "_processes", None) or {}
        for worker in list(workers.values()):
            worker.kill()


def _may_fork() -> bool:
    """Return True if workers can be forked safely; a forked worker has all modules loaded.

    A fork is safe only if no other thread can hold a lock, so a replacement pool is not forked.
    The system libraries of macOS do not support forking.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def _settle() -> None:
    """Reset the signal handlers in a new worker; a fork inherits the command's handlers."""
    for name in ("SIGTERM", "SIGHUP", "SIGALRM"):  # Windows lacks some of these
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    # Ctrl-C reaches the whole process group; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def width(executor: Executor) -> int:
    """Return the number of tasks that the executor runs in parallel."""
    if isinstance(executor, DaskWorkers):
        return max(executor.cores(), 1)
    return int(getattr(executor, "_max_workers", _WIDTH))


def answers(executor: Executor) -> bool:
    """Return True if the executor still has workers; always True for a local pool."""
    return not isinstance(executor, DaskWorkers) or executor.cores() > 0
