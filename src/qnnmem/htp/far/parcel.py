"""What goes through the pipe with a request: its options, and every file that they name."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qnnmem.errors import LoadError
from qnnmem.htp.far.wire import PART, digest_of, parts_of


class SharedPlace(Protocol):
    """Memory that an application shares with a graph."""

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        ...


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file by content, or bytes of shared memory in the place of one."""

    digest: str
    size: int
    source: Path | memoryview

    @property
    def keep(self) -> bool:
        """Whether it may be asked for again: files may, memory changes."""
        return isinstance(self.source, Path)

    def parts(self) -> Iterator[bytes | memoryview]:
        """Its bytes in pieces of a frame."""
        if isinstance(self.source, Path):
            yield from parts_of(self.source)
            return
        for start in range(0, self.size, PART):
            yield self.source[start : start + PART]


@dataclass(slots=True)
class Parcel:
    """A request without paths."""

    options: dict[str, Any] = field(default_factory=dict)
    files: dict[str, PackedFile] = field(default_factory=dict)
    shared: list[SharedPlace] = field(default_factory=list)

    def add(self, path: object) -> dict[str, Any]:
        """Take a file along; gives its name in the options."""
        source = Path(str(path))
        try:
            digest, size = _digest(source)
        except OSError as exc:
            raise LoadError(
                source, f"cannot be read ({(exc.strerror or str(exc)).lower()})"
            ) from exc
        self.files.setdefault(digest, PackedFile(digest, size, source))
        return {"sha256": digest, "size": size}

    def share(self, place: SharedPlace) -> dict[str, Any]:
        """Take along what is in shared memory now; what comes back is written there."""
        view = place.view.cast("B")
        digest, size = digest_of(io.BytesIO(view))
        self.files.setdefault(digest, PackedFile(digest, size, view))
        self.shared.append(place)
        return {"shared": len(self.shared) - 1, "content": {"sha256": digest, "size": size}}


_KNOWN: dict[tuple[str, int, int, int], str] = {}  # a model is hashed once, not for every SoC
_MOST_KNOWN = 10_000


def _digest(path: Path) -> tuple[str, int]:
    state = path.stat()
    key = (str(path), state.st_ino, state.st_size, state.st_mtime_ns)
    if key not in _KNOWN:
        with path.open("rb") as stream:
            digest, size = digest_of(stream)
        if size != state.st_size:  # it grows: the far end will say that it changed
            return digest, size
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = digest
    return _KNOWN[key], state.st_size


def pack(verb: str, options: Mapping[str, Any]) -> Parcel:
    """A request as it is sent: paths become contents, results are named, shared memory is read."""
    parcel = Parcel()
    for name, value in options.items():
        packer = _PACKERS.get(name)
        if packer is None:
            parcel.options[name] = value
        else:
            packer(parcel, name, value, options)
    if verb == "quantize":
        parcel.options["sample_files"] = _samples(parcel, options)
    return parcel


Packer = Callable[[Parcel, str, Any, Mapping[str, Any]], None]


def _file(parcel: Parcel, name: str, value: Any, _options: Mapping[str, Any]) -> None:
    parcel.options[name] = parcel.add(value)


def _files(parcel: Parcel, name: str, value: Any, _options: Mapping[str, Any]) -> None:
    parcel.options[name] = [parcel.add(path) for path in value]


def _weights(parcel: Parcel, name: str, value: Any, options: Mapping[str, Any]) -> None:
    from qnnmem.loader.onnx import weight_files

    found = weight_files(Path(options["model"]), Path(value))
    parcel.options[name] = {
        name: parcel.add(file) for name, file in found.items() if file.is_file()
    }


def _output(parcel: Parcel, name: str, value: Any, _options: Mapping[str, Any]) -> None:
    parcel.options[name] = Path(value).name


def _nothing(parcel: Parcel, name: str, _value: Any, _options: Mapping[str, Any]) -> None:
    parcel.options[name] = None


def _left_out(_parcel: Parcel, _name: str, _value: Any, _options: Mapping[str, Any]) -> None:
    """Leave out what `_samples` has taken along."""


def _calls(parcel: Parcel, name: str, value: Any, _options: Mapping[str, Any]) -> None:
    made = []
    for call in value:
        tensors = {
            key: {**{k: v for k, v in one.items() if k != "place"}, **parcel.share(one["place"])}
            if "place" in one
            else one
            for key, one in call.get("tensors", {}).items()
        }
        made.append({**call, **({"tensors": tensors} if tensors else {})})
    parcel.options[name] = made


_PACKERS: Mapping[str, Packer] = {
    "model": _file,
    "binary": _file,
    "binaries": _files,
    "folder": _weights,
    "output": _output,
    "scratch": _nothing,
    "calibration": _left_out,
    "here": _left_out,
    "calls": _calls,
}


def _samples(parcel: Parcel, options: Mapping[str, Any]) -> list[Any] | None:
    """The files of every sample; each is read here first, where its path means something."""
    from qnnmem.calibration import find_samples, read_sample
    from qnnmem.htp.native.quantize import model_inputs

    if options.get("calibration") is None:
        return None
    inputs = list(model_inputs(Path(options["model"])))
    made = []
    for sample in find_samples(Path(options["calibration"]), inputs, Path(options["here"])):
        read_sample(sample, inputs)
        made.append([[name, Path(file).suffix.lower(), parcel.add(file)] for name, file in sample])
    return made
