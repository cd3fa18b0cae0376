"""The door that programs knock at: a socket in a folder of our own, a thread for each line.

Whatever comes in, that line ends at worst; and when a thread here ends, for whatever reason, its
line is closed, so that nobody at the other end waits for ever. Nobody is left standing outside
either: where there is no room, the line is closed at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from qnnmem.client.ledger import Ledger
from qnnmem.client.wire import ClientLine, TurnedAway
from qnnmem.errors import Fault, UsageError

_MOST_LINES = 512
_JOIN_S = 5.0
_AGAIN_S = 0.01
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FAILED = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO})  # who knocked is gone


class Door:
    """Lets programs in, as long as one of them runs.

    `serve` talks on a line to its end. Where it gives True, the line stays open without a thread.
    No message has more words than `most_words`.
    """

    def __init__(self, folder: Path, serve: Callable[[ClientLine], bool], most_words: int) -> None:
        self._most_words = most_words
        self.path = folder / "socket"
        self.ledger = Ledger(folder)
        self.crash: BaseException | None = None  # of a thread here: a mistake of ours
        self._talk = serve
        self._lines: set[ClientLine] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._spare = _spare()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="door", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:
            self._socket.close()
            os.close(self._spare)
            self.ledger.close()
            raise UsageError("this process can have no thread more, and needs some") from exc

    def settle(self) -> None:
        """Wait for what a program said before it ended."""
        with self._lock:
            threads = tuple(self._threads)
        _join(threads)

    def hang_up(self) -> None:
        """Let nobody in any more, and end every line."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_JOIN_S)  # whoever was let in last is in the list then
        self._socket.close()
        with self._lock:
            lines = tuple(self._lines)
        for line in lines:
            line.hang_up()

    def close(self) -> bool:
        """Wait for the threads after `hang_up`; whether all have ended."""
        self.settle()
        with self._lock:
            lines, threads = tuple(self._lines), tuple(self._threads)
        for line in lines:
            line.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        self.ledger.close()
        with contextlib.suppress(OSError):  # a program can put anything there
            self.path.unlink()
        return not any(thread.is_alive() for thread in threads)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                line = self._next()
            except OSError as exc:
                if exc.errno in _NO_ROOM:
                    self._closed.wait(_AGAIN_S)
                elif exc.errno not in _FAILED:
                    return
            else:
                self._let_in(line)

    def _next(self) -> socket.socket:
        """Who knocks next. With no descriptor left, one that was kept is used to send them away."""
        try:
            return self._socket.accept()[0]
        except OSError as exc:
            if exc.errno not in _NO_ROOM or self._spare < 0:
                raise
            self.ledger.refuse(f"qnnmem has no descriptor left ({_descriptors():,} in all)")
        os.close(self._spare)
        self._spare = -1
        line = self._socket.accept()[0]
        try:
            self._spare = _spare()
        except OSError:
            line.close()
            self._spare = _spare()
            raise
        return line  # there is room again

    def _let_in(self, line: socket.socket) -> None:
        try:
            if self._has_begun(ClientLine(line, self._most_words)):
                return
        except (RuntimeError, MemoryError):
            self.ledger.refuse("this machine has no thread or no memory left for qnnmem")
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.close()

    def _has_begun(self, connection: ClientLine) -> bool:
        with self._lock:
            self._threads = {one for one in self._threads if one.is_alive()}
            if len(self._lines) >= _MOST_LINES:
                self.ledger.refuse(f"{_MOST_LINES:,} threads that call QNN at a time")
            if len(self._lines) >= _MOST_LINES or self._closed.is_set():
                return False
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._lines.add(connection)
            self._threads.add(thread)
            return True

    def _serve(self, connection: ClientLine) -> None:
        stays = False
        try:
            stays = self._talk(connection)
        except TurnedAway as exc:
            self.ledger.refuse(str(exc))
        except Fault:
            pass  # it is gone
        except Exception as exc:  # it must not wait for an answer that never comes
            self.crash = self.crash or exc
        finally:
            if not stays:
                with self._lock:
                    self._lines.discard(connection)
                connection.close()


def _descriptors() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _join(threads: Iterable[threading.Thread]) -> None:
    end = monotonic() + _JOIN_S  # for all of them together
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))
