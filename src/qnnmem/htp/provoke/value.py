"""What a provoked failure is: the kind, what was tried, what the library said."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from qnnmem.errors import Words
from qnnmem.htp.log import Cause, CompileLog
from qnnmem.qnn.codes import code_name
from qnnmem.targets.socs import Soc


class FailureKind(Enum):
    """What can be provoked."""

    GRAPH_LIMIT = "graph-limit"
    OP_OVER_VTCM = "op-over-vtcm"
    PD_FULL = "pd-full"
    HOST_MEMORY = "host-memory"
    BAD_BINARY = "bad-binary"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing that was tried on the way."""

    what: str
    outcome: str  # done, refused, crashed, timeout or memory
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Provoked:
    """What the library did with the crafted input."""

    kind: FailureKind
    soc: Soc
    library: str  # package and version
    stage: str  # compile or load
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
