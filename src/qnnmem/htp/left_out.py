"""Outputs of a model that its compiled context does not give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

_NAMED = 6
_EPCONTEXT = "EPContext"


class MissingOutput(NamedTuple):
    """An output that is not in the context, and what gives it instead."""

    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The outputs that a context lacks: its bytes are those of a part of the model."""

    outputs: tuple[MissingOutput, ...]
    total: int  # outputs of the model

    @property
    def sentence(self) -> str:
        """What is missing, by name."""
        named = [
            quote(one.name) + (f" ({one.reason})" if one.reason else "")
            for one in self.outputs[:_NAMED]
        ]
        more = len(self.outputs) - len(named)
        named += [f"{more} more"] if more else []
        verb = "is" if len(self.outputs) == 1 else "are"
        count = f"{len(self.outputs):,} of {self.total:,} outputs"
        return f"not the whole model: {count} {verb} not in the context binary: {', '.join(named)}"


def left_out(outputs: Sequence[str], missing: Sequence[MissingOutput]) -> LeftOut | None:
    """What a context lacks of a model's outputs; None if it has all."""
    return LeftOut(tuple(missing), len(outputs)) if missing else None


def missing_in_epcontext(
    outputs: Sequence[str], model: onnx.ModelProto, binary: str
) -> Iterator[MissingOutput]:
    """Outputs that the EPContext model of a binary does not take from that binary."""
    graph = model.graph
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
