"""Calibration data for the HTP: sample inputs from a folder, or made up from a seed.

Each entry of the folder is one sample, in the order of names: `a.npz` with arrays named after the
inputs, `b/` with one NAME.npy or NAME.raw for each input, or `c.npy`, `c.raw` for a model with one
input. A .raw file holds float32 for float inputs, else the input's own type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.errors import UsageError
from qnnmem.load.source import quote, read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SAMPLES = 10_000
_ROOM = 1 << 16  # for headers and names
_WIDEST = 8  # bytes of one element


class Input(NamedTuple):
    """A graph input: numpy name of its type, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


Sample = tuple[tuple[str, Path], ...]  # files as (input, path); "" stands for all inputs


def find_samples(folder: Path, inputs: Sequence[Input]) -> tuple[Sample, ...]:
    """The samples in a folder, in order; contents are not read yet."""
    try:
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as exc:
        raise UsageError(f"calibration folder {quote(str(folder))} cannot be opened") from exc
    if len(entries) > MAX_SAMPLES:
        raise UsageError(f"{folder} holds more than {MAX_SAMPLES:,} samples; hundreds are enough")
    samples = tuple(filter(None, (_sample(entry, inputs) for entry in entries)))
    if not samples:
        raise UsageError(
            f"{folder} holds no calibration data; put .npy, .npz or .raw files of the inputs there"
        )
    return samples


def read_sample(sample: Sample, inputs: Sequence[Input]) -> dict[str, NDArray[Any]]:
    """Arrays of one sample, checked against the inputs."""
    wanted = {item.name: item for item in inputs}
    found: dict[str, NDArray[Any]] = {}
    for name, path in sample:
        if name == "":
            found |= _read_npz(path, wanted)
        else:
            found[name] = _read_file(path, wanted[name])
    for name in wanted:
        if name not in found:
            raise UsageError(f"{sample[0][1]}: no data for input {quote(name)}")
    return found


def random_sample(inputs: Sequence[Input], seed: int, number: int) -> dict[str, NDArray[Any]]:
    """Made-up data: floats are normally distributed, integers small."""
    import numpy

    random = numpy.random.default_rng([seed, number])
    found: dict[str, NDArray[Any]] = {}
    for item in inputs:
        if item.dtype.startswith("float"):
            values = numpy.asarray(random.standard_normal(item.shape), item.dtype)
        else:  # small numbers are valid indices and token ids in nearly every model
            below = 2 if item.dtype == "bool" else 4
            values = numpy.asarray(random.integers(0, below, item.shape)).astype(item.dtype)
        found[item.name] = values
    return found


def _sample(entry: Path, inputs: Sequence[Input]) -> Sample:
    suffix = entry.suffix.lower()
    if entry.is_dir():
        known = {_file_name(item.name): item.name for item in inputs}
        files = (path for path in sorted(entry.iterdir()) if path.suffix in (".npy", ".raw"))
        return tuple((_known(path, known), path) for path in files)
    if suffix == ".npz":
        return (("", entry),)
    if suffix not in (".npy", ".raw"):
        return ()
    if len(inputs) != 1:
        raise UsageError(
            f"{entry} does not say which of {len(inputs)} inputs it is for; make a folder for each "
            f"sample with {_file_name(inputs[0].name)}.npy and so on in it"
        )
    return ((inputs[0].name, entry),)


def _known(path: Path, known: dict[str, str]) -> str:
    if path.stem not in known:
        raise UsageError(f"{path}: the model has no input {quote(path.stem)}")
    return known[path.stem]


def _file_name(name: str) -> str:
    return "".join("_" if char in "/\\:" else char for char in name)


def _read_file(path: Path, item: Input) -> NDArray[Any]:
    import io

    import numpy

    blob = read_bytes(path, math.prod(item.shape) * _WIDEST + _ROOM)
    stored = "float32" if item.dtype.startswith("float") else item.dtype
    try:
        if path.suffix.lower() == ".npy":
            array = numpy.load(io.BytesIO(blob), allow_pickle=False)
        else:
            array = numpy.frombuffer(blob, stored).reshape(item.shape)
    except (ValueError, EOFError, OSError) as exc:
        raise UsageError(f"{path} does not hold {_wanted(item)}") from exc
    return _checked(path, array, item)


def _read_npz(path: Path, wanted: dict[str, Input]) -> dict[str, NDArray[Any]]:
    import zipfile

    import numpy

    room = sum(math.prod(item.shape) * _WIDEST + _ROOM for item in wanted.values())
    read_bytes(path, room)  # refuses what is too large before anything is unpacked
    try:
        with numpy.load(path, allow_pickle=False) as arrays:
            unknown = [name for name in arrays.files if name not in wanted]
            if unknown:
                raise UsageError(f"{path}: the model has no input {quote(unknown[0])}")
            return {name: _checked(path, arrays[name], wanted[name]) for name in arrays.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as exc:
        raise UsageError(f"{path} is not a readable .npz file") from exc


def _checked(path: Path, array: NDArray[Any], item: Input) -> NDArray[Any]:
    import numpy

    if array.shape != item.shape or not numpy.can_cast(array.dtype, item.dtype, "same_kind"):
        raise UsageError(f"{path}: {array.dtype.name} of shape {array.shape}, not {_wanted(item)}")
    converted = numpy.ascontiguousarray(array, item.dtype).reshape(item.shape)
    if item.dtype.startswith("float") and not numpy.isfinite(converted).all():
        raise UsageError(f"{path} holds NaN or infinity, from which no range can be learnt")
    return converted


def _wanted(item: Input) -> str:
    return f"{item.dtype} of shape {item.shape} for input {quote(item.name)}"
