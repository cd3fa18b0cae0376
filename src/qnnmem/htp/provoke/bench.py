"""Where crafted inputs meet the real library: compile one, load some, keep the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import CannotTell
from qnnmem.htp.compile import Compiled, CompileFailure, CompileOptions, compile_model
from qnnmem.htp.worker import RequestOutcome, Worker
from qnnmem.targets.socs import Soc

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where recipes are tried."""

    soc: Soc
    worker: Worker
    folder: Path
    time_limit_s: float
    say: Say

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
        self.say(f"compiling {what}")
        path = self.folder / "model.onnx"
        path.write_bytes(model)
        options = CompileOptions(
            time_limit_s=self.time_limit_s, memory_limit=memory_limit, log_file=self.log_file
        )
        return compile_model(path, self.soc, options, output=self.binary, worker=self.worker)

    def load(self, what: str, binaries: Sequence[bytes]) -> RequestOutcome:
        """Load binaries one after another and keep them."""
        self.say(f"loading {what}")
        paths = []
        for number, blob in enumerate(binaries):
            path = self.folder / f"load{number}.bin"
            path.write_bytes(blob)
            paths.append(str(path))
        request = {"binaries": paths, "soc": self.soc.model_id}
        return self.worker.ask(
            "load", request, time_limit_s=self.time_limit_s, log_file=self.log_file
        )

    def made(self, what: str, model: bytes) -> bytes:
        """The binary of a model that has to compile."""
        result = self.compile(what, model)
        if isinstance(result, CompileFailure):
            raise CannotTell(f"{what}, which was to be loaded, did not compile: {result.sentence}")
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
