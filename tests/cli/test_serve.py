"""`qnnmem serve`: refusals before it listens, and a clean end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from command_line import exit_code, sentence, verb

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
run = verb("serve", "--no-browser")


def test_beyond_this_machine_it_needs_a_token(tmp_path: Path) -> None:
    """A public address needs a token of at least 16 characters."""
    done = run("--host", "0.0.0.0", "--data", tmp_path)  # noqa: S104 - refused below
    assert exit_code(done) == 2
    assert "add --token" in sentence(done)
    short = run("--host", "0.0.0.0", "--token", "short", "--data", tmp_path)  # noqa: S104
    assert exit_code(short) == 2
    assert "at least 16" in sentence(short)


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    """A port in use gives exit code 2 and one sentence, without creating the data folder."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        done = run("--port", port, "--data", tmp_path / "bench")
    assert exit_code(done) == 2
    assert sentence(done) == f"port {port} is in use; choose another, or 0 for any"
    assert not (tmp_path / "bench").exists()


def test_an_address_that_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    """An unavailable address and an invalid address give exit code 2."""
    token = ("--token", "x" * 16, "--data", tmp_path)
    assert exit_code(run("--host", "203.0.113.1", *token)) == 2
    assert exit_code(run("--host", "no such host", *token)) == 2


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Missing packages give exit code 3 and an install command."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run()
    assert exit_code(done) == 3
    assert sentence(done).startswith("the workbench needs starlette and uvicorn; install with: ")
    assert "[serve]" in sentence(done)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """SIGINT and SIGTERM end the server with exit code 0, even while a page listens."""
    words = ["serve", "--port", "0", "--no-browser", "--data", str(tmp_path)]
    server = subprocess.Popen(
        [sys.executable, "-m", "qnnmem", *words], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    first = server.stderr.readline()
    found = re.fullmatch(r"Workbench at http://127\.0\.0\.1:([0-9]+)/; Ctrl-C ends it\n", first)
    assert found, first
    with socket.create_connection(("127.0.0.1", int(found[1]))) as line:
        line.sendall(f"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1:{found[1]}\r\n\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 200")
        server.send_signal(number)
        said = server.stderr.read()
        assert server.wait(300) == 0
    assert said == "Ended\n"
    server.stderr.close()
