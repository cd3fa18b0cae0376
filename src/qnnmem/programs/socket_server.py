"""Accepts connections of programs on a Unix socket, one thread per connection.

    from the program   u32 length, u16 kind, u16 function, words of 64 bits
    to the program     u32 length, u32 action, three words, bytes

Lengths come from the program and are bounded.

A bad message ends only its own connection. When a server thread ends, its connection is closed, so
no program waits forever. If the server cannot handle another connection, it closes the connection
immediately, and the ledger records the reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from qnnmem.errors import Fault, UsageError
from qnnmem.programs.ledger import Hangup, Ledger, TurnedAway

_HEAD = struct.Struct("<IHH")
_REPLY = struct.Struct("<II3Q")
_PEER_PIDFD = 77  # SO_PEERPIDFD
_AT_ONCE = 8192  # bytes that one system call receives
_MOST_CONNECTIONS = 512
_JOIN_S = 5.0
_RETRY_S = 0.01
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# The peer closed the connection before it was accepted.
_ABORTED = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO})


class Kind(IntEnum):
    """Kinds of messages from a client."""

    HELLO = 1
    CALL = 2
    STACK = 3
    FREED = 4
    CLOSED = 5
    DONE = 6
    CRASHED = 7
    WROTE = 8
    ENDED = 9
    REENTERED = 10
    CAUGHT = 11


class Action(IntEnum):
    """Actions that the client carries out."""

    ANSWER = 0
    SEND_STACK = 1
    ALLOCATE = 2
    RELEASE = 3
    LOG = 4
    NOTIFY = 5
    PROTECT = 6


class Protection(IntEnum):
    """How `Action.PROTECT` changes the access to memory."""

    CLOSE_WRITES = 0
    CLOSE_ALL = 1
    OPEN = 2


class Message(NamedTuple):
    """Message of a program."""

    kind: int
    function: int
    words: tuple[int, ...]
    data: bytes = b""  # the words as raw bytes


class ProgramConnection:
    """Connection of one thread of a program."""

    def __init__(self, line: socket.socket, most_words: int) -> None:
        self._line, self._most = line, _HEAD.size + 8 * most_words
        self._received = b""  # bytes after the last message

    def receive(self) -> Message:
        """Return the next message; raise `Hangup` at the end of the connection."""
        length, kind, function = _HEAD.unpack_from(self._wait_for(_HEAD.size))
        if not _HEAD.size <= length <= self._most or length % 8:
            raise Hangup("the program sent a malformed message")
        data = self._wait_for(length)
        body, self._received = data[_HEAD.size : length], data[length:]
        return Message(kind, function, struct.unpack(f"<{len(body) // 8}Q", body), body)

    def _wait_for(self, size: int) -> bytes:
        """Return the received bytes once there are at least `size`."""
        while len(self._received) < size:
            try:
                data = self._line.recv(_AT_ONCE)
            except OSError as exc:
                raise Hangup("the program closed the connection") from exc
            if not data:
                raise Hangup("the program closed the connection")
            self._received += data
        return self._received

    def send(self, action: int, a: int = 0, b: int = 0, c: int = 0, data: bytes = b"") -> None:
        """Send one answer or action."""
        try:
            self._line.sendall(_REPLY.pack(_REPLY.size + len(data), action, a, b, c) + data)
        except OSError as exc:
            raise Hangup("the program closed the connection") from exc

    def peer(self) -> int:
        """Return the pid of the peer as reported by the kernel."""
        try:
            credentials = self._line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError as exc:
            raise Hangup("the program closed the connection") from exc
        return int(struct.unpack("3i", credentials)[0])

    def confirm(self) -> None:
        """Raise `Hangup` if the pid of `peer` may now belong to another process.

        Call this after the process was opened: the peer may have ended and its pid may be reused.
        Linux before 6.5 cannot detect this.
        """
        try:
            process = self._line.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
        except OSError as exc:
            if exc.errno == errno.ENOPROTOOPT:
                return
            raise Hangup("the connected process is gone") from exc
        try:
            signal.pidfd_send_signal(process, 0)  # signal 0 only checks
        except OSError as exc:
            raise Hangup("the connected process is gone") from exc
        finally:
            os.close(process)

    def hang_up(self) -> None:
        """Shut down both directions; a waiting thread then closes the connection."""
        with contextlib.suppress(OSError):  # the other end closed it first
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut the connection down and close its descriptor."""
        self.hang_up()
        self._line.close()


class SocketServer:
    """Server that listens in a folder until it is closed.

    `serve` handles one connection to its end. If it returns True, the connection stays open without
    a thread. No message has more than `most_words` words.
    """

    def __init__(
        self, folder: Path, serve: Callable[[ProgramConnection], bool], most_words: int
    ) -> None:
        self._most_words = most_words
        self.path = folder / "socket"
        self.ledger = Ledger(folder)
        self.crash: BaseException | None = None  # exception of a server thread: a bug here
        self._talk = serve
        self._connections: set[ProgramConnection] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._spare = _spare()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="socket server", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:
            self._socket.close()
            os.close(self._spare)
            self.ledger.close()
            raise UsageError("this process cannot start another thread") from exc

    def check(self) -> None:
        """Raise the exception that ended a server thread, if any."""
        if self.crash is not None:
            raise self.crash

    def settle(self) -> None:
        """Wait until all messages of a program that has ended are handled."""
        with self._lock:
            threads = tuple(self._threads)
        _join(threads)

    def hang_up(self) -> None:
        """Stop accepting connections and shut all connections down."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_JOIN_S)  # afterwards the set contains the last accepted connection
        self._socket.close()
        with self._lock:
            connections = tuple(self._connections)
        for connection in connections:
            connection.hang_up()

    def close(self) -> bool:
        """Wait for the threads after `hang_up`; return True if all have ended."""
        self.settle()
        with self._lock:
            connections, threads = tuple(self._connections), tuple(self._threads)
        for connection in connections:
            connection.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        self.ledger.close()
        with contextlib.suppress(OSError):  # the program can replace the socket file
            self.path.unlink()
        return not any(thread.is_alive() for thread in threads)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                accepted = self._next()
            except OSError as exc:
                if exc.errno in _NO_ROOM:
                    self._closed.wait(_RETRY_S)
                elif exc.errno not in _ABORTED:
                    return
            else:
                self._start(accepted)

    def _next(self) -> socket.socket:
        """Accept a connection; if no descriptor is free, use the spare descriptor to refuse it."""
        try:
            return self._socket.accept()[0]
        except OSError as exc:
            if exc.errno not in _NO_ROOM or self._spare < 0:
                raise
            self.ledger.refuse(f"qnnmem has no file descriptor left ({_descriptors():,} in all)")
        os.close(self._spare)
        self._spare = -1
        accepted = self._socket.accept()[0]
        try:
            self._spare = _spare()
        except OSError:
            accepted.close()
            self._spare = _spare()
            raise
        return accepted  # a descriptor is free again

    def _start(self, accepted: socket.socket) -> None:
        try:
            if self._has_begun(ProgramConnection(accepted, self._most_words)):
                return
        except (RuntimeError, MemoryError):
            self.ledger.refuse("this machine has no thread or memory left")
        with contextlib.suppress(OSError):
            accepted.shutdown(socket.SHUT_RDWR)
        accepted.close()

    def _has_begun(self, connection: ProgramConnection) -> bool:
        with self._lock:
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            if len(self._connections) >= _MOST_CONNECTIONS:
                self.ledger.refuse(f"at most {_MOST_CONNECTIONS:,} threads can call QNN at a time")
            if len(self._connections) >= _MOST_CONNECTIONS or self._closed.is_set():
                return False
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._connections.add(connection)
            self._threads.add(thread)
            return True

    def _serve(self, connection: ProgramConnection) -> None:
        stays_open = False
        try:
            stays_open = self._talk(connection)
        except TurnedAway as exc:
            self.ledger.refuse(str(exc))
        except Fault:
            pass  # the program is gone
        except Exception as exc:  # the program must not wait for an answer that never comes
            self.crash = self.crash or exc
        finally:
            if not stays_open:
                with self._lock:
                    self._connections.discard(connection)
                connection.close()


def _descriptors() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _join(threads: Iterable[threading.Thread]) -> None:
    end = monotonic() + _JOIN_S  # time limit for all threads together
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))
