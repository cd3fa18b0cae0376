"""Files of remote requests: stored by content, named by hash in requests without paths.

The client names every file by its hash and sends the files that the worker lacks. The worker does
not trust the client: each file gets a path in a folder made for the request, and files without
such a path are refused.

    FOLDER/SHA256            a received file, read-only
    FOLDER/.qnnmem-XXXX/     the working folder of one connection, deleted when the connection ends;
                             the next worker deletes the folder of a killed worker

A file in use has a second link in the connection's folder, so deleting old files never affects a
running request.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from qnnmem.bounded_file import file_below
from qnnmem.calibration import Sample
from qnnmem.errors import Damaged, LoadError, OutputError
from qnnmem.htp.remote.messages import MAX_FILES, PART, FileName, digest_of, is_digest, parts_of
from qnnmem.htp.requests import (
    AnyRequest,
    CallsRequest,
    CallTensor,
    CompileReply,
    CompileRequest,
    ComposeRequest,
    ExecuteCall,
    LibraryRequest,
    ListenReply,
    ListenRequest,
    LoadRequest,
    QuantizeReply,
    QuantizeRequest,
    RemoteRequest,
    Reply,
)
from qnnmem.qnn.shared_memory import MappedBytes
from qnnmem.text import sentence
from qnnmem.units import format_size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = 16 << 20  # bytes that must stay free on the disk


class FileStore:
    """Files stored by content hash in a folder, with a limit on their total size."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self._most = folder, limit
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise OutputError(f"files cannot be stored in {folder} ({sentence(exc)})") from exc

    def hold(self, digest: str, size: int, held: Path) -> bool:
        """Link a stored file into a connection's folder; return False if the file is missing."""
        if (held / digest).is_file():
            return True
        kept = self.folder / digest
        try:
            if kept.stat().st_size != size:
                return False
            os.utime(kept)  # the least recently used files are deleted first
            link_or_copy(kept, held / digest)
        except OSError:
            return False
        return True

    def keep(self, held: Path) -> None:
        """Store a received file for later connections, if the limit allows it."""
        with suppress(OSError):
            os.link(held, self.folder / held.name)
        self.trim()

    def trim(self, limit: int | None = None) -> None:
        """Remove the least recently used files until the total is within the limit."""
        left = self._most if limit is None else limit
        for _, size, path in sorted(self._kept(), reverse=True):
            left -= size
            if left < 0:
                with suppress(OSError):
                    path.unlink()

    def _kept(self) -> list[tuple[int, int, Path]]:
        kept = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if is_digest(entry.name) and entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        kept.append((state.st_mtime_ns, state.st_size, Path(entry.path)))
        return kept

    def make_room(self, size: int) -> None:
        """Free disk space for a file; raise OutputError if emptying the store is not enough."""
        kept = sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())
        for limit in (None, 0):
            free = shutil.disk_usage(self.folder).free
            if free >= size + _ROOM:
                return
            if free + kept >= size + _ROOM:  # else deleting files does not help
                self.trim(limit)
        free = shutil.disk_usage(self.folder).free
        if free < size + _ROOM:
            has, needs = format_size(max(0, free - _ROOM)), format_size(size)
            raise OutputError(f"the disk has {has} left, but the file needs {needs}")


class IncomingFile:
    """A file that is being received."""

    def __init__(self, digest: str, size: int, held: Path) -> None:
        self._digest, self._left = digest, size
        self._sum = hashlib.sha256()
        self._path = held / "incoming"
        self._target = held / digest
        self._stream = self._path.open("wb")

    @property
    def is_whole(self) -> bool:
        """True if all bytes have arrived."""
        return self._left == 0

    def take(self, part: bytes) -> None:
        """Append bytes to the file; raise OutputError if it gets too large or cannot be written."""
        self._left -= len(part)
        if self._left < 0:
            raise OutputError("more bytes arrived than announced")
        self._sum.update(part)
        try:
            self._stream.write(part)
        except OSError as exc:
            raise write_error(exc) from exc

    def finish(self) -> Path:
        """Return the file; raise OutputError if its content does not match the announced hash."""
        try:
            self._stream.close()
        except OSError as exc:
            raise write_error(exc) from exc
        if self._sum.hexdigest() != self._digest:
            raise OutputError("the file changed while it was sent")
        self._path.chmod(0o400)
        self._path.replace(self._target)
        return self._target

    def drop(self) -> None:
        """Delete the bytes received so far."""
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self._path.unlink()


def write_error(exc: OSError) -> OutputError:
    """Return the error for a file that the worker cannot write."""
    if exc.errno in _FULL:
        return OutputError("the disk is full")
    return OutputError(f"the worker cannot write a file ({(exc.strerror or str(exc)).lower()})")


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file; copy it on file systems without links."""
    try:
        os.link(source, target)
    except FileExistsError:  # the target may be a hard link to a kept file
        raise
    except OSError:
        shutil.copyfile(source, target)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SAMPLES = (".npy", ".npz", ".raw")
_NOWHERE = Path()
Q = TypeVar("Q", bound=LibraryRequest)


def with_shared(
    request: Q,
    places: Sequence[MappedBytes],
    change: Callable[[CallTensor, MappedBytes], CallTensor],
) -> Q:
    """Return the request with `change` applied to every tensor in shared memory."""
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
    """A file to send, named by a hash of its content, or a copy of shared memory to send."""

    name: FileName
    source: Path | memoryview

    @property
    def keep(self) -> bool:
        """True if the worker should store the file; shared memory is only needed once."""
        return isinstance(self.source, Path)

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes in chunks that fit into a frame."""
        if isinstance(self.source, Path):
            yield from parts_of(self.source)
            return
        for start in range(0, self.name.size, PART):
            yield self.source[start : start + PART]


@dataclass(slots=True)
class Parcel:
    """A request without paths, and the files to send with it."""

    request: RemoteRequest
    files: dict[str, PackedFile] = field(default_factory=dict)
    shared: list[MappedBytes] = field(default_factory=list)
    output: Path | None = None  # destination of results

    def add(self, path: Path) -> Path:
        """Add a file and return its name in the request."""
        try:
            digest, size = _digest(path)
        except OSError as exc:
            raise LoadError(path, f"cannot be read ({(exc.strerror or str(exc)).lower()})") from exc
        self.files.setdefault(digest, PackedFile(FileName(digest, size), path))
        return Path(digest)

    def share(self, tensor: CallTensor, place: MappedBytes) -> CallTensor:
        """Add the content of shared memory; return the tensor with the content's index and hash.

        The worker's results are written back to this memory.
        """
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
        if size != state.st_size:  # the file is growing: the worker will report that it changed
            return digest, size
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = digest
    return _KNOWN[key], state.st_size


def pack(request: RemoteRequest, places: Sequence[MappedBytes] = ()) -> Parcel:
    """Return a request ready for sending: paths become hashes, shared memory is read."""
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
    if isinstance(request, LoadRequest | CallsRequest):
        changes["binaries"] = [parcel.add(path) for path in request.binaries]
    sent = with_shared(request, places, parcel.share)
    parcel.request = msgspec.structs.replace(sent, **changes)
    return parcel


def _packed_weights(
    parcel: Parcel, request: CompileRequest | ListenRequest | QuantizeRequest
) -> dict[str, Path]:
    from qnnmem.loader.onnx import weight_files

    weights = weight_files(request.model, request.folder)
    return {name: parcel.add(file) for name, file in weights.items() if file.is_file()}


def _packed_samples(parcel: Parcel, request: QuantizeRequest) -> tuple[Sample, ...] | None:
    """Return each sample's files by hash; paths in a calibration list are only valid locally."""
    from qnnmem.calibration import find_samples, read_sample
    from qnnmem.htp.native.session import model_inputs

    if request.calibration is None:
        return None
    inputs = list(model_inputs(request.model))
    samples = []
    for sample in find_samples(request.calibration, inputs, request.here or _NOWHERE):
        read_sample(sample, inputs)
        samples.append(
            tuple((name, Path(f"{parcel.add(file)}{file.suffix.lower()}")) for name, file in sample)
        )
    return tuple(samples)


# --- The worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestFolder:
    """The folder of one request, and the folder of files sent for it."""

    root: Path
    held: Path

    @property
    def out(self) -> Path:
        """The folder of results."""
        return self.root / "out"

    @property
    def shared(self) -> Path:
        """The folder with the contents of shared memory, in numbered files."""
        return self.root / "shared"

    def make(self) -> None:
        """Create the folder and its empty subfolders."""
        for name in ("in", "weights", "out", "shared", "samples", "scratch"):
            (self.root / name).mkdir(parents=True)

    def remove(self) -> None:
        """Remove the folder, and the links to files sent for it."""
        shutil.rmtree(self.root, ignore_errors=True)
        for path in self.held.iterdir():
            path.unlink(missing_ok=True)

    def place(self, digest: str, target: Path, *, writable: bool = False) -> Path:
        """Link or copy a received file to the path where the request reads it; return the path."""
        if not is_digest(digest):
            raise Damaged("names a file, but not by its hash")
        source = self.held / digest
        if not source.is_file():
            raise Damaged("names a file that was not sent")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise Damaged("gives two files the same name")
        if writable:
            shutil.copyfile(source, target)
        else:
            link_or_copy(source, target)
        return target


def unpack(request: RemoteRequest, folder: RequestFolder) -> RemoteRequest:
    """Return a received request with paths in `folder`; raise Damaged if the request is invalid."""
    from qnnmem.loader.onnx import weight_files

    changes: dict[str, Any] = {}
    if isinstance(request, CompileRequest | ListenRequest | QuantizeRequest):
        changes["model"] = folder.place(str(request.model), folder.root / "in" / "model.onnx")
        changes["folder"] = _placed_weights(request.weights, folder)
        changes["weights"] = {}
        weight_files(changes["model"], changes["folder"])  # raises for files outside the folder
    if isinstance(request, ComposeRequest):
        if request.kind == "library":  # the worker would run code of the client
            raise Damaged("sends a model library, whose code a worker does not run")
        changes["model"] = folder.place(str(request.model), folder.root / "in" / "model.dlc")
    if isinstance(request, CompileRequest | ListenRequest | QuantizeRequest | ComposeRequest):
        changes["output"] = None if request.output is None else _output(request.output, folder)
    if isinstance(request, QuantizeRequest):
        if request.calibration is not None or request.here is not None:
            raise Damaged("names a folder of the client")
        changes["scratch"] = folder.root / "scratch"
        changes["files"] = _placed_samples(request.files, folder)
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
    placed: RemoteRequest = msgspec.structs.replace(request, **changes)
    return placed


def _placed_tensors(call: ExecuteCall, folder: RequestFolder) -> ExecuteCall:
    """Return a call whose shared memory is in files of the request's folder."""
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
    """Link the weight files of a model under their own names; return the folder of the links."""
    top = folder.root / "weights"
    if len(weights) > MAX_FILES:
        raise Damaged("has too many files with weights")
    for name, path in weights.items():
        folder.place(str(path), file_below(top, name))
    return top


def with_paths(
    reply: Reply, change: Callable[[Path], Path], request: AnyRequest | None = None
) -> Reply:
    """Return a reply with `change` applied to its paths; raise ValueError if a path is missing."""
    if isinstance(reply, CompileReply):
        binaries = [change(path) for path in reply.binaries]
        epcontext = None if reply.epcontext is None else change(reply.epcontext)
        # A reply without a binary needs no EPContext model, and a composed graph never has one.
        if (epcontext is None) is not isinstance(request, ComposeRequest) and binaries and request:
            raise ValueError("a binary without its model")
        return msgspec.structs.replace(reply, binaries=binaries, epcontext=epcontext)
    if isinstance(reply, QuantizeReply):
        return msgspec.structs.replace(reply, model=change(reply.model))
    if isinstance(reply, ListenReply) and reply.data is not None:
        return msgspec.structs.replace(reply, data=change(reply.data))
    return reply


def _output(path: Path, folder: RequestFolder) -> Path:
    if not _NAME.fullmatch(str(path)):
        raise Damaged("has an invalid name for its result")
    return folder.out / path


def _placed_samples(
    samples: tuple[Sample, ...] | None, folder: RequestFolder
) -> tuple[Sample, ...] | None:
    """For each calibration sample, return its files with the names of the inputs."""
    if samples is None:
        return None
    if sum(map(len, samples)) > MAX_FILES:
        raise Damaged("has too many samples")
    placed = []
    for number, sample in enumerate(samples):
        files = []
        for position, (name, path) in enumerate(sample):
            if path.suffix not in _SAMPLES:
                raise Damaged("has a sample with an unsupported file suffix")
            target = folder.root / "samples" / f"{number}-{position}{path.suffix}"
            files.append((name, folder.place(path.name.removesuffix(path.suffix), target)))
        placed.append(tuple(files))
    return tuple(placed)
