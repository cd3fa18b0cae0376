"""Struct types that several threads may decode."""

from __future__ import annotations

import threading
from typing import TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_built: set[object] = set()


def ready(kind: type[T]) -> type[T]:
    """Return the type, which any thread may now decode or convert to.

    msgspec builds what it knows of a type at its first use. Another thread that uses the type
    before that is finished crashes the process.
    """
    import msgspec

    with _lock:
        if kind not in _built:
            msgspec.json.Decoder(kind)
            _built.add(kind)
    return kind
