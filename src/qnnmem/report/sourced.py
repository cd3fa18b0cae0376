"""A number with its origin, as values for JSON."""

from __future__ import annotations

from typing import Any

from qnnmem.provenance import Sourced


def bytes_values(part: Sourced | None) -> dict[str, Any] | None:
    """Bytes with origin and source; None for a size that is not known."""
    if part is None:
        return None
    return {"bytes": part.value, "origin": part.origin.value, "source": part.source}


def number_values(part: Sourced | None) -> dict[str, Any] | None:
    """The same for schemas that call the number `value`."""
    if part is None:
        return None
    return {"value": part.value, "origin": part.origin.value, "source": part.source}
