"""One run of a partitioned model in ONNX Runtime, compared with the same model on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from qnnmem.deadline import Deadline
from qnnmem.htp.requests import CompareReply, CompareRequest, CpuDifference, HtpSettings
from qnnmem.htp.worker import RequestOutcome, Worker
from qnnmem.results.footprint import PartitionCheck
from qnnmem.text import quote

TOLERANCE = 0.02  # of the largest value of an output: what FP16 explains
_MOST_S = 60.0  # HTP is emulated here, which takes minutes for a large model
_RAN_AND_FAILED = ("compile", "run")  # stages of a request; at `sample` the CPU failed as well


@dataclass(frozen=True, slots=True)
class PartitionRun:
    """Whether a partitioned model ran, and how far its outputs are from the CPU's."""

    difference: float | None = None  # as a share of the largest value of its output
    output: str = ""  # with the largest difference
    unknown: str = ""  # why nothing is known

    @property
    def is_verified(self) -> bool:
        """Whether all outputs are those of the CPU."""
        return self.difference is not None and self.difference <= TOLERANCE

    @property
    def sentence(self) -> str:
        """Whether the EPContext model was seen to give the results of the CPU."""
        if self.difference is None:
            why = self.unknown
            return f"not verified: the EPContext model was not compared with the CPU: {why}"
        share = f"{self.difference:.2%}" if self.difference < 1 else "100% and more"
        if self.is_verified:
            return f"verified: ran in ONNX Runtime, outputs within {share} of the model on the CPU"
        return (
            f"not verified: ran in ONNX Runtime, and output {quote(self.output)} is {share} off "
            f"the model on the CPU for random inputs; FP16 explains {TOLERANCE:.0%}"
        )

    @property
    def check(self) -> PartitionCheck:
        """The same as a part of a result."""
        return PartitionCheck(self.is_verified, self.difference, self.sentence)


def run_partition(
    worker: Worker,
    settings: HtpSettings,
    *,
    model: Path,
    folder: Path,
    epcontext: Path,
    deadline: Deadline,
) -> PartitionRun | RequestOutcome:
    """Run both models once with random inputs; gives the outcome where only HTP fails."""
    if worker.library.command:
        return PartitionRun(unknown="the library is on another machine")
    limit = min(_MOST_S, deadline.left_s)
    quiet = msgspec.structs.replace(settings, log="error")
    request = CompareRequest(model.absolute(), folder, epcontext, quiet)
    outcome = worker.ask(request, time_limit_s=limit)
    if outcome.kind == "refused" and outcome.stage in _RAN_AND_FAILED:
        return outcome
    if not outcome.is_done:
        return PartitionRun(unknown=outcome.sentence)
    return farthest(outcome.result(CompareReply).outputs)


def farthest(outputs: Sequence[CpuDifference]) -> PartitionRun:
    """The output that differs most."""
    shares = [(output.worst / output.size, output.name) for output in outputs if output.size]
    if not shares:
        return PartitionRun(unknown="random inputs gave no numbers to compare")
    return PartitionRun(*max(shares))
