"""A model under rewriting: fresh names, new inputs and outputs, and the file it becomes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.atomic_file import write_whole
from qnnmem.errors import LoadError, OutputError
from qnnmem.ir import Tensor
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, all_names, bodies
from qnnmem.loader.onnx.tensor import (
    DTYPES,
    EXTERNAL,
    OnnxType,
    embed,
    stored_bytes,
    tensors,
    value_info,
)
from qnnmem.units import format_size

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

# Below protobuf's limit of 2 GiB, with room for what the rewrite adds.
MAX_MODEL_BYTES = 3 << 29
_DEFAULT_OPSET = 17


class Draft:
    """A model whose state becomes explicit, one node after another."""

    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        self.path, self.model = path, model
        self.states: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.kept_bytes = 0
        self._taken = set(all_names(model.graph))
        self._windows: set[str] = set()
        self.opset = _opset(model)

    def fresh(self, stem: str) -> str:
        """Tensor name that nothing else has."""
        return _unused(stem, self._taken)

    def window_name(self, stem: str) -> str:
        """Name of a window that no other window has; names of nodes may repeat."""
        return _unused(stem, self._windows)

    def constant(self, stem: str, value: NDArray[Any] | onnx.TensorProto) -> str:
        """Name of a new stored tensor."""
        from onnx import TensorProto, numpy_helper

        tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(value)
        tensor.name = self.fresh(stem)
        self.model.graph.initializer.append(tensor)
        return str(tensor.name)

    def state(self, stem: str, kind: OnnxType) -> str:
        """Name of a new input that brings the old value of a state."""
        name = self.fresh(stem)
        self.model.graph.input.append(value_info(name, kind))
        return name

    def keep(self, old: str, new: str, kind: OnnxType) -> None:
        """Make `new` an output, and the two a pair."""
        self.model.graph.output.append(value_info(new, kind))
        self.states.append((old, new))
        self.kept_bytes += Tensor(new, DTYPES[kind.elem], kind.shape or ()).nbytes

    def is_output(self, name: str) -> bool:
        """Whether the application already reads a tensor."""
        return any(item.name == name for item in self.model.graph.output)

    def replace(self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
        """Put nodes in the place of one."""
        graph = self.model.graph
        at = next(i for i, found in enumerate(graph.node) if found.output == node.output)
        rest = [type(node).FromString(found.SerializeToString()) for found in graph.node[at + 1 :]]
        del graph.node[at:]
        graph.node.extend([*nodes, *rest])


def _unused(stem: str, taken: set[str]) -> str:
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _opset(model: onnx.ModelProto) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS]
    if not versions:  # a model of foreign ops only
        model.opset_import.add(domain="", version=_DEFAULT_OPSET)
    return min(versions, default=_DEFAULT_OPSET)


def inline_external(path: Path, model: onnx.ModelProto) -> None:
    """Bring weights that lie beside the model into it: the rewritten file lies elsewhere.

    Locations and sizes were checked when the model was unpacked.
    """
    outside = [tensor for tensor in tensors(model) if tensor.data_location == EXTERNAL]
    total = model.ByteSize() + sum(map(stored_bytes, outside))
    if total > MAX_MODEL_BYTES:
        raise LoadError(
            path,
            f"holds {format_size(total)} with its weights, more than the "
            f"{format_size(MAX_MODEL_BYTES)} for which state can be made explicit; "
            "give it inputs and outputs for its state instead",
        )
    for tensor in outside:
        embed(path, tensor)


def forget_domain(model: onnx.ModelProto, domain: str) -> None:
    """Drop an operator set that no node uses any more."""
    if all(node.domain != domain for node in _nodes(model.graph)):
        kept = [entry for entry in model.opset_import if entry.domain != domain]
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in kept]
        del model.opset_import[:]
        model.opset_import.extend(copies)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _nodes(body)


class Declared:
    """What a file says about types; set aside while shapes are fixed, put back for writing."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        stored = {item.name for item in graph.initializer}
        self._inputs = {i.name: _copy(i) for i in graph.input if i.name not in stored}
        self._outputs = {item.name: _copy(item) for item in graph.output}
        self._values = [_copy(item) for item in graph.value_info]
        self._annotations = [_copy(item) for item in graph.quantization_annotation]

    def put_back(self, graph: onnx.GraphProto, changed: Iterable[str]) -> None:
        """Restore everything but the types of tensors that are made in a new way."""
        inputs = [self._inputs.get(item.name, _copy(item)) for item in graph.input]
        untyped = {name: item for name, item in self._outputs.items() if name not in changed}
        outputs = [untyped.get(item.name, _copy(item)) for item in graph.output]
        del graph.input[:], graph.output[:]
        graph.input.extend(inputs)
        graph.output.extend(outputs)
        graph.value_info.extend(item for item in self._values if item.name not in changed)
        graph.quantization_annotation.extend(self._annotations)


def _copy(item: Any) -> Any:
    return type(item).FromString(item.SerializeToString())


def write_model(model: onnx.ModelProto, target: Path) -> None:
    """Write a model that appears whole or not at all; nothing is ever replaced."""
    if os.path.lexists(target):
        raise OutputError(f"{target} exists already; give an empty folder for the rewritten model")
    write_whole(target, model.SerializeToString())
