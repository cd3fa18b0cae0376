"""The graphs of a run: which of them, with which inputs, and the loop over their input lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from qnnmem.errors import QnnMemError, UsageError
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.inputs import InputList, native_tensors, read_input
from qnnmem.lpai.net_run.log import ApiTimes, Line
from qnnmem.lpai.net_run.memory import IoBuffers
from qnnmem.lpai.net_run.options import SKIP, RunOptions
from qnnmem.lpai.net_run.outputs import OutputTree, ResultWriter, file_stems
from qnnmem.lpai.rules import finding
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION, SUCCESS, Graph
from qnnmem.qnn.codes import qnn_error
from qnnmem.text import quote

Files = Mapping[str, Path]
Clock = Callable[[], float]


@dataclass(slots=True)
class Job:
    """One graph that runs."""

    index: int
    compiled: CompiledGraph
    lines: Sequence[Files]
    writer: ResultWriter
    native: frozenset[str]  # inputs whose files hold the tensor's own type
    buffers: list[IoBuffers] = field(default_factory=list)
    graph: Graph | None = None


def make_jobs(
    context: Context,
    lists: Sequence[InputList | None],
    tree: OutputTree,
    options: RunOptions,
    warn: Line,
) -> list[Job]:
    """The graphs that have an input list; one list belongs to each graph, None skips it."""
    graphs = [graph for graph in context.compiled.graphs if context.config.enables(graph.name)]
    if len(graphs) != len(lists):
        raise UsageError(_wrong_count(graphs, len(lists)))
    natives = native_tensors(options.native_names, {g.name: g.inputs for g in graphs})
    stems = file_stems(graph.name for graph in graphs)
    jobs = []
    for index, (graph, inputs) in enumerate(zip(graphs, lists, strict=True)):
        if inputs is None:
            continue
        _warn_of_float(graph, warn)
        folder = tree.graph_folder(stems[graph.name] if len(graphs) > 1 else None)
        writer = ResultWriter(folder, graph, tree.form, options.keep_num_outputs)
        native = frozenset(graph.inputs) if options.native_inputs else natives[graph.name]
        lines = inputs.assigned(graph.inputs, warn)
        jobs.append(Job(index, graph, lines, writer, native))
    return jobs


def chosen_graphs(
    graphs: Sequence[CompiledGraph], lists: Sequence[InputList | None]
) -> list[CompiledGraph]:
    """The enabled graphs that run; all of them where the lists do not say which."""
    if len(graphs) != len(lists):
        return list(graphs)
    return [graph for graph, inputs in zip(graphs, lists, strict=True) if inputs is not None]


def _warn_of_float(graph: CompiledGraph, warn: Line) -> None:
    if graph.float_ops:
        warn(
            f"results of graph {quote(graph.name)} come from floating point (float ops: "
            f"{graph.float_ops}); LPAI itself runs 8- and 16-bit models only"
        )


def _wrong_count(graphs: Sequence[CompiledGraph], lists: int) -> str:
    names = ", ".join(quote(graph.name) for graph in graphs[:8])
    return (
        f"--input_list names {lists} list{'' if lists == 1 else 's'} for {len(graphs)} "
        f"graph{'' if len(graphs) == 1 else 's'} ({names}); name one for each, separated by "
        f"commas, {SKIP} for one that should not run"
    )


@dataclass(slots=True)
class Tally:
    """What came of the executions so far."""

    executions: int = 0
    completed: int = 0
    early: int = 0


def schedule(
    lines: Sequence[Files],
    num_inferences: int | None,
    duration_s: float | None,
    clock: Clock = monotonic,
) -> Iterator[tuple[int, Files]]:
    """Inferences by number: the list once, or again and again until the number or time is reached.

    At least one inference runs, however short the time.
    """
    if not lines:
        return
    endless = num_inferences is not None or duration_s is not None
    number, begin = 0, clock()
    while number < len(lines) or endless:
        if num_inferences is not None and number >= num_inferences:
            return
        if duration_s is not None and number and clock() - begin >= duration_s:
            return
        yield number, lines[number % len(lines)]
        number += 1


class Loop:
    """Executes a finalized graph for each inference of a schedule."""

    def __init__(
        self,
        graph: Graph,
        native: frozenset[str],
        writer: ResultWriter,
        times: ApiTimes,
        progress: Callable[[Tally], None],
    ) -> None:
        self._graph, self._native, self._writer = graph, native, writer
        self._times, self._progress = times, progress
        self.tally = Tally()

    def one_by_one(self, inferences: Iterator[tuple[int, Files]], io: IoBuffers) -> None:
        """Each inference waits for the one before."""
        for number, files in inferences:
            self._fill(io, files)
            with self._times.timed("QnnGraph_execute"):
                code = self._graph.execute(io.inputs, io.outputs)
            self._finish(number, io, code)

    def queued(self, inferences: Iterator[tuple[int, Files]], buffers: Sequence[IoBuffers]) -> None:
        """Inferences wait in the queue, as many as there are sets of buffers."""
        free = deque(buffers)
        waiting: deque[tuple[int, IoBuffers]] = deque()
        done: SimpleQueue[int] = SimpleQueue()

        def take() -> None:
            # One worker serves the queue in order, so the oldest is the one that is done.
            code = done.get()
            number, io = waiting.popleft()
            self._finish(number, io, code)
            free.append(io)

        for number, files in inferences:
            if not free:
                take()
            io = free.popleft()
            try:
                self._fill(io, files)
            except QnnMemError:
                while waiting:  # what was asked for before has its result all the same
                    take()
                raise
            with self._times.timed("QnnGraph_executeAsync"):
                self._graph.execute_async(io.inputs, io.outputs, done.put)
            waiting.append((number, io))
        while waiting:
            take()

    def _fill(self, io: IoBuffers, files: Files) -> None:
        compiled = self._graph.compiled
        for name, path in files.items():
            tensor, quant = compiled.model.tensors[name], compiled.quants.get(name)
            native = name in self._native
            io.input_bytes[name][:] = read_input(path, tensor, quant, native=native)

    def _finish(self, number: int, io: IoBuffers, code: int) -> None:
        self.tally.executions += 1
        if code == EARLY_TERMINATION:
            self.tally.early += 1
        elif code == SUCCESS:
            self.tally.completed += 1
            self._writer.write(number, io.output_bytes)
        else:
            self._raise(code)
        self._progress(self.tally)

    def _raise(self, code: int) -> None:
        """An execution in the queue failed: its code came here, its reason is in the record."""
        findings = self._graph.context.backend.findings
        raise qnn_error(code, findings[-1] if findings else finding("B1", "an execution failed"))
