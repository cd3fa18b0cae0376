"""Requests about a model that need foreign code: inference, trial runs, constants.

The child process runs that code, with limits on time and memory. This module builds the small
models for these requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from qnnmem.child import REPLY_LIMIT, ChildProcess
from qnnmem.errors import ChildFailed, ChildLost, LoadError, OutOfTime
from qnnmem.loader.onnx.graph import AnyGraph, is_op, reads
from qnnmem.loader.onnx.protobuf_wire import check_wire
from qnnmem.loader.onnx.scope import CONTROL
from qnnmem.loader.onnx.tensor import DTYPES, EXTERNAL, OnnxType, stored_type, type_of, value_info
from qnnmem.loader.onnx.trial_program import (
    RUNS,
    TRIES,
    TYPE_NAMES,
    Attempted,
    AttemptRun,
    Fold,
    Infer,
    Inline,
    NodeOrder,
    Open,
    OptimiseBasic,
    Order,
    OutputTypes,
    Run,
    TrialInput,
)
from qnnmem.loader.onnx.well_formed import first_foreign, foreign_op, no_tensor
from qnnmem.text import quote
from qnnmem.wire import Done, Frame, WireMessage

if TYPE_CHECKING:
    import onnx

# Limit for computed constants: real models need kilobytes, but a few nodes can request terabytes.
MAX_COMPUTED = 256 << 20
T = TypeVar("T", bound=WireMessage)
M = TypeVar("M")


class RunResult(NamedTuple):
    """The fetched tensors of each successful run in order, and the type of each model output."""

    values: list[list[onnx.TensorProto]]
    types: Mapping[str, str]


class TrialChild(ChildProcess):
    """Limited child process for one model; imports libraries while the parent parses the model."""

    def __init__(self, path: Path, time_limit_s: float) -> None:
        super().__init__("qnnmem.loader.onnx.trial_program", time_limit_s)
        self._path = path

    def inline(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model with its own functions inlined."""
        _, reply = self._ask(Inline(), Done, model.SerializeToString())
        return self._model(reply)  # nested calls can expand beyond any file size

    def optimise(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model as onnxruntime optimises it before choosing execution providers."""
        request = OptimiseBasic(self._path.parent.resolve())
        _, reply = self._ask(request, Done, model.SerializeToString(), MAX_COMPUTED)
        return self._model(reply)

    def _model(self, reply: bytes) -> onnx.ModelProto:
        """Return the model in a reply after checking that it unpacks into bounded memory."""
        import onnx

        check_wire(self._path, reply)
        return _parse(onnx.ModelProto, reply)

    def infer(self, model: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
        """Return the types that shape inference finds."""
        import onnx

        _, reply = self._ask(Infer(), Done, model.SerializeToString())
        return list(_parse(onnx.GraphProto, reply).value_info)

    def run(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[TrialInput],
        fetch: Sequence[str],
        runs: int = 1,
    ) -> RunResult:
        """Run a model with random inputs and return the requested tensors."""
        import onnx

        folder = self._path.parent.resolve()
        request = Run(folder, list(inputs), list(fetch), MAX_COMPUTED, runs)
        outputs, reply = self._ask(request, OutputTypes, model.SerializeToString(), MAX_COMPUTED)
        tensors = list(_parse(onnx.GraphProto, reply).initializer)
        width = len(fetch)
        values = [tensors[start : start + width] for start in range(0, len(tensors), width)]
        return RunResult(values, outputs.types)

    def fold(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[TrialInput],
        fetch: Sequence[str],
        folder: Path | None,
    ) -> list[onnx.TensorProto]:
        """Return the values of the constants in `fetch`, computed without any optimisation.

        Only the shapes of `inputs` matter; `folder` holds external data.
        """
        import onnx

        folder = None if folder is None else folder.resolve()
        request = Fold(folder, list(inputs), list(fetch), MAX_COMPUTED)
        _, reply = self._ask(request, Done, model.SerializeToString(), MAX_COMPUTED)
        return list(_parse(onnx.GraphProto, reply).initializer)

    def order(
        self, model: onnx.ModelProto, inputs: Sequence[tuple[str, int, tuple[int, ...]]]
    ) -> NodeOrder:
        """Return the order in which onnxruntime runs the nodes, or why it cannot run them."""
        return self._ask(Order(list(inputs)), NodeOrder, model.SerializeToString())[0]

    def open(self, model: onnx.ModelProto) -> None:
        """Open a model for later calls of `attempt`."""
        self._ask(Open(self._path.parent.resolve()), Done, model.SerializeToString())

    def attempt(
        self,
        inputs: Sequence[TrialInput],
        values: Sequence[onnx.TensorProto],
        *,
        thorough: bool,
        watched: int = 0,
    ) -> Attempted:
        """Run the model that `open` opened, with random and given values, and return the result.

        The model's last `watched` outputs are the shapes in the result.
        """
        import onnx

        payload = onnx.GraphProto(initializer=values).SerializeToString()
        # With float inputs a run fails only because of sizes; integer inputs can also be indices
        # that are out of range.
        quick = 1 if all(item.dtype.startswith("float") for item in inputs) else 2
        tries = TRIES if thorough else TRIES[:quick]
        return self._ask(AttemptRun(list(inputs), list(tries), watched), Attempted, payload)[0]

    def _ask(
        self, request: WireMessage, kind: type[T], payload: bytes, values: int = 0
    ) -> Frame[T]:
        """Return the child's reply, which holds at most a model and `values` bytes of values."""
        try:
            return self.ask(request, kind, payload, len(payload) + values + REPLY_LIMIT)
        except ChildLost as lost:
            if self.expired:
                raise OutOfTime(self._path, str(lost), cure="set more shapes") from lost
            raise LoadError(
                self._path,
                f"{lost}; usual reasons: an operator that onnxruntime does not support, large "
                "shapes, a damaged file",
            ) from lost


def _parse(kind: Callable[[], M], blob: bytes) -> M:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    message: Any = kind()
    try:
        message.ParseFromString(blob)
    except DecodeError as exc:
        raise ChildFailed("the child process sent an unreadable reply") from exc
    return cast("M", message)


_INT64 = 7
# Bytes of a constant from which inference gets only its type: tensors that set shapes are smaller.
_HEAVY = 4096
# Element types for which data can be generated.
_NUMPY = {
    elem: dtype.value for elem, dtype in DTYPES.items() if elem in {*range(1, 8), *range(9, 14)}
}
_ELEMS = {name: elem for elem, name in _NUMPY.items()}


@dataclass(frozen=True, slots=True)
class Trials:
    """The child process and the facts that all requests about one model share."""

    path: Path
    child: TrialChild
    head: onnx.ModelProto  # IR version and operator sets, no graph
    stated: Mapping[str, tuple[int, ...]]  # shapes that the caller states for inner tensors
    declared: Mapping[str, OnnxType]  # types that the file declares for outputs of custom ops
    inputs: Collection[str] = ()  # inputs of the model, which a caller may give a value

    def model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        """Return a model with this graph."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.head)
        model.graph.CopyFrom(graph)
        return model


def infer_types(
    trials: Trials, graph: AnyGraph, known: Mapping[str, OnnxType]
) -> dict[str, OnnxType]:
    """Return all tensor types: `known`, stored, or inferred without the control-flow ops."""
    light = light_graph(graph, known)
    try:
        infos = trials.child.infer(trials.model(light))
    except ChildFailed as exc:
        node = first_foreign(light.node)
        if node is not None and quote(node.domain)[1:-1] in str(exc):
            raise foreign_op(trials.path, node) from exc
        raise LoadError(trials.path, f"shape inference rejects the model: {exc}") from exc
    types: dict[str, OnnxType] = {}
    for info in (*graph.input, *infos):
        kind = type_of(info)
        if kind is None:
            raise no_tensor(trials.path, info.name, graph.node)
        types[info.name] = kind
    types.update((tensor.name, stored_type(tensor)) for tensor in graph.initializer)
    return types | dict(known)


def measure_types(
    trials: Trials,
    graph: AnyGraph,
    types: Mapping[str, OnnxType],
    names: Sequence[str],
    const: Collection[str],
) -> tuple[dict[str, OnnxType], set[str]]:
    """Return the types measured in trial runs, and the names whose shape varied between runs."""
    small = cone(graph, names, types, const)
    untyped = [name for name in names if not (name in types and types[name].elem)]
    fetch = [f"qnnmem shape {number}" for number in range(len(names))]
    for name, shape in zip(names, fetch, strict=True):
        small.node.add(op_type="Shape", input=[name], output=[shape])
    small.output.extend(value_info(shape, OnnxType(_INT64, None)) for shape in fetch)
    for name in untyped:
        small.output.add(name=name)
    result = trials.child.run(trials.model(small), trial_inputs(small.input), fetch, len(RUNS))
    shapes = [[_ints(tensor) for tensor in run] for run in result.values]
    measured, unsteady = {}, set()
    for index, name in enumerate(names):
        elem = types[name].elem if name not in untyped else _elem(trials, name, result.types)
        measured[name] = OnnxType(elem, shapes[0][index])
        if any(run[index] != shapes[0][index] for run in shapes):
            unsteady.add(name)
    return measured, unsteady


def _elem(trials: Trials, name: str, types: Mapping[str, str]) -> int:
    text = types.get(name, "")
    elem = _ELEMS.get(TYPE_NAMES.get(text, ""))
    if elem is None:
        raise LoadError(
            trials.path, f"tensor {quote(name)} has type {quote(text)}, which is not supported"
        )
    return elem


def compute_values(
    trials: Trials,
    graph: AnyGraph,
    types: Mapping[str, OnnxType],
    names: Sequence[str],
    const: Collection[str],
) -> dict[str, onnx.TensorProto]:
    """Return the values of constant tensors, computed in a trial run."""
    stored = {item.name: item for item in graph.initializer}
    values = {name: stored[name] for name in names if name in stored}
    rest = [name for name in names if name not in stored]
    if rest:
        small = cone(graph, rest, types, const)
        for name in rest:
            small.output.add(name=name)
        result = trials.child.run(trials.model(small), trial_inputs(small.input), rest)
        for name, tensor in zip(rest, result.values[0], strict=True):
            tensor.name = name
            values[name] = tensor
    return values


def read_scalar(trials: Trials, tensor: onnx.TensorProto) -> int:
    """Return the single number in a stored integer or bool tensor."""
    from onnx import numpy_helper

    who = f"tensor {quote(tensor.name)} controls a branch or loop but is not"
    if tensor.data_location == EXTERNAL or math.prod(tensor.dims) != 1:
        raise LoadError(trials.path, f"{who} a stored scalar")
    try:
        return int(numpy_helper.to_array(tensor).reshape(-1)[0])
    except (TypeError, ValueError) as exc:
        raise LoadError(trials.path, f"{who} a number") from exc


def _ints(tensor: onnx.TensorProto) -> tuple[int, ...]:
    from onnx import numpy_helper

    return tuple(int(size) for size in numpy_helper.to_array(tensor))


def trial_inputs(items: Iterable[onnx.ValueInfoProto]) -> list[TrialInput]:
    """Return inputs to fill with random data; raise ChildFailed for an unsupported type."""
    inputs = []
    for item in items:
        kind = type_of(item)
        if kind is None or kind.shape is None or kind.elem not in _NUMPY:
            raise ChildFailed(f"no random data can be made for input {quote(item.name)}")
        inputs.append(TrialInput(item.name, _NUMPY[kind.elem], kind.shape))
    return inputs


# Models for the child: a light one for shape inference, small ones for trial runs.


def light_graph(graph: AnyGraph, known: Mapping[str, OnnxType]) -> onnx.GraphProto:
    """Return a graph for shape inference, without control flow and weights."""
    import onnx

    light = onnx.GraphProto(name="light")
    light.input.extend(graph.input)
    for item in graph.output:  # without types: declared types may contradict inferred ones
        light.output.add(name=item.name)
    light.initializer.extend(_bare(item) for item in graph.initializer)
    control_outputs = set()
    for node in graph.node:
        if is_op(node, *CONTROL):
            control_outputs.update(node.output)
        elif is_op(node, "Constant") and node.ByteSize() > _HEAVY:
            light.node.append(_bare_constant(node))
        else:
            light.node.append(node)
    for name, kind in known.items():
        infos = light.input if name in control_outputs else light.value_info
        infos.append(value_info(name, kind))
    return light


def _bare(tensor: onnx.TensorProto) -> onnx.TensorProto:
    import onnx

    if tensor.ByteSize() <= _HEAVY and tensor.data_location == 0:
        return tensor
    return onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)


def _bare_constant(node: onnx.NodeProto) -> onnx.NodeProto:
    import onnx

    bare = onnx.NodeProto(op_type="Constant", output=node.output)
    for item in node.attribute:
        if item.HasField("t"):
            bare.attribute.add(name=item.name, type=item.type).t.CopyFrom(_bare(item.t))
        else:
            bare.attribute.append(item)
    return bare


def cone(
    graph: AnyGraph,
    names: Iterable[str],
    types: Mapping[str, OnnxType],
    const: Collection[str],
) -> onnx.GraphProto:
    """Return the part of a graph that computes `names`; known shapes become constants."""
    import onnx

    needed, nodes = set(names), []
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            continue
        if is_op(node, "Shape", "Size") and node.output[0] in const:
            constant = shape_as_constant(node, types)
            if constant is not None:
                nodes.append(constant)
                continue
        nodes.append(node)
        needed.update(reads(node))
    part = onnx.GraphProto(name="cone", node=reversed(nodes))
    part.initializer.extend(item for item in graph.initializer if item.name in needed)
    part.input.extend(item for item in graph.input if item.name in needed)
    return part


def shape_as_constant(node: onnx.NodeProto, types: Mapping[str, OnnxType]) -> onnx.NodeProto | None:
    """Return a Constant in place of a Shape or Size node; None if the shape is unknown."""
    import onnx
    from onnx import helper

    kind = types.get(node.input[0])
    if kind is None or kind.shape is None:
        return None
    if node.op_type == "Size":
        tensor = helper.make_tensor("", _INT64, [], [math.prod(kind.shape)])
    else:
        bounds = {item.name: item.i for item in node.attribute}
        dims = kind.shape[bounds.get("start", 0) : bounds.get("end")]
        tensor = helper.make_tensor("", _INT64, [len(dims)], dims)
    constant = onnx.NodeProto(op_type="Constant", name=node.name, output=node.output)
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    return constant
