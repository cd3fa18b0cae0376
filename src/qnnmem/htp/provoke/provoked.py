"""A provoked failure: the kind, what was tried, what the library said, and its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from qnnmem.errors import Setting, Words
from qnnmem.flags import flag, with_flags
from qnnmem.htp.log import Cause, CompileLog
from qnnmem.qnn.codes import code_name
from qnnmem.results.provoked import Attempt, ProvokedResult
from qnnmem.targets.socs import Soc


class FailureKind(Enum):
    """What can be provoked."""

    GRAPH_LIMIT = "graph-limit"
    OP_OVER_VTCM = "op-over-vtcm"
    PD_FULL = "pd-full"
    HOST_MEMORY = "host-memory"
    BAD_BINARY = "bad-binary"


@dataclass(frozen=True, slots=True)
class Provoked:
    """What the library did with the crafted input."""

    kind: FailureKind
    soc: Soc
    library: str  # package and version
    stage: Literal["compile", "load"]
    attempts: tuple[Attempt, ...]  # the last one is the one recorded
    sentence: Words
    code: int | None = None
    log: CompileLog = field(default_factory=CompileLog)
    lines: tuple[str, ...] = ()  # those that matter
    log_text: bytes = b""  # the whole log without paths of this machine
    input_name: str = ""
    input_bytes: bytes = b""
    seconds: float = 0.0
    peak_rss: int | None = None

    @property
    def code_name(self) -> str:
        """QNN's name of the code."""
        return "" if self.code is None else code_name(self.code)

    @property
    def failed(self) -> bool:
        """Whether the library failed at all."""
        return self.attempts[-1].outcome != "done" or bool(self.code)

    @property
    def as_expected(self) -> bool:
        """Whether it failed for the reason that was to be shown."""
        if self.kind is FailureKind.BAD_BINARY:
            return bool(self.code)
        return self.failed and any(r.cause is Cause(self.kind.value) for r in self.log.refusals)

    def record(self, stem: str) -> ProvokedResult:
        """The result as it is written; `stem` names the files beside it."""
        cause, soc = self.log.cause, flag(Setting("soc", self.soc.name))
        return ProvokedResult(
            kind=self.kind.value,
            soc=self.soc.name,
            soc_model=self.soc.model_id,
            library=self.library,
            library_version=self.log.library_version,
            command=f"qnnmem provoke {self.kind.value} {soc} -o .",
            as_expected=self.as_expected,
            stage=self.stage,
            code=self.code,
            sentence=with_flags(self.sentence),
            cause=None if cause is None else cause.cause.value,
            need=None if cause is None else cause.need,
            limit=None if cause is None else cause.limit,
            lines=self.lines,
            log_file=f"{stem}.log",
            input_file=f"{stem}.{self.input_name.rpartition('.')[2]}",
            attempts=self.attempts,
            seconds=round(self.seconds, 3),
            peak_rss=self.peak_rss,
        )
