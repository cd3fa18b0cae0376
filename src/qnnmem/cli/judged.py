"""Answers of `qnnmem fit` for models: compiled by one worker or several, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnmem.htp.compile import CompileOptions, Progress
    from qnnmem.htp.fit import Fit
    from qnnmem.htp.library import Library
    from qnnmem.provenance import Sourced
    from qnnmem.targets.socs import Soc


class WorkerJudge:
    """Judges a model for one SoC after another, or for many by all workers at once.

    Of many, finished answers are kept: what was broken off goes on where it was.
    """

    def __init__(
        self,
        path: Path,
        budgets: Mapping[str, Sourced],
        library: Library,
        progress: Progress,
        *,
        many: bool,
    ) -> None:
        from qnnmem.cache_folder import cache_folder
        from qnnmem.cli.workers import libraries_of_workers
        from qnnmem.htp.worker import Worker
        from qnnmem.htp.worker.slots import Slots
        from qnnmem.kept_results import ResultCache

        self._path, self._budgets, self._library = path, budgets, library
        self._progress, self._many = progress, many
        found = libraries_of_workers(library) if many else [library]
        self._slots = Slots([partial(Worker.ready, one) for one in found])
        self._digest = ""
        self._cache = ResultCache(cache_folder(), "fit", must_keep=False)

    def __enter__(self) -> WorkerJudge:
        return self

    def __exit__(self, *_error: object) -> None:
        self._slots.close()

    def __call__(self, soc: Soc, options: CompileOptions) -> Fit:
        """The answer for a SoC, kept or made."""
        from qnnmem.htp.bill.measure import measure
        from qnnmem.htp.fit.kept import from_kept, is_final, to_kept
        from qnnmem.htp.fit.model import fit_made

        key = self._key(soc, options) if self._many else ""
        kept = from_kept(self._cache.get(key)) if key else None
        if kept is not None and kept.soc == soc:
            return kept
        said = self._progress
        made = self._slots.use(
            lambda worker: measure(self._path, soc, options, worker=worker, progress=said)
        )
        fit = fit_made(made, self._path, options, self._budgets)
        if key and is_final(made):
            self._cache.put(key, to_kept(fit))
        return fit

    def spread(self, judge: Callable[[Soc], Fit], socs: list[Soc]) -> Iterable[Fit]:
        """Answers in the order of SoCs, as many at a time as there are workers."""
        if self._slots.count == 1:
            return map(judge, socs)
        with ThreadPoolExecutor(self._slots.count) as pool:
            jobs = [pool.submit(judge, soc) for soc in socs]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._slots.close()  # ends compiles whose answers are not wanted any more
                raise

    def _key(self, soc: Soc, options: CompileOptions) -> str:
        """Name of an answer in the cache, empty for what is not kept."""
        from qnnmem.htp.fit.kept import settings_of
        from qnnmem.htp.sweep import fixed_of
        from qnnmem.htp.sweep.cache import key_of, model_digest
        from qnnmem.version import __version__

        if options.calibration is not None:  # its files may change
            return ""
        self._digest = self._digest or model_digest(self._path)
        library = f"{self._library.name}, qnnmem {__version__}"
        settings = {**fixed_of(options), **settings_of(options, self._budgets)}
        return key_of(self._digest, soc.model_id, settings, library)
