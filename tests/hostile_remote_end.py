"""A fake remote end that sends given bytes, and generators of such bytes."""

from __future__ import annotations

import base64
import copy
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

from packed import packed

from qnnmem.htp.remote.messages import PROTOCOL
from qnnmem.version import __version__

Frame = tuple[dict[str, Any], bytes]

# Sends the greeting, then the bytes of one turn after each frame that it reads.
_PROGRAM = """
import base64, struct, sys
out, into = sys.stdout.buffer, sys.stdin.buffer
turns = [base64.b64decode(one) for one in sys.argv[1:]]
def read():
    head = into.read(16)
    if len(head) < 16:
        sys.exit(0)
    text, payload = struct.unpack("<QQ", head)
    return into.read(text), into.read(payload)
out.write(b"\\nqnnmem-htp-worker\\n" + turns[0])
out.flush()
into.readline(), into.readline(), read()
for turn in turns[1:]:
    while b"Beat" in read()[0]:
        pass
    out.write(turn)
    out.flush()
while into.read(1 << 16):
    pass
"""
HELLO: dict[str, Any] = {
    "hello": PROTOCOL,
    "qnnmem": __version__,
    "library": ["2.7.0", "1", "/far"],
    "time_limit_s": 60,
    "memory_limit": 1 << 32,
}
MISSING: dict[str, Any] = {"type": "Missing", "files": []}
REPLY: dict[str, Any] = {
    "type": "CompileReply",
    "binaries": [b"model_qnn.bin"],
    "epcontext": b"model.onnx",
    "on_htp": 1,
    "on_cpu": [["a", "Relu"]],
    "seconds": 0.1,
}
OUTCOME: dict[str, Any] = {
    "type": "RemoteOutcome",
    "outcome": {
        "kind": "done",
        "reply": REPLY,
        "sentence": "",
        "code": None,
        "stage": "",
        "log": [{"text": "a line", "level": "I"}],
        "tail": ["a line"],
        "exit_status": 0,
        "signal": None,
        "peak_rss": 1,
        "seconds": 0.5,
        "cpu_seconds": None,
        "log_bytes": 7,
    },
    "out": "/r/out",
    "root": "/r",
}
# Values that no honest remote end sends in any field.
NASTY: tuple[Any, ...] = (
    *(None, True, -1, 1 << 70, 1e308, float("nan"), float("inf"), "", "x", [], {}, [[]], [None]),
    *(
        "/etc/passwd",
        "../../canary",
        "/proc/self/fd/0",
        "a\x1b[2Jb",
        "\u202e",
        "\ud800",
        "9" * 5000,
    ),
    *(b"", b"/etc/passwd", b"../../canary", b"model.onnx", b"model_qnn.bin", b"a\0b", b"\xff"),
    *([b"model.onnx", b"model.onnx"], [b"/etc/passwd"], {"type": "Done"}, {"type": "CallsReply"}),
)


def conversation(binary: bytes) -> list[list[Frame]]:
    """Return the turns of an honest remote end in one compile."""
    file = {"type": "ResultFile", "size": len(binary), "name": "model_qnn.bin"}
    model = {"type": "ResultFile", "size": 4, "name": "model.onnx"}
    part = {"type": "FilePart"}
    tick = {"type": "RemoteProgress", "peak_rss": 4096}
    answer: list[Frame] = [(tick, b""), (file, b""), (part, binary), (model, b""), (part, b"onnx")]
    turns: list[list[Frame]] = [[(HELLO, b"")], [(MISSING, b"")], [*answer, (OUTCOME, b"")]]
    return copy.deepcopy(turns)


def encoded(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    header, payload = frame
    # The hello is JSON in every version.
    is_hello = "hello" in header or "qnnmem" in header
    text = json.dumps(header, default=repr).encode() if is_hello else packed(header)
    return struct.pack("<QQ", len(text), len(payload)) + text + payload


def command(turns: list[bytes]) -> tuple[str, ...]:
    """Return the command of a remote end that sends these bytes."""
    words = [base64.b64encode(turn).decode() for turn in turns]
    return (sys.executable, "-I", "-S", "-c", _PROGRAM, *words)


def spoken(turns: list[list[Frame]]) -> list[bytes]:
    """Return the bytes of each turn."""
    return [b"".join(map(encoded, turn)) for turn in turns]


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a header."""
    found = [before] if before else []
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        found += places(value[key], (*before, key))
    return found


def put(header: dict[str, Any], place: tuple[Any, ...], value: Any, *, gone: bool = False) -> None:
    """Set the value at a path of a header, or delete it."""
    inner: Any = header
    for key in place[:-1]:
        inner = inner[key]
    if gone:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value


def mutated(binary: bytes, seed: int) -> list[bytes]:
    """Return a conversation with a random fault."""
    chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
    turns = conversation(binary)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        turn = chance.choice((0, 1, 2, 2, 2, 2))
        at = chance.randrange(len(turns[turn]))
        header, payload = turns[turn][at]
        way = chance.randrange(8)
        if way < 4 and header:
            place = chance.choice(places(header))
            put(header, place, copy.deepcopy(chance.choice(NASTY)), gone=way == 3)
        elif way == 4:
            turns[turn].insert(at, copy.deepcopy(chance.choice(turns[2])))
        elif way == 5 and len(turns[turn]) > 1:
            del turns[turn][at]
        elif way == 6:
            turns[turn][at] = (header, payload[: len(payload) // 2] + chance.randbytes(3))
        else:
            chance.shuffle(turns[turn])
    said = spoken(turns)
    if chance.random() < 0.2:
        turn = chance.randrange(3)
        raw = bytearray(said[turn] or b"x")
        for _ in range(chance.choice((1, 4, 16))):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        said[turn] = bytes(raw[: chance.randrange(1, len(raw) + 1)])
    return said


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
