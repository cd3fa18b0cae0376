"""Free dimensions that are fixed for several models at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def dims_in(path: Path, dims: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Of the dimensions that were fixed for several files those that this one has."""
    from qnnmem.loader import kind_of
    from qnnmem.loader.onnx import read_guarded
    from qnnmem.loader.onnx.inputs import named_dims

    if kind_of(path) != "onnx":
        return ()
    names = named_dims(read_guarded(path).proto.graph)
    return tuple((name, size) for name, size in dims if name in names)
