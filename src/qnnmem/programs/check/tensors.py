"""Inputs and outputs that the client passes to an execution, compared with the binary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qnnmem.contract.regions import ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.lpai.runtime.graph_io import UnchangedTensors
from qnnmem.programs import layout
from qnnmem.programs.check.client_session import ClientCall, ClientProcess
from qnnmem.programs.process_memory import Gone, Unreadable
from qnnmem.programs.stacks import Trace
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.tensor import QnnTensor

INVALID_TENSOR = 6004
KINDS = ("input", "output")
_VERSIONS = (1, 2)  # of Qnn_Tensor_t


@dataclass(frozen=True, slots=True)
class SeenTensors:
    """Inputs or outputs of an execution, cached until the client changes their description."""

    data: bytes
    dimensions: layout.Dimensions
    sizes: list[bytes]  # the content of `dimensions`
    changes: int  # change count of the client's buffers
    tensors: UnchangedTensors
    on_stack: list[tuple[str, int]]  # tensors whose buffer is on a stack, and its address

    def is_current(self, data: bytes, process: ClientProcess) -> bool:
        """Return True if an execution passes the same tensor structs as the cached execution."""
        same = (self.data, self.changes) == (data, process.buffers.changes)
        try:
            return same and self.dimensions.read(process.memory) == self.sizes
        except Unreadable:
            return False


def given_tensors(
    call: ClientCall, seen: dict[int, SeenTensors], at: int, known: Sequence[QnnTensor]
) -> list[QnnTensor] | None:
    """Return the tensors in argument `at` of an execution; None if the client passed none."""
    data = layout.tensor_bytes(call.memory, call.word(at), call.number(at + 1))
    if not data and not call.word(at):
        return None if known else []
    before, notes = seen.get(at), len(call.found)
    if before is not None and before.is_current(data, call.process):
        _note_returned(call, before.on_stack)
        return before.tensors
    kind = KINDS[at > 1]
    _note_returned(call, [(f"the array of {kind}s", call.word(at))])
    items = layout.tensors(data)
    made = [_tensor(call, item, known, kind) for item in items]
    local = [
        (f"{kind} {tensor.name[:80]!r}", tensor.client_buf.address)
        for tensor in made
        if isinstance(tensor.client_buf, ForeignMemory)
        and (
            call.process.buffers.is_on_stack(tensor.client_buf)
            or call.memory.thread_has_ended(tensor.client_buf.address) is not None
        )
    ]
    if len(call.found) == notes and all(map(_is_plain, items, made)):
        made = UnchangedTensors(made)
        dimensions = layout.Dimensions(items)
        sizes, changes = dimensions.read(call.memory), call.process.buffers.changes
        seen[at] = SeenTensors(data, dimensions, sizes, changes, made, local)
    _note_returned(call, local)
    return made


def _note_returned(call: ClientCall, places: Sequence[tuple[str, int]]) -> None:
    """Report rule C5 for memory of a function that has returned, or of a thread that has ended."""
    for what, address in places:
        place = ""
        if call.has_returned(address):
            place = "on the stack of a function that has returned"
        elif not call.is_on_own_stack(address) and call.memory.thread_has_ended(address):
            place = "on the stack or in a thread-local variable of a thread that has ended"
        if place:
            sentence = f"{what} is {place}"
            call.note(finding("C5", sentence, call.name, buffer=what, address=address))


def _is_plain(item: layout.GivenTensor, tensor: QnnTensor) -> bool:
    """Return True if a tensor can be cached; a tensor that was found by name can change."""
    buffer = tensor.client_buf
    is_whole = buffer is None or not buffer.freed
    return item.id == tensor.id and item.mem_type == TensorMemType.RAW and is_whole


def _tensor(
    call: ClientCall, item: layout.GivenTensor, known: Sequence[QnnTensor], kind: str
) -> QnnTensor:
    """Return a client's tensor, found in the binary by its id, else by its name."""
    _check_description(call, item)
    match = next((one for one in known if one.id == item.id), None)
    if match is None:
        name = call.memory.text(item.name) if item.name else ""
        match = next((one for one in known if one.name == name), None)
        if match is None:
            sentence = f"tensor {name[:80]!r} with id {item.id} is not a tensor of the graph"
            call.fail(INVALID_TENSOR, finding("R9", sentence, call=call.name))
    _compare_description(call, item, match)
    made = QnnTensor(match.id, match.name, match.type, match.data_type, match.dimensions)
    made.mem_type = item.mem_type  # type: ignore[assignment]  # the client may pass any value
    if item.mem_type == TensorMemType.MEMHANDLE:
        made.mem_handle = _registered(call, item.data, f"{kind} {match.name!r}")
    elif not item.data and item.size:
        sentence = f"{match.name[:80]!r} is NULL but has a size of {item.size:,} bytes"
        call.fail(INVALID_TENSOR, finding("R9", sentence, call=call.name, buffer=match.name[:80]))
    elif item.data:
        made.data_size = item.size
        made.client_buf = _buffer(call, item, made)
    return made


def _registered(call: ClientCall, number: int, tensor: str) -> Any:
    """Return the memory of a handle; None if the handle is not registered.

    For findings, also record where the client registered or deregistered the handle.
    """
    found, gone = call.session.handles.get(number), call.session.handles.freed(number)
    if found is not None and found.kind == "memory":
        call.places[tensor] = ("registered at", found.value[2])
        return found.value[1]
    if gone is not None and gone[0] == "memory":
        call.places[tensor] = ("deregistered at", gone[1])
    return None


def _check_description(call: ClientCall, item: layout.GivenTensor) -> None:
    """Report rule C4: a tensor description was copied without the memory it points to."""
    for what, pointer in (("name", item.name), ("dimensions", item.dimensions)):
        trace = call.process.buffers.answers.freeing(pointer) if pointer else None
        if trace is not None:
            sentence = f"{what} of the tensor with id {item.id} was freed with its system context"
            found = finding("C4", sentence, call.name, buffer=what, address=pointer)
            call.note(found, trace, "freed at")


def _compare_description(call: ClientCall, item: layout.GivenTensor, known: QnnTensor) -> None:
    """Report rule R9 if the client describes a tensor differently from the binary."""
    name, wrong = known.name[:80], ""
    trace: Trace = ()
    if item.version not in _VERSIONS:
        wrong = f"has version {item.version:#x}, which does not exist"
    elif item.id != known.id:
        wrong = f"has id {item.id}, but id {known.id} in the graph"
    elif item.data_type != known.data_type:
        wrong = f"has data type {item.data_type:#x}, but {known.data_type:#x} in the graph"
    elif item.rank or item.dimensions:  # some clients set neither
        try:
            given = layout.dimensions(call.memory, item.dimensions, item.rank)
        except (Unreadable, layout.TooLong):
            given = None
        if given is None:
            wrong = f"has {item.rank:,} dimensions at {item.dimensions:#x}, which cannot be read"
        elif given != tuple(known.dimensions):
            wrong = f"has dimensions {list(given)}, but the graph has {list(known.dimensions)}"
        block = call.memory.freed_block_at(item.dimensions) if wrong else None
        if block is not None:
            wrong += ": their memory was freed"
            trace = call.session.symbols.trace(call.memory, [block.caller])
    if wrong:
        found = finding("R9", f"tensor {name!r} {wrong}", call.name, buffer=name, line="")
        cure = "copy the description from QnnSystemContext_getBinaryInfo, and set only the buffer"
        call.note(replace(found, cure=cure), trace, "freed at")


def _buffer(call: ClientCall, item: layout.GivenTensor, tensor: QnnTensor) -> Any:
    try:
        return call.process.buffers.take(item.data, max(item.size, 1))
    except Gone:
        raise
    except Unreadable as exc:
        sentence = f"the buffer of {tensor.name[:80]!r} at {item.data:#x} is {exc.place}"
        found = finding("C4", sentence, call.name, address=item.data)
        call.fail(INVALID_TENSOR, found, "unmapped at", call.process.buffers.unmapping(item.data))
