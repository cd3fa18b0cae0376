"""A bench of the real library: one worker that compiles the settings of a sweep."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qnnmem.errors import FreeDimensions, LoadError, UsageError
from qnnmem.htp.bill import bill_of
from qnnmem.htp.bill.value import Bill
from qnnmem.htp.compile import CompileFailure, CompileOptions, check_options, compile_model
from qnnmem.htp.fit import fit_bill, fit_failure
from qnnmem.htp.log import parse_log
from qnnmem.htp.sweep import Result, Setting, options_of, result_of
from qnnmem.htp.worker import Worker, default_memory_limit
from qnnmem.provenance import Sourced
from qnnmem.targets.socs import Soc

_BROKEN = ("crashed", "timeout", "memory")
_LOAD_TIME_LIMIT_S = 300.0


class LibraryBench:
    """Compiles and loads each setting; a library that dies or hangs is a result as well."""

    def __init__(
        self,
        path: Path,
        soc: Soc,
        base: CompileOptions,
        *,
        share: int = 1,
        say: Callable[[str], None] | None = None,
    ) -> None:
        limit = base.memory_limit or default_memory_limit() // share
        self._path, self._soc = path, soc
        self._base, self._say = replace(base, memory_limit=limit), say
        self.worker = Worker(warm=True)

    def run(self, setting: Setting) -> Result:
        """Compile a setting and load its binary."""
        options = options_of(setting, self._base)
        try:
            check_options(self._soc, options)
        except UsageError as exc:  # e.g. more VTCM than the SoC has: the other rows go on
            return Result("refused", str(exc))
        with tempfile.TemporaryDirectory(".qnnmem") as folder:
            binary = Path(folder, "model.bin")
            try:
                made = compile_model(
                    self._path,
                    self._soc,
                    options,
                    output=binary,
                    worker=self.worker,
                    progress=self._say,
                )
            except FreeDimensions:
                raise
            except LoadError as exc:  # a size that the model cannot have
                return Result("refused", str(exc))
            if isinstance(made, CompileFailure):
                return self._failed(made)
            request = {"binaries": [str(binary)], "soc": self._soc.model_id}
            loaded = self.worker.ask("load", request, time_limit_s=_LOAD_TIME_LIMIT_S)
            estimates = parse_log(loaded.log).pd_estimates
            if not estimates:
                return Result("failed", f"the binary could not be loaded: {loaded.sentence}")
            log = replace(made.log, pd_estimates=estimates)
            bill = bill_of(made.context, self._soc, log, host_ram=made.outcome.peak_rss)
        return _with_bill(result_of(fit_bill(bill, self._soc)), bill, made.outcome.seconds)

    def _failed(self, failure: CompileFailure) -> Result:
        outcome = failure.outcome
        if outcome.kind in _BROKEN:
            peak = outcome.peak_rss
            return Result("failed", failure.sentence, host_ram=peak, seconds=outcome.seconds)
        result = result_of(fit_failure(failure))
        return replace(result, host_ram=outcome.peak_rss, seconds=outcome.seconds)

    def close(self) -> None:
        """End the worker."""
        self.worker.close()


def _with_bill(result: Result, bill: Bill, seconds: float) -> Result:
    return replace(
        result,
        ram=_bytes(bill.ram),
        weights=_bytes(bill.weights),
        io=_bytes(bill.io),
        spill_fill=_bytes(bill.spill_fill),
        ddr_read=_bytes(bill.ddr_read),
        ddr_written=_bytes(bill.ddr_written),
        host_ram=_bytes(bill.host_ram),
        file_bytes=bill.context.file_bytes,
        seconds=seconds,
    )


def _bytes(part: Sourced | None) -> int | None:
    return None if part is None else part.value
