"""The server: one socket, bounded connections, and a clean shutdown."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from qnnmem.errors import UsageError
from qnnmem.workbench.app import Workbench
from qnnmem.workbench.bench import Bench
from qnnmem.workbench.guard import Access
from qnnmem.workbench.limits import HEADER_S, MAX_CONNECTIONS, MAX_HEADERS

if TYPE_CHECKING:
    from types import FrameType

_PIECE = 1024  # bytes of a request head
_LAST_S = 2  # seconds for pending answers at shutdown
_TOO_MANY = b'{"error":"too many connections"}'
_TOO_SLOW = b'{"error":"the request came too slowly"}'


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 protocol with limits on connections and on the time for request headers."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it above the limit."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse("429 Too Many Requests", _TOO_MANY)
        else:
            self._arm()

    def data_received(self, data: bytes) -> None:
        """Read data; stop the header timer once the headers have arrived."""
        before, start = self.cycle, 0
        while start < len(data) and not self.transport.is_closing():
            # h11 limits only incomplete heads, so pass the data on in small pieces.
            size = _PIECE if self.conn.their_state is h11.IDLE else len(data)
            super().data_received(data[start : start + size])
            start += size
        if self.cycle is not before:
            self._disarm()

    def on_response_complete(self) -> None:
        """Start the header timer for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the header timer."""
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(
            HEADER_S, self._refuse, "408 Request Timeout", _TOO_SLOW
        )

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: str, body: bytes) -> None:
        if self.transport.is_closing():
            return
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


class WorkbenchServer(uvicorn.Server):
    """Server that stops on a signal, after it has closed the event streams of pages."""

    def __init__(self, config: uvicorn.Config, workbench: Workbench) -> None:
        super().__init__(config)
        self._workbench = workbench

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down; further signals have no effect, because jobs must end first."""
        self.should_exit = True
        self._workbench.closing.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs, then restore the handlers."""
        wanted = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise UsageError if the address cannot be used."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"there is no address {host[:80]!r} on this machine") from exc
    try:
        if os.name == "posix":  # on other systems it would share the port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as exc:
        listening.close()
        if exc.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use; choose another, or 0 for any") from exc
        reason = (exc.strerror or str(exc)).lower()
        raise UsageError(f"cannot listen on {host}:{port} ({reason})") from exc
    return listening


def server_for(bench: Bench, access: Access) -> WorkbenchServer:
    """Return a server that has not started yet."""
    workbench = Workbench(bench, access)
    config = uvicorn.Config(
        workbench.app(),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_LAST_S,
        h11_max_incomplete_event_size=MAX_HEADERS,
    )
    return WorkbenchServer(config, workbench)


def run(server: WorkbenchServer, listening: socket.socket, started: Callable[[], None]) -> None:
    """Serve until a signal arrives; call `started` once requests are accepted."""

    async def answer() -> None:
        # Print nothing: a broken connection concerns only its client, and a shortage of descriptors
        # passes.
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        running = asyncio.ensure_future(server.serve([listening]))
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        if server.started:
            started()
        await running

    # Make the loop first: Python warns about a coroutine that no loop awaits.
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        runner.run(answer())


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop; if that fails, raise the OSError without further output.

    A partly initialised loop would print a warning about missing sockets when it is
    garbage-collected.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _complaint: None
    try:
        return asyncio.new_event_loop()
    except OSError as exc:
        reason = exc.errno, exc.strerror
    finally:  # `exc` held the loop; both are gone now
        sys.unraisablehook = before
    raise OSError(*reason)
