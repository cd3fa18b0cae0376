"""Why a compile failed, in one sentence with what to try next."""

from __future__ import annotations

import re

from qnnmem.errors import Setting, Words
from qnnmem.htp.compile.value import OnnxNode
from qnnmem.htp.log import Cause, CompileLog, Refusal
from qnnmem.htp.worker import RequestOutcome
from qnnmem.qnn.codes import code_name
from qnnmem.targets.socs import Soc
from qnnmem.text import printable, quote
from qnnmem.units import format_size

# ONNX Runtime lists the nodes before anything is compiled, when the CPU may not take them.
UNSUPPORTED = b"Unsupported nodes in QNN EP: "
# What ONNX Runtime says at the end when QNN takes no node at all.
NOTHING_TAKEN = "fallback to CPU EP has been explicitly disabled"
_NODE = re.compile(r"\{ name: (.{0,2000}?), type: (\w{1,100}) \}")
_SHOWN = 5


def unsupported_nodes(outcome: RequestOutcome) -> tuple[OnnxNode, ...]:
    """Nodes that QNN cannot take, as the first list in the log names them."""
    mark = UNSUPPORTED.decode()
    for line in outcome.log:
        if mark in line.text:
            return tuple(OnnxNode(*found.groups()) for found in _NODE.finditer(line.text))
    return ()


def say_why(
    stage: str,
    soc: Soc,
    outcome: RequestOutcome,
    log: CompileLog,
    unsupported: tuple[OnnxNode, ...],
) -> Words:
    """One sentence: what happened, to what, by how much, what to try."""
    if unsupported:
        return _unsupported(soc, unsupported)
    if outcome.kind == "timeout":
        what = f"{stage} was {outcome.sentence}; give more time with "
        return what, Setting("time_limit_s"), ", or try a smaller input or another VTCM size"
    if outcome.kind == "memory":
        used = "" if outcome.peak_rss is None else f" at {format_size(outcome.peak_rss)}"
        what = f"{stage} ran out of host memory{used}; a larger "
        return what, Setting("memory_limit"), " or machine may do"
    if outcome.kind == "crashed":
        return f"{stage} failed: {outcome.sentence}; the log ends with {_last(outcome)}"
    if log.cause is not None:
        return _refusal(soc, log.cause)
    if outcome.is_done:
        return "QNN took no node of the model, so there is no binary"
    code = "" if outcome.code is None else f"{code_name(outcome.code)} ({outcome.code}): "
    return f"{stage} was refused: {code}{_short(outcome.sentence)}"


def _unsupported(soc: Soc, nodes: tuple[OnnxNode, ...]) -> Words:
    shown = ", ".join(f"{quote(node.name)} ({node.operator})" for node in nodes[:_SHOWN])
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    what = f"QNN cannot take {count} on {soc.name}: {shown}{more}; "
    rest = (Setting("partition"), " compiles the parts that it can take")
    if soc.fp16 is not False:
        return (what, *rest)
    what += f"{soc.name} does not compute in FP16, try "
    return (what, Setting("precision", "int8"), "; ", *rest)


def _refusal(soc: Soc, refusal: Refusal) -> str:
    need, limit = refusal.need or 0, refusal.limit
    if refusal.cause is Cause.GRAPH_LIMIT and limit is None:
        return (
            f"the graph's tensors in DDR need {need:,} bytes, more than the compiler can address; "
            "try a smaller batch or input, or cut the model"
        )
    if refusal.cause is Cause.GRAPH_LIMIT and limit is not None:
        return (
            f"the graph needs {need:,} bytes, {soc.name} allows {limit:,} for one graph, "
            f"{need - limit:,} too many; try a smaller batch or input, int8, or cut the model"
        )
    if refusal.cause is Cause.OP_OVER_VTCM:
        return (
            f"operator {quote(refusal.operator)} needs {need:,} bytes of VTCM at once and cannot "
            "be cut; try more VTCM, a smaller input, int8, or another SoC"
        )
    if refusal.cause is Cause.PD_FULL:
        return f"no process domain has room for {need:,} bytes; load fewer contexts"
    if refusal.cause is Cause.BAD_DEVICE:
        return f"the library does not know SoC {soc.name} (id {soc.model_id})"
    if refusal.cause is Cause.OP_NOT_BUILDABLE:
        return f"the compiler cannot build operator {quote(refusal.operator)} for {soc.name}"
    return f"the host ran out of memory: {_short(refusal.line)}"


def _last(outcome: RequestOutcome) -> str:
    return quote(outcome.tail[-1]) if outcome.tail else "nothing"


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= 300 else f"{shown[:297]}..."
