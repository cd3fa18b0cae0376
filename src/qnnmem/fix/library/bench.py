"""Where changes for HTP are judged: the library at hand for remedies that have to ask it more."""

from __future__ import annotations

from qnnmem.fix.bench import CaseBench
from qnnmem.fix.library.judge import CompileJudge
from qnnmem.fix.parts.partition_htp import HtpParts
from qnnmem.fix.remedy import FixBench, FixCase
from qnnmem.kept_results import ResultCache


class HtpBench(CaseBench):
    """Judges changes with the real library."""

    def __init__(
        self, case: FixCase, judge: CompileJudge, memory: ResultCache | None = None
    ) -> None:
        super().__init__(case, judge, memory)
        self.library = judge
        self.obstacles: list[str] = []  # why a remedy brought nothing, the last counts
        self.loaded: dict[int, HtpParts] = {}  # by the identity of a partition

    def __enter__(self) -> HtpBench:
        return self


def htp_bench(bench: FixBench) -> HtpBench:
    """The bench itself, for remedies that only HTP has, whatever stands around it."""
    inner = getattr(bench, "inner", bench)
    if not isinstance(inner, HtpBench):
        raise TypeError("this remedy is for HTP")
    return inner
