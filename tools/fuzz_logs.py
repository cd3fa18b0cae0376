"""Hostile logs and notes, made from the lines that `qnnmem doctor` looks for."""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import lzma
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from damage import ANY, NUMBERS, TEXTS, Damage, change_value, truncate

_HEADS = (
    *("", "", "", "[    3.141] ", "05-11 12:00:00.123  1234  1234 E QnnDsp : ", "<E> ", "<W> "),
    "2026-11-15 18:29:35.182051082 [E:onnxruntime:, qnn_backend_manager.cc:519 QnnLogging]  <E> ",
    "01-01 00:00:00.000 99999999999 -1 E \x1b[31m: ",
)
_ODD = tuple(text for text in TEXTS if text != "\ud800")
_LINKS = (
    "[a](https://x.y)",
    "{0}",
    "{{",
    "<img src=x>",
    "`",
    "|",
    "%s%n",
    "\u202e",
    "\x1b]0;x\x07",
)


@functools.cache
def templates() -> tuple[str, ...]:
    """Return the text of every line template of the built-in knowledge base."""
    from qnnmem.doctor.kb.knowledge import read_all

    lines, entries = read_all(())
    return tuple(line.text for line in (*lines, *(row for one in entries for row in one.lines)))


def _value(rng: random.Random, hole: str) -> str:
    kind = hole.partition(":")[2]
    if rng.random() < 0.15:
        return rng.choice((*_ODD, *_LINKS, "9" * 400, "x" * 5000, " " * 300))
    if kind in ("int", "code", "bytes", "KB", "MB", "GB"):
        return rng.choice(("1002", "0x3ea", "-12", "1,234,567", "13.5", *map(str, NUMBERS)))
    return rng.choice(("graph", "a b c", "QnnGraph_execute", "", *_LINKS))


def line(rng: random.Random) -> str:
    """Return a line that a template matches, or nearly matches."""
    text = rng.choice(templates())
    text = re.sub(r"\(([^()]*)\)", lambda found: rng.choice(found[1].split("|")), text)
    text = re.sub(r"\{([^{}]*)\}", lambda found: _value(rng, found[1]), text)
    if rng.random() < 0.1:
        text = text[: rng.randrange(len(text) + 1)]
    return rng.choice(_HEADS) + text


def add_lines(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Insert lines made from templates into a log."""
    rows = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 3, 10, 60))):
        rows.insert(rng.randrange(len(rows) + 1), line(rng).encode("utf-8", "replace"))
    return rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r")).join(rows)


def repeat_line(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Repeat a line or its fixed start, with or without line ends between."""
    text = rng.choice(templates())
    pieces = [piece for piece in re.split(r"[{}()]", text) if len(piece) > 3]
    part = rng.choice((*pieces, line(rng), text)) + rng.choice(("", "", " ", "\n", "\n", "x", "9"))
    size = rng.choice((1 << 10, 8 << 10, 64 << 10))
    return data + (part * (size // len(part.encode()) + 1)).encode("utf-8", "replace")


def mix_lines(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Shuffle, repeat and cut the lines of two logs."""
    rows = [*data.split(b"\n"), *rng.choice(others).split(b"\n")]
    rng.shuffle(rows)
    return b"\n".join(rows[: rng.randrange(len(rows) + 1)] * rng.choice((1, 1, 2, 30)))


def odd_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Insert control characters, markup and partial characters."""
    out = data
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(out) + 1)
        odd = rng.choice((*_ODD, *_LINKS, "\0" * 99, "\u2028")).encode()
        out = out[:at] + rng.choice((odd, odd, b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")) + out[at:]
    return out


def wide(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return the log as UTF-16, sometimes with further damage."""
    code = rng.choice(("utf-16", "utf-16-le", "utf-16-be"))
    text = add_lines(rng, data, others).decode("utf-8", "replace")
    out = rng.choice((b"", b"\xff\xfe", b"\xfe\xff")) + text.encode(code)
    return out if rng.random() < 0.6 else rng.choice(ANY)(rng, out, others)


LOG: tuple[Damage, ...] = (
    *(add_lines,) * 8,
    *(repeat_line,) * 4,
    *(mix_lines, mix_lines, odd_bytes, odd_bytes, odd_bytes, wide, wide),
    *ANY,
)


# --- Packed --------------------------------------------------------------------------------------


def _zstd(data: bytes) -> bytes:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        try:
            from backports import zstd  # type: ignore[no-redef,unused-ignore]
        except ImportError:  # an optional package: only the magic number then
            return b"\x28\xb5\x2f\xfd" + data[:64]
    return bytes(zstd.compress(data))


_PACKERS: tuple[Callable[[bytes], bytes], ...] = (
    functools.partial(gzip.compress, mtime=0),
    _zstd,
    bz2.compress,
    lzma.compress,
)


def pack(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return a compressed hostile log, then truncated, damaged or joined with another."""
    text = rng.choice(LOG)(rng, data, others) if data else data
    packed = rng.choice(_PACKERS)(text)
    action = rng.randrange(6)
    if action == 0:
        return truncate(rng, packed, others)
    if action == 1:
        return rng.choice(ANY)(rng, packed, others)
    if action == 2:
        return packed + rng.choice((packed, b"\0" * 512, b"noise", rng.choice(_PACKERS)(text)))
    return packed


def bomb(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return megabytes of one byte or one line, in compressed form."""
    piece = rng.choice((b"\0", b"a", b"\n", line(rng).encode("utf-8", "replace") + b"\n"))
    return rng.choice(_PACKERS)(piece * (rng.choice((1 << 20, 4 << 20)) // len(piece)))


def frame(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return a zstd frame whose header requests a window of random size."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([rng.randrange(256)]) + rng.randbytes(rng.randrange(64))


PACKED: tuple[Damage, ...] = (*(pack,) * 12, bomb, frame)


# --- Notes ---------------------------------------------------------------------------------------


def hostile_template(rng: random.Random) -> str:
    """Return a line template with as many holes and choices as allowed, or more."""
    holes = ("{}", "{*}", "{a}", "{b:int}", "{c:text}", "{d:bytes}", "(x|y|)", "(||||)", "\\{", "{")
    words = ("failed to ", "error ", "a", " ", "", "Code ", "\x1b[31m", "é", "x" * 50)
    count = rng.choice((1, 3, 12, 13, 40))
    return "".join(rng.choice((*holes, *words, *words)) for _ in range(count)) + " failed here"


_VALUES: tuple[Any, ...] = (*NUMBERS[:12], *_ODD, True, -1, 1.5, [], {}, [[]] * 9, ["x"] * 400)


def change_note(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat or move values of the front matter."""
    import tomllib

    text = data.decode("utf-8", "replace")
    fenced = re.match(r"\+\+\+\n(.*?\n)\+\+\+\n", text, re.DOTALL)
    try:
        table = tomllib.loads(fenced[1] if fenced else text)
    except tomllib.TOMLDecodeError:
        return hostile_note(rng, data, others)
    for _ in range(rng.choice((1, 1, 2, 4))):
        change_value(rng, table, _VALUES)
    for row in table.get("line", []) if isinstance(table.get("line"), list) else []:
        if isinstance(row, dict) and rng.random() < 0.3:
            row["text"] = hostile_template(rng)
    head = "".join(f"{json.dumps(str(key))} = {_toml(value)}\n" for key, value in table.items())
    return (f"+++\n{head}+++\n{text[fenced.end() :]}" if fenced else head).encode(
        "utf-8", "replace"
    )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        rows = ", ".join(f"{json.dumps(str(key))} = {_toml(one)}" for key, one in value.items())
        return f"{{{rows}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value).replace("\\ud800", "?")


def hostile_note(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return a note with invalid typical lines and headings."""
    rows = data.decode("utf-8", "replace").split("\n")
    for _ in range(rng.choice((1, 2, 8))):
        odd = (
            hostile_template(rng),
            "```",
            "## ",
            "### Typical Logs",
            "+++",
            rng.choice(_ODD),
            line(rng),
        )
        rows.insert(rng.randrange(len(rows) + 1), rng.choice(odd))
    return "\n".join(rows).encode("utf-8", "replace")


NOTE: tuple[Damage, ...] = (*(change_note,) * 8, *(hostile_note,) * 4, *ANY)
