"""`qnn-net-run` without a device: a context binary run under the memory contract.

read the config                     which platform, which memory
create the backend, load the binary TCM: the binary is the first allocation
create the context                  from here on the binary stays where it is
allocate inputs, then outputs       graph by graph, in the memory of the binary
hand over scratch and persistent    always DDR; in arm mode the runtime brings its own
finalize, execute line by line      results appear as files
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import read_head, regular_size
from qnnmem.errors import LoadError, QnnError, TcmFatal, UsageError, WrongSize
from qnnmem.finding import Finding
from qnnmem.lpai.binary import map_file, unpack
from qnnmem.lpai.binary.layout import MAGIC
from qnnmem.lpai.config.read import RunConfig, read_run_config
from qnnmem.lpai.net_run.inputs import InputList
from qnnmem.lpai.net_run.jobs import Job, Loop, Tally, chosen_graphs, make_jobs, schedule
from qnnmem.lpai.net_run.log import CODE, PROFILE_NAME, ApiTimes, Console
from qnnmem.lpai.net_run.memory import RunMemory
from qnnmem.lpai.net_run.options import (
    SKIP,
    RunOptions,
    check_backend,
    context_configs,
    graph_configs,
    platform,
)
from qnnmem.lpai.net_run.outputs import OutputForm, OutputTree
from qnnmem.lpai.rules import finding
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import custom_property
from qnnmem.lpai.runtime.extensions import Extensions
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.queue import DEFAULT_DEPTH
from qnnmem.lpai.tcm import TcmAlignment, request_of
from qnnmem.lpai.tcm_changes import TcmAccount, explain_tcm
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import BackendProperty, LogLevel, MemType
from qnnmem.text import quote
from qnnmem.units import format_size

Progress = Callable[[str], None]

LARGEST_BINARY = 16 << 30
_CHECKED_FIRST = 64 << 20  # a larger file is checked where it lies before it is read
_HEAD_BYTES = 4096
_INIT = ("Graph Prepare failure",)
_CREATE = ("Could not create context from binary.", "Create From Binary failure")


@dataclass(frozen=True, slots=True)
class RunReport:
    """What came of a run."""

    failure: QnnError | TcmFatal | None
    findings: tuple[Finding, ...]
    tally: Tally
    tcm: TcmAccount | None = None  # where the run failed for lack of TCM

    @property
    def passes(self) -> bool:
        """Whether everything ran and no rule was broken."""
        return self.failure is None and not self.findings


def net_run(options: RunOptions, console: Console, progress: Progress | None = None) -> RunReport:
    """Runs a binary as qnn-net-run would; results are files, everything else is printed."""
    return _Run(options, console, progress or (lambda _text: None)).go()


class _Run:
    def __init__(self, options: RunOptions, console: Console, progress: Progress) -> None:
        self._options, self._console, self._progress = options, console, progress
        check_backend(options.backend)
        file = options.config_file
        self._config: RunConfig | None = None if file is None else read_run_config(file)
        self._platform = platform(options, self._config, console.warn)
        self._mem_type = "ddr" if self._config is None else self._config.lpai.execute.mem_type
        if options.shared is not None and self._mem_type == "tcm":
            raise UsageError(
                "shared buffers are DDR, but with mem_type tcm inputs and outputs are in TCM; "
                "leave out --shared_buffer or use mem_type ddr"
            )
        self._lists = [
            None if text == SKIP else InputList.read(Path(text)) for text in options.input_lists
        ]
        if not any(self._lists):
            raise UsageError("--input_list skips every graph; name a list for at least one")
        self._size = regular_size(options.retrieve_context)
        if self._size > LARGEST_BINARY:
            reason = f"{self._size:,} bytes are more than the {format_size(LARGEST_BINARY)} handled"
            raise LoadError(options.retrieve_context, reason)
        form = OutputForm(options.float_outputs, options.native_outputs)
        self._tree = OutputTree(options.output_dir, form)
        if self._tree.has_results:
            console.warn(
                f"{options.output_dir} holds results of an earlier run; those that this run does "
                "not write again stay"
            )
        self._times = ApiTimes(options.profiling)
        self._backend = Backend.create(profile=self._platform, log=console.backend_log)
        self._context: Context | None = None
        self._binary: Any = None
        self._jobs: list[Job] = []
        self._tally = Tally()

    def go(self) -> RunReport:
        self._announce()
        failure: QnnError | None = None
        try:
            self._set_up()
            self._execute()
        except QnnError as exc:
            failure = exc
        except TcmFatal as exc:  # on the device nothing would be written any more
            self._console.log(LogLevel.ERROR, str(exc))
            return RunReport(exc, self._findings(None), self._tally, self._tcm_account())
        finally:
            self._close()
        self._write_profile()
        report = RunReport(failure, self._findings(failure), self._tally, self._shortage(failure))
        if self._options.direct and report.passes:
            self._console.say("[INFO] [Qnn Runtime] NonRPC net-run SUCCESS")
        return report

    def _announce(self) -> None:
        self._console.say("Processing inference input(s):")
        for inputs in self._lists:
            for line in inputs.lines if inputs is not None else ():
                self._console.say(line.rstrip("\r"))
            if inputs is not None and not inputs.lines:
                self._console.warn(f"{inputs.file} has no lines, so nothing will be executed")

    # Getting ready

    def _set_up(self) -> None:
        console = self._console
        console.say(f"Creating context from binary file: {self._options.retrieve_context}")
        with console.failing_with(*_CREATE):
            self._context = self._create_context()
        self._jobs = make_jobs(self._context, self._lists, self._tree, self._options, console.warn)
        self._check_graph_configs()
        with console.failing_with(*_INIT):
            for job in self._jobs:
                self._allocate_io(self._context, job)
        for job in self._jobs:
            unable = f"Unable to retrieve graph handle for graph Idx: {job.index}"
            with console.failing_with(unable, *_INIT):
                job.graph = self._context.graph_retrieve(job.compiled.name)
            self._finalize(job.graph, job.index)

    def _create_context(self) -> Context:
        self._memory = RunMemory(Extensions(self._backend, self._mem_type), self._times)
        self._check_file()
        path, use_mmap = self._options.retrieve_context, self._options.use_mmap
        self._binary = self._memory.load_binary(path, self._size, use_mmap=use_mmap)
        configs = context_configs(self._config, self._memory.mem_type)
        with self._times.timed("QnnContext_createFromBinary"):
            return Context.create_from_binary(
                self._backend, self._binary, configs, sanitize=self._options.sanitize
            )

    def _check_file(self) -> None:
        """Refuse what is not a binary of ours before room for all of it is allocated."""
        path = self._options.retrieve_context
        head = read_head(path, _HEAD_BYTES)
        try:
            if not head.startswith(MAGIC):
                unpack(head)
            elif self._size > _CHECKED_FIRST:
                unpack(map_file(path))
        except QnnError as exc:
            self._backend.fail(exc.code, exc.finding)

    def _allocate_io(self, context: Context, job: Job) -> None:
        for _ in range(self._sets(job)):
            shared = self._options.shared
            job.buffers.append(self._memory.allocate_io(context, job.compiled, shared))

    def _sets(self, job: Job) -> int:
        """Sets of buffers: several only where executions wait in a queue, in DDR."""
        if not self._options.asynchronous or self._memory.mem_type is not MemType.DDR:
            return 1
        depth = 0 if self._config is None else self._config.context.async_execute_queue_depth
        wanted = self._options.num_inferences or len(job.lines)
        return max(1, min(depth or DEFAULT_DEPTH, wanted, DEFAULT_DEPTH))

    def _finalize(self, graph: Graph, index: int) -> None:
        failed = f"Finalize Graph for Idx = {index} failed with error = {CODE}"
        with self._console.failing_with("Graph Finalize failure"):
            if self._platform.client_brings_pools:
                alignment = custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ)
                self._backend.get_property([alignment, None])
                self._memory.hand_over_pools(graph)
            configs = graph_configs(self._config, graph.name)
            if configs:
                with self._times.timed("QnnGraph_setConfig"):
                    graph.set_config([*configs, None])
            with self._console.failing_with(failed), self._times.timed("QnnGraph_finalize"):
                graph.finalize()

    # Executing

    def _execute(self) -> None:
        self._console.say("Executing Graphs")
        try:
            for job in self._jobs:
                failed = (f"Execution of Graph: {job.index} failed!", "Graph Execution failure")
                with self._console.failing_with(*failed):
                    self._execute_job(job)
        finally:
            self._write_metadata()
        self._console.say("Finished Executing Graphs")

    def _execute_job(self, job: Job) -> None:
        graph, options = job.graph, self._options
        if graph is None:  # every job was retrieved before
            return
        loop = Loop(graph, job.native, job.writer, self._times, self._show_progress)
        loop.tally = self._tally
        inferences = schedule(job.lines, options.num_inferences, options.duration_s)
        try:
            if options.asynchronous:
                loop.queued(inferences, job.buffers)
            else:
                loop.one_by_one(inferences, job.buffers[0])
        except WrongSize as exc:
            self._console.log(LogLevel.ERROR, str(exc))
            cure = "write the file again with one float32 for each element, or pass native files"
            raise qnn_error(6004, finding("R4", str(exc), cure=cure)) from exc
        copied, count = graph.counters.copied_bytes, graph.counters.executions
        text = (
            f"Graph {quote(graph.name)}: executions {count}, bytes of IO and state copied {copied}"
        )
        self._console.log(LogLevel.INFO, text)

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

    # Coming to an end

    def _close(self) -> None:
        """Free in the documented order, and look once more whether all buffers are intact."""
        context, self._context = self._context, None
        if context is not None:
            with self._times.timed("QnnContext_free"):
                context.free()
            if self._options.sanitize:
                for zone in self._memory.broken_guards():
                    self._backend.note(finding("X2", f"bytes {zone} were overwritten"))
        for job in self._jobs:
            for buffers in job.buffers:
                buffers.close()
        self._binary = None
        self._backend.free()

    def _findings(self, failure: QnnError | None) -> tuple[Finding, ...]:
        failed = None if failure is None else failure.finding
        return tuple(found for found in self._backend.findings if found is not failed)

    def _shortage(self, failure: QnnError | None) -> TcmAccount | None:
        short = failure is not None and failure.finding.rule == "T1"
        return self._tcm_account() if short else None

    def _tcm_account(self) -> TcmAccount | None:
        """The account of the TCM pool, where the binary can be read at all."""
        try:
            graphs = unpack(map_file(self._options.retrieve_context)).graphs
        except (QnnError, LoadError):
            return None
        enabled = None if self._config is None else self._config.context.enable_graphs
        wanted = [graph for graph in graphs if enabled is None or graph.name in enabled]
        alignment = TcmAlignment(self._platform.start_alignment, self._platform.size_alignment)
        chosen = chosen_graphs(wanted, self._lists)
        return explain_tcm(request_of(chosen, self._size, alignment))

    def _check_graph_configs(self) -> None:
        names = {job.compiled.name for job in self._jobs}
        for entry in () if self._config is None else self._config.graphs:
            if entry.graph_name not in names:
                name = quote(entry.graph_name)
                self._console.warn(f"the config has an entry for graph {name}, which does not run")
