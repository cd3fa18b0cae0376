"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def write_whole(path: Path, *pieces: ReadableBuffer) -> int:
    """Write a file under a temporary name and rename that; gives its size in bytes."""
    return write_pieces(path, pieces)


def write_pieces(path: Path, pieces: Iterable[ReadableBuffer]) -> int:
    """Write what comes, piece by piece, under a temporary name and rename that."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                size = sum(file.write(piece) for piece in pieces)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        shown = str(path)[:200].encode("unicode_escape").decode()
        raise OutputError(f"{shown} cannot be written: {reason}") from exc
    return size
