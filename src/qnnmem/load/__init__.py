"""Files into models: ONNX, TFLite, eAI report (`.eaix`) and buffer CSV."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError, Setting, UsageError
from qnnmem.ir import Model

if TYPE_CHECKING:
    from qnnmem.load.onnx.fixed import InputValue

__all__ = ["kind_of", "load"]

_HEAD = 4096
_CONTEXT_SUFFIXES = frozenset({".bin", ".dlc", ".serialized"})
_FORMATS = {".onnx": "onnx", ".tflite": "tflite", ".eaix": "eaix", ".csv": "csv"}
# First bytes of an ONNX file that no text begins with: IR version, or producer name and version.
_PROTOBUF_STARTS = (b"\x08", b"\x12", b"\x1a")
# For completing shapes by running the model, where inference stops short.
_ONNX_TIME_LIMIT_S = 60.0


def load(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, InputValue] | None = None,
) -> Model:
    """Read the model in a file, its kind told by content first and file name second.

    `dims` gives named free dimensions a size, `shapes` gives whole inputs theirs; both are for
    formats that leave sizes open. `values` makes inputs of an ONNX model constants, so that
    branches which cannot be taken then are left out: a number, several, an array, or the path of
    a .npy or .raw file.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind == "onnx":
        return _load_onnx(path, dims or {}, shapes or {}, values or {})
    if values:
        raise UsageError((f"{path} is no ONNX model; ", Setting("values"), " is for those"))
    if dims:
        raise UsageError(
            (f"{path} has no named dimensions to fix; ", Setting("dims"), " is for ONNX models")
        )
    if kind == "tflite":
        from qnnmem.load import tflite

        return tflite.read(path, shapes=shapes or {})
    if shapes:
        raise UsageError(
            (f"{path} has fixed shapes; ", Setting("shapes"), " is for ONNX and TFLite models")
        )
    from qnnmem.load import csv, eaix

    return eaix.read(path) if kind == "eaix" else csv.read(path)


def _load_onnx(
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, InputValue],
) -> Model:
    from qnnmem.load import onnx

    fixed = {name: tuple(shape) for name, shape in shapes.items()}
    return onnx.read(path, dims=dims, shapes=fixed, values=values, time_limit_s=_ONNX_TIME_LIMIT_S)


def kind_of(path: Path) -> str:
    """Which reader a file is for: onnx, tflite, eaix or csv."""
    from qnnmem.bounded_file import read_head, regular_size

    regular_size(path)
    head = read_head(path, _HEAD)
    suffix = path.suffix.lower()
    found = _by_content(head) or _FORMATS.get(suffix)
    if found:
        return found
    if suffix in _CONTEXT_SUFFIXES:
        raise LoadError(
            path,
            "looks like a QNN context binary or DLC, which has no graph to plan; "
            "qnnmem inspect and qnnmem footprint read context binaries",
        )
    if head.startswith(_PROTOBUF_STARTS):
        return "onnx"
    raise LoadError(
        path, "is not a model of a known kind; expected ONNX, TFLite, an eAI report or buffer CSV"
    )


def _by_content(head: bytes) -> str | None:
    from qnnmem.load.csv import is_header

    if head[4:8] == b"TFL3":
        return "tflite"
    text = head.decode("utf-8-sig", "replace").lstrip()
    if text.startswith("{"):
        return "eaix"
    return "csv" if is_header(text.split("\n", 1)[0]) else None


class _LoadFolder(ModuleType):
    """The folder as a function: `qnnmem.load(…)` is `qnnmem.load.load(…)`."""

    __call__ = staticmethod(load)


# The attribute `load` of the package `qnnmem` is this folder as soon as anything in it is imported.
sys.modules[__name__].__class__ = _LoadFolder
