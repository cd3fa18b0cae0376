"""The real library with its whole log kept: crafted inputs are compiled or loaded by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import CannotTell, chain_words
from qnnmem.htp.bill.loading import Loaded, load_binaries
from qnnmem.htp.compile import (
    Compiled,
    CompileFailure,
    CompileOptions,
    Progress,
    compile_model,
)
from qnnmem.htp.log import LogLine
from qnnmem.htp.worker import RequestOutcome, Worker
from qnnmem.targets.socs import Soc

_LINES = 60  # of a record
_WHAT_MATTERS = ("PD", "QnnGraph_finalize done", "terminate called")


@dataclass(frozen=True, slots=True)
class LoggedLibrary:
    """Compiles and loads crafted inputs for a SoC, and keeps the log of the last attempt."""

    soc: Soc
    worker: Worker
    folder: Path
    time_limit_s: float
    progress: Progress

    @property
    def name(self) -> str:
        """Package and version."""
        return self.worker.library.name

    @property
    def log_file(self) -> Path:
        """The whole log of the last attempt."""
        return self.folder / "log.txt"

    @property
    def binary(self) -> Path:
        """The context binary of the last compile that worked."""
        return self.folder / "model.bin"

    def compile(
        self, what: str, model: bytes, memory_limit: int | None = None
    ) -> Compiled | CompileFailure:
        """Compile a crafted model."""
        self.progress(f"compiling {what}")
        path = self.folder / "model.onnx"
        path.write_bytes(model)
        options = CompileOptions(
            time_limit_s=self.time_limit_s, memory_limit=memory_limit, log_file=self.log_file
        )
        return compile_model(path, self.soc, options, output=self.binary, worker=self.worker)

    def load(self, what: str, binaries: Sequence[bytes]) -> Loaded:
        """Load binaries one after another and keep them."""
        self.progress(f"loading {what}")
        paths = [self.folder / f"load{number}.bin" for number in range(len(binaries))]
        for path, blob in zip(paths, binaries, strict=True):
            path.write_bytes(blob)
        return load_binaries(
            self.worker,
            paths,
            self.soc.model_id,
            time_limit_s=self.time_limit_s,
            log_file=self.log_file,
        )

    def made(self, what: str, model: bytes) -> bytes:
        """The binary of a model that has to compile."""
        result = self.compile(what, model)
        if isinstance(result, CompileFailure):
            why = f"{what}, which was to be loaded, did not compile: "
            raise CannotTell(chain_words(why, result.why))
        return self.binary.read_bytes()

    def log_text(self) -> bytes:
        """The whole log; folders of this machine are replaced, nothing else."""
        text = self.log_file.read_bytes() if self.log_file.is_file() else b""
        for path, word in (
            (self.folder, b"<work>"),
            (self.worker.library.folder, b"<library>"),
            (self.folder.parent, b"<temporary>"),
            (Path.home(), b"<home>"),
        ):
            if path != Path(path.anchor):
                text = text.replace(bytes(path), word)
        return text


def kept_lines(outcome: RequestOutcome, *, said: bool) -> tuple[str, ...]:
    """Errors, and what tells about process domains and stages; the last ones if there are many."""
    kept = [line.text for line in outcome.log if said and _matters(line)]
    return tuple(kept[-_LINES:])


def _matters(line: LogLine) -> bool:
    return line.level == "E" or any(word in line.text for word in _WHAT_MATTERS)
