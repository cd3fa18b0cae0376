"""What travels between the client and us: words out of calls, answers and demands back.

    from the client   u32 length, u16 kind, u16 function, words of 64 bits
    to the client     u32 length, u32 action, three words, text

Lengths come from the client and are bounded. Whatever does not hold together ends the connection.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from qnnmem.errors import Fault

_HEAD = struct.Struct("<IHH")
_REPLY = struct.Struct("<II3Q")
_MOST = _HEAD.size + 8 * 64  # bytes of a message
_TEXT = 2000  # bytes of a line for the client's log


class Kind(IntEnum):
    """What the client says."""

    HELLO = 1
    CALL = 2
    STACK = 3
    FREED = 4
    CLOSED = 5
    DONE = 6


_KINDS = frozenset(Kind)  # a message is looked at often


class Action(IntEnum):
    """What the client is to do."""

    ANSWER = 0
    SEND_STACK = 1
    ALLOCATE = 2
    RELEASE = 3
    LOG = 4
    NOTIFY = 5


class Hangup(Fault):
    """The client is gone, or says what no client of ours says."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the client."""

    kind: Kind
    function: int
    words: tuple[int, ...]


class ClientLine:
    """One thread of a client."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._input = line.makefile("rb")

    def receive(self) -> Message:
        """The next message; a `Hangup` where there is none."""
        try:
            head = self._input.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise Hangup("the client closed the connection")
            length, kind, function = _HEAD.unpack(head)
            if not _HEAD.size <= length <= _MOST or length % 8 or kind not in _KINDS:
                raise Hangup("the client sent what is no message")
            body = self._input.read(length - _HEAD.size)
        except (OSError, ValueError) as exc:
            raise Hangup("the client closed the connection") from exc
        if len(body) < length - _HEAD.size:
            raise Hangup("the client closed the connection")
        return Message(Kind(kind), function, struct.unpack(f"<{len(body) // 8}Q", body))

    def send(self, action: Action, a: int = 0, b: int = 0, c: int = 0, text: str = "") -> None:
        """One answer or demand."""
        data = text.encode("utf-8", "replace")[:_TEXT]
        try:
            self._line.sendall(_REPLY.pack(_REPLY.size + len(data), action, a, b, c) + data)
        except OSError as exc:
            raise Hangup("the client closed the connection") from exc

    def peer(self) -> int:
        """The process at the other end, as the system knows it: not what that says itself."""
        found = self._line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", found)[0])

    def close(self) -> None:
        """End it, also for a thread that waits for a message."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._line.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, ValueError):
            self._input.close()  # or the socket would stay open with it
        self._line.close()
