"""Damage for context binaries of LPAI, with corrected checksums, and of HTP.

Without correct checksums, the damage would never reach the checks after them.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from damage import (
    ANY,
    NUMBERS,
    TEXTS,
    Damage,
    bump_integer,
    change_value,
    in_head,
    overwrite_integer,
)

from qnnmem.lpai.binary import HEADER_SIZE, SECTION_SIZE, BinarySections, assemble, take_apart

VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(-1, -256, 2**64, 10**30, 0.5, -1.0, 1e308, None, True, False, [], {}, [[]] * 9),
    *(*TEXTS, "a" * 70_000, "v99", "float32"),
)
_HTP_HEAD = 2048  # bytes that contain the metadata of all seeds; readers use little of the rest


# --- LPAI ----------------------------------------------------------------------------------------


def seal_header(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change an integer of the header or the table, and correct the header's checksum."""
    count = struct.unpack_from("<I", data, 24)[0]
    end = HEADER_SIZE + SECTION_SIZE * count
    head = bytearray(data[:end])
    at, width = rng.randrange(2, end // 4) * 4, rng.choice((2, 4, 8))
    old = int.from_bytes(head[at : at + width], "little")
    change = rng.choice((old + 1, old - 1, old + 256, old ^ 1 << rng.randrange(64), *NUMBERS))
    part = (change % (1 << 8 * width)).to_bytes(width, "little")[: end - at]
    head[at : at + len(part)] = part
    struct.pack_into("<I", head, 28, 0)
    struct.pack_into("<I", head, 28, zlib.crc32(head))
    return bytes(head) + data[end:]


def seal_sections(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Exchange, drop or duplicate sections, and write a matching header."""
    mine, other = sections(data), sections(rng.choice(others))
    programs = list(rng.choice((mine, other)).programs)
    rng.choice((lambda: None, lambda: programs.append(programs[0]), programs.pop))()
    constants = rng.choice((mine.constants, other.constants, mine.constants[:-1]))
    return seal(rng.choice((mine, mine, other)).meta, programs, constants)


def seal_text(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage the description as text."""
    parts = sections(data)
    meta = bytes(parts.meta)
    at = rng.randrange(len(meta))
    odd = (b"\xff", b"\xd8\x00", b'"', b",", b"9" * 5000, b"NaN", b"1e999", b"\xef\xbb\xbf", b"{}")
    deep = rng.choice((10, 1000, 100_000))
    mess = rng.choice((*odd, b"[" * deep, b'{"a":' * deep, b"[" * deep + b"]" * deep))
    end = at + rng.choice((0, 0, 1, 5))
    whole = meta.decode().encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-32")))
    return seal(
        whole if len(whole) > len(meta) else meta[:at] + mess + meta[end:],
        list(parts.programs),
        parts.constants,
    )


def seal_json(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat or move values of the description."""
    parts = sections(data)
    document = json.loads(bytes(parts.meta))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change_value(rng, document, VALUES)
    return seal(json.dumps(document).encode(), list(parts.programs), parts.constants)


def sections(data: bytes) -> BinarySections:
    """Return the sections of a valid binary."""
    return take_apart(memoryview(data))


def seal(
    meta: bytes | memoryview, programs: Sequence[bytes | memoryview], constants: memoryview
) -> bytes:
    """Return a binary made of these sections, with correct checksums."""
    whole = [bytes(program) for program in programs]
    return b"".join(assemble(bytes(meta), whole, constants))


RAW: tuple[Damage, ...] = (*ANY, *(in_head(kind, 256) for kind in (overwrite_integer,) * 3))
SEALED: tuple[Damage, ...] = (seal_header, seal_sections, seal_text, *(seal_json,) * 5)


# --- HTP ------------------------------------------------------------------------------------------


def overwrite_header(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a number of the header to an extreme value."""
    at = rng.choice((0, 4, 8, 16, 24, 32))
    width = 4 if at < 8 else 8
    value = rng.choice((*NUMBERS, len(data), len(data) - 1)) % (1 << 8 * width)
    part = value.to_bytes(width, "big" if at < 8 else "little")
    return data[:at] + part + data[at + width :]


def redirect(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Copy words over other words, so that offsets point to data of another kind."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        source, target = (rng.randrange(max(len(data) - 4, 1)) // 4 * 4 for _ in range(2))
        out[target : target + 4] = out[source : source + 4]
    return bytes(out)


HTP: tuple[Damage, ...] = (
    overwrite_header,
    *(
        in_head(kind, _HTP_HEAD)
        for kind in (*ANY, *(overwrite_integer, bump_integer, redirect) * 2)
    ),
)


def embed(rng: random.Random, binary: bytes) -> bytes:
    """Put a binary into an ONNX model with an EPContext node; half of the models are damaged."""
    cache = _field(1, b"ep_cache_context") + _field(4, binary)
    mode = _field(1, b"embed_mode") + b"\x18\x01"
    node = _field(4, b"EPContext") + _field(5, cache) + _field(5, mode)
    model = bytearray(b"\x08\x09" + _field(7, _field(1, node)))
    if rng.random() < 0.5:
        model[rng.randrange(min(len(model), 80))] = rng.randrange(256)
    return bytes(model)


def _field(number: int, data: bytes) -> bytes:
    size, length = len(data), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data
