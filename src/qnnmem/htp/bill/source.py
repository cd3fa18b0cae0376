"""Numbers for a bill out of a file or a log, with the words that say so."""

from __future__ import annotations

from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.log import CompileLog, PdEstimate, PdGraph
from qnnmem.provenance import Origin, Sourced


def file_source(context: HtpContext) -> str:
    """Words for a number that the file states."""
    return f"file of QAIRT {context.build_id[:40]}"


def logged(value: int | None, log: CompileLog) -> Sourced | None:
    """A number that the library printed."""
    return None if value is None else Sourced(value, Origin.MEASURED, log_source(log))


def log_source(log: CompileLog) -> str:
    """Words for a number that the library printed."""
    return f"log of QAIRT {(log.library_version or 'without version')[:40]}"


def loaded_graphs(log: CompileLog) -> tuple[PdGraph, ...]:
    """The graphs of the context that was loaded last."""
    last = last_estimate(log)
    return () if last is None else last.graphs


def last_estimate(log: CompileLog) -> PdEstimate | None:
    """The process-domain estimate of the context that was loaded last."""
    return log.pd_estimates[-1] if log.pd_estimates else None
