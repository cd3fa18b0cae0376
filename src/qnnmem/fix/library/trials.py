"""Compiles and loads models with the real HTP library, each once.

What was said is found again by content: the model, the SoC, settings, the library and our version.
Limits are held against it each time. So a search that was killed goes on; only the binaries that
are wanted in the end are made again then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qnnmem.errors import CannotTell
from qnnmem.fix.library.trial import (
    LibraryTrial,
    every_pool,
    held_against,
    kept_trial,
    trial_of,
)
from qnnmem.htp.bill.measure import measure
from qnnmem.htp.compile import (
    CompileFailure,
    CompileOptions,
    Progress,
    compile_model,
    no_progress,
)
from qnnmem.htp.fit import fit_failure
from qnnmem.htp.fit.model import fit_measured
from qnnmem.htp.kept import to_kept
from qnnmem.htp.worker import Worker
from qnnmem.kept_results import ResultCache
from qnnmem.provenance import Sourced
from qnnmem.targets.socs import Soc
from qnnmem.version import __version__


@dataclass(frozen=True)
class HtpSource:
    """A model to compile: its bytes, and the file where they are those of a file of the user's."""

    content: bytes
    path: Path | None = None

    @property
    def digest(self) -> str:
        """By which it is found again."""
        return hashlib.sha256(self.content).hexdigest() + ("" if self.path is None else " file")


@dataclass(frozen=True)
class LibraryTrials:
    """One worker of the library, and what it said; binaries of what fits stay in the folder."""

    soc: Soc
    worker: Worker
    folder: Path
    budgets: Mapping[str, Sourced] = field(default_factory=dict)
    memory: ResultCache | None = None
    progress: Progress = no_progress
    known: dict[str, LibraryTrial] = field(default_factory=dict)

    def trial(self, source: HtpSource, options: CompileOptions) -> LibraryTrial:
        """What the library says of a model."""
        key = self._key(source, options)
        if key not in self.known:
            kept = None if self.memory is None else self.memory.get(key)
            self.known[key] = kept_trial(kept, self.soc) or self._tried(key, source, options)
        return held_against(self.known[key], self.budgets)

    def binary(self, source: HtpSource, options: CompileOptions) -> Path:
        """The context binary of a model that fits; made again where an earlier run judged it."""
        path = self.folder / f"{self._key(source, options)}.bin"
        if not path.exists():
            model = self._file(path.stem, source)
            own = _own(source, options)
            made = compile_model(
                model, self.soc, own, output=path, worker=self.worker, progress=self.progress
            )
            if isinstance(made, CompileFailure):
                raise CannotTell(made.why)
        return path

    def _tried(self, key: str, source: HtpSource, options: CompileOptions) -> LibraryTrial:
        model, binary = self._file(key, source), self.folder / f"{key}.bin"
        own = _own(source, options)
        try:
            made = measure(
                model, self.soc, own, output=binary, worker=self.worker, progress=self.progress
            )
        finally:
            if source.path is None:
                model.unlink(missing_ok=True)
        if isinstance(made, CompileFailure):
            trial = LibraryTrial(fit_failure(made, every_pool()), made.stage != "partition")
        else:
            trial = trial_of(fit_measured(made, every_pool()), made.bill)
        if not held_against(trial, self.budgets).fit.fits:
            binary.unlink(missing_ok=True)
        if self.memory is not None and trial.is_sure:
            self.memory.put(key, to_kept(trial))
        return trial

    def _file(self, key: str, source: HtpSource) -> Path:
        if source.path is not None:
            return source.path
        path = self.folder / f"{key}.onnx"
        path.write_bytes(source.content)
        return path

    def _key(self, source: HtpSource, options: CompileOptions) -> str:
        facts = {
            "version": __version__,
            "model": source.digest,
            "soc": self.soc.model_id,
            "library": self.worker.library.name,
            "precision": options.precision.value,
            "settings": [options.vtcm_mb, options.opt_level, options.memhandle, options.partition],
            "random": [options.samples, options.seed],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _own(source: HtpSource, options: CompileOptions) -> CompileOptions:
    """Shapes and values of the user's file are in a changed model already."""
    return options if source.path is not None else replace(options, dims={}, shapes={}, values={})
