"""A provoked failure: its record, and the files that lie beside it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from qnnmem.errors import Setting, Words
from qnnmem.flags import flag, with_flags
from qnnmem.htp.log import Cause, CompileLog
from qnnmem.results.provoked import Attempt, ProvokedResult
from qnnmem.targets.socs import Soc


class FailureKind(Enum):
    """What can be provoked."""

    GRAPH_LIMIT = "graph-limit"
    OP_OVER_VTCM = "op-over-vtcm"
    PD_FULL = "pd-full"
    HOST_MEMORY = "host-memory"
    BAD_BINARY = "bad-binary"


class Provoked(NamedTuple):
    """What the library did with the crafted input."""

    record: ProvokedResult
    log_text: bytes  # the whole log without paths of this machine
    input_bytes: bytes


def record_of(
    kind: FailureKind,
    soc: Soc,
    library: str,
    stage: Literal["compile", "load"],
    attempts: Sequence[Attempt],
    sentence: Words,
    *,
    input_name: str,
    code: int | None = None,
    log: CompileLog | None = None,
    lines: Sequence[str] = (),
    seconds: float = 0.0,
    peak_rss: int | None = None,
) -> ProvokedResult:
    """The record of what the library did; the last attempt is the one recorded."""
    log = log or CompileLog()
    cause, option = log.cause, flag(Setting("soc", soc.name))
    stem = f"{kind.value}-{soc.name}"
    return ProvokedResult(
        kind=kind.value,
        soc=soc.name,
        soc_model=soc.model_id,
        library=library,
        library_version=log.library_version,
        command=f"qnnmem provoke {kind.value} {option} -o .",
        as_expected=_is_expected(kind, attempts, code, log),
        stage=stage,
        code=code,
        sentence=with_flags(sentence),
        cause=None if cause is None else cause.cause.value,
        need=None if cause is None else cause.need,
        limit=None if cause is None else cause.limit,
        lines=tuple(lines),
        log_file=f"{stem}.log",
        input_file=f"{stem}.{input_name.rpartition('.')[2]}",
        attempts=tuple(attempts),
        seconds=round(seconds, 3),
        peak_rss=peak_rss,
    )


def _is_expected(
    kind: FailureKind, attempts: Sequence[Attempt], code: int | None, log: CompileLog
) -> bool:
    """Whether it failed for the reason that was to be shown."""
    if kind is FailureKind.BAD_BINARY:
        return bool(code)
    failed = attempts[-1].outcome != "done" or bool(code)
    return failed and any(refusal.cause is Cause(kind.value) for refusal in log.refusals)
