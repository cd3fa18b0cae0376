"""Calls about graphs: memory handed over, finalized, executed."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qnnmem.contract.regions import ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, Mem, PerfCfg, custom
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.programs import layout
from qnnmem.programs.check.calls_backend import questions
from qnnmem.programs.check.calls_context import CheckedContext, note_stack
from qnnmem.programs.check.client_session import (
    EARLY_TERMINATION,
    ClientCall,
    ClientProcess,
    Failure,
)
from qnnmem.programs.ledger import Hangup
from qnnmem.programs.process_memory import Unreadable
from qnnmem.qnn.enums import GraphConfigOption, GraphOption, TensorMemType
from qnnmem.qnn.tensor import QnnTensor

_INVALID_TENSOR = 6004
_ARGUMENT = 1004
_PAUSE, _RESUME = 401, 501
_HEAD_BYTES = 4096  # of the binary that are compared at every execution
_POOLS = {
    GraphOption.SET_CFG_SCRATCH_MEM: "scratch",
    GraphOption.SET_CFG_PERSISTENT_MEM: "persistent",
}


@dataclass(frozen=True, slots=True)
class SeenTensors:
    """Inputs or outputs of an execution, cached for the next execution with the same bytes."""

    data: bytes
    changes: int  # of the client's buffers, so far
    tensors: list[QnnTensor]


@dataclass(slots=True)
class CheckedGraph:
    """A graph, and the client's memory that it uses."""

    graph: Graph
    owner: CheckedContext
    process: ClientProcess
    pools: dict[str, ForeignMemory] = field(default_factory=dict)
    failed: dict[tuple[str, frozenset[str]], Failure] = field(default_factory=dict)  # by call
    io: tuple[tuple[QnnTensor, ...], tuple[QnnTensor, ...]] | None = None
    seen: dict[int, SeenTensors] = field(default_factory=dict)  # inputs and outputs by argument

    @property
    def held_bytes(self) -> int:
        """Bytes of the client that are its pools."""
        return sum(buffer.size for buffer in tuple(self.pools.values()))

    @property
    def tensors(self) -> tuple[tuple[QnnTensor, ...], tuple[QnnTensor, ...]]:
        """Inputs and outputs as the binary describes them."""
        if self.io is None:
            self.io = io_tensors(self.graph.compiled)
        return self.io


def retrieve(call: ClientCall) -> int:
    """`QnnGraph_retrieve`."""
    one: CheckedContext = call.handle(0, "context", 5002)
    name = call.memory.text(call.word(1)) if call.word(1) else None
    with call.here():
        graph = one.context.graph_retrieve(name)
    number = one.graphs.get(graph.name)
    if number is None:
        made = CheckedGraph(graph, one, call.process)
        number = one.graphs[graph.name] = call.session.give("graph", made, call.process)
    call.memory.write(struct.pack("<Q", number), call.word(2))
    return 0


def _graph(call: ClientCall) -> CheckedGraph:
    found: CheckedGraph = call.handle(0, "graph", 6001)
    return found


def get_property(call: ClientCall) -> int:
    """`QnnGraph_getProperty`."""
    one = _graph(call)
    asked = questions(call, 1)
    one.graph.get_property([question for question, _ in asked])
    for question, address in asked:
        call.memory.write(struct.pack("<I", question.value.value), address)
    return 0


def set_config(call: ClientCall) -> int:
    """`QnnGraph_setConfig`."""
    one = _graph(call)
    configs, pools = [], {}
    for item in layout.pointers(call.memory, call.word(1)):
        option, value = layout.option(call.memory, item)
        if option:
            plain = value & 0xFFFFFFFF if option == GraphConfigOption.PRIORITY else value
            configs.append(Config(option, plain))
            continue
        inner, pointer = layout.option(call.memory, value)
        if inner in (_PAUSE, _RESUME):
            (one.graph.pause if inner == _PAUSE else one.graph.resume)()
            continue
        config = _custom(call, inner, pointer)
        if isinstance(config.value, Mem) and config.value.addr is not None:
            pools[_POOLS[GraphOption(inner)]] = config.value.addr
        configs.append(custom(inner, config.value))
    with _kept(call, one, *pools):
        if one.owner.binary is not None and one.owner.binary.freed:
            one.owner.context.check_binary(call.name)  # its bytes may be the new pool's by now
        one.graph.set_config(configs)
    one.pools |= pools
    for what, buffer in pools.items():
        if call.process.buffers.is_on_stack(buffer):
            note_stack(call, buffer, what)
    return 0


def _custom(call: ClientCall, option: int, pointer: int) -> Config:
    memory = call.memory
    if option in _POOLS and pointer:
        kind, size, address = memory.unpack("<IIQ", pointer)
        there = call.process.buffers.take(address, size) if address and size else None
        return Config(option, Mem(kind, size, there))
    if option == GraphOption.SET_CFG_PERF_CFG and pointer:
        return Config(option, PerfCfg(*memory.unpack("<3I", pointer)))
    if option == GraphOption.SET_CFG_CORE_AFFINITY and pointer:
        return Config(option, CoreAffinityCfg(*memory.unpack("<2I", pointer)))
    return Config(option, None)


def finalize(call: ClientCall) -> int:
    """`QnnGraph_finalize`."""
    one = _graph(call)
    _note_ignored(call, one, "QnnGraph_setConfig")
    _check_pools(call, one)
    _refresh(one, scratch=False)
    with _kept(call, one):
        one.graph.finalize()
    _store_pools(one)
    return 0


def execute(call: ClientCall) -> int:
    """`QnnGraph_execute`."""
    one = _graph(call)
    _note_ignored(call, one, "QnnGraph_finalize", "QnnGraph_setConfig")
    _check_pools(call, one)
    inputs, outputs, stored = _io(call, one)
    signal = call.handle(6, "signal", 9003) if call.word(6) else None

    def work() -> int:
        _refresh(one, scratch=_in_scratch(inputs) or _in_scratch(outputs))
        _read(one, inputs)
        with call.session.clock.running():
            code = one.graph.execute(inputs, outputs, signal)
        _store(one, stored, complete=code == 0)
        return code

    try:
        with _kept(call, one):
            code = one.graph.undisturbed(work)
    except QnnError as exc:
        call.session.unheeded[call.process.pid] = Failure(call.name, exc.code, call.trace)
        raise
    call.session.unheeded.pop(call.process.pid, None)
    return code


def execute_async(call: ClientCall) -> int:
    """`QnnGraph_executeAsync`: the notification comes on a thread of the client for that."""
    one = _graph(call)
    _note_ignored(call, one, "QnnGraph_finalize", "QnnGraph_setConfig")
    _check_pools(call, one)
    inputs, outputs, stored = _io(call, one)
    signal = call.handle(6, "signal", 9003) if call.word(6) else None
    function, argument, process = call.word(7), call.word(8), call.process
    clock = call.session.clock
    for buffer in (tensor.client_buf for group in (inputs, outputs) for tensor in group or ()):
        if isinstance(buffer, ForeignMemory) and call.process.buffers.is_on_stack(buffer):
            note_stack(call, buffer, "a buffer of an asynchronous execution")

    def notify(code: int) -> None:
        clock.stop(one.owner.context)
        try:
            try:
                _store(one, stored, complete=code == 0)
            except Unreadable as exc:
                _note_gone(call, one, exc.address)
                code = code or _ARGUMENT
            if function:
                process.notify(function, argument, code)
        except Hangup:  # its process may have ended
            call.session.undelivered += process.is_there()
        if one.graph.is_busy:  # the next one begins
            clock.start(one.owner.context)

    def refresh() -> None:  # not before: an earlier one may have state that is not written yet
        _refresh(one, scratch=_in_scratch(inputs) or _in_scratch(outputs))

    _read(one, inputs)
    with _kept(call, one), call.here():
        one.graph.execute_async(inputs, outputs, notify, signal, before=refresh)
    if one.graph.is_busy:
        clock.start(one.owner.context)
    return 0


def _note_gone(call: ClientCall, one: CheckedGraph, address: int) -> None:
    """Report memory that vanished during an execution without a free that we saw."""
    if call.process.is_there():
        sentence = f"memory of an asynchronous execution, {address:#x}, is not there at its end"
        found = finding("C4", sentence, call.name, address=address)
        one.graph.context.backend.note(replace(found, trace=call.trace))


def _check_pools(call: ClientCall, one: CheckedGraph) -> None:
    """Fail the call if a pool has become read-only since it was handed over."""
    for what, buffer in one.pools.items():
        if buffer.readonly and not buffer.freed:
            address, sentence = buffer.address, f"{what} is read-only memory"
            found = finding("R4", sentence, call=call.name, buffer=what, address=address)
            with _kept(call, one):
                call.fail(_ARGUMENT, replace(found, cure="give memory that can be written"))


# Memory before and after


def _io(
    call: ClientCall, one: CheckedGraph
) -> tuple[list[QnnTensor] | None, list[QnnTensor] | None, list[tuple[ForeignMemory, int]]]:
    given = [_given(call, one, at, known) for at, known in zip((1, 3), one.tensors, strict=True)]
    stored = [
        (tensor.client_buf, tensor.nbytes)
        for tensor in given[1] or ()
        if isinstance(tensor.client_buf, ForeignMemory)
    ]
    return given[0], given[1], stored


def _given(
    call: ClientCall, one: CheckedGraph, at: int, known: Sequence[QnnTensor]
) -> list[QnnTensor] | None:
    data = layout.tensor_bytes(call.memory, call.word(at), call.number(at + 1))
    if not data and not call.word(at):
        return None if known else []
    changes, before, notes = call.process.buffers.changes, one.seen.get(at), len(call.found)
    if before is not None and (before.data, before.changes) == (data, changes):
        return before.tensors
    items = layout.tensors(data)
    made = [_tensor(call, item, known) for item in items]
    if len(call.found) == notes and all(map(_is_plain, items, made)):
        one.seen[at] = SeenTensors(data, call.process.buffers.changes, made)
    return made


def _is_plain(item: layout.GivenTensor, tensor: QnnTensor) -> bool:
    """Return whether a tensor may be cached; one that is found by name may change."""
    buffer = tensor.client_buf
    is_whole = buffer is None or not buffer.freed
    return item.id == tensor.id and item.mem_type == TensorMemType.RAW and is_whole


def _tensor(call: ClientCall, item: layout.GivenTensor, known: Sequence[QnnTensor]) -> QnnTensor:
    """Find a tensor by its id, as backends do, or by its name if the graph has no such id."""
    _check_description(call, item)
    match = next((one for one in known if one.id == item.id), None)
    if match is None:
        name = call.memory.text(item.name) if item.name else ""
        match = next((one for one in known if one.name == name), None)
        if match is None:
            sentence = f"tensor {name[:80]!r} with id {item.id} is not one of the graph's"
            call.fail(_INVALID_TENSOR, finding("R9", sentence, call=call.name))
    made = QnnTensor(match.id, match.name, match.type, match.data_type, match.dimensions)
    made.mem_type = item.mem_type  # type: ignore[assignment]  # whatever the client says
    if item.mem_type == TensorMemType.MEMHANDLE:
        found = call.session.handles.get(item.data)
        made.mem_handle = found.value[1] if found is not None and found.kind == "memory" else None
    elif item.data:
        made.data_size = item.size
        made.client_buf = _buffer(call, item, made)
    return made


def _check_description(call: ClientCall, item: layout.GivenTensor) -> None:
    """Report C4: a description was copied without the memory it points to."""
    for what, pointer in (("name", item.name), ("dimensions", item.dimensions)):
        trace = call.process.buffers.answers.freeing(pointer) if pointer else None
        if trace is not None:
            sentence = f"{what} of the tensor with id {item.id} went with its system context"
            found = finding("C4", sentence, call.name, buffer=what, address=pointer)
            call.note(found, trace, "freed at")


def _buffer(call: ClientCall, item: layout.GivenTensor, tensor: QnnTensor) -> Any:
    try:
        return call.process.buffers.take(item.data, max(item.size, 1))
    except Unreadable:
        sentence = f"the buffer of {tensor.name[:80]!r}, {item.data:#x}, points to no memory"
        call.fail(_INVALID_TENSOR, finding("C4", sentence, call.name, address=item.data))


def _in_scratch(tensors: Sequence[QnnTensor] | None) -> bool:
    return tensors is None or any(
        one.client_buf is None and one.mem_type == TensorMemType.RAW for one in tensors
    )


def _refresh(one: CheckedGraph, *, scratch: bool) -> None:
    """Read the client's pools and the head of its binary."""
    buffers = one.process.buffers
    if one.owner.binary is not None:
        buffers.refresh(one.owner.binary, _HEAD_BYTES)
    for what, buffer in one.pools.items():
        if what != "scratch" or scratch:
            buffers.refresh(buffer)


def _read(one: CheckedGraph, inputs: Sequence[QnnTensor] | None) -> None:
    for tensor in inputs or ():
        if isinstance(tensor.client_buf, ForeignMemory):
            one.process.buffers.refresh(tensor.client_buf)


def _store(
    one: CheckedGraph, outputs: Sequence[tuple[ForeignMemory, int]], *, complete: bool
) -> None:
    for buffer, size in outputs if complete else ():
        one.process.buffers.store(buffer, size)
    _store_pools(one)


def _store_pools(one: CheckedGraph) -> None:
    for buffer in one.pools.values():
        try:
            one.process.buffers.store(buffer)
        except Unreadable as exc:
            one.process.buffers.lose(exc.address)
            one.graph.note_gone("QnnGraph_execute")


# Codes that the program ignored


@contextlib.contextmanager
def _kept(call: ClientCall, one: CheckedGraph, *parts: str) -> Iterator[None]:
    """Remember whether the call failed on this graph; `parts` are the pools that it sets."""
    key = (call.name, frozenset(parts))
    try:
        yield
    except QnnError as exc:
        if exc.code != EARLY_TERMINATION:
            one.failed[key] = Failure(call.name, exc.code, call.trace)
        raise
    one.failed.pop(key, None)


def _note_ignored(call: ClientCall, one: CheckedGraph, *before: str) -> None:
    for key, failure in one.failed.items():
        if failure.call in before:
            del one.failed[key]  # reported once
            call.note_ignored(failure)
            return
