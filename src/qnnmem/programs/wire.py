"""Messages between a program and the server: calls one way, answers and actions the other.

    from the program   u32 length, u16 kind, u16 function, words of 64 bits
    to the program     u32 length, u32 action, three words, bytes

Lengths come from the program and are bounded. A malformed message ends the connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from qnnmem.errors import Fault

_HEAD = struct.Struct("<IHH")
_REPLY = struct.Struct("<II3Q")
_PEER_PIDFD = 77  # SO_PEERPIDFD


class Kind(IntEnum):
    """Kinds of messages from a client."""

    HELLO = 1
    CALL = 2
    STACK = 3
    FREED = 4
    CLOSED = 5
    DONE = 6


class Action(IntEnum):
    """Actions that the client carries out."""

    ANSWER = 0
    SEND_STACK = 1
    ALLOCATE = 2
    RELEASE = 3
    LOG = 4
    NOTIFY = 5


class Hangup(Fault):
    """The program is gone, or sent a malformed message."""


class TurnedAway(Hangup):
    """There is no room for the program; its calls are not checked."""


class Message(NamedTuple):
    """One message of a program."""

    kind: int
    function: int
    words: tuple[int, ...]
    data: bytes = b""  # the words as they came


class ProgramConnection:
    """The connection of one thread of a program."""

    def __init__(self, line: socket.socket, most_words: int) -> None:
        self._line, self._most = line, _HEAD.size + 8 * most_words
        self._input = line.makefile("rb")

    def receive(self) -> Message:
        """Return the next message; raise `Hangup` if there is none."""
        length, kind, function = _HEAD.unpack(self._read(_HEAD.size))
        if not _HEAD.size <= length <= self._most or length % 8:
            raise Hangup("the program sent what is no message")
        body = self._read(length - _HEAD.size)
        return Message(kind, function, struct.unpack(f"<{len(body) // 8}Q", body), body)

    def _read(self, size: int) -> bytes:
        try:
            data = self._input.read(size)
        except (OSError, ValueError) as exc:
            raise Hangup("the program closed the connection") from exc
        if len(data) < size:
            raise Hangup("the program closed the connection")
        return data

    def send(self, action: int, a: int = 0, b: int = 0, c: int = 0, data: bytes = b"") -> None:
        """Send one answer or action."""
        try:
            self._line.sendall(_REPLY.pack(_REPLY.size + len(data), action, a, b, c) + data)
        except OSError as exc:
            raise Hangup("the program closed the connection") from exc

    def peer(self) -> int:
        """Return the pid of the peer as the kernel knows it, not as the peer claims."""
        try:
            found = self._line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError as exc:
            raise Hangup("the program closed the connection") from exc
        return int(struct.unpack("3i", found)[0])

    def confirm(self) -> None:
        """Raise `Hangup` if the pid of `peer` may belong to another process by now.

        Call it after the process was opened: the peer may have ended and its pid may be reused.
        Linux before 6.5 cannot tell.
        """
        try:
            process = self._line.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
        except OSError as exc:
            if exc.errno == errno.ENOPROTOOPT:
                return
            raise Hangup("who connected is gone") from exc
        try:
            signal.pidfd_send_signal(process, 0)  # signal 0 only checks
        except OSError as exc:
            raise Hangup("who connected is gone") from exc
        finally:
            os.close(process)

    def hang_up(self) -> None:
        """Shut both directions down; a thread that waits for a message then closes it."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut it down and close its descriptor."""
        self.hang_up()
        with contextlib.suppress(OSError, ValueError):
            self._input.close()  # or the socket would stay open with it
        self._line.close()
