"""A model that HTP runs in part: its EPContext model, and one run of it compared with the CPU.

The EPContext model is a small ONNX file with which ONNX Runtime loads a context binary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qnnmem.deadline import Deadline
from qnnmem.errors import WorkerError
from qnnmem.htp.requests import CompareReply, CompareRequest, CpuDifference, HtpSettings
from qnnmem.htp.worker import RequestOutcome, Worker
from qnnmem.results.footprint import MissingOutput, PartitionCheck
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx


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


_EPCONTEXT = "EPContext"


def rename_binary(epcontext: bytes, old: str, new: str) -> bytes:
    """The model with its binary under another name; both files lie in one folder."""
    model = _parsed(epcontext)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s == old.encode():
                attribute.s = new.encode()
    return bytes(model.SerializeToString(deterministic=True))


def _parsed(epcontext: bytes) -> onnx.ModelProto:
    """The model; WorkerError if it is none: a remote worker may send anything."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(epcontext)
    except DecodeError as exc:
        raise WorkerError("the EPContext model that came with the binary is no ONNX model") from exc
    return model


def missing_in_epcontext(
    outputs: Sequence[str], epcontext: bytes, binary: str
) -> Iterator[MissingOutput]:
    """Outputs that the EPContext model of a binary does not take from that binary."""
    graph = _parsed(epcontext).graph
    made = {name: node for node in graph.node for name in node.output}
    constants = {item.name for item in graph.initializer}
    inputs = {item.name for item in graph.input}
    for name in outputs:
        node = made.get(name)
        if node is not None and node.op_type == _EPCONTEXT and _is_of(node, binary):
            continue
        if node is None:
            reason = "a constant" if name in constants else "an input" if name in inputs else ""
            yield MissingOutput(name, reason)
        elif node.op_type == _EPCONTEXT:
            yield MissingOutput(name, "in another binary")
        else:
            yield MissingOutput(name, f"{node.op_type} on the CPU")


def _is_of(node: onnx.NodeProto, binary: str) -> bool:
    """Whether a node runs a graph of the binary; only main nodes name theirs."""
    found = {item.name: item for item in node.attribute}
    if "main_context" in found and not found["main_context"].i:
        return True
    return "ep_cache_context" in found and found["ep_cache_context"].s == binary.encode()
