"""What travels between a program and us: words out of calls, answers and demands back.

    from the program   u32 length, u16 kind, u16 function, words of 64 bits
    to the program     u32 length, u32 action, three words, bytes

Lengths come from the program and are bounded. Whatever does not hold together ends the connection.
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
    """What the client says."""

    HELLO = 1
    CALL = 2
    STACK = 3
    FREED = 4
    CLOSED = 5
    DONE = 6


class Action(IntEnum):
    """What the client is to do."""

    ANSWER = 0
    SEND_STACK = 1
    ALLOCATE = 2
    RELEASE = 3
    LOG = 4
    NOTIFY = 5


class Hangup(Fault):
    """The program is gone, or says what nothing of ours in it says."""


class TurnedAway(Hangup):
    """There is no room for the program; what it calls is not checked."""


class Message(NamedTuple):
    """One message of a program."""

    kind: int
    function: int
    words: tuple[int, ...]
    data: bytes = b""  # the words as they came


class ProgramConnection:
    """One thread of a program."""

    def __init__(self, line: socket.socket, most_words: int) -> None:
        self._line, self._most = line, _HEAD.size + 8 * most_words
        self._input = line.makefile("rb")

    def receive(self) -> Message:
        """The next message; a `Hangup` where there is none."""
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
        """One answer or demand."""
        try:
            self._line.sendall(_REPLY.pack(_REPLY.size + len(data), action, a, b, c) + data)
        except OSError as exc:
            raise Hangup("the program closed the connection") from exc

    def peer(self) -> int:
        """The process at the other end, as the system knows it: not what that says itself."""
        try:
            found = self._line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError as exc:
            raise Hangup("the program closed the connection") from exc
        return int(struct.unpack("3i", found)[0])

    def confirm(self) -> None:
        """To be asked once `peer` was looked into: a `Hangup` where it may be another process.

        Who connected can have ended, leaving the line to others, and its number can be anybody's.
        Linux before 6.5 cannot be asked.
        """
        try:
            process = self._line.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
        except OSError as exc:
            if exc.errno == errno.ENOPROTOOPT:
                return
            raise Hangup("who connected is gone") from exc
        try:
            signal.pidfd_send_signal(process, 0)  # which sends nothing
        except OSError as exc:
            raise Hangup("who connected is gone") from exc
        finally:
            os.close(process)

    def hang_up(self) -> None:
        """End it for both sides; a thread here that waits for a message closes it then."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and give its descriptor back."""
        self.hang_up()
        with contextlib.suppress(OSError, ValueError):
            self._input.close()  # or the socket would stay open with it
        self._line.close()
