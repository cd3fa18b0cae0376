"""A real workbench server in a thread, reached over real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qnnmem.workbench.bench import Bench
from qnnmem.workbench.guard import Access
from qnnmem.workbench.server import bound_socket, run, server_for

_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Answered:
    """The response to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def values(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def said(self) -> str:
        """Return the error message of a refusal."""
        sentence = self.values["error"]
        assert isinstance(sentence, str)
        assert "\n" not in sentence
        return sentence


@dataclass(frozen=True)
class Served:
    """A running workbench."""

    bench: Bench
    port: int

    @property
    def address(self) -> str:
        """Return the address for a browser."""
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Send one request and return the response."""
        line = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            line.request(method, path, body, dict(headers or {}))
            came = line.getresponse()
            names = {name.lower(): value for name, value in came.getheaders()}
            return Answered(came.status, names, came.read())
        finally:
            line.close()

    def raw(self, text: bytes) -> bytes:
        """Send raw bytes and return everything until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=300) as line:
            line.sendall(text)
            came = bytearray()
            while piece := line.recv(65536):
                came += piece
            return bytes(came)

    def get(self, path: str, **headers: str) -> Answered:
        """Send a GET request."""
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, values: object) -> Answered:
        """Send a POST request with JSON."""
        return self.ask(
            "POST", path, json.dumps(values).encode(), {"content-type": "application/json"}
        )

    def drop(self, name: str, content: bytes) -> Answered:
        """Upload a file as the page does."""
        headers = {"content-type": "application/octet-stream"}
        return self.ask("POST", f"/api/files?name={quote(name, safe='')}", content, headers)

    def ended(self, job: str) -> dict[str, Any]:
        """Return a job after it has ended."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            found: dict[str, Any] = self.get(f"/api/jobs/{job}").values
            if found["state"] not in ("queued", "running"):
                return found
            time.sleep(0.02)
        raise AssertionError("the job did not end")

    def read(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file and return its first job after it has ended."""
        came = self.drop(name, content)
        assert came.status == 201, came.body
        return self.ended(came.values["job"]["id"])


@contextmanager
def serving(folder: Path, token: str = "", *, is_local: bool = True) -> Iterator[Served]:
    """Yield a workbench in a folder; it ends with the block."""
    listening = bound_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    bench = Bench(folder, keeps_spare=False)
    server = server_for(bench, Access(port, is_local, token))
    is_up = threading.Event()
    thread = threading.Thread(target=run, args=(server, listening, is_up.set), daemon=True)
    thread.start()
    assert is_up.wait(300)
    try:
        yield Served(bench, port)
    finally:
        server.handle_exit(2, None)
        thread.join(300)
        bench.close()
        listening.close()
