"""One graph in the application's memory: addresses, stages, state, copies.

Everything here happens at fixed addresses. Which memory may be used, and when, is the contract's
business (`graph.py`); here it is only used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from qnnmem.lpai.compiled import CompiledGraph, Window
from qnnmem.lpai.heap import POISON
from qnnmem.lpai.program_run import Parts, ProgramError, Stage
from qnnmem.lpai.sanitizer import Sanitizer
from qnnmem.plan import PlacedBuffer, Pool
from qnnmem.qnn.finding import Finding

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class UserBuffer:
    """Where the application wants an input read or an output written."""

    array: NDArray[Any]  # bytes, at least the tensor's
    shared: bool = False  # a registered buffer: used in place instead of the planned region


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one execution did."""

    complete: bool  # False: a window still waits for frames, no output was written
    copied_bytes: int
    findings: tuple[Finding, ...] = ()


class Execution:
    """A graph that has its pools and can run any number of times."""

    def __init__(self, parts: Parts, *, in_order: bool, sanitize: bool) -> None:
        self.graph: CompiledGraph = parts.graph
        self._parts, self._in_order, self._sanitize = parts, in_order, sanitize
        self._pools: dict[Pool, NDArray[Any]] = {}
        self._buffer = self.graph.buffer_of
        self._maker = {n: at for at, op in enumerate(self.graph.model.ops) for n in op.outputs}
        self._views: dict[str, NDArray[Any]] = {}
        self._moved_before = False
        self._spares: dict[str, NDArray[Any]] = {}
        self._stages: list[Stage] = []
        self._strays: dict[int, list[str]] = {}
        self._stepped = False  # whether the sanitiser has seen this memory
        self._present = {window.name: window.padding for window in self.graph.windows}

    def attach(self, pool: Pool, array: NDArray[Any]) -> None:
        """Use these bytes as a pool from now on."""
        self._pools[pool] = array
        self._stepped = False
        self._views.clear()

    def reset(self) -> None:
        """State as it was before the first execution: zero, gaps poisoned."""
        persistent = self._pools.get(Pool.PERSISTENT)
        if persistent is not None:
            persistent[:] = POISON
            for buffer in self.graph.buffers:
                if buffer.pool is Pool.PERSISTENT:
                    self._zero(persistent, buffer)
        self._present = {window.name: window.padding for window in self.graph.windows}

    def _zero(self, persistent: NDArray[Any], buffer: PlacedBuffer) -> None:
        """Fill one state with what stands for zero."""
        where = persistent[buffer.offset : buffer.offset + self._state_bytes(buffer)]
        where[:] = 0
        quant = self.graph.quants.get(buffer.name)
        tensor = self.graph.model.tensors.get(buffer.name)
        if quant is not None and tensor is not None and not tensor.dtype.is_float:
            where.view(tensor.dtype.value)[:] = quant.zero_point

    def snapshot(self) -> tuple[bytes, dict[str, int]]:
        """State that `restore` brings back."""
        persistent = self._pools.get(Pool.PERSISTENT)
        return b"" if persistent is None else persistent.tobytes(), dict(self._present)

    def is_snapshot(self, saved: object) -> bool:
        """Whether `restore` can take it: the right size, the right windows."""
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
        """State as it was when the snapshot was taken."""
        import numpy

        if saved[0]:
            self._pools[Pool.PERSISTENT][:] = numpy.frombuffer(saved[0], numpy.uint8)
        self._present = dict(saved[1])

    def view(self, name: str) -> NDArray[Any]:
        """Bytes of a tensor at its planned place."""
        buffer = self._buffer[name]
        array = self._pools[buffer.pool]
        return array[buffer.offset : buffer.offset + self.graph.model.tensors[name].nbytes]

    def run(self, inputs: Mapping[str, UserBuffer], outputs: Mapping[str, UserBuffer]) -> Outcome:
        """Execute once; tensors not named are read and written at their planned places."""
        copied = self._place(inputs, outputs)
        watch = self._watch()
        cut = self._stage_list(stepped=watch is not None or not self._in_order)
        if watch is not None:
            watch.begin()
        complete, done = self._run_stages(cut, watch)
        copied += self._keep_state(done)
        if complete:
            for name, given in outputs.items():
                copied += self._copy_out(name, given)
        if watch is not None:
            watch.end()
            self._stepped = complete
        return Outcome(complete, copied, tuple(watch.findings) if watch else ())

    def _watch(self) -> Sanitizer | None:
        scratch = self._pools.get(Pool.SCRATCH)
        if not self._sanitize or self._stepped or scratch is None:
            return None
        return Sanitizer(self.graph, scratch, self._views)

    def _place(self, inputs: Mapping[str, UserBuffer], outputs: Mapping[str, UserBuffer]) -> int:
        """Decide where every tensor lies in this execution and bring the inputs there."""
        moved = self._moved(inputs, outputs)
        if moved or not self._views or self._moved_before:
            self._views = dict(self._all_views(moved))
            for stage in self._stages:
                stage.bind(self._addresses())
        self._moved_before = bool(moved)
        copied = 0
        for name, given in inputs.items():
            view = self._views.get(name)
            if view is not None and view.size and _address(view) != _address(given.array):
                view[:] = given.array[: view.size]
                copied += view.size
        return copied

    def _moved(
        self, inputs: Mapping[str, UserBuffer], outputs: Mapping[str, UserBuffer]
    ) -> dict[str, NDArray[Any]]:
        """Planned buffers that lie in the application's memory instead, by name."""
        moved: dict[str, NDArray[Any]] = {}
        late = self._late_outputs()
        for name, given in (*inputs.items(), *outputs.items()):
            buffer = self._buffer.get(name)
            if buffer is None or buffer.name in moved:
                continue
            wanted = given.shared or buffer.pool is Pool.IO
            if name in outputs and name not in late:
                wanted = False
            if wanted and given.array.size >= self._used_bytes(buffer):
                moved[buffer.name] = given.array
        for name in self._buffer:
            buffer = self._buffer[name]
            if buffer.pool is Pool.IO and buffer.name not in moved:
                moved[buffer.name] = self._spare(buffer)
        return moved

    def _late_outputs(self) -> frozenset[str]:
        """Outputs that are written only when the execution is sure to complete."""
        cuts = self._cuts()
        if not cuts:
            return frozenset(self.graph.outputs)
        last = cuts[-1]
        early = {n for op in self.graph.model.ops[:last] for n in op.outputs}
        return frozenset(name for name in self.graph.outputs if name not in early)

    def _spare(self, buffer: PlacedBuffer) -> NDArray[Any]:
        """Memory of our own for a planned buffer that the application's does not suit."""
        import numpy

        if buffer.name not in self._spares:
            block = numpy.empty(buffer.size + 64, numpy.uint8)
            start = -_address(block) % 64
            self._spares[buffer.name] = block[start : start + buffer.size]
        return self._spares[buffer.name]

    def _all_views(self, moved: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
        for name, buffer in self._buffer.items():
            tensor = self.graph.model.tensors.get(name)
            if tensor is None:
                continue  # the workspace of a body
            if buffer.name in moved:
                yield name, moved[buffer.name][: tensor.nbytes]
            else:
                yield name, self.view(name)

    def _addresses(self) -> dict[str, int]:
        return {name: _address(view) for name, view in self._views.items()}

    def _used_bytes(self, buffer: PlacedBuffer) -> int:
        tensors = self.graph.model.tensors
        names = (buffer.name, *buffer.aliases)
        return max((tensors[n].nbytes for n in names if n in tensors), default=0)

    def _state_bytes(self, buffer: PlacedBuffer) -> int:
        return self._used_bytes(buffer) or buffer.size

    def _cuts(self) -> list[int]:
        """Ops after which blocking windows decide whether to go on."""
        fills = {self._maker[w.new] for w in self.graph.windows if w.blocking}
        return sorted(at + 1 for at in fills if at + 1 not in fills)

    def _stage_list(self, *, stepped: bool) -> list[Stage]:
        """Sessions for this execution; those of a stepped one are kept only if needed again."""
        count = len(self.graph.model.ops)
        if stepped and self._in_order:
            return self._open([(at, at + 1) for at in range(count)])
        if not self._stages:
            edges = list(range(count + 1)) if stepped else [0, *self._cuts(), count]
            self._stages = self._open([(a, b) for a, b in pairwise(edges) if a < b])
        return self._stages

    def _open(self, ranges: list[tuple[int, int]]) -> list[Stage]:
        stages = [Stage(self._parts, first, last) for first, last in ranges]
        addresses = self._addresses()
        for stage in stages:
            stage.bind(addresses)
        return stages

    def _run_stages(self, stages: list[Stage], watch: Sanitizer | None) -> tuple[bool, int]:
        """Whether all stages ran, and how many ops did."""
        cuts, ready = self._cuts(), True
        for window in self.graph.windows:
            self._empty_if_asked(window)
        for stage in stages:
            op = self.graph.model.ops[stage.first]
            if watch is not None:
                watch.before(op)
            self._run_stage(stage)
            if watch is not None:
                watch.after(stage.first, op)
            for window in self.graph.windows:
                if stage.first <= self._maker[window.new] < stage.last:
                    ready = self._advance(window) and ready
            if not ready and stage.last in cuts:
                return False, stage.last
        return True, len(self.graph.model.ops)

    def _run_stage(self, stage: Stage) -> None:
        stage.run()
        if not stage.writes:
            return
        if stage.first not in self._strays:
            self._strays[stage.first] = stage.strays()
        strays = self._strays[stage.first]
        if strays:
            if stage.last - stage.first > 1:
                raise ProgramError(f"onnxruntime moved {strays[0][:80]!r} away from its address")
            stage.collect(strays, self._views)

    def _empty_if_asked(self, window: Window) -> None:
        if window.reset is not None and self._views[window.reset].any():
            self._present[window.name] = window.padding

    def _advance(self, window: Window) -> bool:
        """Count the frames that came; whether the window lets the execution go on."""
        present = min(self._present[window.name] + window.frames, window.size)
        full = present >= window.size
        self._present[window.name] = present - window.stride if full else present
        return full or not window.blocking

    def _keep_state(self, done: int) -> int:
        """Bring new state to where the next execution reads it."""
        copied = 0
        for old, new in self.graph.states:
            target, source = self._views[old], self._views[new]
            if self._maker[new] < done and _address(target) != _address(source):
                target[:] = source
                copied += source.size
        return copied

    def _copy_out(self, name: str, given: UserBuffer) -> int:
        view = self._views[name]
        if not view.size or _address(view) == _address(given.array):
            return 0
        given.array[: view.size] = view
        return view.size


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
