"""`QnnGraph`: accepts pools, finalizes, executes, and replaces scratch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from qnnmem.caller import current_caller
from qnnmem.contract.regions import ClientBuffer, Holding, holders
from qnnmem.contract.rules import asked_by, finding
from qnnmem.errors import ProgramError, QnnError, QnnMemError, UsageError
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.program.run import Parts
from qnnmem.lpai.runtime.backend import Backend, fill_in, shown
from qnnmem.lpai.runtime.configs import (
    ContextConfig,
    GraphState,
    check_configs,
    check_frame_rate,
)
from qnnmem.lpai.runtime.descriptors import CUSTOM, Config, CoreAffinityCfg, PerfCfg, Property
from qnnmem.lpai.runtime.execution import Counters, Execution, ExecutionOutcome
from qnnmem.lpai.runtime.graph_io import IoCheck, typed
from qnnmem.lpai.runtime.heap import checksum
from qnnmem.lpai.runtime.memory_checks import (
    Pools,
    SharedMemory,
    check_plan,
    check_pools,
    freed_pools,
    lies_in,
    note_early_free,
    note_sharing,
    overruns,
    runtime_pool,
)
from qnnmem.lpai.runtime.queue import ExecutionQueue, Signal
from qnnmem.planner import Io, Pool
from qnnmem.qnn.enums import GraphProperty, LogLevel, MemType, Priority
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.units import round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray


SUCCESS = 0
EARLY_TERMINATION = 6038

Notify = Callable[[int], None]
T = TypeVar("T")


class GraphContext(Protocol):
    """The members of a context that a graph uses."""

    backend: Backend
    config: ContextConfig
    constants: memoryview
    sanitize: bool
    is_freed: bool
    shared: SharedMemory
    queue: ExecutionQueue
    model_mem_type: MemType

    @property
    def binary_memory(self) -> ClientBuffer | None:
        """The buffer of the binary if the binary is read in place, otherwise None."""

    def check_binary(self, call: str) -> None:
        """Fail the call if the persistent binary was freed or changed."""


class ScratchView:
    """An input or output inside scratch; it becomes invalid when that scratch is replaced."""

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph, self._name = graph, name
        # A view must not keep its memory alive.
        self._scratch = None if graph.scratch is None else weakref.ref(graph.scratch)

    @property
    def array(self) -> NDArray[Any]:
        """The tensor inside scratch as an array with the tensor's type and shape."""
        scratch = None if self._scratch is None else self._scratch()
        return self._graph.read_view(self._name, scratch)


class Graph:
    """A graph of a context created from a binary."""

    shares_scratch = is_executing = False

    def __init__(self, context: GraphContext, compiled: CompiledGraph, in_order: bool) -> None:
        if not hasattr(context, "backend") or not isinstance(compiled, CompiledGraph):
            raise UsageError("use Context.graph_retrieve to get a graph")
        self.context, self.compiled, self.name = context, compiled, compiled.name
        self._backend = context.backend
        parts = Parts(compiled, context.constants)
        self._execution = Execution(parts, in_order=in_order, sanitize=context.sanitize)
        self._io = IoCheck(self._backend, compiled, context.shared, context.model_mem_type, self)
        self.scratch: ClientBuffer | None = None
        self.persistent: ClientBuffer | None = None
        self.perf = PerfCfg()
        self.affinity = CoreAffinityCfg()
        self.priority = Priority.NORMAL
        self.counters = Counters()
        self.is_finalized = False
        self._lock = threading.RLock()
        self._resumed = threading.Event()
        self._resumed.set()
        self._in_flight = 0  # running or queued executions
        self._state_sum: int | None = None
        self._reported: set[str] = set()  # freed pools that were reported
        self._exposed: set[str] = set()  # tensors in scratch whose address the client knows

    def get_property(self, properties: Iterable[Property | None]) -> None:
        """Fill in all property values, or none if a property fails (`QnnGraph_getProperty`)."""
        self._check_context("QnnGraph_getProperty")
        fill_in(properties, self._answer)

    def set_config(self, configs: Iterable[Config | None]) -> None:
        """Apply the configs before the first None, if all are valid (`QnnGraph_setConfig`).

        If an option repeats, the last one counts.
        """
        self._check_context("QnnGraph_setConfig")
        with self._lock:
            self._change(configs)

    def finalize(self) -> None:
        """Make the graph executable (`QnnGraph_finalize`); a second call changes nothing."""
        self._check_context("QnnGraph_finalize")
        with self._lock:
            if not self.is_finalized:
                self._finalize()

    def execute(
        self,
        inputs: Sequence[QnnTensor] | None = None,
        outputs: Sequence[QnnTensor] | None = None,
        signal: Signal | None = None,
        *,
        around: Callable[[Callable[[], int]], int] | None = None,
    ) -> int:
        """Execute the graph (`QnnGraph_execute`); return 0, or 6038 if a window needs more frames.

        None instead of tensors means that all tensors are at their planned positions inside
        scratch. `around` receives the execution as a function, and calls it while no other graph
        of the context executes.
        """
        self._take_signal(signal, "QnnGraph_execute")
        try:
            if around is None:
                return self.undisturbed(lambda: self._execute(inputs, outputs))
            return self.undisturbed(lambda: around(lambda: self._execute(inputs, outputs)))
        finally:
            if signal is not None:
                signal.release()

    def undisturbed(self, work: Callable[[], T]) -> T:
        """Call `work` while no graph of the context executes, and return its result.

        All threads share the inputs and outputs inside scratch, so one call of `work` should write
        inputs, execute and read outputs. Scratch cannot be replaced meanwhile.
        """
        done: list[T] = []
        self._count(1)
        try:
            self.context.queue.run(lambda: done.append(work()))
        finally:
            self._count(-1)
        return done[0]

    def execute_async(
        self,
        inputs: Sequence[QnnTensor] | None = None,
        outputs: Sequence[QnnTensor] | None = None,
        notify: Notify | None = None,
        signal: Signal | None = None,
        *,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Queue an execution (`QnnGraph_executeAsync`); `notify` gets the QNN code.

        `before` is called right before the execution, while no other graph of the context executes.
        """
        self._check_ready("QnnGraph_executeAsync")
        if notify is not None and not callable(notify):
            raise UsageError("notify must be a function that takes the QNN code")
        self._take_signal(signal, "QnnGraph_executeAsync")

        def finish() -> None:
            self._count(-1)
            if signal is not None:
                signal.release()

        caller = current_caller()

        def work() -> None:
            try:
                with asked_by(caller):
                    if before is not None:
                        self._resumed.wait()
                        before()
                    code = self._execute(inputs, outputs)
            except QnnError as exc:
                code = exc.code
            except QnnMemError:
                code = 1004
            except Exception:  # a client that waits for the notification must get one
                code = 1100
            finally:
                finish()
            self._notify(notify, code)

        self._count(1)
        try:
            self.context.queue.submit(work)
        except BaseException:
            finish()
            raise

    def pause(self) -> None:
        """Keep all executions in the queue until `resume` is called."""
        self._check_context("QnnGraph_setConfig")
        self._resumed.clear()
        if self.context.queue.is_closed:  # nothing would resume it any more
            self._resumed.set()

    def resume(self) -> None:
        """Resume executions."""
        self._resumed.set()

    def view(self, name: str) -> ScratchView:
        """Return a view of an input or output inside scratch, to access it without a copy."""
        self._check_ready("QnnGraph_execute")
        known = isinstance(name, str) and name in self._io.names
        if not known or self.compiled.io is Io.OUTSIDE:
            sentence = f"{shown(name)} is not an input or output inside scratch"
            self._fail(6004, "R9", sentence, "QnnGraph_execute")
        return ScratchView(self, name)

    def read_view(self, name: str, scratch: ClientBuffer | None) -> NDArray[Any]:
        """Return the array of a `ScratchView`."""
        self._check_ready("QnnGraph_execute")
        if scratch is not self.scratch:
            sentence = f"the view of {name[:80]!r} is in scratch that was replaced"
            self._fail(6004, "X4", sentence, "QnnGraph_execute", buffer=name)
        self._exposed.add(name)
        return typed(self._execution.view(name), self.compiled.model.tensors[name])

    @property
    def has_io_in_scratch(self) -> bool:
        """True if the plan has inputs and outputs inside scratch."""
        return self.compiled.io is not Io.OUTSIDE

    def input_places(self) -> list[NDArray[Any]]:
        """Return each input's memory inside scratch; empty if the inputs are elsewhere."""
        if not self.has_io_in_scratch or self.scratch is None or not self.is_finalized:
            return []
        return [self._execution.view(name) for name in self.compiled.inputs]

    def reset(self) -> None:
        """Reset the state to what it was before the first execution."""
        self._check_ready("QnnGraph_execute")
        self.undisturbed(lambda: self._with_state(self._clear_state))

    def snapshot(self) -> tuple[bytes, dict[str, int]]:
        """Return a copy of the state for `restore`."""
        self._check_ready("QnnGraph_execute")
        return self.undisturbed(lambda: self._with_state(self._execution.snapshot))

    def restore(self, saved: tuple[bytes, dict[str, int]]) -> None:
        """Restore the state from a snapshot."""
        self._check_ready("QnnGraph_execute")
        if not self._execution.is_snapshot(saved):
            raise UsageError("this is not a snapshot of this graph's state")

        def restore() -> None:
            self._execution.restore(saved)
            self._seal_state()

        self.undisturbed(lambda: self._with_state(restore))

    @property
    def is_busy(self) -> bool:
        """True if an execution is running or queued."""
        return self._in_flight > 0

    def holdings(self) -> Iterable[Holding]:
        """Return scratch and persistent memory, or nothing after the context was freed."""
        if self.context.is_freed or self._backend.is_freed:
            return ()
        held = self._pools.items()
        return tuple(Holding(what, self.name, b, self) for what, b in held if b is not None)

    def lends(self, start: int, end: int) -> bool:
        """Return whether a range is inside an input or output whose address the client knows."""
        if not self.is_finalized:
            return False
        return any(lies_in(start, end, self._execution.view(n)) for n in tuple(self._exposed))

    def note_freed(self, call: str) -> None:
        """Report pools that were freed too early, unless an execution has already reported them."""
        for freed in freed_pools(self._pools, call):
            if freed.buffer not in self._reported:
                self._backend.note(freed)

    def release(self) -> None:
        """Drop all references to the application's memory."""
        self.scratch = self.persistent = None
        self._io.release()
        self._execution.release()

    def _finalize(self) -> None:
        if not self.compiled.model.ops and not self.compiled.model.buffers:
            self._fail(6022, "R20", f"graph {self.name[:80]!r} has no nodes", "QnnGraph_finalize")
        check_frame_rate(self._backend, self.perf)
        self._check_memory("QnnGraph_finalize")
        self._take_pools()
        if self.context.sanitize:
            check_plan(self._backend, self.compiled)
        self.is_finalized = True
        self._clear_state()

    def _change(self, configs: Iterable[Config | None]) -> None:
        state = GraphState(*self._need, self.is_finalized, self.is_busy)
        changes = check_configs(self._backend, state, configs)
        new: Pools = {"scratch": changes.scratch, "persistent": changes.persistent}
        check_pools(self._backend, self.name, self, new, self._pools)
        if changes.persistent is not None:
            self.persistent = changes.persistent
        if changes.scratch is not None:
            if self.is_finalized and "scratch" not in self._reported:
                note_early_free(self._backend, self.scratch)
            self.scratch = changes.scratch
            self._reported.discard("scratch")
            self._exposed.clear()
            if self.is_finalized:
                self._execution.attach(Pool.SCRATCH, changes.scratch.array)
        self.perf = changes.perf or self.perf
        self.affinity = changes.affinity or self.affinity
        self.priority = self.priority if changes.priority is None else changes.priority
        holders.changed(self)

    @property
    def _need(self) -> tuple[int, int]:
        """The sizes of scratch and persistent memory, rounded up to the platform's alignment.

        The plan might have been made for a smaller alignment.
        """
        unit = self._backend.profile.size_alignment
        sizes = self.compiled.scratch_bytes, self.compiled.persistent_bytes
        return round_up(sizes[0], unit), round_up(sizes[1], unit)

    @property
    def _pools(self) -> Pools:
        return {"scratch": self.scratch, "persistent": self.persistent}

    def _answer(self, query: Property) -> int:
        inner = query.value
        if query.option == CUSTOM and isinstance(inner, Property):
            if inner.option == GraphProperty.GET_PROP_SCRATCH_MEM_SIZE:
                return self._need[0]
            if inner.option == GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE:
                return self._need[1]
        option = inner.option if isinstance(inner, Property) else query.option
        sentence = f"graph property {option} is unknown to this backend"
        self._fail(6000, "R14", sentence, "QnnGraph_getProperty")

    def _take_pools(self) -> None:
        pools = (
            (Pool.SCRATCH, self.scratch, self._need[0]),
            (Pool.PERSISTENT, self.persistent, self._need[1]),
        )
        for pool, buffer, need in pools:
            memory = buffer
            if memory is None and need:
                if self._backend.profile.client_brings_pools:
                    sentence = f"{pool.value} needs {need:,} bytes, but none were passed to QNN"
                    details = {"buffer": pool.value, "need": need, "given": 0}
                    self._fail(6022, "R2", sentence, "QnnGraph_finalize", **details)
                # On a lenient platform, the DSP process allocates missing pools, as on the ARM
                # side.
                memory = runtime_pool(pool.value, need, self._backend.profile.start_alignment)
                setattr(self, pool.value, memory)
            if memory is not None:
                self._execution.attach(pool, memory.array)

    def _execute(
        self, inputs: Sequence[QnnTensor] | None, outputs: Sequence[QnnTensor] | None
    ) -> int:
        self._resumed.wait()
        self._check_ready("QnnGraph_execute")
        self._check_memory("QnnGraph_execute")
        self.is_executing = True
        try:
            if self.shares_scratch:
                note_sharing(self._backend, self.name, self, self.scratch)
            return self._execute_now(inputs, outputs)
        finally:
            self.is_executing = False

    def _execute_now(
        self, inputs: Sequence[QnnTensor] | None, outputs: Sequence[QnnTensor] | None
    ) -> int:
        buffers = self._io.buffers(inputs, outputs, self.persistent)
        if not self.compiled.program:
            name = repr(self.name[:80])
            sentence = f"graph {name} is a layout without a program and cannot be executed"
            cure = "prepare an ONNX model to get an executable graph"
            self._fail(1000, "R14", sentence, "QnnGraph_execute", cure=cure)
        try:
            outcome = self._execution.run(buffers)
        except ProgramError as exc:
            self._seal_state()  # ops that ran before the failure may have written new state
            self._fail(1100, "B1", str(exc), "QnnGraph_execute")
        except MemoryError:
            self._fail(1002, "H1", "this machine is out of memory", "QnnGraph_execute")
        try:
            self._check_kept("QnnGraph_execute")  # another thread may have freed memory meanwhile
            self._io.check_kept(buffers)
        except QnnError:
            self._seal_state()  # the state is new in this case too
            raise
        return self._account(outcome, buffers.owners)

    def _account(self, outcome: ExecutionOutcome, io: Pools) -> int:
        """Count an execution, report its findings, and return its QNN code."""
        self.counters.executions += 1
        self.counters.copied_bytes += outcome.copied_bytes
        for broken in outcome.findings:
            self._backend.note(broken)
        self._seal_state()
        self._check_guards(io)
        if outcome.complete:
            return SUCCESS
        self.counters.early_terminations += 1
        return EARLY_TERMINATION

    def _check_context(self, call: str) -> None:
        if self.context.is_freed or self._backend.is_freed:
            self._fail(6039, "R16", f"the context of graph {self.name[:80]!r} was freed", call)

    def _check_ready(self, call: str) -> None:
        self._check_context(call)
        if not self.context.config.enables(self.name):
            self._fail(6035, "R13", f"graph {self.name[:80]!r} was not enabled", call)
        if not self.is_finalized:
            self._fail(6023, "R5", f"graph {self.name[:80]!r} is not finalized", call)

    def _check_memory(self, call: str) -> None:
        """Fail the call if memory that the graph uses was freed; report a state that changed."""
        self.context.check_binary(call)
        self._check_kept(call)
        if self._state_sum is not None and self._state_sum != self._sum_state():
            sentence = "persistent changed between two executions, but only its graph may write it"
            self._backend.note(finding("X6", sentence, call=call, buffer="persistent"))

    def _check_kept(self, call: str) -> None:
        for freed in freed_pools(self._pools, call):
            self._reported.add(freed.buffer)
            self._backend.fail(6039, freed)

    def _check_guards(self, io: Pools) -> None:
        if self.context.sanitize:
            buffers = {**self._pools, **io, "the binary": self.context.binary_memory}
            for overrun in overruns(buffers, "QnnGraph_execute"):
                self._backend.note(overrun)

    def _seal_state(self) -> None:
        self._state_sum = self._sum_state() if self.context.sanitize else None

    def _sum_state(self) -> int | None:
        if self.persistent is None or not self.compiled.persistent_bytes:
            return None
        return checksum(self.persistent.array)

    def _count(self, change: int) -> None:
        with self._lock:
            self._in_flight += change

    def _notify(self, notify: Notify | None, code: int) -> None:
        """Call the application's function; log any exception, which must not stop the queue."""
        if notify is None:
            return
        try:
            notify(code)
        except Exception as exc:
            text = f"the notification of graph {self.name[:80]!r} raised {type(exc).__name__}"
            self._backend.log(LogLevel.ERROR, text)

    def _with_state(self, work: Callable[[], T]) -> T:
        """Call `work` on the state and return its result; fail if context or memory was freed."""
        self._check_ready("QnnGraph_execute")
        self._check_memory("QnnGraph_execute")
        return work()

    def _clear_state(self) -> None:
        self._execution.reset()
        self._seal_state()

    def _take_signal(self, signal: Signal | None, call: str) -> None:
        if not isinstance(signal, Signal | None):
            raise UsageError("use qnnmem.lpai.Signal to make a signal")
        if signal is not None and not signal.take():
            self._fail(6030, "R18", "the signal watches another execution", call)

    def _fail(self, code: int, rule: str, sentence: str, call: str, **details: Any) -> NoReturn:
        self._backend.refuse(code, rule, sentence, call, **details)
