"""Sizes in words: exact bytes, and what they are about."""

from __future__ import annotations

from qnnmem.text import counted
from qnnmem.units import format_size


def size_words(size: int) -> str:
    """`1 byte`, `512 bytes`, `2,048 bytes (2.00 KiB)`."""
    exact = counted(size, "byte")
    return exact if size < 1 << 10 else f"{exact} ({format_size(size)})"


def size_column(size: int, width: int) -> str:
    """The number to the right in `width` columns, then its unit."""
    return f"{size:>{width},} {'byte' if size == 1 else 'bytes'}"
