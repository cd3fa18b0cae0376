"""What nobody here can follow: operators of other makers, and results that are not tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, AnyGraph, live
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

# Of these onnx or onnxruntime know what shapes come out; windows of LPAI are rewritten as ONNX.
_KNOWN = (*ONNX_DOMAINS, "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "qti_aisw")
_WAYS_OUT = {
    "ZipMap": "leave it out when exporting, with the option zipmap=False of skl2onnx",
    "SequenceMap": "export the model with its loop unrolled",
}


def is_foreign(node: onnx.NodeProto) -> bool:
    """Whether an operator is neither of the standard nor of onnxruntime."""
    return node.domain not in _KNOWN and not node.domain.startswith("com.microsoft.")


def first_foreign(nodes: Iterable[onnx.NodeProto]) -> onnx.NodeProto | None:
    """The first operator of another maker."""
    return next((node for node in nodes if is_foreign(node)), None)


def foreign_op(path: Path, node: onnx.NodeProto) -> LoadError:
    """Error about an operator whose results nothing is known of."""
    who = f"{quote(node.op_type)[1:-1]} {quote(node.name or next(iter(node.output), ''))}"
    return LoadError(
        path,
        f"{who} of domain {quote(node.domain)} is no ONNX operator, so nothing here knows the "
        "shapes it gives",
        cure="export it as ONNX operators, or as a function of the model",
    )


def no_tensor(path: Path, name: str, nodes: Iterable[onnx.NodeProto]) -> LoadError:
    """Error about a sequence, a map or an optional."""
    node = next((node for node in nodes if name in node.output), None)
    who = "" if node is None else f", made by {quote(node.op_type)},"
    return LoadError(
        path,
        f"tensor {quote(name)}{who} is a sequence, map or optional; only tensors are handled",
        cure="" if node is None else _WAYS_OUT.get(node.op_type, ""),
    )


def check_outputs(path: Path, graph: AnyGraph) -> None:
    """Refuse outputs that are no tensors, before sizes are asked for in vain."""
    for item in graph.output:
        kind = item.type.WhichOneof("value")
        made = next((node for node in graph.node if item.name in node.output), None)
        zipped = made is not None and made.op_type == "ZipMap" and made.domain == "ai.onnx.ml"
        if zipped or kind not in (None, "tensor_type"):
            raise no_tensor(path, item.name, graph.node)


def check_foreign(path: Path, graph: AnyGraph, declared: Collection[str]) -> None:
    """Refuse operators of other makers whose results the file itself does not describe."""
    for at in live(graph):
        node = graph.node[at]
        if is_foreign(node) and not all(name in declared for name in node.output if name):
            raise foreign_op(path, node)
