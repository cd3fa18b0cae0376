"""Types for sizes, steps and alignments, and their forms as text."""

from __future__ import annotations

import operator
import re
from typing import NewType, TypeAlias

from qnnmem.errors import UsageError
from qnnmem.text import a_kind, quote

Bytes = NewType("Bytes", int)
Offset = NewType("Offset", int)
Step = NewType("Step", int)
Align = NewType("Align", int)
# Types for a size or an alignment in a call: 262144 or "256K".
Size: TypeAlias = "int | str"

# Largest size accepted anywhere: planners add sizes in 64-bit integers, which must never wrap.
MAX_BYTES = Bytes(1 << 60)
# Highest accepted rank of a tensor: QNN has ranks up to 8, and NumPy 1 arrays have at most 32
# dimensions.
MAX_RANK = 32

_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = r"\s*([0-9]{1,19})\s*(?:([KMG])(?:i?B)?|B|bytes)?\s*"


def round_up(value: int, align: int) -> int:
    """Return the smallest multiple of `align` that is not below `value`."""
    return -(-value // align) * align


def parse_size(text: str) -> Bytes:
    """Return the number of bytes in a text such as `2035712`, `256K` or `2 MiB` (K is 1024)."""
    match = re.fullmatch(_SIZE, text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"{quote(text)} is not a size; write it like 2035712, 256K or 2MiB")
    size = int(match[1]) * _SCALE[(match[2] or "").upper()]
    if size > MAX_BYTES:
        largest = f"{MAX_BYTES:,} bytes, the largest supported size"
        raise UsageError(f"{quote(text)} is larger than {largest}")
    return Bytes(size)


def as_bytes(size: Size) -> Bytes:
    """Return a size in bytes from a number or a text such as `256K`."""
    if type(size) is int:  # the common case; planners make many
        return Bytes(size)
    if isinstance(size, str):
        return parse_size(size)
    try:
        if isinstance(size, bool):  # a boolean is not a size
            raise TypeError
        return Bytes(operator.index(size))  # also numpy's integers
    except TypeError:
        raise UsageError(
            f"{a_kind(type(size))} is not a size; write it like 2035712 or '256K'"
        ) from None


def as_align(align: Size) -> Align:
    """Return an alignment in bytes from a number or a text such as `4K`."""
    return Align(as_bytes(align))


def as_step(step: int) -> Step:
    """Return a step as an int; raise UsageError unless it is a whole number."""
    try:
        return Step(operator.index(step))
    except TypeError:
        raise UsageError(f"{a_kind(type(step))} is not a step; steps are whole numbers") from None


def format_size(size: int) -> str:
    """Return a size for people, e.g. `512.00 KiB`; below 1 KiB plain bytes."""
    if abs(size) < 1 << 10:
        return f"{size} B"
    unit, scale = next(
        (unit, scale)
        for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
        if abs(size) >= scale
    )
    return f"{size / scale:,.2f} {unit}"
