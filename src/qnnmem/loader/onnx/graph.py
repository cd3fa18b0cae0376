"""ONNX graphs as values, and small queries on them: bodies, captured names, live nodes.

The queries accept both an `OnnxGraph` and a GraphProto inside a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from qnnmem.deadline import ask_deadline

if TYPE_CHECKING:
    import onnx

ONNX_DOMAINS = ("", "ai.onnx")
QUANT_DOMAINS = (*ONNX_DOMAINS, "com.microsoft")


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph whose fields are named as in GraphProto.

    The messages are shared by all passes and never changed: weights of 2 GiB are not copied, and a
    pass that changes a node replaces it.
    """

    name: str
    node: tuple[onnx.NodeProto, ...]
    input: tuple[onnx.ValueInfoProto, ...]
    output: tuple[onnx.ValueInfoProto, ...]
    initializer: tuple[onnx.TensorProto, ...]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> OnnxGraph:
        """Return an `OnnxGraph` with the name and content of a GraphProto."""
        parts = (graph.node, graph.input, graph.output, graph.initializer)
        return cls(graph.name, *map(tuple, parts))

    def put_into(self, graph: onnx.GraphProto) -> None:
        """Copy this graph into a message that the caller owns."""
        for name in ("node", "input", "output", "initializer"):
            graph.ClearField(name)
            getattr(graph, name).extend(getattr(self, name))


AnyGraph: TypeAlias = "OnnxGraph | onnx.GraphProto"


def copied_without(message: Any, *names: str) -> Any:
    """Return a copy of a message without some fields.

    The omitted fields are never copied, which saves memory. Fields that the installed onnx does not
    know are left out too.
    """
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name in names:
            continue
        target = getattr(copy, field.name)
        if hasattr(target, "MergeFrom"):
            target.MergeFrom(value)
        else:
            setattr(copy, field.name, value)
    return copy


def is_op(node: onnx.NodeProto, *types: str) -> bool:
    """Return whether a node is one of these ops of the ONNX standard."""
    return node.op_type in types and node.domain in ONNX_DOMAINS


def is_quant(node: onnx.NodeProto, kind: str) -> bool:
    """Return whether a node has the op type `kind`, which is QuantizeLinear or DequantizeLinear.

    The operator may be the ONNX standard's or onnxruntime's.
    """
    return node.op_type == kind and node.domain in QUANT_DOMAINS


def attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """Return the node's attribute with this name; None if the node has no such attribute."""
    return next((item for item in node.attribute if item.name == name), None)


def integer(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return the value of an integer attribute, or the default."""
    item = attribute(node, name)
    return default if item is None else item.i


def opset_of(model: onnx.ModelProto) -> int:
    """Return the oldest version of the ONNX operator set that a model uses; 1 if it states none."""
    versions = [item.version for item in model.opset_import if item.domain in ONNX_DOMAINS]
    return int(min(versions, default=1))


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, in attribute order."""
    for item in node.attribute:
        yield from attribute_graphs(item)


def attribute_graphs(item: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in an attribute."""
    if item.HasField("g"):
        yield item.g
    yield from item.graphs


def graphs_in(graph: AnyGraph) -> Iterator[AnyGraph]:
    """Yield a graph and all bodies in it, at any depth."""
    # The wire check bounded the depth, so plain recursion is safe.
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs_in(body)


def with_bodies(node: onnx.NodeProto, graphs: Sequence[OnnxGraph]) -> onnx.NodeProto:
    """Return a copy of a node with `graphs` as its bodies, in attribute order."""
    copy = type(node)()
    copy.CopyFrom(node)
    for body, graph in zip(bodies(copy), graphs, strict=True):
        graph.put_into(body)
    return copy


def reads(node: onnx.NodeProto) -> list[str]:
    """Return all names that a node reads, each once: inputs, then names captured by its bodies."""
    ask_deadline()  # here, because every loop over the nodes of a file calls it
    names = dict.fromkeys(node.input)
    names.pop("", None)
    for body in bodies(node):
        names.update(dict.fromkeys(captured(body)))
    return list(names)


def captured(graph: AnyGraph) -> list[str]:
    """Return the names that a body captures, nested bodies included."""
    own = set(defined(graph))
    names: dict[str, None] = {}
    for node in graph.node:
        names.update(dict.fromkeys(name for name in reads(node) if name not in own))
    names.update(dict.fromkeys(out.name for out in graph.output if out.name not in own))
    return list(names)


def defined(graph: AnyGraph) -> Iterator[str]:
    """Yield the names that a graph defines, without the names in its bodies."""
    yield from (item.name for item in graph.input)
    yield from (item.name for item in graph.initializer)
    for node in graph.node:
        yield from (name for name in node.output if name)


def all_names(graph: AnyGraph) -> Iterator[str]:
    """Yield every tensor name defined in a graph or its bodies."""
    for inner in graphs_in(graph):
        yield from defined(inner)


def unused_name(prefix: str, used: set[str]) -> str:
    """Return an unused name, made from the prefix and a number; add the name to `used`."""
    name = next(name for number in count(1) if (name := f"{prefix}{number}") not in used)
    used.add(name)
    return name


def live(graph: AnyGraph) -> list[int]:
    """Return the indexes of the nodes that at least one output of the graph depends on."""
    needed = {item.name for item in graph.output}
    indexes = []
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if not needed.isdisjoint(filter(None, node.output)):
            needed.update(reads(node))
            indexes.append(index)
    return indexes[::-1]
