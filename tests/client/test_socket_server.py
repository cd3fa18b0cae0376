"""Each client that connects is served or refused, and never left waiting."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from qnnmem.lpai.profiles import profile
from qnnmem.programs import socket_server
from qnnmem.programs.check.client_server import ClientServer
from qnnmem.programs.check.client_session import ClientSession
from qnnmem.programs.ledger import Hangup
from qnnmem.programs.socket_server import ProgramConnection, SocketServer
from qnnmem.programs.stacks import Symbols
from qnnmem.programs.watch.observer_server import WatchServer
from qnnmem.programs.watch.trace import TraceRecorder

HELLO = bytes((8, 0, 0, 0, 1, 0, 0, 0))  # a message without words
_WAIT_S = 600.0  # generous: the event is immediate on any machine


def answer(line: ProgramConnection) -> bool:
    """Answer messages until the other side hangs up."""
    while True:
        line.send(line.receive().kind)


@contextmanager
def opened(folder: Path) -> Iterator[SocketServer]:
    """Return a server that is closed at the end and must have no connections left."""
    made = SocketServer(folder, answer, 8)
    try:
        yield made
    finally:
        made.hang_up()
        assert made.close()
        assert not made.path.exists()


def knock(made: SocketServer) -> socket.socket:
    """Connect to the server."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(_WAIT_S)
    line.connect(str(made.path))
    return line


def is_served(line: socket.socket) -> bool:
    """True if the server answers, False if it closed the connection."""
    try:
        line.sendall(HELLO)
        return len(line.recv(32)) == 32
    except (BrokenPipeError, ConnectionResetError):
        return False


def test_who_knocks_is_sent_away_where_no_descriptor_is_left(tmp_path: Path) -> None:
    """Without a free descriptor clients are refused; later clients are served."""
    with opened(tmp_path) as made:
        outside = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        held: list[int] = []
        try:
            most = max(int(one.name) for one in Path("/proc/self/fd").iterdir()) + 8
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
            with suppress(OSError):
                while True:
                    held.append(os.dup(0))
            for line in outside:
                line.settimeout(_WAIT_S)
                line.connect(str(made.path))
            # The backlog holds the first client while the server waits for its connection.
            assert [is_served(line) for line in outside][1:] == [False] * 3
        finally:
            for one in held:
                os.close(one)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for line in outside:
                line.close()
        with knock(made) as line:
            assert is_served(line)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_who_knocks_is_sent_away_where_no_thread_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Without a thread a client is refused, and the next client is served."""
    start, left = threading.Thread.start, [error]

    def refused(self: threading.Thread) -> None:
        if "_serve" in self.name and left:
            raise left.pop()
        start(self)

    with opened(tmp_path) as made:
        monkeypatch.setattr(threading.Thread, "start", refused)
        for served in (False, True):
            with knock(made) as line:
                assert is_served(line) == served


def test_who_comes_in_while_it_is_closed_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects while the server closes does not wait."""
    is_here, goes_on = threading.Event(), threading.Event()

    class Slow(ProgramConnection):
        def __init__(self, line: socket.socket, most_words: int) -> None:
            super().__init__(line, most_words)
            is_here.set()
            goes_on.wait(_WAIT_S)

    monkeypatch.setattr(socket_server, "ProgramConnection", Slow)
    made = SocketServer(tmp_path, answer, 8)
    with knock(made) as line:
        assert is_here.wait(_WAIT_S)
        closing = threading.Thread(target=made.hang_up)
        closing.start()
        assert made._closed.wait(_WAIT_S)
        goes_on.set()
        closing.join(_WAIT_S)
        assert not is_served(line)
    assert made.close()


def test_a_mistake_of_ours_ends_the_line_and_is_kept(tmp_path: Path) -> None:
    """An exception in the server closes the connection and is kept as `crash`."""

    def fail(_: ProgramConnection) -> bool:
        raise ZeroDivisionError

    made = SocketServer(tmp_path, fail, 8)
    with knock(made) as line:
        assert not is_served(line)
    made.hang_up()
    assert made.close()
    assert isinstance(made.crash, ZeroDivisionError)


def test_a_line_may_stay_without_a_thread(tmp_path: Path) -> None:
    """A kept connection works without a thread until the server closes."""
    kept: list[ProgramConnection] = []

    def keep(line: ProgramConnection) -> bool:
        line.send(line.receive().kind)
        kept.append(line)
        return True

    made = SocketServer(tmp_path, keep, 8)
    with knock(made) as line:
        assert is_served(line)
        made.settle()
        kept[0].send(7)
        assert line.recv(32)[4] == 7
        made.hang_up()
        assert line.recv(1) == b""
        assert made.close()
    with pytest.raises(Hangup):
        kept[0].send(7)


CONNECTS = """
import socket, sys
socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[1])).connect(sys.argv[2])
"""


@contextmanager
def abandoned(path: Path) -> Iterator[tuple[socket.socket, int]]:
    """Return a connection whose process has ended, and the pid of that process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        words = (sys.executable, "-c", CONNECTS, str(line.fileno()), str(path))
        child = subprocess.Popen(words, pass_fds=[line.fileno()])
        assert child.wait() == 0
        line.settimeout(_WAIT_S)
        yield line, child.pid


def can_be_asked() -> bool:
    """True if this Linux can identify the peer by a pidfd and not only by its pid."""
    line, other = socket.socketpair()
    with line, other, suppress(OSError):
        os.close(line.getsockopt(socket.SOL_SOCKET, socket_server._PEER_PIDFD))
        return True
    return False


needs_peers = pytest.mark.skipif(not can_be_asked(), reason="Linux before 6.5")


@needs_peers
def test_a_line_whose_process_has_ended_is_of_nobody(tmp_path: Path) -> None:
    """A connection whose process has ended is refused, because its pid may be reused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as here:
        here.bind(str(tmp_path / "socket"))
        here.listen(2)
        with abandoned(tmp_path / "socket") as (_, pid):
            line = ProgramConnection(here.accept()[0], 8)
            assert line.peer() == pid
            with pytest.raises(Hangup):
                line.confirm()
            line.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
            mine.connect(str(tmp_path / "socket"))
            line = ProgramConnection(here.accept()[0], 8)
            line.confirm()  # this process is alive
            line.close()


@needs_peers
@pytest.mark.parametrize("words", [10, 6], ids=["check-client", "watch"])
def test_another_process_with_that_number_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    """A connection whose pid belongs to another process by now gets no answer."""
    monkeypatch.setattr(ProgramConnection, "peer", lambda _: os.getpid())  # as if reused
    symbols = Symbols(str(tmp_path))
    recorder = TraceRecorder(tmp_path / "events", symbols)
    server: ClientServer | WatchServer = (
        ClientServer(ClientSession(profile(), symbols, lambda _: None), tmp_path)
        if words == 10
        else WatchServer(tmp_path, recorder, ())
    )
    numbers = struct.pack(f"<{words}Q", 2, *[0] * (words - 1))
    with abandoned(server.sockets.path) as (line, _):
        line.sendall(struct.pack("<IHH", 8 + len(numbers), 1, 0) + numbers)
        if words == 10:
            with suppress(OSError):
                line.sendall(struct.pack("<IHH2Q", 24, 2, 0, 0, 1))  # a call
        with suppress(ConnectionResetError):
            assert line.recv(32) == b""
    server.close()
    assert list(recorder.lines()) == []
