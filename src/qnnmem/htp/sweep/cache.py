"""Results of a sweep on disk: one small file for each compile, found again by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnmem.cache_folder import NOWHERE, cache_folder, read_kept, write_kept
from qnnmem.errors import OutputError, Setting, UsageError

FORMAT = 1  # of the files; other formats are not read
_CHUNK = 1 << 20
_MAX_FILE = 1 << 20


def default_folder() -> Path:
    """Where results are kept unless told otherwise."""
    folder = cache_folder()
    if folder == NOWHERE:
        raise UsageError(
            "there is no home folder to keep results in",
            cure=("name a folder with ", Setting("cache")),
        )
    return folder


def model_digest(path: Path) -> str:
    """SHA-256 of a model and of the files that hold its weights."""
    total = hashlib.sha256()
    for file in (path, *sorted(_weight_files(path))):
        own = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                own.update(chunk)
        total.update(own.digest())
    return total.hexdigest()


def _weight_files(path: Path) -> Iterator[Path]:
    """Files beside the model that its tensors point to; missing ones are the compiler's matter."""
    from qnnmem.load.onnx import read_guarded
    from qnnmem.load.onnx.stored import tensors

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


def key_of(digest: str, soc: int, setting: Mapping[str, Any], library: str) -> str:
    """Name of a result: everything that changes it goes in."""
    facts = {
        "format": FORMAT,
        "model": digest,
        "soc": soc,
        "setting": dict(sorted(setting.items())),
        "library": library,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class ResultCache:
    """A folder of results; a file is there whole or not at all, and a bad one counts as missing.

    Where results `must_keep`, a folder that takes none is an error; else nothing is kept.
    """

    def __init__(self, folder: Path, *, must_keep: bool = True) -> None:
        self.folder = folder / "sweep"
        self._must_keep = must_keep

    def get(self, key: str) -> dict[str, Any] | None:
        """A result that was kept."""
        path = self._path(key)
        try:
            found = json.loads(read_kept(path, _MAX_FILE))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("key") != key:
            return None
        values = found.get("result")
        if not isinstance(values, dict) or found.get("digest") != _digest(key, values):
            return None
        return values

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a result."""
        path = self._path(key)
        text = json.dumps({"key": key, "result": dict(result), "digest": _digest(key, result)})
        try:
            write_kept(path, text.encode("ascii"))
        except OSError as exc:
            if not self._must_keep:
                return
            raise OutputError(f"{path.parent} cannot be written: {exc.strerror or exc}") from exc

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _digest(key: str, result: Mapping[str, Any]) -> str:
    """A number that finds a flipped bit, with which a result would still be a result."""
    return hashlib.sha256(json.dumps([key, dict(result)], sort_keys=True).encode()).hexdigest()
