"""Limits for every loaded model, and notes about its custom operators."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qnnmem.errors import LoadError
from qnnmem.ir import Model
from qnnmem.text import listed, quote
from qnnmem.units import MAX_BYTES


def check_model(path: Path, model: Model) -> None:
    """Raise LoadError for a model without outputs or operators, or with too many bytes."""
    for noun, entries in (("outputs", model.outputs), ("operators", model.ops)):
        if not entries:
            raise LoadError(path, f"is damaged or empty: the graph has no {noun}")
    if sum(tensor.nbytes for tensor in model.tensors.values()) > MAX_BYTES:
        raise LoadError(path, f"its tensors add up to more than {MAX_BYTES:,} bytes")


_SHOWN = 5


def unknown_inside(names: Iterable[str]) -> str:
    """Return the warning that custom operators use unknown memory; empty if `names` is empty."""
    quoted = list(map(quote, dict.fromkeys(names)))
    if not quoted:
        return ""
    noun = "custom operators" if len(quoted) > 1 else "custom operator"
    return (
        f"the memory and the weights inside the {noun} {listed(quoted, _SHOWN)} "
        "are unknown and not counted"
    )


def custom_note(names: Iterable[str]) -> str:
    """Return a short note that counts and names the custom operators."""
    quoted = list(map(quote, dict.fromkeys(names)))
    return f"custom operators: {len(quoted)} ({', '.join(quoted[:_SHOWN])})"
