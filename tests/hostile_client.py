"""Sends hostile messages to the server behind the C client library.

A separate process connects and sends whatever its seed selects: random arguments, nearly valid
ones, false lengths, unanswered requests, half messages and a sudden disconnect. The server may
refuse everything. It must keep answering, with a bounded number of threads and descriptors, and
write to no memory but the client's.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path

import numpy

from qnnmem.contract.leaks import separate
from qnnmem.lpai.profiles import profile
from qnnmem.programs.check.client_server import ClientServer
from qnnmem.programs.check.client_session import ClientSession
from qnnmem.programs.functions import NAMES
from qnnmem.programs.stacks import Symbols

_HELLO, _CALL, _DONE, _STACK = 1, 2, 6, 3
_EACH = 100  # messages per seed
_WAIT_S = 10.0


class Hostile:
    """A connection that misbehaves as its seed selects."""

    def __init__(self, path: Path, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._room = numpy.zeros(1 << 16, numpy.uint8)
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line.settimeout(_WAIT_S)
        self._line.connect(str(path))

    def send(self, kind: int, function: int, words: list[int], length: int | None = None) -> None:
        """Send one message, whose stated length may be false."""
        body = struct.pack(f"<{len(words)}Q", *words)
        size = 8 + len(body) if length is None else length
        self._line.sendall(struct.pack("<IHH", size & 0xFFFFFFFF, kind, function) + body)

    def answer(self) -> int | None:
        """Return the answer to a call, after serving the server's requests; None on disconnect."""
        while True:
            head = self._exactly(32)
            if head is None:
                return None
            length, action, a, _, _ = struct.unpack("<II3Q", head)
            if length > 32 and self._exactly(length - 32) is None:
                return None
            if action == 0:
                return int(a)
            words = [self._word() for _ in range(self._random.randrange(4))]
            self.send(_STACK if action == 1 else _DONE, 0, words)

    def run(self, count: int) -> int:
        """Send a hello and random messages; return the number of messages."""
        sent = 1
        pid = self._random.choice([os.getpid(), 1, 0, 1 << 40])
        words = [
            2,
            0,
            pid,
            0,
            1,
            self._row(),
            self._word(),
            self._word(),
            self._word(),
            self._word(),
        ]
        try:
            if self._random.random() < 0.1:
                words = words[: self._random.randrange(10)]
            self.send(_HELLO, 0, words)
            while sent < count:
                sent += 1
                self._one()
        except (OSError, struct.error):
            pass  # the server may disconnect
        finally:
            self._line.close()
        return sent

    def _one(self) -> None:
        chance = self._random.random()
        if chance < 0.03:
            self._line.sendall(self._random.randbytes(self._random.randrange(1, 64)))
            return
        if chance < 0.06:
            self.send(_CALL, 13, [self._word()], self._random.choice([0, 7, 9, 1 << 31, 4096]))
            return
        if chance < 0.12:
            self.send(self._random.randrange(9), self._random.randrange(300), [self._word()] * 3)
            if self.answer() is None:
                raise OSError
            return
        function = self._random.choice(list(NAMES))
        words = [self._random.randrange(2), *(self._word() for _ in range(9))]
        self.send(_CALL, function, words[: self._random.randrange(1, 11)])
        if self.answer() is None:
            raise OSError

    def _row(self) -> int:
        return self._random.choice([0, 1, 4096, 4097, self._word()])

    def _word(self) -> int:
        mine: int = self._room.__array_interface__["data"][0]
        return self._random.choice(
            [
                *(0, 1, 7, 0xFFFFFFFF, (1 << 64) - 1, 1 << 63, 0x51000010, 0x51000020),
                *(mine, mine + 32, self._random.getrandbits(64), self._random.getrandbits(47)),
            ]
        )

    def _exactly(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                piece = self._line.recv(size - len(found))
            except OSError:
                return None
            if not piece:
                return None
            found += piece
        return found


def attack(count: int, first: int) -> list[str]:
    """Return what goes wrong: server crashes, leaked threads and descriptors."""
    with tempfile.TemporaryDirectory() as folder, separate():
        threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
        session = ClientSession(profile(), Symbols(folder), lambda _: None)
        server = ClientServer(session, Path(folder))
        sent, seed = 0, first
        try:
            while sent < count:
                sent += _apart(server.sockets.path, seed, min(_EACH, count - sent))
                seed += 1
        finally:
            server.close()
        wrong = [] if server.sockets.crash is None else [f"{server.sockets.crash!r}"]
        if threading.active_count() > threads:
            wrong.append(f"{threading.active_count() - threads} threads are left")
        if len(list(Path("/proc/self/fd").iterdir())) > files:
            wrong.append("descriptors are left")
        if server.sockets.path.exists():
            wrong.append("the socket is left")
        return wrong


def _apart(path: Path, seed: int, count: int) -> int:
    """Misbehave in a separate process, whose memory the server may write to."""
    child = os.fork()
    if child == 0:
        try:
            sent = again = 0
            while sent < count:  # a disconnected client returns as another client
                sent += Hostile(path, seed * 1000 + again).run(count - sent)
                again += 1
        except BaseException as exc:
            print(f"seed {seed}: {exc!r}", file=sys.stderr)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return count
