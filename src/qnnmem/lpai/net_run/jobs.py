"""The graphs of a run: which of them, with which inputs, and the loop over their input lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from qnnmem.contract.rules import finding
from qnnmem.errors import QnnMemError, UsageError
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.device import Executed, RunDevice
from qnnmem.lpai.net_run.inputs import InputList, native_tensors, read_input
from qnnmem.lpai.net_run.log import Line
from qnnmem.lpai.net_run.options import SKIP, RunOptions
from qnnmem.lpai.net_run.outputs import OutputTree, ResultWriter, file_stems
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION, SUCCESS
from qnnmem.qnn.codes import qnn_error
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

Files = Mapping[str, Path]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Job:
    """One graph that runs."""

    index: int
    compiled: CompiledGraph
    lines: Sequence[Files]
    writer: ResultWriter
    native: frozenset[str]  # inputs whose files hold the tensor's own type

    def inputs(self, files: Files) -> list[memoryview]:
        """What the files of one inference hold, as bytes of each tensor in the graph's order."""
        return [self._input(name, files[name]) for name in dict.fromkeys(self.compiled.inputs)]

    def outputs(self, content: bytes) -> dict[str, NDArray[Any]]:
        """The bytes of each output, from those of all in the graph's order."""
        import numpy

        names = tuple(dict.fromkeys(self.compiled.outputs))
        sizes = [self.compiled.model.tensors[name].nbytes for name in names]
        parts = (numpy.frombuffer(part, numpy.uint8) for part in cut(content, sizes))
        return dict(zip(names, parts, strict=True))

    def _input(self, name: str, path: Path) -> memoryview:
        tensor, quant = self.compiled.model.tensors[name], self.compiled.quants.get(name)
        return read_input(path, tensor, quant, native=name in self.native).data


def cut(content: bytes, sizes: Iterable[int]) -> Iterator[memoryview]:
    """Parts of these sizes, one after the other."""
    at, whole = 0, memoryview(content)
    for size in sizes:
        yield whole[at : at + size]
        at += size


def make_jobs(
    graphs: Sequence[CompiledGraph],
    lists: Sequence[InputList | None],
    tree: OutputTree,
    options: RunOptions,
    warn: Line,
) -> list[Job]:
    """Of the enabled graphs those with an input list; one belongs to each, None skips it."""
    if len(graphs) != len(lists):
        raise UsageError(_wrong_count(graphs, len(lists)))
    natives = native_inputs(graphs, options)
    stems = file_stems(graph.name for graph in graphs)
    jobs = []
    for index, (graph, inputs) in enumerate(zip(graphs, lists, strict=True)):
        if inputs is None:
            continue
        _warn_of_float(graph, warn)
        folder = tree.graph_folder(stems[graph.name] if len(graphs) > 1 else None)
        writer = ResultWriter(folder, graph, tree.form, options.keep_num_outputs)
        lines = inputs.assigned(graph.inputs, warn)
        jobs.append(Job(index, graph, lines, writer, natives[graph.name]))
    return jobs


def native_inputs(
    graphs: Sequence[CompiledGraph], options: RunOptions
) -> Mapping[str, frozenset[str]]:
    """By graph the inputs whose files hold the tensor's own type."""
    if options.native_inputs:
        return {graph.name: frozenset(graph.inputs) for graph in graphs}
    return native_tensors(options.native_names, {graph.name: graph.inputs for graph in graphs})


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

    def __init__(self, device: RunDevice, job: Job, progress: Callable[[Tally], None]) -> None:
        self._device, self._job, self._progress = device, job, progress
        self.tally = Tally()

    def one_by_one(self, inferences: Iterator[tuple[int, Files]]) -> None:
        """Each inference waits for the one before."""
        for number, files in inferences:
            inputs = self._job.inputs(files)
            self._finish(number, self._device.execute(self._job.compiled.name, inputs))

    def queued(self, inferences: Iterator[tuple[int, Files]], sets: int) -> None:
        """Inferences wait in the queue, as many as there are sets of buffers."""
        free = deque(range(sets))
        waiting: deque[tuple[int, int]] = deque()
        graph = self._job.compiled.name

        def take() -> None:
            number, slot = waiting.popleft()
            self._finish(number, self._device.take(graph, slot))
            free.append(slot)

        for number, files in inferences:
            if not free:
                take()
            try:
                inputs = self._job.inputs(files)
            except QnnMemError:
                while waiting:  # what was asked for before has its result all the same
                    take()
                raise
            slot = free.popleft()
            self._device.submit(graph, slot, inputs)
            waiting.append((number, slot))
        while waiting:
            take()

    def _finish(self, number: int, done: Executed) -> None:
        self.tally.executions += 1
        if done.code == EARLY_TERMINATION:
            self.tally.early += 1
        elif done.code == SUCCESS:
            self.tally.completed += 1
            self._job.writer.write(number, self._job.outputs(done.outputs))
        else:
            self._raise(done.code)
        self._progress(self.tally)

    def _raise(self, code: int) -> None:
        """An execution in the queue failed: its code came here, its reason is in the record."""
        findings = self._device.findings
        raise qnn_error(code, findings[-1] if findings else finding("B1", "an execution failed"))
