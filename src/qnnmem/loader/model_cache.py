"""Models kept in memory, for a process that plans the same file again with other settings.

The workbench plans a file for every setting that changes. Reading it takes a hundred times as
long as planning, and none of these settings changes what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnmem.ir import Model
    from qnnmem.loader.onnx.inputs import InputValue

_MAX_FILES = 4
# None: nothing is kept, as on the command line.
MODEL_CACHE: ContextVar[dict[str, tuple[Model, ...]] | None] = ContextVar(
    "MODEL_CACHE", default=None
)


def load_cached(
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, InputValue],
) -> Model:
    """Return the model in a file, as `qnnmem.load` does."""
    from qnnmem.loader import load

    def read() -> tuple[Model, ...]:
        return (load(path, dims=dims, shapes=shapes, values=values),)

    return cached(path, (dims, shapes, values), read)[0]


def cached(
    path: Path, sizes: Sequence[Mapping[str, object]], read: Callable[[], tuple[Model, ...]]
) -> tuple[Model, ...]:
    """Return what `read` returns, kept under the identity of the file and the sizes."""
    known = MODEL_CACHE.get()
    if known is None:
        return read()
    state = path.stat()
    key = repr(
        [path.name, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size]
        + [sorted(given.items()) for given in sizes]
    )
    if key not in known:
        models = read()
        while len(known) >= _MAX_FILES:
            del known[next(iter(known))]
        known[key] = models
    return known[key]
