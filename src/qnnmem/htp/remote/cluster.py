"""Models on the workers of a cluster, each with its own library.

A task names the files of the model by content hash. A worker that lacks some files replies with
their hashes, gets these files with the next task, and stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from qnnmem.cache import NOWHERE, cache_folder
from qnnmem.errors import OutputError, QnnMemError, UsageError, WorkerError
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.htp.remote.files import FileStore, IncomingFile, RequestFolder, pack, unpack
from qnnmem.htp.requests import CompileRequest, HtpSettings
from qnnmem.htp.worker import Worker
from qnnmem.text import sentence
from qnnmem.wire import decode, encode

MOST_SENT = 1 << 30  # bytes of a model in one task
CACHE_BYTES = 8 << 30  # bytes that a worker stores
_LOOK_S = 5.0

Answer = dict[str, Any]
T = TypeVar("T")


class SentModel(NamedTuple):
    """A model to send: its request, which names files by hash, and the size of each file."""

    request: bytes
    sizes: dict[str, int]


class ClusterModel:
    """A model for cluster tasks; `answers` returns True while a worker is left."""

    def __init__(self, path: Path, executor: Executor, answers: Callable[[], bool]) -> None:
        whole = path.absolute()
        output, unused = Path("model.onnx"), HtpSettings(0)
        self._parcel = pack(CompileRequest(whole, whole.parent, output, settings=unused))
        size = sum(file.name.size for file in self._parcel.files.values())
        if size > MOST_SENT:
            raise UsageError(f"{path} has {size:,} bytes, over the cluster limit of {MOST_SENT:,}")
        sizes = {file.name.sha256: file.name.size for file in self._parcel.files.values()}
        self._sent = SentModel(encode(self._parcel.request), sizes)
        self._path, self._executor, self._answers = path, executor, answers

    def ask(self, kind: type[T], task: Callable[..., T], *wish: object) -> T:
        """Return the result of a task on any worker, with local paths.

        The task is called with a worker, the model and the given arguments.
        """
        answer = self._once({}, task, wish)
        while "missing" in answer:
            files = (self._parcel.files[digest] for digest in answer["missing"])
            answer = self._once({f.name.sha256: b"".join(f.parts()) for f in files}, task, wish)
        if "error" in answer:
            raise WorkerError(f"a worker of the cluster cannot compile: {answer['error']}")
        value = _renamed(answer["value"], str(answer["model"]), str(self._path))
        result = from_builtins(kind, value)
        if result is None:
            raise unreadable_answer()
        return result

    def close(self) -> None:
        """Do nothing: the cluster belongs to the caller."""

    def _once(
        self, contents: Mapping[str, bytes], task: Callable[..., object], wish: tuple[object, ...]
    ) -> Answer:
        job = self._executor.submit(run_task, self._sent, contents, task, *wish)
        while True:
            try:
                return job.result(_LOOK_S)
            except NotYet:
                if not self._answers():
                    raise WorkerError("no worker of the cluster answers") from None
            except QnnMemError:
                raise
            except (Exception, CancelledError) as exc:  # executors have their own exceptions
                raise WorkerError(f"a worker of the cluster was lost: {sentence(exc)}") from exc


def unreadable_answer() -> WorkerError:
    """Return the error for an answer of an unexpected type."""
    return WorkerError("a worker of the cluster sent an unreadable message")


def _renamed(value: Any, old: str, new: str) -> Any:
    """Return an answer with the local path of the model in place of the worker's path."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: _renamed(entry, old, new) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_renamed(entry, old, new) for entry in value)
    return value


def run_task(
    sent: SentModel, contents: Mapping[str, bytes], task: Callable[..., object], *wish: object
) -> Answer:
    """Return the result of a task with the library of this cluster worker."""
    with received_model(sent, contents) as model:
        if isinstance(model, list):
            return {"missing": model}
        try:
            worker = Worker(warm=True)
        except QnnMemError as exc:
            return {"error": str(exc)}
        with worker:
            return {"value": to_builtins(task(worker, model, *wish)), "model": str(model)}


@contextmanager
def received_model(sent: SentModel, contents: Mapping[str, bytes]) -> Iterator[Path | list[str]]:
    """Yield the model as a file of this cluster worker, or the hashes of files that it lacks."""
    from qnnmem.temporary_folder import temporary_folder

    store = _store()
    with temporary_folder(store.folder) as work:
        folder = RequestFolder(Path(work, "request"), Path(work, "held"))
        folder.held.mkdir()
        for digest, content in contents.items():
            _take(store, folder.held, digest, content)
        held = folder.held
        missing = [name for name, size in sent.sizes.items() if not store.hold(name, size, held)]
        if missing:
            yield missing
            return
        folder.make()
        placed = unpack(decode(sent.request, CompileRequest), folder)
        if not isinstance(placed, CompileRequest):
            raise AssertionError("a request must keep its type")
        yield placed.model.rename(placed.folder / "model.onnx")


def cluster_library_name() -> str:
    """Return the library's name on this cluster worker; if it is missing, `!` and the reason."""
    from qnnmem.htp.library import find_library

    try:
        return find_library().name
    except QnnMemError as exc:
        return f"!{exc}"


def _store() -> FileStore:
    folder = cache_folder()
    if folder == NOWHERE:
        raise OutputError("a worker of the cluster has no home folder for models")
    return FileStore(folder / "htp-worker", CACHE_BYTES)


def _take(store: FileStore, held: Path, digest: str, content: bytes) -> None:
    store.make_room(len(content))
    incoming = IncomingFile(digest, len(content), held)
    incoming.take(content)
    store.keep(incoming.finish())
