"""Bounds that a model keeps, whatever file it comes from."""

from __future__ import annotations

from pathlib import Path

from qnnmem.errors import LoadError
from qnnmem.ir import Model
from qnnmem.units import MAX_BYTES


def check_model(path: Path, model: Model) -> None:
    """Refuse a model with nothing to run, or with more bytes than planners can add up."""
    for what, entries in (("outputs", model.outputs), ("operators", model.ops)):
        if not entries:
            raise LoadError(path, f"is damaged or empty: the graph has no {what}")
    if sum(tensor.nbytes for tensor in model.tensors.values()) > MAX_BYTES:
        raise LoadError(path, f"its tensors add up to more than {MAX_BYTES:,} bytes")
