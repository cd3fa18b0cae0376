"""Why a compile failed, in one sentence with what to try next."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qnnmem.errors import Setting, Words, chain_words
from qnnmem.htp.compile.compiled import CompileFailure
from qnnmem.htp.compile.refused import RefusedNode, meaning
from qnnmem.htp.log import Cause, CompileLog, LogLine, Refusal
from qnnmem.htp.worker import RequestOutcome
from qnnmem.qnn.codes import code_name
from qnnmem.targets.socs import Soc
from qnnmem.text import printable, quote
from qnnmem.units import format_size

_TENSOR = re.compile(r"tensor_name: (\S{1,200})")
_PREFIX = re.compile(
    r"^\[ONNXRuntimeError\] : \d{1,3} : \w{1,40} : (?:Exception during loading: )?"
    # where in its source it says so
    r"(?:/\S{1,300}\.(?:h|cc):\d{1,6} [^(]{1,500}\(.{0,2000}?\) (?=[A-Z]))?"
)
_SHOWN = 5
_REASONS = 3
# Types that a tensor between two parts of a cut model cannot have.
_NOT_BETWEEN = ("float64", "uint64", "bfloat16", "string", "complex")
_WIDE_TYPES = {
    "float64": "32-bit floats",
    "bfloat16": "32-bit floats",
    "uint64": "32-bit integers",
}
_FEW = 2


def say_why(
    stage: str,
    soc: Soc,
    outcome: RequestOutcome,
    log: CompileLog,
    unsupported: tuple[RefusedNode, ...],
    *,
    decisive: str = "",
    quantized: bool = False,
) -> Words:
    """One sentence: what happened, to what, by how much, what to try.

    `decisive` is the first line that says why, where no other is known to. `quantized` says that
    the model has been quantized, so that doing so is no advice.
    """
    if unsupported:
        return _unsupported(soc, unsupported, quantized=quantized)
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
        return _refusal(soc, log.cause, outcome.log)
    if outcome.is_done:
        why = f": {meaning(decisive, soc.name)}" if decisive else ", so there is no binary"
        return f"QNN took no node of the model{why}"
    code = "" if outcome.code is None else f"{code_name(outcome.code)} ({outcome.code}): "
    said = _short(meaning(_PREFIX.sub("", outcome.sentence), soc.name)).rstrip(".")
    if decisive and decisive not in outcome.sentence:
        return f"{stage} was refused: {code}{meaning(decisive, soc.name)}; it ended with: {said}"
    return f"{stage} was refused: {code}{said}"


def needs_int8(failure: CompileFailure) -> bool:
    """Whether a float model was refused because its SoC does not compute in FP16."""
    return failure.soc.fp16 is False and any("FP16" in node.reason for node in failure.unsupported)


def can_leave_rest(failure: CompileFailure) -> bool:
    """Whether the rest of a model may compile without the nodes that QNN refused."""
    types = (text for node in failure.unsupported for text in (*node.inputs, *node.outputs))
    is_cut = failure.stage == "partition" and not failure.all_refused and not needs_int8(failure)
    return is_cut and not any(text.startswith(_NOT_BETWEEN) for text in types)


def _unsupported(soc: Soc, nodes: Sequence[RefusedNode], *, quantized: bool) -> Words:
    """The nodes by reason, then what helps: never what cannot."""
    by_reason: dict[str, list[RefusedNode]] = {}
    for node in nodes[:_SHOWN]:
        by_reason.setdefault(node.reason, []).append(node)
    parts = [
        f"{', '.join(_named(node, few=len(nodes) <= _FEW) for node in some)}"
        f"{f': {reason}' if reason else ''}"
        for reason, some in by_reason.items()
    ]
    more = f", and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    count = "a node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    what = f"QNN cannot take {count} on {soc.name}: {'; '.join(parts[:_REASONS])}{more}"
    return chain_words(what, *_cures(soc, nodes, quantized=quantized))


def _named(node: RefusedNode, *, few: bool) -> str:
    """Name and operator; with a few nodes also what they take and give."""
    takes, gives = ", ".join(node.inputs), ", ".join(node.outputs)
    types = f": {takes}{' to ' if takes and gives else ''}{gives}" if few and takes + gives else ""
    return f"{quote(node.name)} ({node.operator}{types})"


def _cures(soc: Soc, nodes: Sequence[RefusedNode], *, quantized: bool) -> list[Words]:
    types = [text for node in nodes for text in (*node.inputs, *node.outputs)]
    wide = [word for word in _WIDE_TYPES if any(text.startswith(word) for text in types)]
    better = dict.fromkeys(_WIDE_TYPES[word] for word in wide)
    cures: list[Words] = [f"; export the model with {one}" for one in better]
    if soc.fp16 is False and not quantized and any("FP16" in node.reason for node in nodes):
        cures.append(("; try ", Setting("precision", "int8")))
    return cures


def _refusal(soc: Soc, refusal: Refusal, log: Sequence[LogLine]) -> str:
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
    if refusal.cause is Cause.TENSOR_TYPE:
        return _tensor_refused(soc, refusal, log)
    return f"the host ran out of memory: {_short(refusal.line)}"


def _tensor_refused(soc: Soc, refusal: Refusal, log: Sequence[LogLine]) -> str:
    names = (found[1] for line in log if (found := _TENSOR.search(line.text)))
    name = next(names, "")
    which = f"tensor {quote(name)}" if name else "a tensor"
    return (
        f"{which} cannot be given to QNN: {meaning(refusal.line, soc.name)}; export the "
        "model with a type that QNN has"
    )


def _last(outcome: RequestOutcome) -> str:
    return quote(outcome.tail[-1]) if outcome.tail else "nothing"


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= 300 else f"{shown[:297]}..."
