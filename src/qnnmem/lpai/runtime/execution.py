"""Executes a graph in the application's memory: addresses, stages, state, copies.

This module only uses memory at fixed addresses. `graph.py` decides which memory may be used, and
when.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from qnnmem.contract.regions import ClientBuffer, Extent, array_address
from qnnmem.contract.rules import finding
from qnnmem.errors import ProgramError
from qnnmem.finding import Finding
from qnnmem.ir import Effect
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.program.run import Parts, Stage
from qnnmem.lpai.runtime.heap import POISON, aligned_array
from qnnmem.lpai.runtime.sanitizer import Sanitizer
from qnnmem.planner import PlacedBuffer, Pool
from qnnmem.results.inspect import FrameWindow

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Counters:
    """Counts of a graph's executions, early terminations and copied bytes."""

    executions: int = 0
    early_terminations: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UserBuffer:
    """The application's buffer for an input or an output."""

    array: NDArray[Any]  # at least the bytes of the tensor
    shared: bool = False  # registered memory, used in place instead of the planned region
    owner: ClientBuffer | None = None  # buffer that can be freed

    @property
    def extent(self) -> Extent:
        """Address range of the buffer in the application, which can be another process."""
        if self.owner is None:
            return _extent(self.array)
        start, _, space = self.owner.extent
        return Extent(start, start + self.array.size, space)


@dataclass(frozen=True, eq=False)
class GivenBuffers:
    """The application's buffers for one or more executions, by tensor name."""

    inputs: Mapping[str, UserBuffer]
    outputs: Mapping[str, UserBuffer]

    @cached_property
    def owners(self) -> dict[str, ClientBuffer | None]:
        """The client's buffers by label, e.g. `input 'x'`; None for memory that cannot be freed."""
        parts = (("input", self.inputs), ("output", self.outputs))
        return {f"{kind} {n[:80]!r}": b.owner for kind, given in parts for n, b in given.items()}


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """The result of one execution."""

    complete: bool  # False: a window lacks frames, so no output was written
    copied_bytes: int
    findings: tuple[Finding, ...] = ()


class Execution:
    """A graph with its memory, which can be executed repeatedly."""

    def __init__(self, parts: Parts, *, in_order: bool, sanitize: bool) -> None:
        self.graph: CompiledGraph = parts.graph
        self._parts, self._in_order, self._sanitize = parts, in_order, sanitize
        self._pools: dict[Pool, NDArray[Any]] = {}
        self._buffer = self.graph.buffer_of
        self._producer = {
            n: number for number, op in enumerate(self.graph.model.ops) for n in op.outputs
        }
        self._views: dict[str, NDArray[Any]] = {}
        self._moved: dict[str, int] | None = None  # buffer addresses in the last run
        # A strong reference would keep the application's memory alive.
        self._given: Callable[[], GivenBuffers | None] = lambda: None  # placed in the last run
        self._spares: dict[str, NDArray[Any]] = {}
        self._stages: list[Stage] = []
        self._strays: dict[tuple[int, int], list[str]] = {}
        self._stepped = False  # whether the sanitizer has checked a run in this memory
        self._present = {window.name: window.padding for window in self.graph.windows}

    def attach(self, pool: Pool, array: NDArray[Any]) -> None:
        """Use an array as the memory of a pool from now on."""
        self._pools[pool] = array
        self._stepped = False
        self._views.clear()

    def release(self) -> None:
        """Drop all references to memory; after this the graph cannot execute."""
        self._parts = Parts(self.graph, memoryview(b""))
        for held in (self._pools, self._views, self._spares, self._stages):
            held.clear()

    def reset(self) -> None:
        """Reset state to zero and fill the gaps between states with poison."""
        persistent = self._pools.get(Pool.PERSISTENT)
        if persistent is not None:
            persistent[:] = POISON
            for buffer in self.graph.buffers:
                if buffer.pool is Pool.PERSISTENT:
                    self._zero(persistent, buffer)
        self._present = {window.name: window.padding for window in self.graph.windows}

    def _zero(self, persistent: NDArray[Any], buffer: PlacedBuffer) -> None:
        """Fill a state with the stored value that represents zero."""
        where = persistent[buffer.offset : buffer.offset + self._state_bytes(buffer)]
        where[:] = 0
        quant = self.graph.quants.get(buffer.name)
        tensor = self.graph.model.tensors.get(buffer.name)
        if quant is not None and tensor is not None and not tensor.dtype.is_float:
            where.view(tensor.dtype.value)[:] = quant.zero_point

    def snapshot(self) -> tuple[bytes, dict[str, int]]:
        """Return a copy of the state for `restore`."""
        persistent = self._pools.get(Pool.PERSISTENT)
        return b"" if persistent is None else persistent.tobytes(), dict(self._present)

    def is_snapshot(self, saved: object) -> bool:
        """Return whether `restore` accepts a snapshot, judged by its size and its windows."""
        now = self.snapshot()
        if not (isinstance(saved, tuple) and len(saved) == len(now)):
            return False
        state, windows = saved
        return (
            isinstance(state, bytes)
            and len(state) == len(now[0])
            and isinstance(windows, dict)
            and windows.keys() == now[1].keys()
            and all(
                type(windows[w.name]) is int and 0 <= windows[w.name] <= w.size
                for w in self.graph.windows
            )
        )

    def restore(self, saved: tuple[bytes, dict[str, int]]) -> None:
        """Restore the state from a snapshot."""
        import numpy

        if saved[0]:
            self._pools[Pool.PERSISTENT][:] = numpy.frombuffer(saved[0], numpy.uint8)
        self._present = dict(saved[1])

    def view(self, name: str) -> NDArray[Any]:
        """Return a tensor's bytes at the planned position."""
        import numpy

        buffer = self._buffer.get(name)
        if buffer is None:
            return numpy.empty(0, numpy.uint8)  # an empty tensor has no position
        array = self._pools[buffer.pool]
        return array[buffer.offset : buffer.offset + self.graph.model.tensors[name].nbytes]

    def run(self, buffers: GivenBuffers) -> ExecutionOutcome:
        """Execute once and return the outcome.

        Tensors without a buffer are read and written at their planned positions.
        """
        copied = self._place(buffers)
        watch = self._watch()
        stages = self._open_stages(stepped=watch is not None or not self._in_order)
        if watch is not None:
            watch.begin()
        complete, done = self._run_stages(stages, watch)
        if watch is not None:
            watch.end()
            self._stepped = complete
        if complete:
            for name, buffer in buffers.outputs.items():
                copied += self._copy_out(name, buffer)
        copied += self._keep_state(done)
        findings = (*(watch.findings if watch is not None else ()), *self._check_gaps())
        return ExecutionOutcome(complete, copied, findings)

    def _watch(self) -> Sanitizer | None:
        scratch = self._pools.get(Pool.SCRATCH)
        if not self._sanitize or self._stepped or scratch is None:
            return None
        return Sanitizer(self.graph, scratch, self._views)

    def _place(self, buffers: GivenBuffers) -> int:
        """Choose every tensor's address and copy the inputs; return how many bytes were copied."""
        if self._given() is not buffers or not self._views:
            self._choose_places(buffers)
        copied = 0
        for name, buffer in buffers.inputs.items():
            view = self._views.get(name)
            if view is not None and view.size and not _same_start(view, buffer.array):
                view[:] = buffer.array[: view.size]
                copied += view.size
        return copied

    def _choose_places(self, buffers: GivenBuffers) -> None:
        moved = self._find_moved(buffers.inputs, buffers.outputs)
        places = {name: array_address(array) for name, array in moved.items()}
        if not self._views or places != self._moved:
            self._views = dict(self._all_views(moved))
            for stage in self._stages:
                stage.bind(self._addresses())
            self._moved = places
        self._given = weakref.ref(buffers)

    def _find_moved(
        self, inputs: Mapping[str, UserBuffer], outputs: Mapping[str, UserBuffer]
    ) -> dict[str, NDArray[Any]]:
        """Return, by buffer name, the memory of the planned buffers that are not in their pools."""
        moved: dict[str, NDArray[Any]] = {}
        for users, names in ((inputs, self._kept_inputs), (outputs, self._late_outputs)):
            for name, user in users.items():
                buffer = self._buffer.get(name)
                if buffer is None or buffer.name in moved or name not in names:
                    continue
                wanted = user.shared or buffer.pool is Pool.IO
                if wanted and self._suits(buffer, user.array, moved.values()):
                    moved[buffer.name] = user.array
        for buffer in self._io_buffers:
            if buffer.name not in moved:
                moved[buffer.name] = self._spare(buffer)
        return moved

    def _suits(
        self, buffer: PlacedBuffer, array: NDArray[Any], others: Iterable[NDArray[Any]]
    ) -> bool:
        """Return whether the application's memory can replace a planned buffer."""
        if array.size < self._used_bytes(buffer):
            return False
        if buffer.aliases and not array.flags.writeable:
            return False  # some kernels write a view even if its bytes are already there
        own = _extent(array)
        return not any(own.overlap(_extent(other)) for other in others)

    @cached_property
    def _io_buffers(self) -> tuple[PlacedBuffer, ...]:
        return tuple(b for b in self.graph.buffers if b.pool is Pool.IO)

    @cached_property
    def _kept_inputs(self) -> frozenset[str]:
        """The inputs whose buffers no op overwrites."""
        ops = self.graph.model.ops
        written = {name for op in ops if op.effect is not Effect.VIEW for name in op.outputs}
        spoilt = {self._buffer[name].name for name in written if name in self._buffer}
        names = (name for name in self.graph.inputs if name in self._buffer)
        return frozenset(name for name in names if self._buffer[name].name not in spoilt)

    @cached_property
    def _late_outputs(self) -> frozenset[str]:
        """The outputs that are written only once the execution is certain to complete."""
        if not self._cuts:
            return frozenset(self.graph.outputs)
        last = self._cuts[-1]
        early = {n for op in self.graph.model.ops[:last] for n in op.outputs}
        return frozenset(name for name in self.graph.outputs if name not in early)

    def _spare(self, buffer: PlacedBuffer) -> NDArray[Any]:
        """Return the runtime's own memory for a planned buffer that no application memory suits."""
        if buffer.name not in self._spares:
            self._spares[buffer.name] = aligned_array(buffer.size)
        return self._spares[buffer.name]

    def _all_views(self, moved: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
        for name, buffer in self._buffer.items():
            tensor = self.graph.model.tensors.get(name)
            if tensor is None:
                continue  # workspace of a body
            if buffer.name in moved:
                yield name, moved[buffer.name][: tensor.nbytes]
            else:
                yield name, self.view(name)

    def _addresses(self) -> dict[str, int]:
        return {name: array_address(view) for name, view in self._views.items()}

    def _used_bytes(self, buffer: PlacedBuffer) -> int:
        tensors = self.graph.model.tensors
        names = (buffer.name, *buffer.aliases)
        return max((tensors[n].nbytes for n in names if n in tensors), default=0)

    def _state_bytes(self, buffer: PlacedBuffer) -> int:
        return self._used_bytes(buffer) or buffer.size

    @cached_property
    def _cuts(self) -> list[int]:
        """Counts of executed ops after which a blocking window can end the execution."""
        fills = {self._producer[w.new] for w in self.graph.windows if w.blocking}
        return sorted(number + 1 for number in fills if number + 1 not in fills)

    def _open_stages(self, *, stepped: bool) -> Iterable[Stage]:
        """Return the stages of this execution, each with an onnxruntime session.

        If only this execution runs the ops one by one, each session is opened before its op and
        closed after it: all sessions together would hold a second copy of every weight.
        """
        count = len(self.graph.model.ops)
        if stepped and self._in_order:
            return self._open(range(count + 1))
        if not self._stages:
            self._stages = list(
                self._open(range(count + 1) if stepped else [0, *self._cuts, count])
            )
        return self._stages

    def _open(self, edges: Iterable[int]) -> Iterator[Stage]:
        addresses = self._addresses()
        for first, last in pairwise(edges):
            if first < last:
                stage = Stage(self._parts, first, last)
                stage.bind(addresses)
                yield stage

    def _run_stages(self, stages: Iterable[Stage], watch: Sanitizer | None) -> tuple[bool, int]:
        """Return whether all stages ran, and how many ops ran."""
        ready = True
        emptied = {w.name for w in self.graph.windows if w.reset and self._views[w.reset].any()}
        for stage in stages:
            op = self.graph.model.ops[stage.first]
            if watch is not None:
                watch.before(stage.first, op)
            self._run_stage(stage)
            if watch is not None:
                watch.after(stage.first, op)
            for window in self.graph.windows:
                if stage.first <= self._producer[window.new] < stage.last:
                    ready = self._advance(window, window.name in emptied) and ready
            if not ready and stage.last in self._cuts:
                self._empty_unreached(emptied, stage.last)
                return False, stage.last
        return True, len(self.graph.model.ops)

    def _run_stage(self, stage: Stage) -> None:
        stage.run()
        if not stage.writes:
            return
        which = (stage.first, stage.last)
        if which not in self._strays:
            self._strays[which] = stage.strays()
        strays = self._strays[which]
        if strays:
            if stage.last - stage.first > 1:
                raise ProgramError(
                    f"onnxruntime did not write {strays[0][:80]!r} to its planned address"
                )
            stage.collect(strays, self._views)

    def _empty_unreached(self, emptied: set[str], done: int) -> None:
        """Empty the windows that an execution should reset but did not reach."""
        for window in self.graph.windows:
            if window.name in emptied and self._producer[window.new] >= done:
                self._zero(self._pools[Pool.PERSISTENT], self._buffer[window.old])
                self._present[window.name] = window.padding

    def _advance(self, window: FrameWindow, emptied: bool) -> bool:
        """Count new frames; return whether the window lets the execution continue."""
        before = window.padding if emptied else self._present[window.name]
        self._present[window.name], goes_on = window.step(before)
        return goes_on

    def _keep_state(self, done: int) -> int:
        """Copy new state to where the next execution reads it; return the number of bytes."""
        moves = []
        for old, new in self.graph.states:
            if old not in self._views or new not in self._views:
                continue  # state without bytes
            target, source = self._views[old], self._views[new]
            if self._producer.get(new, -1) < done and not _same_start(target, source):
                # New state inside persistent memory must be copied before another state overwrites
                # it.
                inside = self._buffer[new].pool is Pool.PERSISTENT
                moves.append((target, source.copy() if inside else source))
        for target, source in moves:
            target[:] = source
        return sum(source.size for _, source in moves)

    @cached_property
    def _gaps(self) -> list[tuple[int, int]]:
        """The byte ranges of persistent memory that belong to no state."""
        states = [b for b in self.graph.buffers if b.pool is Pool.PERSISTENT]
        taken = sorted((b.offset, b.offset + self._state_bytes(b)) for b in states)
        edges = [(0, 0), *taken, (self.graph.persistent_bytes,) * 2]
        return [(a, b) for (_, a), (b, _) in pairwise(edges) if a < b]

    def _check_gaps(self) -> list[Finding]:
        """Return a list with finding X6 if bytes between states were written, otherwise []."""
        persistent = self._pools.get(Pool.PERSISTENT)
        if persistent is None or not self._sanitize:
            return []
        for start, end in self._gaps:
            touched = persistent[start:end] != POISON
            if touched.any():
                offset = start + int(touched.argmax())
                persistent[start:end] = POISON
                sentence = (
                    f"byte {offset:,} of persistent memory was written but belongs to no state"
                )
                address = array_address(persistent) + offset
                return [finding("X6", sentence, buffer="persistent", address=address)]
        return []

    def _copy_out(self, name: str, user: UserBuffer) -> int:
        view = self._views.get(name)
        if view is None or not view.size or _same_start(view, user.array):
            return 0
        user.array[: view.size] = view
        return view.size


def _extent(array: NDArray[Any]) -> Extent:
    start = array_address(array)
    return Extent(start, start + array.size)


def _same_start(array: NDArray[Any], other: NDArray[Any]) -> bool:
    return array_address(array) == array_address(other)
