"""MessagePack by hand: also for values that no honest encoder writes, and without any import."""

from __future__ import annotations

import struct
from typing import Any


def packed(value: Any) -> bytes:
    """The bytes of a value; numbers too large for the format are cut, lone surrogates stay."""
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
