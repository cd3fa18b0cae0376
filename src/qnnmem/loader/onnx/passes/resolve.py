"""Third pass: fixes everything that the model leaves open at its inputs.

calls of the model's own functions   ->  nodes of the functions
initializers among the inputs        ->  initializers only; unread ones are dropped
open dimensions of inputs            ->  sizes given by the caller
inputs with a value from the caller  ->  constants
shapes declared inside the graph     ->  dropped: they can be wrong, and later passes infer them
defaults that inference gets wrong   ->  written out as attributes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError
from qnnmem.loader.onnx.graph import (
    ONNX_DOMAINS,
    OnnxGraph,
    attribute,
    bodies,
    copied_without,
    is_op,
    reads,
)
from qnnmem.loader.onnx.inputs import Fixed, dims_of, fix_inputs, value_text
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.passes.guard import GuardedModel
from qnnmem.loader.onnx.tensor import OnnxType, type_of
from qnnmem.loader.onnx.well_formed import check_foreign, check_graphs, check_outputs

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.trial import TrialChild

# From this version on, initializers need not be inputs. Older files are equivalent once their
# initializers are no longer inputs.
MIN_IR_VERSION = 8
_CONTENT = (
    *("node", "input", "output", "initializer"),
    *("value_info", "quantization_annotation"),
)


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose nodes are ops, not calls of functions; its inputs may have open sizes."""

    path: Path
    head: onnx.ModelProto  # IR version, operator sets, metadata; only the name of the graph
    graph: OnnxGraph
    declared: Mapping[str, OnnxType]  # types that the file declares for outputs of custom ops
    outputs: Mapping[str, tuple[int, ...]]  # sizes declared for outputs, 0 for open sizes

    def proto(self, graph: OnnxGraph | None = None) -> onnx.ModelProto:
        """Return a new ModelProto with this model's graph, or with `graph` if given."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.head)
        (graph or self.graph).put_into(model.graph)
        return model


@dataclass(frozen=True, slots=True)
class ResolvedModel(OpenModel):
    """A model whose inputs have fixed shapes; every input whose value is given is a constant."""

    stated: Mapping[str, tuple[int, ...]]  # shapes stated by the caller, also of inner tensors
    # Values that the caller gave for inputs, in the syntax of the command line.
    valued: Mapping[str, str] = field(default_factory=dict)


@stage("resolve")
def open_model(model: GuardedModel, child: TrialChild) -> OpenModel:
    """Return the model with functions inlined; drop unread initializers and declared shapes."""
    head = copied_without(model.proto, "graph", "functions")
    head.graph.CopyFrom(copied_without(model.proto.graph, *_CONTENT))
    head.ir_version = max(head.ir_version, MIN_IR_VERSION)
    graph = OnnxGraph.of(model.proto.graph)
    if model.proto.functions:
        inlined = _inlined(model, child)
        head.ClearField("opset_import")
        head.opset_import.extend(inlined.opset_import)
        graph = OnnxGraph(
            graph.name, tuple(inlined.graph.node), graph.input, graph.output, graph.initializer
        )
    check_outputs(model.path, graph)
    declared = _declared(model.proto.graph, graph.node)
    check_foreign(model.path, graph, declared)
    outputs = {
        item.name: tuple(max(dim.dim_value, 0) for dim in dims_of(item))
        for item in graph.output
        if item.type.tensor_type.HasField("shape")
    }
    return OpenModel(model.path, head, _without_unused(graph), declared, outputs)


@stage("resolve")
def resolve(model: OpenModel, fixed: Fixed) -> ResolvedModel:
    """Return the model with a fixed shape or a value for every input."""
    graph = model.graph
    inputs, constants = fix_inputs(model.path, graph, fixed)
    stored = (*graph.initializer, *constants)
    graph = OnnxGraph(graph.name, graph.node, inputs, graph.output, stored)
    # An input with a value has the shape of the value.
    stated = {name: shape for name, shape in fixed.shapes.items() if name not in fixed.values}
    valued = {name: value_text(value) for name, value in fixed.values.items()}
    return ResolvedModel(
        model.path, model.head, graph, model.declared, model.outputs, stated, valued
    )


def _inlined(model: GuardedModel, child: TrialChild) -> onnx.ModelProto:
    """Return a checked copy of the model, with functions inlined but without weight data."""
    import onnx

    light = onnx.ModelProto()
    light.CopyFrom(model.proto)
    for tensor in light.graph.initializer:
        tensor.ClearField("raw_data")
    try:
        inlined = child.inline(light)
    except ChildFailed as exc:
        raise LoadError(model.path, f"the model's functions cannot be inlined: {exc}") from exc
    light.graph.ClearField("node")
    light.graph.node.extend(inlined.graph.node)
    light.ClearField("opset_import")
    light.opset_import.extend(inlined.opset_import)
    check_graphs(model.path, light.graph)
    return light


def _declared(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> dict[str, OnnxType]:
    """Return the types that the file declares for outputs of custom ops."""
    foreign = {name for node in nodes if node.domain not in ONNX_DOMAINS for name in node.output}
    kinds = {
        item.name: type_of(item)
        for item in (*graph.value_info, *graph.output)
        if item.name in foreign
    }
    return {name: kind for name, kind in kinds.items() if kind is not None and kind.is_static}


def _without_unused(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph without unread initializers and without declared shapes."""
    stored = {item.name for item in graph.initializer}
    read = {name for node in graph.node for name in reads(node)}
    read.update(item.name for item in graph.output)
    return OnnxGraph(
        graph.name,
        tuple(_plain(node) for node in graph.node),
        tuple(item for item in graph.input if item.name not in stored),
        tuple(_shapeless(item) for item in graph.output),
        tuple(item for item in graph.initializer if item.name in read),
    )


def _plain(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with defaults written out and no declared types in its bodies."""
    if not any(bodies(node)) and not lacks_defaults(node):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    write_defaults(copy)
    for body in bodies(copy):
        _forget_declared(body)
    return copy


def _forget_declared(graph: onnx.GraphProto) -> None:
    """Drop declared types from a body in place; the caller owns the body."""
    del graph.value_info[:]
    del graph.quantization_annotation[:]
    for item in graph.output:
        _forget_shape(item)
    for node in graph.node:
        for body in bodies(node):
            _forget_declared(body)


def _shapeless(item: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = type(item)()
    copy.CopyFrom(item)
    _forget_shape(copy)
    return copy


def _forget_shape(item: onnx.ValueInfoProto) -> None:
    if item.type.HasField("tensor_type"):
        item.type.tensor_type.ClearField("shape")


_INT = 2  # of onnx.AttributeProto.AttributeType
_DEFAULTS: Mapping[str, Mapping[str, int]] = MappingProxyType({"STFT": {"onesided": 1}})


def lacks_defaults(node: onnx.NodeProto) -> bool:
    """Return True if a node, or a node in its bodies, omits an attribute whose default is misread.

    Shape inference assumes the wrong default for such an attribute.
    """
    return bool(_missing(node)) or any(lacks_defaults(n) for b in bodies(node) for n in b.node)


def write_defaults(node: onnx.NodeProto) -> None:
    """Write omitted defaults into a node and its bodies, in place; the caller owns the node."""
    for name, value in _missing(node).items():
        node.attribute.add(name=name, type=_INT, i=value)
    for body in bodies(node):
        for inner in body.node:
            write_defaults(inner)


def _missing(node: onnx.NodeProto) -> dict[str, int]:
    if not is_op(node, *_DEFAULTS):
        return {}
    defaults = _DEFAULTS[node.op_type]
    return {name: value for name, value in defaults.items() if attribute(node, name) is None}
