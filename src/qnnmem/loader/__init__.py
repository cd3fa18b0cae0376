"""Load model files: ONNX, TFLite, DLC, eAI report (`.eaix`) and buffer CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.arguments import as_whole, expect, expect_items, expect_mapping
from qnnmem.bounded_file import read_head
from qnnmem.errors import Setting, UsageError

if TYPE_CHECKING:
    from qnnmem.ir import Model
    from qnnmem.loader.onnx.inputs import InputValue

__all__ = ["as_dims", "as_shapes", "dims_in", "kind_of", "load"]

_FORMATS = frozenset({"onnx", "tflite", "dlc", "eaix", "csv"})  # each is also the file suffix
_GENERAL_KINDS = frozenset({"binary", "json", "text"})  # the suffix decides
# First bytes of an ONNX file, with which no text begins: IR version, or producer name and version.
_PROTOBUF_STARTS = (b"\x08", b"\x12", b"\x1a")
# Limit for trial runs of the model, which find the shapes that shape inference cannot.
_ONNX_TIME_LIMIT_S = 60.0


def load(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, InputValue] | None = None,
) -> Model:
    """Return the model in a file; the format is detected from its content, then from its name.

    `dims` fixes named open dimensions and `shapes` fixes the shapes of whole inputs, in formats
    that leave sizes open. `values` turns inputs of an ONNX model into constants, so that branches
    never taken are left out. A value is a number, several numbers, an array, or the path of a .npy
    or .raw file.
    """
    expect(path, (str, Path), "the model must be given as the path of its file")
    dims = as_dims(dims)
    shapes = as_shapes(shapes)
    values = expect_mapping(values, "values must be a mapping from input names to values")
    path = Path(path)
    kind = kind_of(path)
    if kind == "onnx":
        from qnnmem.loader import onnx

        return onnx.read(
            path, dims=dims, shapes=shapes, values=values, time_limit_s=_ONNX_TIME_LIMIT_S
        )
    if values:
        raise UsageError((f"{path} is not an ONNX model; ", Setting("values"), " needs one"))
    if kind == "tflite":
        from qnnmem.loader import tflite

        return tflite.read(path, shapes=shapes, dims=dims)
    if dims:
        raise UsageError(
            (f"{path} has no named dimensions to fix; ", Setting("dims"), " is for ONNX models")
        )
    if shapes:
        raise UsageError(
            (f"{path} has fixed shapes; ", Setting("shapes"), " is for ONNX and TFLite models")
        )
    if kind == "dlc":
        from qnnmem.loader import dlc

        return dlc.read(path)
    from qnnmem.loader import csv, eaix

    return eaix.read(path) if kind == "eaix" else csv.read(path)


def as_dims(dims: Mapping[str, int] | None) -> dict[str, int]:
    """Return the sizes of named dimensions; raise an error if a size is not a whole number."""
    rule = 'dims must be a mapping from dimensions to sizes, such as {"batch": 1}'
    return {name: as_whole(size, rule) for name, size in expect_mapping(dims, rule).items()}


def as_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs; raise an error if a shape is not a list of whole numbers."""
    rule = 'shapes must be a mapping from inputs to lists of sizes, such as {"input": (1, 16)}'
    return {
        name: tuple(as_whole(size, rule) for size in expect_items(shape, object, rule))
        for name, shape in expect_mapping(shapes, rule).items()
    }


def dims_in(path: Path, dims: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return those of the given dimensions that the model has, with their sizes."""
    from qnnmem.loader.onnx import read_guarded
    from qnnmem.loader.onnx.inputs import named_dims

    if kind_of(path) != "onnx":
        return ()
    names = named_dims(read_guarded(path).proto.graph)
    return tuple((name, size) for name, size in dims if name in names)


def kind_of(path: Path) -> str:
    """Return the format of a model file: onnx, tflite, dlc, eaix or csv."""
    from qnnmem.loader.file_kind import kind_of_file, wrong_kind

    kind = kind_of_file(path)
    if kind.name in _FORMATS:
        return kind.name
    if kind.name == "graphs":
        return "eaix"  # the eaix reader explains what is wrong with other files
    # A file that is a model by suffix alone is passed to the reader, which explains what is wrong.
    suffix = path.suffix.lower().removeprefix(".")
    if kind.name in _GENERAL_KINDS and suffix in _FORMATS:
        return suffix
    if kind.name == "binary" and read_head(path, 1) in _PROTOBUF_STARTS:
        return "onnx"
    verb = "read as a model here" if kind.name == "elf" else "plan"
    raise wrong_kind(path, kind, f"which qnnmem cannot {verb}")


_MAX_CACHED = 4
# The workbench plans a model again for every setting, and reading takes a hundred times as long as
# planning. None disables the cache, as on the command line.
MODEL_CACHE: ContextVar[dict[str, tuple[Model, ...]] | None] = ContextVar(
    "MODEL_CACHE", default=None
)


def load_cached(
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, InputValue],
) -> Model:
    """Return the model in a file, like `load`, but from the cache if possible."""

    def read() -> tuple[Model, ...]:
        return (load(path, dims=dims, shapes=shapes, values=values),)

    return cached(path, (dims, shapes, values), read)[0]


def cached(
    path: Path, sizes: Sequence[Mapping[str, object]], read: Callable[[], tuple[Model, ...]]
) -> tuple[Model, ...]:
    """Return the result of `read`, or the cached result for this file with these sizes."""
    cache = MODEL_CACHE.get()
    if cache is None:
        return read()
    status = path.stat()
    key = repr(
        [path.name, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size]
        + [sorted(setting.items()) for setting in sizes]
    )
    if key not in cache:
        models = read()
        while len(cache) >= _MAX_CACHED:
            del cache[next(iter(cache))]
        cache[key] = models
    return cache[key]
