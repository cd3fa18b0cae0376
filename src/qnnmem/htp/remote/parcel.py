"""Requests without paths: what a client sends, and how a worker gives it paths of its own.

The client names every file by its content and sends those that the worker does not have. The worker
trusts none of it: each file gets a place in a folder that was made for the request, and what has no
place there is refused.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from qnnmem.bounded_file import file_below
from qnnmem.calibration import Sample
from qnnmem.errors import Damaged, LoadError
from qnnmem.htp.remote.messages import MAX_FILES, PART, FileName, digest_of, is_digest, parts_of
from qnnmem.htp.remote.store import link_or_copy
from qnnmem.htp.requests import (
    CallsRequest,
    CallTensor,
    CompileRequest,
    ComposeRequest,
    ExecuteCall,
    LibraryRequest,
    ListenRequest,
    LoadRequest,
    QuantizeRequest,
    RemoteRequest,
    SystemInfoRequest,
)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SAMPLES = (".npy", ".npz", ".raw")
_NOWHERE = Path()
Q = TypeVar("Q", bound=LibraryRequest)


class SharedPlace(Protocol):
    """Memory that an application shares with a graph."""

    @property
    def fd(self) -> int:
        """Its file."""
        ...

    @property
    def offset(self) -> int:
        """Its place in that."""
        ...

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        ...


def with_shared(
    request: Q,
    places: Sequence[SharedPlace],
    change: Callable[[CallTensor, SharedPlace], CallTensor],
) -> Q:
    """A request in which every tensor with shared memory is changed."""
    if not isinstance(request, CallsRequest):
        return request
    calls = [
        msgspec.structs.replace(
            call,
            tensors={
                number: tensor if tensor.shared is None else change(tensor, places[tensor.shared])
                for number, tensor in call.tensors.items()
            },
        )
        if isinstance(call, ExecuteCall)
        else call
        for call in request.calls
    ]
    return msgspec.structs.replace(request, calls=calls)


# --- The client -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file by content, or bytes of shared memory in the place of one."""

    name: FileName
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
        for start in range(0, self.name.size, PART):
            yield self.source[start : start + PART]


@dataclass(slots=True)
class Parcel:
    """A request without paths, and the files that go with it."""

    request: RemoteRequest
    files: dict[str, PackedFile] = field(default_factory=dict)
    shared: list[SharedPlace] = field(default_factory=list)
    output: Path | None = None  # where results go

    def add(self, path: Path) -> Path:
        """Take a file along; gives its name in the request."""
        try:
            digest, size = _digest(path)
        except OSError as exc:
            raise LoadError(path, f"cannot be read ({(exc.strerror or str(exc)).lower()})") from exc
        self.files.setdefault(digest, PackedFile(FileName(digest, size), path))
        return Path(digest)

    def share(self, tensor: CallTensor, place: SharedPlace) -> CallTensor:
        """Take along what is in shared memory now; what comes back is written there."""
        view = place.view.cast("B")
        digest, size = digest_of(io.BytesIO(view))
        self.files.setdefault(digest, PackedFile(FileName(digest, size), view))
        self.shared.append(place)
        number = len(self.shared) - 1
        return msgspec.structs.replace(tensor, shared=number, file=Path(digest))


_KNOWN: dict[tuple[str, int, int, int], str] = {}  # a model is hashed once, not for every SoC
_MOST_KNOWN = 10_000


def _digest(path: Path) -> tuple[str, int]:
    state = path.stat()
    key = (str(path), state.st_ino, state.st_size, state.st_mtime_ns)
    if key not in _KNOWN:
        with path.open("rb") as stream:
            digest, size = digest_of(stream)
        if size != state.st_size:  # it grows: the worker will say that it changed
            return digest, size
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = digest
    return _KNOWN[key], state.st_size


def pack(request: RemoteRequest, places: Sequence[SharedPlace] = ()) -> Parcel:
    """A request as it is sent: paths become contents, results are named, shared memory is read."""
    parcel = Parcel(request)
    changes: dict[str, Any] = {}
    if isinstance(request, CompileRequest | ListenRequest | QuantizeRequest):
        changes |= {"folder": _NOWHERE, "weights": _packed_weights(parcel, request)}
    if isinstance(request, CompileRequest | ListenRequest | QuantizeRequest | ComposeRequest):
        changes["model"] = parcel.add(request.model)
        parcel.output = request.output
        changes["output"] = None if request.output is None else Path(request.output.name)
    if isinstance(request, QuantizeRequest):
        changes |= {"scratch": _NOWHERE, "calibration": None, "here": None}
        changes["files"] = _packed_samples(parcel, request)
    if isinstance(request, SystemInfoRequest):
        changes["binary"] = parcel.add(request.binary)
    if isinstance(request, LoadRequest | CallsRequest):
        changes["binaries"] = [parcel.add(path) for path in request.binaries]
    sent = with_shared(request, places, parcel.share)
    parcel.request = msgspec.structs.replace(sent, **changes)
    return parcel


def _packed_weights(
    parcel: Parcel, request: CompileRequest | ListenRequest | QuantizeRequest
) -> dict[str, Path]:
    from qnnmem.loader.onnx import weight_files

    found = weight_files(request.model, request.folder)
    return {name: parcel.add(file) for name, file in found.items() if file.is_file()}


def _packed_samples(parcel: Parcel, request: QuantizeRequest) -> tuple[Sample, ...] | None:
    """The files of every sample; each is read here first, where its path means something."""
    from qnnmem.calibration import find_samples, read_sample
    from qnnmem.htp.native.quantize import model_inputs

    if request.calibration is None:
        return None
    inputs = list(model_inputs(request.model))
    made = []
    for sample in find_samples(request.calibration, inputs, request.here or _NOWHERE):
        read_sample(sample, inputs)
        made.append(
            tuple((name, Path(f"{parcel.add(file)}{file.suffix.lower()}")) for name, file in sample)
        )
    return tuple(made)


# --- The worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestFolder:
    """The folder of one request, and that of the files which were sent for it."""

    root: Path
    held: Path

    @property
    def out(self) -> Path:
        """Where results go."""
        return self.root / "out"

    @property
    def shared(self) -> Path:
        """Where shared memory is, in files with its numbers."""
        return self.root / "shared"

    def make(self) -> None:
        """Make it, empty."""
        for name in ("in", "weights", "out", "shared", "samples", "scratch"):
            (self.root / name).mkdir(parents=True)

    def remove(self) -> None:
        """Remove it, and let go of the files that were sent for it."""
        shutil.rmtree(self.root, ignore_errors=True)
        for path in self.held.iterdir():
            path.unlink(missing_ok=True)

    def place(self, digest: str, target: Path, *, writable: bool = False) -> Path:
        """Put a file that was sent where it is to be read."""
        if not is_digest(digest):
            raise Damaged("names a file by something else than its content")
        source = self.held / digest
        if not source.is_file():
            raise Damaged("names a file that was not sent")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise Damaged("gives two files one name")
        if writable:
            shutil.copyfile(source, target)
        else:
            link_or_copy(source, target)
        return target


def unpack(request: RemoteRequest, folder: RequestFolder) -> RemoteRequest:
    """A request with paths of its folder; Damaged says what is wrong with it."""
    changes: dict[str, Any] = {}
    if isinstance(request, CompileRequest | ListenRequest | QuantizeRequest):
        changes["model"] = folder.place(str(request.model), folder.root / "in" / "model.onnx")
        changes["folder"] = _placed_weights(request.weights, folder)
        changes["weights"] = {}
        _check_weights(changes["model"], changes["folder"])
    if isinstance(request, ComposeRequest):
        if request.kind == "library":  # it would be code of the client
            raise Damaged("brings a model of another kind")
        changes["model"] = folder.place(str(request.model), folder.root / "in" / "model.dlc")
    if isinstance(request, CompileRequest | ListenRequest | QuantizeRequest | ComposeRequest):
        changes["output"] = None if request.output is None else _output(request.output, folder)
    if isinstance(request, QuantizeRequest):
        if request.calibration is not None or request.here is not None:
            raise Damaged("names a folder of the client")
        changes["scratch"] = folder.root / "scratch"
        changes["files"] = _placed_samples(request.files, folder)
    if isinstance(request, SystemInfoRequest):
        changes["binary"] = folder.place(str(request.binary), folder.root / "in" / "model.bin")
    if isinstance(request, LoadRequest | CallsRequest):
        places = (folder.root / "in" / f"{number}.bin" for number in range(MAX_FILES))
        changes["binaries"] = [
            folder.place(str(path), place)
            for path, place in zip(request.binaries, places)  # noqa: B905  as many as there are
        ]
    if isinstance(request, CallsRequest):
        changes["calls"] = [
            _placed_tensors(call, folder) if isinstance(call, ExecuteCall) else call
            for call in request.calls
        ]
    made: RemoteRequest = msgspec.structs.replace(request, **changes)
    return made


def _placed_tensors(call: ExecuteCall, folder: RequestFolder) -> ExecuteCall:
    """A call whose shared memory is files of the folder."""
    tensors = {}
    for number, tensor in call.tensors.items():
        placed = tensor
        if tensor.shared is not None and tensor.file is not None:
            target = folder.shared / str(tensor.shared)
            path = folder.place(str(tensor.file), target, writable=True)
            placed = msgspec.structs.replace(tensor, shared=None, file=path, offset=0)
        elif tensor.shared is not None or tensor.file is not None:
            raise Damaged("has shared memory without content")
        tensors[number] = placed
    return msgspec.structs.replace(call, tensors=tensors)


def _placed_weights(weights: dict[str, Path], folder: RequestFolder) -> Path:
    """The folder of a model's weights; they keep their names, below it."""
    top = folder.root / "weights"
    if len(weights) > MAX_FILES:
        raise Damaged("has too many files with weights")
    for name, path in weights.items():
        folder.place(str(path), file_below(top, name))
    return top


def _check_weights(model: Path, folder: Path) -> None:
    """Refuse a model that names files outside of the folder that was made for it."""
    from qnnmem.loader.onnx import weight_files

    weight_files(model, folder)


def _output(path: Path, folder: RequestFolder) -> Path:
    if not _NAME.fullmatch(str(path)):
        raise Damaged("names its result oddly")
    return folder.out / path


def _placed_samples(
    samples: tuple[Sample, ...] | None, folder: RequestFolder
) -> tuple[Sample, ...] | None:
    """Files of each sample for calibration, by input."""
    if samples is None:
        return None
    if sum(map(len, samples)) > MAX_FILES:
        raise Damaged("has too many samples")
    made = []
    for number, sample in enumerate(samples):
        files = []
        for position, (name, path) in enumerate(sample):
            if path.suffix not in _SAMPLES:
                raise Damaged("has a sample of another kind")
            target = folder.root / "samples" / f"{number}-{position}{path.suffix}"
            files.append((name, folder.place(path.name.removesuffix(path.suffix), target)))
        made.append(tuple(files))
    return tuple(made)
