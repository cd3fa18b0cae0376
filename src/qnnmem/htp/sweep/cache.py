"""By what results of a sweep are found again: everything that changes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnmem.cache_folder import NOWHERE, cache_folder
from qnnmem.errors import Setting, UsageError
from qnnmem.htp.compile.model import is_composed

FORMAT = 2  # of the files; other formats are not read
_CHUNK = 1 << 20


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
    if is_composed(path):  # all is inside
        return
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
