"""Sends hostile uploads to a running workbench; every answer must be one sentence."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote

_PATIENCE_S = 180.0
_NAMES = (
    *("../../etc/passwd", "..\\..\\windows\\system32\\x.onnx", "/etc/cron.d/x", "C:\\x.onnx", ""),
    *("a\x00b.onnx", "con", ".", "..", "x" * 5000, "<script>alert(1)</script>.log", "a\r\nb: c"),
    *("%2e%2e%2fx", "-rf", "--help", "\u202egol.exe", "`id`.log", "$(id).csv", "files/../x"),
)
_WRONG = (
    *(
        b"\x89PNG\r\n\x1a\n" + bytes(64),
        b"\x7fELF" + bytes(64),
        b"%PDF-1.7\n",
        b"",
        b"GGUF" + bytes(9),
    ),
    *(b"<!doctype html><p>hello", b"PK\x03\x04" + bytes(40), b"\x93NUMPY" + bytes(20)),
    *(b"\xff\xd8\xff" + bytes(9), b"MZ" + bytes(70) + b"PE\0\0", b"version https://git-lfs.x\n"),
)
# Magic bytes, so that a reader accepts the file at first.
_MAGIC = (
    *(
        b"\x08\x07\x12\x04abcd",
        b"\x1c\0\0\0TFL3",
        b"\0\0\0\2\0\0\0\x03",
        b"\x89QMEM",
        b"\x1f\x8b\x08",
    ),
    *(b"id,lower,upper,size\n", b'{"schema": "qnnmem.plan/1", ', b'{"lpai_backend": ', b"BZh9"),
    *(
        b'{"format": "eAI", "graphs": [',
        b"\xfd7zXZ\x00",
        b"\x28\xb5\x2f\xfd",
        b'{"schema":"qnnmem.',
    ),
)


@dataclass(frozen=True)
class HostileCase:
    """A request as sent over the connection."""

    kind: str
    head: bytes
    body: bytes
    pause_s: float = 0.0  # between bytes
    may_work: bool = False  # only the name is hostile
    ends_early: bool = False


def cases(count: int, seed: int) -> list[HostileCase]:
    """Return this many cases, of all kinds in turn; the same seed gives the same cases."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    makers = (_wrong, _named, _bomb, _declared, _slow, _multipart, _cut, _believed, _http, _deep)
    return [makers[at % len(makers)](dice) for at in range(count)]


def _request(
    name: str,
    body: bytes,
    *,
    kind: str = "application/octet-stream",
    more: str = "",
    length: str = "",
) -> bytes:
    head = f"POST /api/files?name={quote(name, safe='', errors='replace')} HTTP/1.1\r\n"
    head += f"Host: 127.0.0.1:PORT\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}"
    return f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode()


def _case(kind: str, name: str, body: bytes, **traits: bool) -> HostileCase:
    return HostileCase(kind, _request(name, body), body, **traits)


def _wrong(dice: random.Random) -> HostileCase:
    return _case("wrong type", "model.onnx", dice.choice(_WRONG))


def _named(dice: random.Random) -> HostileCase:
    body = f"id,lower,upper,size\na,0,2,{dice.randint(1, 10**6)}\n".encode()
    return _case("path-like name", dice.choice(_NAMES), body, may_work=True)


@cache
def _bombs() -> tuple[bytes, ...]:
    line = b"QNN error 1002 <E> out of memory\n" * 4096
    return (
        gzip.compress(bytes(256 << 20), 6),
        gzip.compress(line * 8, 6),
        gzip.compress(gzip.compress(bytes(100 << 20), 6), 6),
        lzma.compress(bytes(64 << 20), preset=0),
    )


def _bomb(dice: random.Random) -> HostileCase:
    return _case("packed bomb", "log.gz", dice.choice(_bombs()), may_work=True)


def _declared(dice: random.Random) -> HostileCase:
    length = dice.choice((str((2 << 30) + 1), str(1 << 40), "9" * 30, "-1", "abc", "1e9"))
    head = _request("model.onnx", b"", length=length)
    return HostileCase("declared size", head, bytes(dice.choice((0, 1000, 300_000))))


def _slow(dice: random.Random) -> HostileCase:
    body = b"id,lower,upper,size\n"
    head = _request("slow.csv", body, length=str(dice.choice((100, 5000))))
    return HostileCase("slow body", head, body, pause_s=0.05)


def _multipart(dice: random.Random) -> HostileCase:
    edge = dice.choice(("x", "", '"', "a" * 300))
    body = (
        f'--{edge}\r\nContent-Disposition: form-data; name="f"; filename="../x"\r\n\r\nabc'.encode()
    )
    kind = f"multipart/form-data; boundary={edge}"
    return HostileCase("broken multipart", _request("x", body, kind=kind), body)


def _cut(dice: random.Random) -> HostileCase:
    body = dice.randbytes(dice.randint(1, 50_000))
    head = _request("cut.onnx", body, length=str(len(body) + dice.randint(1, 10**6)))
    return HostileCase("cut body", head, body, ends_early=True)


def _believed(dice: random.Random) -> HostileCase:
    body = dice.choice(_MAGIC) + dice.randbytes(dice.randint(0, 20_000))
    return _case("broken content", dice.choice(("a.onnx", "b.bin", "c.log")), body, may_work=True)


def _http(dice: random.Random) -> HostileCase:
    host = b"Host: 127.0.0.1:PORT\r\n"
    chunked = b"Transfer-Encoding: chunked\r\nContent-Type: application/octet-stream\r\n"
    heads = (
        b"POST /api/files HTTP/1.1\r\n" + host + chunked + b"\r\nZZ\r\nabc\r\n0\r\n\r\n",
        b"POST /api/files HTTP/1.1\r\n" + host + chunked + b"Content-Length: 5\r\n\r\nhello",
        b"POST /api/files HTTP/1.1\r\n" + host + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
        b"POST /api/files HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /api/files HTTP/1.1\r\n" + host + b"Origin: https://evil.example\r\n\r\n",
        b"POST /api/files HTTP/1.1\r\n" + host + b"Content-Encoding: gzip\r\n"
        b"Content-Type: application/octet-stream\r\nContent-Length: 3\r\n\r\nabc",
        b"\x16\x03\x01\x02\x00\x01\x00" + bytes(50),
        b"GET /api/results/99999999999999999999/shown HTTP/1.1\r\n" + host + b"\r\n",
    )
    return HostileCase("broken HTTP", dice.choice(heads), b"", ends_early=True)


def _deep(dice: random.Random) -> HostileCase:
    depth = dice.choice((10_000, 200_000))
    start = dice.choice((b'{"schema": "qnnmem.plan/1", "x": ', b'{"lpai_graph": ', b'{"graphs": ['))
    return _case("deep JSON", "x.json", start + b"[" * depth, may_work=True)


@dataclass(frozen=True)
class HostileAnswer:
    """The outcome of a case."""

    kind: str
    status: int
    said: str
    fault: str = ""


def send(case: HostileCase, port: int) -> HostileAnswer:
    """Send a case and wait for its job, if it starts one."""
    came = _sent(case, port)
    status, said = _read(came)
    if status == 201 and '"job"' in said:
        job = json.loads(said)["job"]["id"]
        status, said = _awaited(job, port)
    fault = ""
    if case.ends_early and status == 0:
        status, said = 400, "the connection ended"  # the case itself cut the connection
    elif not (400 <= status < 500 or (case.may_work and status in (200, 201))):
        fault = f"{case.kind}: {status} {said[:200]}"
    elif status >= 400 and not _is_sentence(said):
        fault = f"{case.kind}: {status} is no sentence: {said[:200]}"
    return HostileAnswer(case.kind, status, said, fault)


def _sent(case: HostileCase, port: int) -> bytes:
    came = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as line:
        try:
            line.sendall(case.head.replace(b"PORT", str(port).encode()))
            pieces = [case.body] if not case.pause_s else [bytes([one]) for one in case.body]
            for piece in pieces:
                line.sendall(piece)
                time.sleep(case.pause_s)
            if case.ends_early:
                line.shutdown(socket.SHUT_WR)
            while piece := line.recv(65536):
                came += piece
        except (ConnectionError, TimeoutError):
            pass  # an answer before the disconnect counts
    return bytes(came)


def _read(came: bytes) -> tuple[int, str]:
    head, _, body = came.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.[01] ([0-9]{3})", head)
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(body.split(b"\r\n")[1::2])  # a size precedes each chunk
    return int(found[1]) if found else 0, body.decode("utf-8", "replace")


def _awaited(job: str, port: int) -> tuple[int, str]:
    text = f"GET /api/jobs/{job} HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n"
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        status, said = _read(_sent(HostileCase("job", text.encode(), b""), port))
        if status != 200 or json.loads(said)["state"] not in ("queued", "running"):
            return status, said
        time.sleep(0.1)
    return 0, "the job did not end"


def _is_sentence(said: str) -> bool:
    with suppress(ValueError, KeyError, TypeError):  # invalid HTTP gets a plain-text answer
        said = json.loads(said)["error"]
    return bool(said) and "\n" not in said and "Traceback" not in said and "/tmp" not in said  # noqa: S108
