"""Encodes MessagePack by hand, so that dishonest values can be encoded without imports."""

from __future__ import annotations

import struct
from typing import Any


def packed(value: Any) -> bytes:
    """Return the bytes of a value; too large numbers are clamped, lone surrogates kept."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if value < 0:
            return b"\xd3" + struct.pack(">q", max(value, -(1 << 63)))
        return b"\xcf" + struct.pack(">Q", min(value, (1 << 64) - 1))
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"\xdb" + struct.pack(">I", len(text)) + text
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, dict):
        pairs = b"".join(packed(part) for pair in value.items() for part in pair)
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))
