"""Limits for every loaded model, and notes about its custom operators."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qnnmem.errors import LoadError
from qnnmem.ir import Model
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES


def check_model(path: Path, model: Model) -> None:
    """Raise LoadError for a model without outputs or operators, or with too many bytes."""
    for what, entries in (("outputs", model.outputs), ("operators", model.ops)):
        if not entries:
            raise LoadError(path, f"is damaged or empty: the graph has no {what}")
    if sum(tensor.nbytes for tensor in model.tensors.values()) > MAX_BYTES:
        raise LoadError(path, f"its tensors add up to more than {MAX_BYTES:,} bytes")


_SHOWN = 5


def unknown_inside(names: Iterable[str]) -> str:
    """Return the warning about unknown memory inside these custom operators; empty without any."""
    found = list(dict.fromkeys(names))
    if not found:
        return ""
    shown = ", ".join(map(quote, found[:_SHOWN]))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    many = "s" if len(found) > 1 else ""
    return (
        f"the memory and the weights inside the custom operator{many} {shown}{more} "
        "are unknown and not counted"
    )


def custom_note(names: Iterable[str]) -> str:
    """Return a short note that counts and names the custom operators."""
    found = list(dict.fromkeys(names))
    return f"custom operators: {len(found)} ({', '.join(map(quote, found[:_SHOWN]))})"
