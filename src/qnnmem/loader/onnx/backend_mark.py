"""The backend that `qnnmem fix` changed a model for, stored as a metadata property of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import QnnMemError
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

KEY = "qnnmem.fixed_for"
_NAMES = {"lpai": "LPAI", "htp": "HTP"}


def mark_backend(model: onnx.ModelProto, backend: str) -> None:
    """Store the backend as a metadata property of a model."""
    for item in model.metadata_props:
        if item.key == KEY:
            item.value = backend
            return
    model.metadata_props.add(key=KEY, value=backend)


def other_backend_note(path: Path, backend: str) -> str:
    """Return a warning if a model was fixed for another backend, else ""."""
    from qnnmem.loader.onnx import read_guarded

    if path.suffix.lower() != ".onnx":
        return ""
    try:
        properties = read_guarded(path).proto.metadata_props
    except QnnMemError:
        return ""  # the verb reports the error itself
    found = next((item.value for item in properties if item.key == KEY), "")
    if found not in _NAMES or found == backend:
        return ""
    own, other = _NAMES[found], _NAMES[backend]
    return (
        f"{quote(path.name)} was changed by qnnmem fix for {own}; that is no fix for {other} and "
        f"may need more memory there: compare it with the model it was made from"
    )
