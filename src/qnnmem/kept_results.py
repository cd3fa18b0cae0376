"""Results on disk: one small file for each, found again by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnmem.cache_folder import read_kept, write_kept
from qnnmem.errors import OutputError

_MAX_FILE = 1 << 20


class ResultCache:
    """A folder of results; a file is there whole or not at all, and a bad one counts as missing.

    Where results `must_keep`, a folder that takes none is an error; else nothing is kept.
    """

    def __init__(self, folder: Path, kind: str = "sweep", *, must_keep: bool = True) -> None:
        self.folder = folder / kind
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
