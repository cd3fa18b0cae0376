"""Models as verbs read them; from memory where one process asks about the same file again.

The local workbench plans a file anew for every setting that changes. Reading it takes a hundred
times as long as planning, and none of these settings changes what is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnmem.ir import Model
    from qnnmem.load.onnx.fixed import InputValue

_MOST = 4
# None where nothing is remembered, as on the command line.
REMEMBERED: ContextVar[dict[str, Model] | None] = ContextVar("REMEMBERED", default=None)


def load_model(
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, InputValue],
) -> Model:
    """The model in a file, as `qnnmem.load` gives it."""
    from qnnmem import load

    known = REMEMBERED.get()
    if known is None:
        return load(path, dims=dims, shapes=shapes, values=values)
    state = path.stat()
    key = repr(
        [path.name, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size]
        + [sorted(given.items()) for given in (dims, shapes, values)]
    )
    if key not in known:
        model = load(path, dims=dims, shapes=shapes, values=values)
        while len(known) >= _MOST:
            del known[next(iter(known))]
        known[key] = model
    return known[key]
