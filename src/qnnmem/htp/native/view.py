"""A file's bytes at an address, without copying them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_view(path: str) -> Iterator[tuple[int, int]]:
    """Address and size of a file; what is written there does not reach the file."""
    with Path(path).open("rb") as file:
        # Private and copy-on-write: ctypes insists on writable memory.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    first = ctypes.c_uint8.from_buffer(mapped)
    try:
        yield ctypes.addressof(first), len(mapped)
    finally:
        del first  # a mapping with views of it cannot be closed
        mapped.close()
