"""How many lines end in a part of a buffer."""

from __future__ import annotations

from collections.abc import Callable

_FEW = 1024  # bytes in which line ends are counted without help


def newline_counter(buffer: bytearray, view: memoryview, large: int) -> Callable[[int, int], int]:
    """Counts line ends between two indices; three times faster with stringzilla.

    That is loaded for buffers larger than `large` bytes only.
    """
    if len(buffer) > large:
        try:
            import stringzilla
        except ImportError:
            pass
        else:
            count = stringzilla.count
            return lambda low, high: (
                int(count(view[low:high], b"\n"))
                if high - low > _FEW
                else buffer.count(b"\n", low, high)
            )
    return lambda low, high: buffer.count(b"\n", low, high)
