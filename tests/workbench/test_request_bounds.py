"""Oversized requests: a status below 500, a sentence, and nothing on stderr."""

from __future__ import annotations

import gc
import socket
import time
from pathlib import Path

import pytest
from served import Served, serving

from qnnmem.workbench.limits import MAX_HEADERS


@pytest.mark.parametrize("digits", [19, 5000, 10_000])
@pytest.mark.parametrize("tail", ["", "/shown", "/report", "/made/0"])
def test_long_numbers_are_no_address(served: Served, digits: int, tail: str) -> None:
    """A result number over 18 digits gives 404."""
    answer = served.get(f"/api/results/{'1' * digits}{tail}")
    assert (answer.status, answer.said) == (404, "nothing was found at this address")
    assert served.get(f"/api/results/1/made/{'1' * digits}").status == 404
    assert served.ask("DELETE", f"/api/results/{'9' * digits}").status == 404


def test_the_longest_number_is_a_result_that_is_gone(served: Served) -> None:
    """A number of 18 digits is looked up and reported as removed."""
    answer = served.get(f"/api/results/{'9' * 18}")
    assert (answer.status, answer.said) == (404, "this result was removed")


@pytest.mark.parametrize("part", ["line", "header", "headers"])
def test_the_head_of_a_request_is_bounded(served: Served, part: str) -> None:
    """A request head over the limit is refused, at once or in pieces."""
    host = f"Host: 127.0.0.1:{served.port}\r\n"

    def head(size: int) -> bytes:
        fill = "a" * size
        text = {
            "line": f"GET /static/{fill} HTTP/1.1\r\n{host}",
            "header": f"GET /api/state HTTP/1.1\r\n{host}X-Fill: {fill}\r\n",
            "headers": f"GET /api/state HTTP/1.1\r\n{host}" + "X: y\r\n" * (size // 6),
        }[part]
        return f"{text}Connection: close\r\n\r\n".encode()

    for size in (MAX_HEADERS + 2048, 100_000):
        assert b" 400 " in served.raw(head(size)).partition(b"\r\n")[0] + b" "
    assert b" 400 " not in served.raw(head(MAX_HEADERS - 1024)).partition(b"\r\n")[0]


def test_a_body_after_its_head_is_whole(served: Served) -> None:
    """A body that arrives with its head is complete and not limited like a head."""
    rows = "".join(f"b{number},0,2,64\n" for number in range(5000))
    body = f"id,lower,upper,size\n{rows}".encode()
    text = (
        f"POST /api/files?name=a.csv HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    answer = served.raw(text.encode() + body)
    assert b" 201 " in answer.partition(b"\r\n")[0]
    [file] = served.get("/api/state").values["files"]
    assert file["size"] == len(body)


def test_a_listener_that_goes_away_leaves_no_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that disconnects leaves no task and no log message."""
    with serving(tmp_path) as served:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", served.port), timeout=300) as line:
                host = f"Host: 127.0.0.1:{served.port}\r\n"
                line.sendall(f"GET /api/events HTTP/1.1\r\n{host}\r\n".encode())
                assert b" 200 " in line.recv(4096)
                time.sleep(0.3)  # until the server waits
        time.sleep(2)
        gc.collect()
    gc.collect()
    assert caplog.messages == []
