"""Runs a program with onnxruntime's kernels and with its tensors at given addresses.

A stage is a range of ops that runs as one session. A single stage for the whole program is fastest;
a stage for each op lets the sanitizer check memory after every op. In both cases every planned
tensor is an output of its stage, bound to its address, so that onnxruntime reads and writes it
there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.contract.regions import array_address
from qnnmem.errors import ChildFailed, LoadError, ProgramError
from qnnmem.ir import Tensor
from qnnmem.lpai.compiled import CompiledGraph, Constant
from qnnmem.lpai.program import INLINE_BYTES, NODE_PREFIX, bytes_of, element_of, outside_reads
from qnnmem.lpai.program.contents import check_contents
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import sentence

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.loader.onnx.trial_program import NodeOrder

_LOCATION = "constants"  # external data must name a file; the bytes come from memory
_UNUSED_ADDRESS = 64  # an address that is never read or written
_CHECK_TIME_LIMIT_S = 120.0
_OUT_OF_MEMORY = ("alloc", "arena")  # onnxruntime's names
_Input = tuple[str, int, tuple[int, ...]]  # name, ONNX element type, shape


@dataclass(frozen=True)
class Parts:
    """A program and its constants, from which stages are created."""

    graph: CompiledGraph
    constants: memoryview

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The program as a checked ONNX model; raise ProgramError if it is invalid."""
        from qnnmem.loader.onnx.passes.guard import guard
        from qnnmem.loader.onnx.passes.read import admit

        path = Path(f"program of graph {self.graph.name[:80]!r}")
        try:
            content = admit(path, self.graph.program)
            return guard(replace(content, blob=_checked(content.blob))).proto
        except LoadError as exc:
            raise ProgramError(str(exc)) from exc

    @cached_property
    def inline(self) -> dict[str, onnx.TensorProto]:
        """Constants that the program itself contains."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    def check(self) -> None:
        """Raise ProgramError unless every op reads and writes the tensors in its plan."""
        known = {*self.inline, *(constant.name for constant in self.graph.constants)}
        fixed = set(self.graph.model.constants)
        self._check_windows()
        for number, op in enumerate(self.graph.model.ops):
            nodes = self._nodes(number, number + 1)
            written = {name for node in nodes for name in node.output}
            reads = [name for name in outside_reads(nodes) if name not in known]
            wrong = [name for name in reads if name not in op.inputs or name in fixed]
            wrong += [name for name in op.outputs if name not in written]
            if wrong:
                raise ProgramError(
                    f"the nodes of op {op.name[:80]!r} do not use {wrong[0][:80]!r} as planned"
                )

    @cached_property
    def values(self) -> dict[str, NDArray[Any]]:
        """The constants of the binary as arrays that share its memory."""
        return {c.name: self._value(c) for c in self.graph.constants}

    @cached_property
    def stored(self) -> dict[str, Constant]:
        """Constants that onnxruntime receives as constants, not as inputs."""
        return {c.name: c for c in self.graph.constants if not c.folded}

    @cached_property
    def written(self) -> list[list[str]]:
        """For each op, the planned tensors that it writes, without empty tensors."""
        tensors = self.graph.model.tensors
        return [
            [name for name in op.outputs if tensors[name].nbytes] for op in self.graph.model.ops
        ]

    def _check_windows(self) -> None:
        """Raise ProgramError unless an op fills each window and each reset input has a value."""
        written = {name for names in self.written for name in names}
        for window in self.graph.windows:
            reset = self.graph.model.tensors[window.reset] if window.reset is not None else None
            if window.new not in written or (reset is not None and not reset.nbytes):
                raise ProgramError(
                    f"no op fills window {window.name[:80]!r}, or the reset input of this window "
                    "is empty"
                )

    def model(self, first: int, last: int, *, whole: bool = False) -> onnx.ModelProto:
        """Return a model of the ops from `first` up to but not including `last`.

        If `whole` is true, embed all constants.
        """
        import onnx
        from onnx import helper

        nodes = self._nodes(first, last)
        reads = outside_reads(nodes)
        part = onnx.ModelProto(ir_version=self.proto.ir_version)
        part.opset_import.extend(self.proto.opset_import)
        part.graph.name = "stage"
        part.graph.node.extend(nodes)
        for name in reads:
            if name in self.inline:
                part.graph.initializer.append(self.inline[name])
            elif name in self.stored:
                part.graph.initializer.append(self._initializer(self.stored[name], whole))
            else:
                form = self.form(name)
                part.graph.input.append(helper.make_tensor_value_info(name, *form))
        for name in (name for names in self.written[first:last] for name in names):
            # Declare the type but no shape. Without its type, a tensor could be larger than its
            # place. Declared shapes can have wrong ranks, and onnxruntime infers shapes anyway.
            info = part.graph.output.add(name=name)
            info.type.tensor_type.elem_type = self.form(name)[0]
        return part

    def form(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Return the ONNX element type and shape of a tensor that is bound to an address."""
        tensor: Tensor | None = self.graph.model.tensors.get(name)
        if name in self.values and name not in self.stored:
            constant = next(c for c in self.graph.constants if c.name == name)
            return constant.element, constant.shape
        if tensor is None:
            raise ProgramError(f"the program reads {name[:80]!r}, which the graph does not have")
        return element_of(tensor.dtype), tensor.shape

    def _nodes(self, first: int, last: int) -> list[onnx.NodeProto]:
        nodes = self.proto.graph.node
        indexes = [index for op in self.graph.model.ops[first:last] for index in op.sources]
        if any(not 0 <= index < len(nodes) for index in indexes):
            raise ProgramError("an op refers to nodes that the program does not have")
        return [nodes[index] for index in indexes]

    def _value(self, constant: Constant) -> NDArray[Any]:
        import numpy
        from onnx import helper

        dtype = helper.tensor_dtype_to_np_dtype(constant.element)
        raw = self.constants[constant.offset : constant.offset + constant.size]
        if dtype.itemsize * math.prod(constant.shape) != constant.size or dtype.hasobject:
            raise ProgramError(f"constant {constant.name[:80]!r} has the wrong size")
        return numpy.frombuffer(raw, dtype).reshape(constant.shape)

    def _initializer(self, constant: Constant, whole: bool) -> onnx.TensorProto:
        import onnx

        tensor = onnx.TensorProto(
            name=constant.name, data_type=constant.element, dims=constant.shape
        )
        if whole or constant.size < INLINE_BYTES:
            tensor.raw_data = self.values[constant.name].tobytes()
            return tensor
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = (("location", _LOCATION), ("offset", "0"), ("length", str(constant.size)))
        for key, value in entries:
            tensor.external_data.add(key=key, value=value)
        return tensor

    def lent(self, model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
        """Return the constants of a stage that onnxruntime reads directly from the binary."""
        return {t.name: self.values[t.name] for t in model.graph.initializer if t.external_data}


class Stage:
    """A range of ops as an onnxruntime session, with all its tensors bound to addresses."""

    def __init__(self, parts: Parts, first: int, last: int) -> None:
        self.first, self.last = first, last
        model = parts.model(first, last)
        self.reads = [item.name for item in model.graph.input]
        self.writes = [item.name for item in model.graph.output]
        self._forms = {name: parts.form(name) for name in (*self.reads, *self.writes)}
        self._lent = parts.lent(model)  # onnxruntime reads these arrays in every run
        self._session = _open(model, self._lent)
        self._binding = self._session.io_binding()
        self._addresses: dict[str, int] = {}
        for name in self.reads:
            if name in parts.values:
                self._bind_input(name, array_address(parts.values[name]))
            elif not math.prod(self._forms[name][1]):
                self._bind_input(name, _UNUSED_ADDRESS)  # a tensor without bytes may have no place

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Bind tensors to addresses; ignore names that this stage does not use."""
        for name in self.reads:
            if name in addresses and self._addresses.get(name) != addresses[name]:
                self._bind_input(name, addresses[name])
                self._addresses[name] = addresses[name]
        for name in self.writes:
            # No stage has the same tensor as input and as output, so `_addresses` can hold both.
            if self._addresses.get(name) != addresses[name]:
                element, shape = self._forms[name]
                self._binding.bind_output(name, "cpu", 0, element, shape, addresses[name])
                self._addresses[name] = addresses[name]

    def run(self) -> None:
        """Execute the ops; every tensor is written to its address."""
        if not self.writes:
            return
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as exc:  # onnxruntime's classes have no common base of their own
            raise ProgramError(f"execution failed: {sentence(exc)}") from exc

    def strays(self) -> list[str]:
        """Return the tensors that onnxruntime did not write to their addresses in the last run."""
        outputs = zip(self.writes, self._binding.get_outputs(), strict=True)
        return [name for name, value in outputs if value.data_ptr() != self._addresses[name]]

    def collect(self, names: Sequence[str], targets: Mapping[str, NDArray[Any]]) -> None:
        """Copy the named outputs from onnxruntime's memory to `targets`."""
        outputs = dict(zip(self.writes, self._binding.get_outputs(), strict=True))
        for name in names:
            targets[name][:] = bytes_of(outputs[name].numpy())

    def _bind_input(self, name: str, address: int) -> None:
        element, shape = self._forms[name]
        self._binding.bind_input(name, "cpu", 0, element, shape, address)


def _open(model: onnx.ModelProto, lent: Mapping[str, NDArray[Any]]) -> Any:
    """Return a session that optimises nothing and preserves the order of the nodes."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # By priority: of all nodes that can run, the first in the list runs.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors arrive as exceptions
    if lent:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in lent.values()]
        options.add_external_initializers(list(lent), values)
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as exc:  # onnxruntime's classes have no common base of their own
        raise ProgramError(f"the program cannot be opened: {sentence(exc)}") from exc


def runs_in_order(parts: Parts, time_limit_s: float | None = None, *, here: bool = False) -> bool:
    """Return whether onnxruntime runs a program in the planned order.

    Raise ProgramError if the program crashes, cannot be opened or computes other shapes than
    planned. A program that fails only on random inputs is accepted, but the result is False because
    its order is unknown.

    A child process runs the program. If `here` is true, the current process runs the program; this
    process must then be a child with limits.
    """
    from onnx import numpy_helper

    from qnnmem.loader.onnx.trial import TrialChild

    parts.check()
    model = parts.model(0, len(parts.graph.model.ops), whole=True)
    if not model.graph.output:
        return False
    inputs = [item for item in model.graph.input if item.name not in parts.values]
    for item in model.graph.input:
        if item.name in parts.values:
            tensor = numpy_helper.from_array(parts.values[item.name], item.name)
            model.graph.initializer.append(tensor)
    forms = [(item.name, *parts.form(item.name)) for item in inputs]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    try:
        if here:
            trial = _try_here(model, forms)
        else:
            limit = time_limit_s or _CHECK_TIME_LIMIT_S
            with TrialChild(Path(f"graph {parts.graph.name[:80]!r}"), limit) as child:
                trial = child.order(model, forms)
    except ChildFailed as exc:
        raise ProgramError(f"the program cannot be opened: {sentence(exc)}") from exc
    except LoadError as exc:
        raise ProgramError(f"the program cannot be run: {exc.reason}") from exc
    if any(word in trial.failure.lower() for word in _OUT_OF_MEMORY):
        raise ProgramError(f"the program cannot be run: {trial.failure}")
    for name, shape in trial.shapes.items():
        planned = parts.form(name)[1]
        if shape != planned:
            raise ProgramError(
                f"{name[:80]!r} has shape {list(shape)} instead of the planned {list(planned)}"
            )
    planned_order = [f"{NODE_PREFIX}{number}" for number in range(len(parts.proto.graph.node))]
    order = [name for name in trial.names if name.startswith(NODE_PREFIX)]
    # An attempt that failed may have run some nodes before.
    return order[-len(planned_order) :] == planned_order


def _try_here(model: onnx.ModelProto, forms: Sequence[_Input]) -> NodeOrder:
    from qnnmem.loader.onnx.trial_program import Order, order

    try:
        return order(Order(list(forms)), model.SerializeToString())
    except Exception as exc:  # onnxruntime's classes have no common base of their own
        raise ChildFailed(sentence(exc)) from exc


def _checked(program: bytes) -> bytes:
    """Return a program without its notes; raise ProgramError for forbidden fields."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    try:
        proto = onnx.ModelProto.FromString(program)
    except (DecodeError, ValueError, RuntimeError, MemoryError):
        return program  # the next reader reports it
    check_contents(proto)
    return bytes(proto.SerializeToString())
