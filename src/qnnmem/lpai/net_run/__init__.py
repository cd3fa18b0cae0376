"""`qnn-net-run` without a device: runs a context binary under the LPAI memory contract.

    read the config                     which platform, which memory
    create the backend, load the binary TCM: the binary is the first allocation
    create the context                  from here on the binary must not move
    allocate inputs, then outputs       graph by graph, in the same type of memory as the binary
    provide scratch and persistent      always DDR
    finalize, execute line by line      results are written as files

The device, with backend, context and buffers, is a child process with limits, because a binary is
untrusted. Other files are read and written by the parent process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qnnmem.atomic_file import folder_for_output
from qnnmem.bounded_file import regular_size
from qnnmem.contract.rules import finding
from qnnmem.errors import LoadError, QnnError, QnnMemError, TcmFatal, UsageError, Words, WrongSize
from qnnmem.finding import Finding
from qnnmem.lpai.binary import BINARY_VERSION, CREATE_FROM_BINARY, map_file, unpack
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.config.settings import RunConfig, read_run_config
from qnnmem.lpai.net_run.device import DeviceSettings, Executed, enabled_graphs, split_bytes
from qnnmem.lpai.net_run.device_child import DeviceChild, RunLimits
from qnnmem.lpai.net_run.files import (
    InputList,
    OutputForm,
    OutputTree,
    ResultWriter,
    file_stems,
    make_inputs,
    native_tensors,
    read_input,
)
from qnnmem.lpai.net_run.log import CODE, PROFILE_NAME, ApiTimes, Console, Line
from qnnmem.lpai.net_run.options import SKIP, RunOptions, check_backend, platform
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION, SUCCESS
from qnnmem.lpai.runtime.queue import DEFAULT_DEPTH
from qnnmem.lpai.tcm import TcmAccount, explain_tcm, request_of
from qnnmem.planner.tcm_pool import TcmAlignment
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import LogLevel
from qnnmem.text import counted, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

Files = Mapping[str, Path]
Clock = Callable[[], float]
Inputs = TypeVar("Inputs")  # the input files of one inference

Progress = Callable[[str], None]
LARGEST_BINARY = 16 << 30
REFUSALS = (BINARY_VERSION, CREATE_FROM_BINARY)
_INIT = ("Graph Prepare failure",)
_CREATE = ("Could not create context from binary.", "Create From Binary failure")


@dataclass(frozen=True, slots=True)
class Job:
    """A graph to run, with its inputs and the writer of its results."""

    index: int
    compiled: CompiledGraph
    lines: Sequence[Files]
    writer: ResultWriter
    native: frozenset[str]  # inputs whose files hold the tensor's own type

    def inputs(self, files: Files) -> list[memoryview]:
        """Return the bytes of each input of one inference, in the graph's order."""
        return [self._input(name, files[name]) for name in dict.fromkeys(self.compiled.inputs)]

    def outputs(self, content: bytes) -> dict[str, NDArray[Any]]:
        """Return each output's bytes by name; `content` is all outputs joined together."""
        import numpy

        names = tuple(dict.fromkeys(self.compiled.outputs))
        sizes = [self.compiled.model.tensors[name].nbytes for name in names]
        parts = (numpy.frombuffer(part, numpy.uint8) for part in split_bytes(content, sizes))
        return dict(zip(names, parts, strict=True))

    def _input(self, name: str, path: Path) -> memoryview:
        tensor, quant = self.compiled.model.tensors[name], self.compiled.quants.get(name)
        return read_input(path, tensor, quant, native=name in self.native).data


def make_jobs(
    graphs: Sequence[CompiledGraph],
    lists: Sequence[InputList | None],
    tree: OutputTree,
    options: RunOptions,
    warn: Line,
) -> list[Job]:
    """Return a job for each enabled graph with an input list; None in `lists` skips a graph."""
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
    """Return for each graph the inputs whose files contain the tensor's own type, not float32."""
    if options.native_inputs:
        return {graph.name: frozenset(graph.inputs) for graph in graphs}
    return native_tensors(options.native_names, {graph.name: graph.inputs for graph in graphs})


def chosen_graphs(
    graphs: Sequence[CompiledGraph], lists: Sequence[InputList | None]
) -> list[CompiledGraph]:
    """Return the graphs that have an input list; all graphs if the number of lists is wrong."""
    if len(graphs) != len(lists):
        return list(graphs)
    return [graph for graph, inputs in zip(graphs, lists, strict=True) if inputs is not None]


def _warn_of_float(graph: CompiledGraph, warn: Line) -> None:
    if graph.float_ops:
        warn(
            f"results of graph {quote(graph.name)} come from floating point (float ops: "
            f"{graph.float_ops}), but LPAI runs 8- and 16-bit models only"
        )


def _wrong_count(graphs: Sequence[CompiledGraph], lists: int) -> str:
    names = ", ".join(quote(graph.name) for graph in graphs[:8])
    return (
        f"--input_list has {counted(lists, 'list')} for {counted(len(graphs), 'graph')} ({names}); "
        f"pass one list for each graph, separated by commas; {SKIP} skips a graph"
    )


@dataclass(slots=True)
class Tally:
    """How many executions have ended so far, by result."""

    executions: int = 0
    completed: int = 0
    early: int = 0


def schedule(
    lines: Sequence[Inputs],
    num_inferences: int | None,
    duration_s: float | None,
    clock: Clock = monotonic,
) -> Iterator[tuple[int, Inputs]]:
    """Yield the inferences of a list with their numbers.

    The list is used once, or repeatedly until a number of inferences or a duration is reached.
    At least one inference runs, even if the duration is zero.
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
        self, device: DeviceChild, job: Job, tally: Tally, progress: Callable[[Tally], None]
    ) -> None:
        self._device, self._job = device, job
        self._tally, self._progress = tally, progress

    def one_by_one(self, inferences: Iterator[tuple[int, Files]]) -> None:
        """Execute the inferences one after the other."""
        for number, files in inferences:
            inputs = self._job.inputs(files)
            self._finish(number, self._device.execute(self._job.compiled.name, inputs))

    def queued(self, inferences: Iterator[tuple[int, Files]], sets: int) -> None:
        """Execute the inferences asynchronously, at most `sets` of them at the same time."""
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
                while waiting:  # inferences queued earlier still deliver their results
                    take()
                raise
            slot = free.popleft()
            self._device.submit(graph, slot, inputs)
            waiting.append((number, slot))
        while waiting:
            take()

    def _finish(self, number: int, done: Executed) -> None:
        self._tally.executions += 1
        if done.code == EARLY_TERMINATION:
            self._tally.early += 1
        elif done.code == SUCCESS:
            self._tally.completed += 1
            self._job.writer.write(number, self._job.outputs(done.outputs))
        else:  # a queued execution failed: the last finding is the reason
            findings = self._device.findings
            reason = findings[-1] if findings else finding("B1", "an execution failed")
            raise qnn_error(done.code, reason)
        self._progress(self._tally)


class FileCount(NamedTuple):
    """How many files a run wrote."""

    results: int = 0
    inputs: int = 0
    beside: int = 0  # metadata and times

    @property
    def total(self) -> int:
        """Total number of files."""
        return sum(self)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run."""

    failure: QnnError | TcmFatal | None
    findings: tuple[Finding, ...]
    tally: Tally
    tcm: TcmAccount | None = None  # set if TCM was too small
    cure: Words = ""  # set if a limit ended the run
    files: FileCount = field(default_factory=FileCount)

    @property
    def refused(self) -> bool:
        """True if the binary was refused: damaged, of another version, or not made by qnnmem."""
        return isinstance(self.failure, QnnError) and self.failure.code in REFUSALS

    @property
    def passes(self) -> bool:
        """True if everything ran and no rule was broken."""
        return self.failure is None and not self.findings


def net_run(
    options: RunOptions,
    console: Console,
    progress: Progress | None = None,
    limits: RunLimits | None = None,
) -> RunReport:
    """Run a binary the way qnn-net-run does, and return a report.

    Results are written as files; everything else is printed.
    """
    with folder_for_output(options.output_dir):
        run = _Run(options, console, progress or (lambda _text: None))
        return run.go(limits or RunLimits())


class _Run:
    def __init__(self, options: RunOptions, console: Console, progress: Progress) -> None:
        self._options, self._console, self._progress = options, console, progress
        check_backend(options.backend)
        file = options.config_file
        self._config: RunConfig | None = None if file is None else read_run_config(file)
        if self._config is not None and self._config.note:
            console.note(f"note: {self._config.note}")
        self._platform = platform(options, self._config, console.warn)
        self._mem_type = "ddr" if self._config is None else self._config.lpai.execute.mem_type
        if options.shared is not None and self._mem_type == "tcm":
            raise UsageError(
                "shared buffers are DDR, but with mem_type tcm inputs and outputs are in "
                "TCM; remove --shared_buffer or use mem_type ddr"
            )
        self._lists: Sequence[InputList | None] = [
            None if text == SKIP else InputList.read(Path(text)) for text in options.input_lists
        ]
        if options.made_inputs is None and not any(self._lists):
            raise UsageError("--input_list skips all graphs; pass a list for at least one graph")
        self._size = regular_size(options.retrieve_context)
        if self._size > LARGEST_BINARY:
            reason = (
                f"the binary has {self._size:,} bytes, over the limit of "
                f"{format_size(LARGEST_BINARY)}"
            )
            raise LoadError(options.retrieve_context, reason)
        form = OutputForm(options.float_outputs, options.native_outputs)
        self._tree = OutputTree(options.output_dir, form)
        if self._tree.has_results:
            console.warn(
                f"{options.output_dir} contains results of an earlier run; results that "
                "this run does not replace stay there"
            )
        self._times = ApiTimes(options.profiling)
        self._jobs: list[Job] = []
        self._tally = Tally()
        self._made_files = 0

    def go(self, limits: RunLimits) -> RunReport:
        if self._options.made_inputs is None:
            self._announce()
        options, log = self._options, self._console.backend_log
        shown = options.retrieve_context
        with DeviceChild(self._settings(), limits, self._times, log, shown) as device:
            try:
                failure = self._use(device)
            except TcmFatal as exc:  # on the device nothing more would be written
                self._console.log(LogLevel.ERROR, str(exc))
                findings = _other_findings(device, None)
                return RunReport(exc, findings, self._tally, self._tcm_account(), "", self._files())
        self._write_profile()
        findings, tcm = _other_findings(device, failure), self._shortage(failure)
        report = RunReport(failure, findings, self._tally, tcm, device.cure, self._files())
        if self._options.direct and report.passes:
            self._console.say("[INFO] [Qnn Runtime] NonRPC net-run SUCCESS")
        return report

    def _use(self, device: DeviceChild) -> QnnError | None:
        """Set up the device, execute the graphs and close the device; return the first error."""
        failure: QnnError | None = None
        try:
            self._set_up(device)
            self._execute(device)
        except QnnError as exc:
            failure = exc
        try:
            device.close()
        except QnnError as exc:
            failure = failure or exc
        return failure

    def _announce(self) -> None:
        self._console.say("Processing inference input(s):")
        for inputs in self._lists:
            for line in inputs.lines if inputs is not None else ():
                self._console.say(line.rstrip("\r"))
            if inputs is not None and not inputs.lines:
                self._console.warn(f"{inputs.file} has no lines, so no inference runs")

    # Setup

    def _settings(self) -> DeviceSettings:
        options = self._options
        return DeviceSettings(
            options.retrieve_context.absolute(),
            self._size,
            self._platform,
            self._config,
            self._mem_type,
            options.shared,
            options.use_mmap,
            options.sanitize,
            options.one_scratch,
        )

    def _set_up(self, device: DeviceChild) -> None:
        console, options = self._console, self._options
        console.say(f"Creating context from binary file: {options.retrieve_context}")
        with console.failing_with(*_CREATE):
            graphs = device.create()
        self._make_inputs(graphs)
        self._jobs = make_jobs(graphs, self._lists, self._tree, options, console.warn)
        self._check_graph_configs()
        with console.failing_with(*_INIT):
            for job in self._jobs:
                device.allocate(job.compiled.name, self._sets(job))
        for job in self._jobs:
            unable = f"Unable to retrieve graph handle for graph Idx: {job.index}"
            with console.failing_with(unable, *_INIT):
                device.retrieve(job.compiled.name)
            failed = f"Finalize Graph for Idx = {job.index} failed with error = {CODE}"
            with console.failing_with("Graph Finalize failure"):
                device.configure(job.compiled.name)
                with console.failing_with(failed):
                    device.finalize(job.compiled.name)

    def _make_inputs(self, graphs: Sequence[CompiledGraph]) -> None:
        """Write the generated inputs; `graphs` has their names and shapes."""
        source, force = self._options.made_inputs, self._options.force
        if source is None:
            return
        native = native_inputs(graphs, self._options)
        self._lists, self._made_files = make_inputs(source, graphs, native, self._tree, force=force)
        self._announce()

    def _sets(self, job: Job) -> int:
        """Return the number of buffer sets, which exceeds 1 only for asynchronous runs in DDR."""
        if not self._options.asynchronous or self._mem_type == "tcm":
            return 1
        depth = 0 if self._config is None else self._config.context.async_execute_queue_depth
        wanted = self._options.num_inferences or len(job.lines)
        return max(1, min(depth or DEFAULT_DEPTH, wanted, DEFAULT_DEPTH))

    # Execution

    def _execute(self, device: DeviceChild) -> None:
        self._console.say("Executing Graphs")
        try:
            for job in self._jobs:
                failed = (f"Execution of Graph: {job.index} failed!", "Graph Execution failure")
                with self._console.failing_with(*failed):
                    self._execute_job(device, job)
        finally:
            self._write_metadata()
        self._console.say("Finished Executing Graphs")

    def _execute_job(self, device: DeviceChild, job: Job) -> None:
        options, name = self._options, job.compiled.name
        loop = Loop(device, job, self._tally, self._show_progress)
        inferences = schedule(job.lines, options.num_inferences, options.duration_s)
        try:
            if options.asynchronous:
                loop.queued(inferences, self._sets(job))
            else:
                loop.one_by_one(inferences)
        except WrongSize as exc:
            self._console.log(LogLevel.ERROR, str(exc))
            cure = "write the file again with one float32 for each element, or pass native files"
            raise qnn_error(6004, finding("R4", str(exc), cure=cure)) from exc
        executions, copied = device.counted(name)
        text = f"Graph {quote(name)}: execution count {executions}; "
        self._console.log(LogLevel.INFO, f"{text}bytes copied for IO and state: {copied}")

    def _show_progress(self, tally: Tally) -> None:
        self._progress(f"{tally.executions:,} inferences")

    def _write_metadata(self) -> None:
        floats = sum(job.compiled.float_ops for job in self._jobs)
        lines = [
            f"inferences_completed: {self._tally.completed}",
            f"early_terminations: {self._tally.early}",
            f"floating_point_ops: {floats}",
            f"results_from_floating_point: {'true' if floats else 'false'}",
            f"producer: {self._options.producer}",
        ]
        self._tree.write_text("execution_metadata.yaml", "\n".join(lines) + "\n")

    def _write_profile(self) -> None:
        if self._options.profiling is not None:
            self._tree.write_text(PROFILE_NAME, self._times.report(self._options.producer))

    # Completion

    def _files(self) -> FileCount:
        results = sum(job.writer.files for job in self._jobs)
        return FileCount(results, self._made_files, self._tree.beside)

    def _shortage(self, failure: QnnError | None) -> TcmAccount | None:
        short = failure is not None and failure.finding.rule == "T1"
        return self._tcm_account() if short else None

    def _tcm_account(self) -> TcmAccount | None:
        """Return how this run would fill the TCM pool; None if the binary cannot be read."""
        try:
            context = unpack(map_file(self._options.retrieve_context))
        except (QnnError, LoadError):
            return None
        alignment = TcmAlignment(self._platform.start_alignment, self._platform.size_alignment)
        chosen = chosen_graphs(enabled_graphs(context, self._config), self._lists)
        return explain_tcm(request_of(chosen, self._size, alignment))

    def _check_graph_configs(self) -> None:
        names = {job.compiled.name for job in self._jobs}
        for entry in () if self._config is None else self._config.graphs:
            if entry.graph_name not in names:
                name = quote(entry.graph_name)
                self._console.warn(f"the config has an entry for graph {name}, which does not run")


def _other_findings(device: DeviceChild, failure: QnnError | None) -> tuple[Finding, ...]:
    """Return the findings except the one that made the run fail."""
    cause = None if failure is None else failure.finding
    return tuple(finding for finding in device.findings if finding is not cause)
