"""Inputs and outputs of an execution: checks the application's buffers.

`to_native` and `to_float` convert between real numbers and stored values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import TYPE_CHECKING, Any, NoReturn

from qnnmem.contract.regions import ClientBuffer, Extent, Holder, holders
from qnnmem.contract.rules import finding
from qnnmem.errors import UsageError
from qnnmem.ir import Tensor
from qnnmem.lpai.compiled import CompiledGraph, Quant
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.execution import GivenBuffers, UserBuffer
from qnnmem.lpai.runtime.memory_checks import SharedMemory
from qnnmem.planner import Io
from qnnmem.qnn.enums import MemType, TensorMemType
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.text import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INVALID_TENSOR = 6004
_CALL = "QnnGraph_execute"
_SIZE = "pass the size that follows from the tensor's dimensions and data type, exact or rounded up"
_Places = Sequence[tuple[str, Extent]]  # label and address range of each tensor


class UnchangedTensors(list[QnnTensor]):
    """A list of raw tensors. It never changes, so it is checked again only if memory changes."""


@dataclass(frozen=True, slots=True)
class _Checked:
    inputs: Sequence[QnnTensor] | None
    outputs: Sequence[QnnTensor] | None
    version: int  # of all memory that graphs and contexts hold
    buffers: GivenBuffers
    owners: tuple[ClientBuffer, ...]

    @property
    def is_freed(self) -> bool:
        """Return True if a buffer was freed since the check."""
        return any(owner.is_freed for owner in self.owners)


class IoCheck:
    """Checks tensors against the descriptors of a graph and the platform's alignment."""

    def __init__(
        self,
        backend: Backend,
        compiled: CompiledGraph,
        shared: SharedMemory,
        model_mem_type: MemType,
        graph: Holder,
    ) -> None:
        self._backend, self._compiled, self._shared = backend, compiled, shared
        self._model_mem_type, self._graph = model_mem_type, graph
        self.names = frozenset((*compiled.inputs, *compiled.outputs))
        self._reported: set[str] = set()  # tensors for which R1 was reported
        self._apart: object = None  # the address ranges of the last successful check
        self._last: _Checked | None = None

    def buffers(
        self,
        inputs: Sequence[QnnTensor] | None,
        outputs: Sequence[QnnTensor] | None,
        persistent: ClientBuffer | None,
    ) -> GivenBuffers:
        """Check the tensors of an execution and return their buffers."""
        last, version = self._last, holders.version
        is_known = last is not None and last.inputs is inputs and last.outputs is outputs
        if last is not None and is_known and last.version == version and not last.is_freed:
            return last.buffers
        read = self._resolve(self._compiled.inputs, inputs, "input")
        written = self._resolve(self._compiled.outputs, outputs, "output")
        self._check_apart(read, written, persistent)
        buffers = GivenBuffers(read, written)
        if isinstance(inputs, UnchangedTensors) and isinstance(outputs, UnchangedTensors):
            owners = tuple(owner for owner in buffers.owners.values() if owner is not None)
            self._last = _Checked(inputs, outputs, version, buffers, owners)
        return buffers

    def release(self) -> None:
        """Drop all references to the application's memory."""
        self._last = None

    def _resolve(
        self, names: Sequence[str], tensors: Sequence[QnnTensor] | None, kind: str
    ) -> dict[str, UserBuffer]:
        """Return the application's buffers by tensor name; tensors inside scratch have none."""
        if tensors is None:
            if names and self._compiled.io is Io.OUTSIDE:
                self._null(names[0], kind)
            return {}
        if not isinstance(tensors, list | tuple) or not all(map(_is_tensor, tensors)):
            self._fail("R9", f"{kind}s must be a list of tensors", kind)
        by_name = {tensor.name: tensor for tensor in tensors}
        if len(tensors) != len(names) or by_name.keys() != set(names):
            missing = next((n for n in names if n not in by_name), None)
            if missing is not None:
                self._fail("R9", f"{kind} {missing[:80]!r} is missing", kind)
            given = counted(len(tensors), "tensor")
            sentence = f"the graph has {counted(len(names), kind)}, but the call has {given}"
            self._fail("R9", sentence, kind)
        buffers = {name: self._buffer(by_name[name], kind) for name in names}
        return {name: buffer for name, buffer in buffers.items() if buffer is not None}

    def _check_apart(
        self,
        inputs: Mapping[str, UserBuffer],
        outputs: Mapping[str, UserBuffer],
        persistent: ClientBuffer | None,
    ) -> None:
        """Fail if tensors overlap memory in use; check again only after a change of memory."""
        places = [(name, b.extent) for g in (inputs, outputs) for name, b in g.items()]
        now = (holders.version, places)
        if now == self._apart:
            return
        state = [] if persistent is None else [("persistent", persistent.extent)]
        written = [(f"output {n[:80]!r}", b.extent) for n, b in outputs.items()]
        read = [(f"input {n[:80]!r}", b.extent) for n, b in inputs.items()]
        for number, (buffer, (what, extent)) in enumerate(
            zip(outputs.values(), written, strict=True)
        ):
            in_place = buffer.shared or self._compiled.io is Io.OUTSIDE
            for other, taken in (*state, *(read if in_place else ()), *written[:number]):
                if extent.overlap(taken):
                    cure = "use separate memory for the output"
                    sentence = f"{what} shares bytes with {other}"
                    self._fail("R9", sentence, what, extent.start, cure=cure)
        self._note_partial_overlaps(read, written)
        self._check_held("input", inputs)
        self._check_held("output", outputs)
        self._apart = now

    def _note_partial_overlaps(self, read: _Places, written: _Places) -> None:
        """Report inputs and outputs that overlap without starting at the same byte.

        Such an overlap means a wrong offset; one buffer for an input and an output is allowed.
        Inputs may overlap each other, because they are only read.
        """
        for (input_label, a), (output_label, b) in product(read, written):
            if a.overlap(b) and a.start != b.start:
                sentence = (
                    f"{output_label} shares bytes with {input_label}, but starts at a different "
                    "byte"
                )
                self._backend.note(
                    finding("X8", sentence, call=_CALL, buffer=output_label, address=b.start)
                )

    def _check_held(self, kind: str, buffers: Mapping[str, UserBuffer]) -> None:
        """Fail if an input or output overlaps memory that is reserved for a graph or context."""
        for name, user in buffers.items():
            if user.owner is None:
                continue
            what, extent = f"{kind} {name[:80]!r}", user.extent
            for held in holders.touching(user.owner):
                if not extent.overlap(held.buffer.extent):
                    continue
                if held.what == "scratch" and held.holder.lends(extent.start, extent.end):
                    continue  # the position of an input or output there, as reported by the runtime
                own = held.holder is self._graph
                label = held.what if own else held.label
                cure = "use separate memory, or pass no buffer to use the tensor in scratch"
                sentence = f"{what} shares bytes with {label}"
                self._fail("X8", sentence, what, extent.start, cure=cure)

    def check_kept(self, buffers: GivenBuffers) -> None:
        """Fail if a buffer was freed while the graph executed."""
        for name, user in chain(buffers.inputs.items(), buffers.outputs.items()):
            if user.owner is not None and user.owner.is_freed:
                sentence = f"{name[:80]!r} was {user.owner.loss} during the execution"
                self._fail("R9", sentence, name[:80], user.owner.address)

    def _buffer(self, tensor: QnnTensor, kind: str) -> UserBuffer | None:
        """Check and return the application's buffer; None if the tensor stays in scratch."""
        exact = self._compiled.model.tensors[tensor.name].nbytes
        what = f"{kind} {tensor.name[:80]!r}"
        if not isinstance(tensor.mem_type, int):
            self._fail("R9", f"{what} is neither raw nor a memory handle", what)
        if tensor.mem_type == TensorMemType.MEMHANDLE:
            return self._handle(tensor.mem_handle, exact, what)
        if tensor.mem_type != TensorMemType.RAW:
            self._fail("R9", f"{what} is neither raw nor a memory handle", what)
        if tensor.client_buf is None:
            if self._compiled.io is Io.OUTSIDE:
                self._null(tensor.name, kind)
            return None
        buffer = self._client_buffer(tensor.client_buf, what)
        if buffer.is_freed:
            sentence = f"{what} was {buffer.loss} before the execution"
            self._fail("R9", sentence, what, buffer.address)
        if kind == "output" and buffer.readonly:
            cure = "pass writable memory"
            self._fail("R9", f"{what} is read-only memory", what, buffer.address, cure=cure)
        stated = buffer.size if tensor.data_size is None else tensor.data_size
        if not isinstance(stated, int):
            self._fail("R4", f"{what} has a size that is not a number", what)
        self._size(buffer, stated, exact, what)
        self._alignment(buffer, what)
        self._memory_type(buffer.mem_type or MemType.DDR, what)
        return UserBuffer(buffer.array[:exact], owner=buffer)

    def _client_buffer(self, memory: object, what: str) -> ClientBuffer:
        try:
            return ClientBuffer(memory)
        except UsageError as exc:
            self._fail("R9", f"{what} is not usable memory: {exc}", what)

    def _size(self, buffer: ClientBuffer, given: int, exact: int, what: str) -> None:
        sentence = f"{what} has {exact:,} bytes, but its buffer is given with {given:,}"
        if given > buffer.size:
            exact, given = given, buffer.size
            sentence = f"{what} states {exact:,} bytes, but the buffer has {given:,}"
        if given < exact:
            self._fail("R4", sentence, what, buffer.address, need=exact, given=given, cure=_SIZE)

    def _memory_type(self, mem_type: MemType, what: str) -> None:
        """Fail if a tensor is in another type of memory than the model."""
        if mem_type is not self._model_mem_type:
            model = self._model_mem_type.name
            self._fail("T6", f"{what} is in {mem_type.name}, but the model is in {model}", what)

    def _alignment(self, buffer: ClientBuffer, what: str) -> None:
        if what not in self._reported and self._backend.check_alignment_query(buffer, what, _CALL):
            self._reported.add(what)
        align = self._backend.profile.start_alignment
        off = buffer.address % align
        if off:
            sentence = (
                f"{what} starts at {buffer.address:#x}, {off} bytes past a multiple of {align}"
            )
            self._fail("R3", sentence, what, buffer.address, need=align, given=off)

    def _handle(self, handle: object, exact: int, what: str) -> UserBuffer:
        if not isinstance(handle, MemHandle) or handle not in self._shared:
            self._fail("M2", f"{what} has a memory handle that is not registered", what)
        if handle.is_shortened:
            self._fail("R9", f"the shared memory of {what} was made shorter", what)
        if handle.size < exact:
            sentence = f"{what} has {exact:,} bytes, but its shared buffer has {handle.size:,}"
            self._fail("R4", sentence, what, need=exact, given=handle.size, cure=_SIZE)
        self._memory_type(MemType.DDR, what)  # memory that the CPU can share is never TCM
        return UserBuffer(handle.array[:exact], shared=True)

    def _null(self, name: str, kind: str) -> NoReturn:
        sentence = (
            f"{kind} {name[:80]!r} has no buffer, and the model was prepared without IO in scratch"
        )
        self._fail("R9", sentence, f"{kind} {name[:80]!r}")

    def _fail(
        self,
        rule: str,
        sentence: str,
        what: str,
        address: int | None = None,
        **details: Any,
    ) -> NoReturn:
        self._backend.refuse(
            _INVALID_TENSOR, rule, sentence, _CALL, buffer=what, address=address, **details
        )


def _is_tensor(tensor: object) -> bool:
    return isinstance(tensor, QnnTensor) and isinstance(tensor.name, str)


def typed(view: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """Return bytes as an array of a tensor's type and shape; unchanged if numpy lacks the type."""
    import numpy

    try:
        dtype = numpy.dtype(tensor.dtype.value)
    except TypeError:
        return view
    return view.view(dtype).reshape(tensor.shape)


def to_native(values: NDArray[Any], tensor: Tensor, quant: Quant | None) -> NDArray[Any]:
    """Convert real numbers to a tensor's stored values: scale, round to even, clip to its type."""
    import numpy

    dtype = numpy.dtype(tensor.dtype.value)
    if dtype.kind not in "iu":
        return values.astype(dtype)
    if quant is not None:
        values = values.astype(numpy.float64) / quant.scale + quant.zero_point
    limits = numpy.iinfo(dtype)
    with numpy.errstate(invalid="ignore"):  # NaN becomes some integer
        clipped = numpy.clip(numpy.nan_to_num(numpy.rint(values)), limits.min, limits.max)
    native: NDArray[Any] = clipped.astype(dtype)
    return native


def to_float(values: NDArray[Any], quant: Quant | None) -> NDArray[Any]:
    """Convert stored values to real numbers in float32."""
    import numpy

    if quant is None or values.dtype.kind not in "iu":
        return values.astype(numpy.float32)
    real = (values.astype(numpy.float64) - quant.zero_point) * quant.scale
    return real.astype(numpy.float32)
