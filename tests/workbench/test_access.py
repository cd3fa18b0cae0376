"""Access to the workbench, and the security headers of every answer."""

from __future__ import annotations

import os
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
from served import Served, serving

from qnnmem.workbench import guard
from qnnmem.workbench.guard import BURST, Access, peer_user

TOKEN = "open-sesame-0123456789"  # noqa: S105 - only of test servers


def test_the_page_brings_its_own_code_and_nothing_else(served: Served) -> None:
    """The page's policy allows only its own code; answers are not cached."""
    answer = served.get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.status == 200
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert b"<script>" not in answer.body
    assert b"style=" not in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "", "a b"]
)
def test_a_name_that_is_not_ours_is_refused(served: Served, host: str) -> None:
    """A foreign Host header is refused, as in DNS rebinding."""
    answer = served.get("/api/state", host=host.format(port=served.port))
    assert answer.status in (400, 421)
    if answer.status == 421:
        assert "address" in answer.said


def test_two_host_headers_are_refused(served: Served) -> None:
    """Two Host headers are refused."""
    host = f"host: 127.0.0.1:{served.port}\r\n"
    came = served.raw(f"GET / HTTP/1.1\r\n{host}{host}connection: close\r\n\r\n".encode())
    assert came.split(b" ", 2)[1] in (b"400", b"421")


@pytest.mark.parametrize(
    "header",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/state", "/static/app.js"])
def test_a_page_elsewhere_gets_nothing(served: Served, header: dict[str, str], path: str) -> None:
    """A request from another origin is refused, even for public files."""
    answer = served.ask("GET", path, headers=header)
    assert answer.status == 403
    assert answer.said


def test_the_page_itself_may_ask(served: Served) -> None:
    """A same-origin request with browser headers is accepted."""
    own = {"origin": f"http://127.0.0.1:{served.port}", "sec-fetch-site": "same-origin"}
    assert served.ask("GET", "/api/state", headers=own).status == 200


def test_a_form_elsewhere_could_not_ask_either(served: Served) -> None:
    """Content types that foreign forms can send are refused with 415."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        for path in ("/api/jobs", "/api/files"):
            assert served.ask("POST", path, b"{}", {"content-type": kind}).status == 415


def test_only_files_of_the_page_are_served(served: Served) -> None:
    """Only listed files are served; other paths get 404."""
    for path in ("/static/../guard.py", "/static/..%2fguard.py", "/static/", "/history.sqlite"):
        answer = served.get(path)
        assert answer.status == 404
        assert answer.said == "nothing was found at this address"


def test_an_unknown_method_is_one_sentence(served: Served) -> None:
    """An unsupported method is refused with one sentence."""
    assert served.ask("PUT", "/api/state").said == "this address does not allow the method"


def test_without_the_token_there_is_only_the_question_for_it(tmp_path: Path) -> None:
    """Without a valid token or cookie, every address but the login form answers 401."""
    with serving(tmp_path, TOKEN, is_local=False) as guarded:
        assert guarded.get("/api/state").status == 401
        page = guarded.get("/")
        assert page.status == 401
        assert b"Token" in page.body
        assert guarded.get("/api/state", authorization=f"Bearer {TOKEN}").status == 200
        assert guarded.get("/api/state", authorization=f"Bearer {TOKEN}x").status == 401
        assert guarded.post("/login", {"token": "wrong"}).status == 401
        let_in = guarded.post("/login", {"token": TOKEN})
        cookie = let_in.headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        value = cookie.partition(";")[0]
        assert guarded.get("/api/state", cookie=value).status == 200
        assert guarded.get("/api/state", cookie=f"{value}x").status == 401
        assert guarded.get("/api/state", cookie='="\\').status == 401


def test_guesses_are_limited_and_whoever_is_in_stays_in(tmp_path: Path) -> None:
    """Wrong tokens are throttled by address for header and form; a valid cookie still works."""
    with serving(tmp_path, TOKEN, is_local=False) as guarded:
        cookie = guarded.post("/login", {"token": TOKEN}).headers["set-cookie"].partition(";")[0]
        tries = [f"{TOKEN[:-2]}{number:02}" for number in range(BURST // 2)]
        for one in tries:
            assert guarded.get("/api/state", authorization=f"Bearer {one}").status == 401
            assert guarded.post("/login", {"token": one}).status == 401
        stopped = guarded.get("/api/state", authorization=f"Bearer {TOKEN}")
        assert stopped.status == 429
        assert stopped.said == "this address sent too many wrong tokens; wait a minute"
        assert guarded.post("/login", {"token": TOKEN}).status == 429
        assert guarded.get("/api/state", cookie=cookie).status == 200
        assert guarded.get("/").status == 401  # the login form is still served


def test_guesses_are_counted_for_each_address_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong tokens are counted per IPv4 address and per IPv6 network, and expire."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = guard.LoginThrottle()
    for number in range(BURST):
        assert found.allows("192.168.1.7")
        found.record_failure("192.168.1.7")
        found.record_failure(f"2001:db8::{number:x}")
    assert not found.allows("192.168.1.7")
    assert not found.allows("::ffff:192.168.1.7")
    assert not found.allows("2001:db8::ffff")
    assert found.allows("192.168.1.8")
    assert found.allows("2001:db8:0:1::1")
    now[0] += guard.REFILL_S
    assert found.allows("192.168.1.7")
    found.record_failure("192.168.1.7")
    assert not found.allows("192.168.1.7")
    now[0] += guard.REFILL_S * BURST
    for _ in range(BURST):
        assert found.allows("192.168.1.7")
        found.record_failure("192.168.1.7")


def test_beyond_this_machine_addresses_count_and_strange_names_do_not() -> None:
    """Beyond this machine, IP addresses are accepted as Host, but foreign names are not."""
    access = Access(80, is_local=False, token=TOKEN)
    assert access.takes_host("192.168.1.7:8765")
    assert access.takes_host("[fe80::1]:8765")
    assert not access.takes_host("evil.example:8765")
    assert not Access(8765).takes_host("192.168.1.7:8765")


def test_all_addresses_of_the_machine_itself_count_as_one() -> None:
    """All loopback addresses count as one."""
    found = guard.LoginThrottle()
    for number in range(BURST):
        found.record_failure(f"127.0.{number}.7")
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert not found.allows(address)
    assert found.allows("192.168.1.7")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whose it is")
def test_guesses_of_another_user_do_not_keep_out_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong tokens of another local user do not lock out the owner."""
    whose = peer_user
    users = set()

    def pretended(peer: tuple[str, int], port: int) -> int | None:
        users.add(whose(peer, port))
        return 4_000_000 if peer[0] != "127.0.0.1" else whose(peer, port)

    monkeypatch.setattr(guard, "peer_user", pretended)
    with serving(tmp_path, TOKEN) as guarded:
        status = []
        for number in range(2, BURST + 4):
            line = HTTPConnection(
                "127.0.0.1", guarded.port, 30, source_address=(f"127.0.1.{number}", 0)
            )
            line.request("GET", "/api/state", headers={"authorization": "Bearer wrong"})
            status.append(line.getresponse().status)
            line.close()
        assert status == [401] * BURST + [429] * 2
        assert guarded.get("/api/state", authorization=f"Bearer {TOKEN}").status == 200
    assert users == {os.geteuid()}


def test_a_connection_that_is_not_there_is_nobodys() -> None:
    """An unknown connection or address belongs to no user."""
    assert peer_user(("127.0.0.1", 1), 1) is None
    assert peer_user(("::1", 1), 1) is None
    assert peer_user(("no address", 1), 1) is None
