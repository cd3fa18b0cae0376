"""The far end's reading of a request: nothing in it is trusted, none of its paths is used.

Files are named by content. Each is given a place in a folder that was made for the request, and the
options get that path; what has no place there is refused.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import file_below
from qnnmem.errors import Damaged
from qnnmem.htp.far.store import link_or_copy
from qnnmem.htp.far.wire import MAX_FILES, is_digest

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_WORD = re.compile(r"[a-z0-9_]{1,20}")
_MAX_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class RequestFolder:
    """The folder of one request, and that of the files which were sent for it."""

    root: Path
    held: Path

    @property
    def out(self) -> Path:
        """Where results go."""
        return self.root / "out"

    def make(self) -> None:
        """Make it, empty."""
        for name in ("in", "weights", "out", "shared", "samples"):
            (self.root / name).mkdir(parents=True)

    def remove(self) -> None:
        """Remove it, and let go of the files that were sent for it."""
        shutil.rmtree(self.root, ignore_errors=True)
        for path in self.held.iterdir():
            path.unlink(missing_ok=True)

    def place(self, named: object, target: Path, *, writable: bool = False) -> str:
        """Put a file that was sent where it is to be read."""
        digest = named.get("sha256") if isinstance(named, dict) else None
        if not is_digest(digest):
            raise Damaged("names a file by something else than its content")
        source = self.held / str(digest)
        if not source.is_file():
            raise Damaged("names a file that was not sent")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise Damaged("gives two files one name")
        if writable:
            shutil.copyfile(source, target)
        else:
            link_or_copy(source, target)
        return str(target)


Reader = Callable[[RequestFolder, Any], Any]


def _file(name: str) -> Reader:
    return lambda folder, value: folder.place(value, folder.root / "in" / name)


def _binaries(folder: RequestFolder, value: Any) -> list[str]:
    listed = _items(value)
    places = (folder.root / "in" / f"{number}.bin" for number in range(len(listed)))
    return [folder.place(one, place) for one, place in zip(listed, places, strict=True)]


def _weights(folder: RequestFolder, value: Any) -> str:
    """The folder of a model's weights; they keep their names, below it."""
    top = folder.root / "weights"
    if not isinstance(value, dict) or len(value) > MAX_FILES:
        raise Damaged("has no list of files with weights")
    for name, one in value.items():
        folder.place(one, file_below(top, name))
    return str(top)


def _output(folder: RequestFolder, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Damaged("names its result oddly")
    return str(folder.out / value)


def _scratch(folder: RequestFolder, _value: Any) -> str:
    made = folder.root / "scratch"
    made.mkdir()
    return str(made)


def _samples(folder: RequestFolder, value: Any) -> list[list[list[str]]] | None:
    """Files of each sample for calibration, by input."""
    if value is None:
        return None
    made = []
    for number, sample in enumerate(_items(value)):
        files = []
        for position, one in enumerate(_items(sample)):
            name, suffix, file = _items(one, 3)
            if not isinstance(name, str) or suffix not in (".npy", ".npz", ".raw"):
                raise Damaged("has a sample of another kind")
            place = folder.root / "samples" / f"{number}-{position}{suffix}"
            files.append([name, folder.place(file, place)])
        made.append(files)
    return made


def _calls(folder: RequestFolder, value: Any) -> list[dict[str, Any]]:
    """Calls as they are; memory that they share with the client becomes files."""
    if not isinstance(value, list) or len(value) > _MAX_CALLS:
        raise Damaged("has no list of calls")
    made = []
    for call in value:
        if not isinstance(call, dict) or not _WORD.fullmatch(str(call.get("call"))):
            raise Damaged("has a call that is none")
        tensors = call.get("tensors", {})
        if not isinstance(tensors, dict):
            raise Damaged("has a call without tensors")
        shared = {key: _tensor(folder, key, one) for key, one in tensors.items()}
        made.append({**call, **({"tensors": shared} if tensors else {})})
    return made


def _tensor(folder: RequestFolder, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or "file" in value or not key.isdigit() or len(key) > 20:
        raise Damaged("has a tensor that is none")
    if "shared" not in value:
        return value
    number = value["shared"]
    if type(number) is not int or not 0 <= number < MAX_FILES:
        raise Damaged("has shared memory without a number")
    place = folder.root / "shared" / str(number)
    rest = {name: one for name, one in value.items() if name not in ("shared", "content")}
    path = folder.place(value.get("content"), place, writable=True)
    return {**rest, "file": path, "offset": 0}


def _items(value: Any, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_FILES or count not in (None, len(value)):
        raise Damaged("has a list that is none")
    return value


def _word(_folder: RequestFolder, value: Any) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise Damaged("has a word that is none")
    return value


def _composed_kind(_folder: RequestFolder, value: Any) -> str:
    """What a model is: never a library, which would be code of the client."""
    if value not in ("dlc", "calls"):
        raise Damaged("brings a model of another kind")
    return str(value)


# Options that are more than numbers. Any other is passed on if it is a number, yes, no or nothing.
VERBS: Mapping[str, Mapping[str, Reader]] = {
    "versions": {},
    "wait": {},
    "system_info": {"binary": _file("model.bin")},
    "load": {"binaries": _binaries},
    "calls": {"binaries": _binaries, "calls": _calls},
    "compile": {
        "model": _file("model.onnx"),
        "folder": _weights,
        "output": _output,
        "log": _word,
    },
    "compose": {
        "kind": _composed_kind,
        "model": _file("model.dlc"),
        "output": _output,
        "log": _word,
    },
    "listen": {"model": _file("model.onnx"), "folder": _weights, "log": _word},
    "quantize": {
        "model": _file("model.onnx"),
        "folder": _weights,
        "scratch": _scratch,
        "output": _output,
        "precision": _word,
        "sample_files": _samples,
    },
}


def read_request(verb: object, options: object, folder: RequestFolder) -> dict[str, Any]:
    """The options of a request with paths of its folder; Damaged says what is wrong with it."""
    if not isinstance(verb, str) or verb not in VERBS or not isinstance(options, dict):
        raise Damaged("asks for what a worker does not do")
    made = {}
    for name, value in options.items():
        if name in VERBS[verb]:
            made[name] = VERBS[verb][name](folder, value)
        elif isinstance(value, bool | int | float | None):
            made[name] = value
        else:
            raise Damaged(f"has an option {name[:40]!r} that a worker does not know")
    if "folder" in made and "model" in made:
        _check_weights(Path(made["model"]), Path(made["folder"]))
    return made


def _check_weights(model: Path, folder: Path) -> None:
    """Refuse a model that names files outside of the folder that was made for it."""
    from qnnmem.loader.onnx import weight_files

    weight_files(model, folder)
