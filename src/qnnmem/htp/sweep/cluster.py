"""Points of a sweep compiled by the workers of a cluster, where each has the library itself.

A task names the files of the model by content. A worker that does not have them says so, is sent
them once with the task, and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from qnnmem.cache_folder import NOWHERE, cache_folder
from qnnmem.errors import OutputError, QnnMemError, UsageError, Words, WorkerError
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.far.parcel import pack
from qnnmem.htp.far.store import FileStore, IncomingFile
from qnnmem.htp.sweep.value import Result, SweepPoint
from qnnmem.targets.socs import Soc, find_soc
from qnnmem.text import sentence

MOST_SENT = 1 << 30  # bytes of a model in one task
CACHE_BYTES = 8 << 30  # that a worker keeps
_LOOK_S = 5.0

Answer = dict[str, Any]


class ClusterCompiler:
    """Compiles each point by one task; `answers` says whether anybody is left to do it."""

    def __init__(
        self,
        path: Path,
        soc: Soc,
        base: CompileOptions,
        executor: Executor,
        answers: Callable[[], bool],
    ) -> None:
        if any(isinstance(value, Path) for value in base.values.values()):
            raise UsageError(
                "values of inputs in files do not go to a cluster; give them as numbers"
            )
        self._parcel = pack("compile", {"model": path, "folder": path.absolute().parent})
        size = sum(file.size for file in self._parcel.files.values())
        if size > MOST_SENT:
            raise UsageError(f"{path} has {size:,} bytes, a cluster is sent {MOST_SENT:,} at most")
        self._path, self._soc = path, soc
        self._executor, self._answers = executor, answers
        self._base = replace(base, log_file=None)

    def run(self, point: SweepPoint) -> Result:
        """Compile a point somewhere."""
        answer = self._ask({}, point)
        while "missing" in answer:
            files = (self._parcel.files[digest] for digest in answer["missing"])
            answer = self._ask({f.digest: b"".join(f.parts()) for f in files}, point)
        if "error" in answer:
            raise WorkerError(f"a worker of the cluster cannot compile: {answer['error']}")
        values = dict(answer["result"])
        return Result(**{**values, "reason": self._here(values["reason"], answer["model"])})

    def close(self) -> None:
        """Do nothing: the cluster is the caller's."""

    def _here(self, words: Words, model: str) -> Words:
        """Words in which the model has the name that it has here."""
        here = str(self._path)
        if isinstance(words, str):
            return words.replace(model, here)
        return tuple(w.replace(model, here) if isinstance(w, str) else w for w in words)

    def _ask(self, contents: Mapping[str, bytes], point: SweepPoint) -> Answer:
        wish = (self._parcel.options, contents, self._soc.name, self._base, dict(point))
        job: Future[Answer] = self._executor.submit(compile_there, *wish)
        while True:
            try:
                return job.result(_LOOK_S)
            except NotYet:
                if not self._answers():
                    raise WorkerError("no worker of the cluster answers any more") from None
            except QnnMemError:
                raise
            except (Exception, CancelledError) as exc:  # each executor has classes of its own
                raise WorkerError(f"a worker of the cluster was lost: {sentence(exc)}") from exc


def compile_there(
    options: Mapping[str, Any],
    contents: Mapping[str, bytes],
    soc: str,
    base: CompileOptions,
    point: SweepPoint,
) -> Answer:
    """On a worker of a cluster: compile a point with the library that is there."""
    from qnnmem.htp.far.request import RequestFolder, read_request
    from qnnmem.htp.sweep.compiler import LibraryCompiler
    from qnnmem.scratch_folder import scratch_folder

    store = _store()
    with scratch_folder(store.folder) as work:
        folder = RequestFolder(Path(work, "request"), Path(work, "held"))
        folder.held.mkdir()
        for digest, content in contents.items():
            _take(store, folder.held, digest, content)
        named = (options["model"], *options["folder"].values())
        sizes = {one["sha256"]: one["size"] for one in named}
        missing = [name for name, size in sizes.items() if not store.hold(name, size, folder.held)]
        if missing:
            return {"missing": missing}
        folder.make()
        placed = read_request("compile", options, folder)
        model = Path(placed["folder"], "model.onnx")
        Path(placed["model"]).rename(model)
        try:
            compiler = LibraryCompiler(model, find_soc(soc), base)
        except QnnMemError as exc:
            return {"error": str(exc)}
        try:
            result = compiler.run(point)
            values = {one.name: getattr(result, one.name) for one in fields(result)}
            return {"result": values, "model": str(model)}
        finally:
            compiler.close()


def library_there_is() -> str:
    """On a worker of a cluster: name of its library, or why there is none, after a `!`."""
    from qnnmem.htp.library import find_library

    try:
        return find_library().name
    except QnnMemError as exc:
        return f"!{exc}"


def _store() -> FileStore:
    folder = cache_folder()
    if folder == NOWHERE:
        raise OutputError("a worker of the cluster has no home folder to keep models in")
    return FileStore(folder / "htp-worker", CACHE_BYTES)


def _take(store: FileStore, held: Path, digest: str, content: bytes) -> None:
    store.make_room(len(content))
    incoming = IncomingFile(digest, len(content), held)
    incoming.take(content)
    store.keep(incoming.finish())
