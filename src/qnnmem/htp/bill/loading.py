"""What the real library does with context binaries that are loaded one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.deadline import Deadline
from qnnmem.htp.bill.numbers import last_estimate
from qnnmem.htp.log import CompileLog, parse_log
from qnnmem.htp.requests import LoadReply, LoadRequest
from qnnmem.htp.start import check_started
from qnnmem.htp.worker import RequestOutcome, Worker
from qnnmem.qnn.codes import code_name

LOAD_TIME_LIMIT_S = 600.0  # for all binaries of one request


@dataclass(frozen=True, slots=True)
class Loaded:
    """The library's answer; its log counts even where it died after a refusal."""

    outcome: RequestOutcome
    log: CompileLog
    codes: tuple[int, ...]  # of QNN, for each binary; fewer where the library died

    @property
    def no_estimate(self) -> str:
        """Why the process-domain estimate of the last binary is missing; empty if it is there."""
        last = last_estimate(self.log)
        if last is not None and last.total is not None:
            return ""
        code = self.codes[-1] if self.codes else None
        said = f"code {code}, {code_name(code)}" if code else "its log has no estimate"
        return f"the binary could not be loaded: {self.outcome.sentence or said}"


def load_binaries(
    worker: Worker,
    binaries: Sequence[Path],
    model_id: int,
    *,
    time_limit_s: float = LOAD_TIME_LIMIT_S,
    deadline: Deadline | None = None,
    log_file: Path | None = None,
) -> Loaded:
    """Load binaries in order into one process domain, and keep all that are admitted."""
    ends = deadline or Deadline.after(time_limit_s)
    request = LoadRequest([path.absolute() for path in binaries], model_id)
    outcome = worker.ask(request, time_limit_s=ends.left_s, log_file=log_file)
    check_started(outcome)
    if outcome.kind == "timeout":  # the request had what was left; the user knows the whole
        outcome = replace(outcome, sentence=f"not finished within {ends.limit_s:g} s")
    loaded = outcome.reply.binaries if isinstance(outcome.reply, LoadReply) else ()
    codes = tuple(binary.code for binary in loaded)
    return Loaded(outcome, parse_log(outcome.log), codes)
