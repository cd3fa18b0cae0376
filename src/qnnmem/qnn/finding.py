"""What a broken rule looks like: the code an application would see, and the words it would need."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.errors import QnnMemError


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule of the contract that a call or a buffer broke."""

    rule: str  # stable id, e.g. "R3"
    sentence: str  # what happened, to which thing, by how much
    call: str = ""  # QNN function that noticed, e.g. "QnnGraph_setConfig"
    buffer: str = ""  # e.g. "scratch", "input 'x'"
    address: int | None = None
    need: int | None = None
    given: int | None = None
    cure: str = ""
    source: str = ""


class QnnError(QnnMemError):
    """A call failed the way QNN fails: with a code, and here also with the reason."""

    exit_code = 1

    def __init__(self, code: int, finding: Finding) -> None:
        from qnnmem.qnn.codes import code_name

        self.code, self.finding = code, finding
        cure = f"; {finding.cure}" if finding.cure else ""
        rule = f" [{finding.rule}]" if finding.rule else ""
        super().__init__(f"{code_name(code)} ({code}){rule}: {finding.sentence}{cure}")
