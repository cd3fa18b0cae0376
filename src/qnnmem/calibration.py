"""Find and read sample inputs for calibration or execution.

Each entry of the folder is one sample; entries are sorted by name:

    a.npz          arrays named after the inputs
    b/             one NAME.npy or NAME.raw for each input
    c.npy, c.raw   the input of a model with a single input

A path to a single entry, instead of the folder, gives a single sample. An `input_list.txt`, in the
folder or given directly, takes precedence. Each line of the list is a sample: `name:=path` words,
or paths in the order of the inputs, as in qnn-net-run.
"""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.bounded_file import MISSING, NOT_THERE, read_bytes
from qnnmem.errors import UsageError
from qnnmem.text import quote

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

MAX_SAMPLES = 10_000
_LIST_NAME = "input_list.txt"
_MAX_LIST_BYTES = 16 << 20
_MAX_HEADER = 10_000
_WIDEST = 8  # bytes of the widest element type
_ROOM = 1 << 16  # bytes for headers and names
# numpy raises these for invalid headers, because it parses headers with Python's own parser.
_BAD_HEADER = (ValueError, EOFError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError)
_SMALL = 4  # upper bound of random integers
_RAW, _NPY, _NPZ = ".raw", ".npy", ".npz"


class Input(NamedTuple):
    """Name, NumPy type name and shape of a graph input."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    integers: bool = True  # True: integers may replace the real numbers of a float type
    below: int | None = None  # number of rows of the table that random integers index

    @property
    def elements(self) -> int:
        """Return the number of elements of the input."""
        return math.prod(self.shape)

    @property
    def wanted(self) -> str:
        """Return the expected type and shape of the input as text."""
        return f"{self.dtype} of shape {_shape(self.shape)}"


# Files of one sample as (input name, path). The name is "" for an .npz file, which names its inputs
# itself.
Sample = tuple[tuple[str, Path], ...]


def find_samples(
    place: Path, inputs: Sequence[Input], here: Path = Path(), apart: Path | None = None
) -> tuple[Sample, ...]:
    """Return the samples in a folder or input list, in order, as paths; no array is read.

    Relative paths in an input list are searched next to the list, then in `here`. The folder
    `apart` is not a sample.
    """
    try:
        is_folder = stat.S_ISDIR(place.stat().st_mode)
    except NOT_THERE as exc:
        raise UsageError(MISSING, where=place) from exc
    except (OSError, ValueError) as exc:
        raise UsageError(f"sample inputs {quote(str(place))} cannot be opened") from exc
    listed = place / _LIST_NAME if is_folder else place
    if not is_folder and place.suffix.lower() in (_NPZ, _NPY, _RAW):
        samples: tuple[Sample, ...] = (_file(place, inputs),)
    elif not is_folder or listed.is_file():
        samples = tuple(_listed(listed, inputs, here))
    elif _is_sample(place, inputs):
        samples = (_folder(place, inputs),)
    else:
        samples = tuple(_entries(place, inputs, apart))
    if not samples:
        raise UsageError(f"{place} contains no sample inputs; add .npy, .npz or .raw files")
    return samples


def absolute(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return the samples with absolute paths, for a process with another current folder."""
    return tuple(tuple((name, path.absolute()) for name, path in sample) for sample in samples)


def read_sample(
    sample: Sample, inputs: Sequence[Input], optional: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sample by input name; only `optional` inputs may be missing."""
    wanted = {item.name: item for item in inputs}
    arrays: dict[str, NDArray[Any]] = {}
    for name, path in sample:
        if path.suffix.lower() == _NPZ:
            arrays.update(_read_npz(path, wanted))
        else:
            arrays[name] = _read_file(path, wanted[name])
    missing = [name for name in wanted if name not in arrays and name not in optional]
    if missing:
        named = sample[0][1] if len(sample) == 1 else sample[0][1].parent
        raise UsageError(
            f"{named} has no data for input {quote(missing[0])}; add a file or an .npz array for it"
        )
    return arrays


def random_sample(inputs: Sequence[Input], seed: int, number: int) -> dict[str, NDArray[Any]]:
    """Return random arrays by input name: normally distributed floats, small integers."""
    import numpy

    random = numpy.random.default_rng([seed, number])
    return {item.name: _random(random, item) for item in inputs}


def _random(random: numpy.random.Generator, item: Input) -> NDArray[Any]:
    import numpy

    if item.dtype.startswith("float") and item.below is None:
        return numpy.asarray(random.standard_normal(item.shape), item.dtype)
    # Small numbers are valid indices and token ids in nearly every model.
    bound = 2 if item.dtype == "bool" else min(_SMALL, item.below or _SMALL)
    return numpy.asarray(random.integers(0, bound, item.shape)).astype(item.dtype)


def _listed(path: Path, inputs: Sequence[Input], here: Path) -> Iterator[Sample]:
    text = read_bytes(path, _MAX_LIST_BYTES).decode("utf-8", "surrogateescape")
    lines = [line.strip() for line in text.splitlines()]
    # In input lists of qnn-net-run, a line that starts with # or % names outputs.
    used = [(k, line) for k, line in enumerate(lines, 1) if line and line[0] not in "#%"]
    _check_count(path, len(used))
    for number, line in used:
        yield _line(path, number, line, [item.name for item in inputs], here)


def _line(path: Path, number: int, line: str, names: Sequence[str], here: Path) -> Sample:
    words = line.split()
    if len(words) > len(names):
        raise UsageError(
            f"{path} line {number} lists {len(words)} files, but the model has {len(names)} "
            f"inputs ({', '.join(quote(name) for name in names[:5])})"
        )
    sample = []
    for position, word in enumerate(words):
        name, separator, file = word.rpartition(":=")
        name = name if separator else names[position]
        if name not in names:
            raise UsageError(f"{path} line {number}: the model has no input {quote(name)}")
        sample.append((name, _beside(path, file, here)))
    return tuple(sample)


def _beside(listed: Path, name: str, here: Path) -> Path:
    """Return the path of a listed file: next to the list if the file is there, else in `here`."""
    near = listed.parent / name
    # Path.exists raises for names that are too long for the system.
    return near if os.path.exists(near) else here / name  # noqa: PTH110


def _is_sample(folder: Path, inputs: Sequence[Input]) -> bool:
    """Return True if the files of a folder form one sample of a model with several inputs."""
    known = {_file_name(item.name) for item in inputs}
    files = [entry for entry in _names(folder) if entry.suffix.lower() in (_NPY, _RAW)]
    return len(inputs) > 1 and bool(files) and {file.stem for file in files} <= known


def _entries(folder: Path, inputs: Sequence[Input], apart: Path | None) -> Iterator[Sample]:
    for entry in _names(folder):
        if entry.is_dir():
            if apart is None or entry.resolve() != apart.resolve():
                yield _folder(entry, inputs)
        elif entry.suffix.lower() in (_NPZ, _NPY, _RAW):
            yield _file(entry, inputs)


def _file(file: Path, inputs: Sequence[Input]) -> Sample:
    """Return the sample in one file; raise UsageError if the file may be for several inputs."""
    if file.suffix.lower() == _NPZ:
        return (("", file),)
    if len(inputs) != 1:
        raise UsageError(
            f"{file} could be data for any of {len(inputs)} inputs; make one folder per "
            f"sample, with one file per input, such as {_file_name(inputs[0].name)}.npy"
        )
    return ((inputs[0].name, file),)


def _folder(folder: Path, inputs: Sequence[Input]) -> Sample:
    known = {_file_name(item.name): item.name for item in inputs}
    sample: list[tuple[str, Path]] = []
    for entry in _names(folder):
        if entry.suffix.lower() in (_NPY, _RAW):
            if entry.stem not in known:
                raise UsageError(f"{entry}: the model has no input {quote(entry.stem)}")
            if known[entry.stem] in dict(sample):
                raise UsageError(f"{folder} contains two files for input {quote(entry.stem)}")
            sample.append((known[entry.stem], entry))
    if not sample:
        raise UsageError(f"{folder} contains no .npy or .raw file for any input")
    return tuple(sample)


def _names(folder: Path) -> list[Path]:
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                _check_count(folder, len(names))
    except OSError as exc:
        raise UsageError(f"{folder} cannot be listed: {exc.strerror or exc}") from exc
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def _check_count(place: Path, count: int) -> None:
    if count > MAX_SAMPLES:
        raise UsageError(
            f"{place} contains more than {MAX_SAMPLES:,} samples; a few hundred are enough"
        )


def _file_name(name: str) -> str:
    return "".join("_" if char in "/\\:" else char for char in name)


def _read_file(path: Path, item: Input) -> NDArray[Any]:
    blob = read_bytes(path, item.elements * _WIDEST + _ROOM)
    if path.suffix.lower() == _NPY:
        return _from_npy(str(path), blob, item)
    return _from_raw(path, blob, item)


def _from_raw(path: Path, blob: bytes, item: Input) -> NDArray[Any]:
    """Return the array in a .raw file: float32 for float inputs, else the type of the input."""
    import numpy

    stored = numpy.dtype("float32" if item.dtype.startswith("float") else item.dtype)
    need = item.elements * stored.itemsize
    if len(blob) != need:
        raise UsageError(
            f"{path}: {len(blob):,} bytes given, {need:,} expected for input {quote(item.name)} "
            f"({stored.name} of shape {_shape(item.shape)})"
        )
    return _checked(str(path), numpy.frombuffer(blob, stored).reshape(item.shape), item)


def _read_npz(path: Path, wanted: Mapping[str, Input]) -> dict[str, NDArray[Any]]:
    import lzma
    import struct
    import zipfile
    import zlib

    # zipfile raises these for invalid archives: first its own exceptions, then any error that wrong
    # numbers in the file cause.
    own = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)
    strayed = (RuntimeError, ValueError, OSError, struct.error, LookupError, OverflowError)
    limit = sum(item.elements * _WIDEST + _ROOM for item in wanted.values())
    blob = read_bytes(path, limit)
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            return {
                name: _from_npy(f"{path}, array {quote(name)}", content, wanted[name])
                for name, content in _members(path, archive, wanted)
            }
    except (*own, *strayed) as exc:
        raise UsageError(f"{path} is not a readable .npz file") from exc


def _members(path: Path, archive: Any, wanted: Mapping[str, Input]) -> Iterator[tuple[str, bytes]]:
    for member in archive.infolist():
        name = member.filename.removesuffix(_NPY)
        if name not in wanted:
            raise UsageError(f"{path}: the model has no input {quote(name)}")
        limit = wanted[name].elements * _WIDEST + _ROOM
        with archive.open(member) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise UsageError(f"{path}: array {quote(name)} is larger than {wanted[name].wanted}")
        yield name, content


def _from_npy(label: str, blob: bytes, item: Input) -> NDArray[Any]:
    shape, dtype = _npy_header(label, blob)
    if tuple(shape) != item.shape or dtype.hasobject:
        raise UsageError(
            f"{label}: {dtype.name} of shape {_shape(shape)} given, "
            f"{item.wanted} expected for input {quote(item.name)}"
        )
    return _checked(label, _npy_array(label, blob), item)  # the shape is known to be small enough


def read_npy(path: Path, limit: int) -> NDArray[Any]:
    """Return the numeric array in a .npy file; the array may have at most `limit` bytes."""
    blob = read_bytes(path, limit + _ROOM)
    shape, dtype = _npy_header(str(path), blob)
    if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize > limit:
        kind = quote(dtype.name)
        raise UsageError(f"{path}: {kind} of shape {_shape(shape)} is not numeric or is too large")
    return _npy_array(str(path), blob)


def _npy_array(label: str, blob: bytes) -> NDArray[Any]:
    from numpy.lib import format as npy

    try:
        stream = io.BytesIO(blob)
        array: NDArray[Any] = npy.read_array(
            stream, allow_pickle=False, max_header_size=_MAX_HEADER
        )
    except (ValueError, EOFError) as exc:
        raise UsageError(f"{label} ends too early or is damaged") from exc
    return array


def _npy_header(label: str, blob: bytes) -> tuple[tuple[int, ...], Any]:
    import warnings
    from tokenize import TokenError

    from numpy.lib import format as npy

    stream = io.BytesIO(blob)
    try:
        major = npy.read_magic(stream)[0]
        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        with warnings.catch_warnings():  # the warnings are about headers of old versions
            warnings.simplefilter("ignore")
            shape, _, dtype = read(stream, max_header_size=_MAX_HEADER)
    except (*_BAD_HEADER, TokenError) as exc:
        raise UsageError(f"{label} is not a readable .npy file") from exc
    return shape, dtype


def _checked(label: str, array: NDArray[Any], item: Input) -> NDArray[Any]:
    import numpy

    if not numpy.can_cast(array.dtype, item.dtype, "same_kind"):
        raise _other_type(label, array, item)
    if not item.integers and array.dtype.kind != "f":
        raise _other_type(label, array, item)
    with numpy.errstate(over="ignore"):
        converted = numpy.ascontiguousarray(array, item.dtype).reshape(item.shape)
    if item.dtype.startswith("float"):
        if not numpy.isfinite(converted).all():
            raise UsageError(
                f"{label} contains NaN or infinity, which no quantization range can include"
            )
    elif not numpy.array_equal(converted, array):
        raise UsageError(
            f"{label} contains {array.dtype.name} numbers that {item.dtype} cannot hold"
        )
    return converted


def _other_type(label: str, array: NDArray[Any], item: Input) -> UsageError:
    own = "" if item.integers else "; to pass stored integers, use native input files"
    return UsageError(
        f"{label}: {array.dtype.name} given, {item.wanted} expected for input "
        f"{quote(item.name)}{own}"
    )


def _shape(shape: Sequence[int]) -> str:
    shown = "x".join(quote(size) for size in shape[:8])
    return (shown or "scalar") + ("..." if len(shape) > 8 else "")
