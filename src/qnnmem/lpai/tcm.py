"""Whether a model binary and the inputs and outputs of its graphs fit the TCM pool.

The layout of `plan.tcm` answers for one graph of a binary, some of its graphs, and all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.profiles import ALIGNMENTS
from qnnmem.planner.model_plan import judge_plan
from qnnmem.planner.tcm import (
    BINARY,
    TcmAlignment,
    TcmRequest,
    TcmRow,
    TcmTensor,
    TcmVerdict,
    judge,
    judge_tcm,
    request_tcm,
)

__all__ = [
    "BINARY",
    "BinaryTcm",
    "TcmAlignment",
    "TcmRequest",
    "TcmRow",
    "TcmTensor",
    "TcmVerdict",
    "judge",
    "judge_binary",
    "judge_graphs",
    "judge_plan",
    "judge_tcm",
    "request_of",
]

DEFAULT_ALIGNMENT = TcmAlignment(*ALIGNMENTS["default"])


@dataclass(frozen=True, slots=True)
class BinaryTcm:
    """Verdicts about a context binary: each graph alone, and all of them in one run.

    A graph without a program is not judged: its binary lacks the constants it would have.
    """

    graphs: tuple[TcmVerdict | None, ...]  # in the order of the binary
    together: TcmVerdict | None  # None where no graph has a program


def judge_graphs(
    graphs: Sequence[CompiledGraph],
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> TcmVerdict:
    """Whether these graphs of a binary fit in one run."""
    return judge(request_of(graphs, binary_bytes, alignment))


def judge_binary(
    context: CompiledContext,
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> BinaryTcm:
    """Whether each graph of a binary fits alone, and all of them together."""
    programs = [graph for graph in context.graphs if graph.program]
    alone = tuple(
        judge_graphs([graph], binary_bytes, alignment) if graph.program else None
        for graph in context.graphs
    )
    return BinaryTcm(alone, judge_graphs(programs, binary_bytes, alignment) if programs else None)


def request_of(
    graphs: Sequence[CompiledGraph],
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> TcmRequest:
    """What a run of these graphs asks of the pool; with several, names say whose tensor it is."""
    several = len(graphs) > 1
    tensors = tuple(
        tensor for graph in graphs for tensor in _tensors(graph, graph.name if several else "")
    )
    return request_tcm(binary_bytes, tensors, alignment)


def _tensors(graph: CompiledGraph, owner: str) -> Iterator[TcmTensor]:
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            tensor = graph.model.tensors[name]
            shown = f"{owner}/{name}" if owner else name
            yield TcmTensor(shown, tensor.nbytes, kind, tensor.dtype.bits, owner)
