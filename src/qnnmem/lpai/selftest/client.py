"""Clients that follow every rule, and contract cases that start from such a client.

`Client` allocates each buffer; `Arena` allocates everything from one block, as C programs do. A
`ContractCase` follows or breaks a rule and has an expected result. `Trial` is one run of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from qnnmem.contract.leaks import separate
from qnnmem.contract.regions import ClientBuffer
from qnnmem.errors import QnnError, QnnMemError, TcmFatal
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.configs import ContextConfig
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import AlignmentReq, Config, Mem, ask, custom
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.lpai.runtime.session import POOLS
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.lpai.selftest.models import ELEMENTS, binary, context
from qnnmem.qnn.enums import BackendProperty, ContextOption, GraphOption, GraphProperty, MemType
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.units import round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCRATCH, PERSISTENT = GraphOption.SET_CFG_SCRATCH_MEM, GraphOption.SET_CFG_PERSISTENT_MEM
KEEP = Config(ContextOption.PERSISTENT_BINARY, 1)
ARENA_BYTES = 256 << 10

WAIT_S = 10.0
FINDING = ()  # instead of codes: the call succeeds and adds a finding
Steps = Callable[["Trial"], object]


class Client:
    """A backend, context and graph, with memory from a DDR heap in the required alignment."""

    def __init__(
        self,
        graph: str = "counter",
        profile: Profile | None = None,
        configs: Iterable[Config | None] = (KEEP, None),
        *,
        ask: bool = True,
    ) -> None:
        self.heap = self.io_heap = Heap(MemType.DDR)
        self.backend = Backend.create(profile=profile)
        self.align = self.asked() if ask else AlignmentReq(64, 64)
        self.binary = self.buffer(len(binary()))
        self.binary.view[: len(binary())] = binary()
        content = self.binary.view[: len(binary())]
        self.context = Context.create_from_binary(self.backend, content, configs, trusted=True)
        self.graph = self.context.graph_retrieve(graph)
        self._pools: dict[GraphOption, HeapBuffer] = {}

    @property
    def rules(self) -> list[str]:
        """Rules broken so far."""
        return [finding.rule for finding in self.backend.findings]

    def buffer(self, size: int) -> HeapBuffer:
        """Return aligned memory of at least `size` bytes."""
        return self._allocate(self.heap, size)

    def need(self, size_property: GraphProperty) -> int:
        """Query and return the required size of a pool."""
        size: int = ask(self.graph.get_property, size_property)
        return size

    @property
    def scratch(self) -> HeapBuffer:
        """Buffer that was last passed as scratch."""
        return self._pools[SCRATCH]

    @property
    def persistent(self) -> HeapBuffer:
        """Buffer that was last passed as persistent memory."""
        return self._pools[PERSISTENT]

    # The following methods return the client, so that steps can be chained.

    def give_scratch(self) -> Self:
        """Pass scratch to the graph if it needs any, and return the client."""
        need = self.need(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
        return self.give(SCRATCH, self.buffer(need)) if need else self

    def give_persistent(self) -> Self:
        """Pass persistent memory to the graph if it needs any, and return the client."""
        need = self.need(GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE)
        return self.give(PERSISTENT, self.buffer(need)) if need else self

    def give(self, option: GraphOption, buffer: HeapBuffer) -> Self:
        """Pass a whole buffer to the graph, and return the client."""
        self.set(custom(option, Mem(MemType.DDR, buffer.size, buffer)))
        self._pools[option] = buffer
        return self

    def set(self, *configs: Config | None) -> Self:
        """Set options of the graph, and return the client."""
        self.graph.set_config([*configs, None])
        return self

    def finalize(self) -> Self:
        """Finalize the graph, and return the client."""
        self.graph.finalize()
        return self

    def ready(self) -> Self:
        """Pass the pools, finalize the graph, and return the client."""
        return self.give_scratch().give_persistent().finalize()

    def on(self, graph: str) -> Self:
        """Use another graph of the context from now on, and return the client."""
        self.graph = self.context.graph_retrieve(graph)
        return self

    def executed(self, value: int = 1) -> Self:
        """Execute once, and return the client."""
        self.run(value)
        return self

    def freed(self, *names: str) -> Self:
        """Free the named members, such as scratch or context, in order, and return the client."""
        for name in names:
            getattr(self, name).free()
        return self

    def finish(self) -> Self:
        """Wait until all queued work is done, and return the client."""
        self.context.queue.run(lambda: None)
        return self

    def tensors(self) -> tuple[list[QnnTensor], list[QnnTensor]]:
        """Return inputs and outputs with newly allocated buffers of exact size."""
        groups = io_tensors(self.graph.compiled)
        for tensor in (*groups[0], *groups[1]):
            tensor.client_buf = self._allocate(self.io_heap, tensor.nbytes)
            tensor.data_size = tensor.nbytes
        return list(groups[0]), list(groups[1])

    def run(self, value: int = 1) -> NDArray[Any]:
        """Execute with an input that is filled with `value`, and return the output."""
        inputs, outputs = self.tensors()
        numbers(inputs[0])[:] = value
        self.graph.execute(inputs, outputs)
        return numbers(outputs[0]).copy()

    def _allocate(self, heap: Heap, size: int) -> HeapBuffer:
        rounded = round_up(size, self.align.size_alignment)
        return heap.allocate(rounded, self.align.start_addr_alignment)

    def asked(self) -> AlignmentReq:
        """Query the alignment and return it."""
        alignment: AlignmentReq = ask(
            self.backend.get_property, BackendProperty.GET_PROP_ALIGNMENT_REQ
        )
        return alignment


def numbers(tensor: QnnTensor) -> NDArray[Any]:
    """Return the tensor's buffer as an array of integers."""
    import numpy

    values: NDArray[Any] = tensor.client_buf.array[: tensor.nbytes].view(numpy.int32)
    return values


def is_all(values: NDArray[Any], wanted: int) -> bool:
    """Return whether all values of an output equal `wanted`."""
    return values.size >= ELEMENTS and bool((values == wanted).all())


def retrieved(compiled: CompiledGraph) -> Graph:
    """Return the handle of a graph, from a new context that has only this graph."""
    alone = replace(context(), graphs=(compiled,))
    return Context(Backend.create(), alone, ContextConfig()).graph_retrieve(compiled.name)


class Tenant:
    """A separate context with one graph; all its memory comes from an arena."""

    def __init__(self, arena: Arena, name: str) -> None:
        content = arena.cut(len(binary()))
        content[:] = binary()
        self.context = Context.create_from_binary(arena.backend, content, [KEEP], trusted=True)
        self.graph: Graph = self.context.graph_retrieve(name)
        self.pools: dict[int, memoryview] = {}
        for size_property, option in POOLS:
            if size := ask(self.graph.get_property, size_property):
                self.pools[option] = memory = arena.cut(size)
                mem = Mem(MemType.DDR, memory.nbytes, memory)
                self.graph.set_config([custom(option, mem), None])
        self.graph.finalize()
        self.inputs, self.outputs = map(list, io_tensors(self.graph.compiled))
        for tensor in self.tensors:
            tensor.client_buf, tensor.data_size = arena.cut(tensor.nbytes), tensor.nbytes

    @property
    def tensors(self) -> list[QnnTensor]:
        """Inputs and outputs."""
        return [*self.inputs, *self.outputs]

    def execute(self) -> int:
        """Execute once with the current contents of the input, and return the QNN code."""
        return self.graph.execute(self.inputs, self.outputs)


class Arena:
    """A block of a heap from which `cut` allocates consecutive aligned pieces."""

    def __init__(self, profile: Profile | None = None, size: int = ARENA_BYTES) -> None:
        self.backend = Backend.create(profile=profile)
        self.align: AlignmentReq = ask(
            self.backend.get_property, BackendProperty.GET_PROP_ALIGNMENT_REQ
        )
        self.heap = Heap(MemType.DDR)
        self.block = self.heap.allocate(size, self.align.start_addr_alignment, "arena")
        self.offset = 0

    def cut(self, size: int) -> memoryview:
        """Return the next piece of the block, like `base + offset` in C."""
        start = round_up(self.offset, self.align.start_addr_alignment)
        self.offset = start + round_up(size, self.align.size_alignment)
        return self.block.view[start : start + size]

    @property
    def rules(self) -> list[str]:
        """Rules broken so far."""
        return [finding.rule for finding in self.backend.findings]


def address_of(view: memoryview) -> int:
    """Return the address of a view."""
    return ClientBuffer(view).address


@dataclass(frozen=True, slots=True)
class ContractCase:
    """A case in which a client follows a rule, or breaks it and gets one of `codes`."""

    rule: str
    title: str
    breaks: bool
    codes: tuple[int, ...]
    steps: Steps

    def run(self) -> str:
        """Run the case; return how the runtime broke the contract, or ""."""
        trial = Trial(self.rule, self.codes)
        try:
            with separate():  # leaks of a case are not reported for the process
                self.steps(trial)
        except QnnMemError as exc:
            trial.problems.append(str(exc))
        except Exception as exc:  # any other exception breaks the contract of the runtime
            trial.problems.append(
                f"{type(exc).__name__} raised instead of a QNN code: {exc!s:.200}"
            )
        for code in sorted(set(self.codes) - trial.seen):
            trial.problems.append(f"no call was refused with {code}")
        return trial.problems[0] if trial.problems else ""


def keeps(rule: str, title: str, steps: Steps) -> ContractCase:
    """Return a case in which the client follows the rule."""
    return ContractCase(rule, title, False, (), steps)


def breaks(rule: str, title: str, codes: int | tuple[int, ...], steps: Steps) -> ContractCase:
    """Return a case in which the client breaks the rule and gets one of `codes`."""
    return ContractCase(rule, title, True, (codes,) if isinstance(codes, int) else codes, steps)


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of a case: its expectations and its failures."""

    rule: str
    codes: tuple[int, ...] = ()
    problems: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def client(self, graph: str = "counter", **settings: Any) -> TrialClient:
        """Return a client that records unmet expectations in this trial."""
        client = TrialClient(graph, **settings)
        client.trial = self
        return client

    def check(self, holds: bool, otherwise: str) -> Trial:
        """Add a problem unless a condition is true; return the trial."""
        if not holds:
            self.problems.append(otherwise)
        return self

    def refused(self, call: Callable[..., object], *arguments: Any, **named: Any) -> Trial:
        """Check that the call fails with the expected code and rule; its finding must have a cure.

        Return the trial. `code` is the expected code, by default the first code of the case.
        """
        wanted = named.pop("code", self.codes[0])
        expected = f"expected {wanted} and rule {self.rule}"
        try:
            call(*arguments, **named)
        except QnnError as exc:
            self.seen.add(exc.code)
            got = (exc.code, exc.finding.rule)
            self.check(got == (wanted, self.rule), f"{expected}, got {got[0]} and {got[1]}")
            clear = bool(exc.finding.sentence and exc.finding.cure)
            self.check(clear, "the finding has no explanation")
        else:
            self.problems.append(f"{expected}, but the call succeeded")
        return self

    def is_fatal(self, call: Callable[[], object], otherwise: str) -> None:
        """Check that the call ends the process, as allocations beyond the TCM limit do."""
        try:
            call()
        except TcmFatal as exc:
            self.check(exc.exit_code == 134, f"exit status {exc.exit_code} instead of 134")
        else:
            self.check(False, otherwise)


class TrialClient(Client):
    """A client with expectations; each method returns the client, so that steps can be chained."""

    trial: Trial

    def gives(self, wanted: int, given: int = 1) -> Self:
        """Check that an input filled with `given` gives an output filled with `wanted`."""
        self.trial.check(is_all(self.run(given), wanted), f"the result is not {wanted}")
        return self

    def refused(self, call: Callable[[Client], object], code: int | None = None) -> Self:
        """Check that the call fails with `code`, by default the first code of the case."""
        self.trial.refused(call, self, code=code or self.trial.codes[0])
        return self

    def noted(self, call: Callable[[Client], object]) -> Self:
        """Check that the call succeeds and adds a finding of the rule."""
        before = len(self.rules)
        call(self)
        added, rule = self.rules[before:], self.trial.rule
        self.trial.check(
            rule in added, f"expected a finding of {rule}, got {', '.join(added) or 'none'}"
        )
        return self

    def holds(self, test: Callable[[Client], bool], otherwise: str) -> Self:
        """Check that `test` returns true for the client."""
        self.trial.check(test(self), otherwise)
        return self

    def no_findings(self) -> Self:
        """Check that there are no findings so far."""
        self.trial.check(not self.rules, f"findings: {', '.join(self.rules)}")
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the queue's worker busy inside a notification, so that executions stay queued."""
        notified, go = Event(), Event()

        def hold(_code: int) -> None:
            notified.set()
            go.wait(WAIT_S)

        self.graph.execute_async(notify=hold)
        self.trial.check(notified.wait(WAIT_S), "the execution never ended")
        try:
            yield
        finally:
            go.set()
            self.finish()
