"""A cache of compile results on disk, keyed by all that changes them; the files are untrusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from qnnmem.cache import NOWHERE, ResultCache, cache_folder
from qnnmem.errors import Setting, UsageError
from qnnmem.htp.compile import is_composed
from qnnmem.htp.compile.compiled import CompileOptions
from qnnmem.loader.onnx.inputs import MAX_VALUE_BYTES, InputValue
from qnnmem.targets.socs import Soc
from qnnmem.version import __version__
from qnnmem.wire import ready

FORMAT = 2  # version of the files; other versions are not read
_CHUNK = 1 << 20
T = TypeVar("T")


class CompileCache(Generic[T]):
    """Cached results for one model, keyed by everything that changes them."""

    def __init__(
        self, wanted: type[T], path: Path, library: str, kind: str, folder: Path | None = None
    ) -> None:
        """Open the cache; if a `folder` is given, it must be writable."""
        self._wanted, self._path, self._library = wanted, path, library
        place = folder or self.home_folder()
        self._cache = ResultCache(place, kind, must_keep=folder is not None)
        self._digest = ""

    @staticmethod
    def home_folder() -> Path:
        """Return the default folder; for a user without a home, results are not cached."""
        return cache_folder()

    def key(self, soc: Soc, options: CompileOptions, more: Mapping[str, int] | None = None) -> str:
        """Return the key of a result; empty if caching is not allowed. `more` adds settings."""
        if options.calibration is not None:  # its files may change
            return ""
        self._digest = self._digest or model_digest(self._path)
        # Several names may share an id, and a result contains the name of its SoC.
        settings = {**settings_of(options), **(more or {}), "name": soc.name}
        return key_of(self._digest, soc.model_id, settings, self._library)

    def get(self, key: str) -> T | None:
        """Return the cached result of a key; None if the cache has no valid result for it."""
        return from_builtins(self._wanted, self._cache.get(key)) if key else None

    def put(self, key: str, answer: T) -> None:
        """Store a result."""
        if key:
            self._cache.put(key, to_builtins(answer))


def to_builtins(value: object) -> dict[str, Any]:
    """Convert a result to JSON types."""
    values: dict[str, Any] = msgspec.to_builtins(value)
    return values


def from_builtins(wanted: type[T], values: object) -> T | None:
    """Return a value of type `wanted` made from JSON types; None if the types do not match."""
    try:
        return msgspec.convert(values, ready(wanted))
    except (msgspec.ValidationError, RecursionError, UnicodeError):
        return None


def default_folder() -> Path:
    """Return the default folder of cached results; raise UsageError if there is no home."""
    folder = cache_folder()
    if folder == NOWHERE:
        raise UsageError(
            "there is no home folder for results",
            cure=("choose a folder with ", Setting("cache")),
        )
    return folder


def model_digest(path: Path) -> str:
    """Return the SHA-256 of a model and its weight files."""
    total = hashlib.sha256()
    for file in (path, *sorted(_weight_files(path))):
        own = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                own.update(chunk)
        total.update(own.digest())
    return total.hexdigest()


def _weight_files(path: Path) -> Iterator[Path]:
    """Yield the external data files of a model; the compiler reports missing files."""
    if is_composed(path):  # the file has no external data
        return
    from qnnmem.loader.onnx import read_guarded
    from qnnmem.loader.onnx.tensor import tensors

    names = {
        entry.value
        for tensor in tensors(read_guarded(path).proto)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in names:
        file = path.absolute().parent / name
        if file.is_file():
            yield file


def _value_digest(value: InputValue) -> str:
    """Return a text that identifies an input value: the number, or a hash of the file or array."""
    if isinstance(value, Path):
        from qnnmem.bounded_file import read_bytes

        return hashlib.sha256(read_bytes(value, MAX_VALUE_BYTES)).hexdigest()
    if isinstance(value, bool | int | float):
        return str(value)
    import numpy

    array = numpy.asarray(value)
    return f"{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def settings_of(options: CompileOptions) -> dict[str, int | str]:
    """Return every option that changes a result, by name."""
    return {
        "precision": options.precision.value,
        "vtcm_mb": options.vtcm_mb or 0,
        "opt_level": options.opt_level or 0,
        **{f"dim {name}": size for name, size in sorted(options.dims.items())},
        **{f"shape {name}": str(list(shape)) for name, shape in sorted(options.shapes.items())},
        **{f"value {name}": _value_digest(value) for name, value in sorted(options.values.items())},
        "memhandle": int(options.memhandle),
        "partition": int(options.partition),
        "samples": options.samples,
        "seed": options.seed,
    }


def key_of(digest: str, soc: int, setting: Mapping[str, Any], library: str) -> str:
    """Return the key of a result, made from everything that changes it."""
    facts = {
        "format": FORMAT,
        "model": digest,
        "soc": soc,
        "setting": dict(sorted(setting.items())),
        "library": library,
        "program": f"qnnmem {__version__} {_code()}",
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    """Return a hash of qnnmem's code, because other versions might phrase results differently."""
    top = Path(__file__).parent
    states = sorted((str(path), path.stat().st_mtime_ns) for path in top.rglob("*.py"))
    return hashlib.sha256(repr(states).encode()).hexdigest()
