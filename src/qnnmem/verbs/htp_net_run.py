"""Verb `net-run --backend libQnnHtp.so`: run an HTP context binary with the real library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from qnnmem.atomic_file import folder_for_output, write_whole
from qnnmem.errors import CannotTell, UsageError
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.qmem.layer import LibraryGraph, check_names, numpy_type
from qnnmem.htp.qmem.memory import SharedBuffer, packed_offsets
from qnnmem.htp.qmem.table import random_inputs
from qnnmem.htp.worker import Worker
from qnnmem.ir import DType, Tensor
from qnnmem.loader.file_kind import kind_of_file
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.net_run import schedule
from qnnmem.lpai.net_run.files import InputList, OutputForm, OutputTree, file_stems, read_input
from qnnmem.lpai.runtime.graph_io import to_float
from qnnmem.qnn.enums import LogLevel
from qnnmem.qnn.shared_memory import MappedBytes
from qnnmem.text import counted, quote
from qnnmem.version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.htp.binary.context import HtpGraph
    from qnnmem.lpai.net_run.log import Console
    from qnnmem.options.sdk_tools import NetRunOptions
    from qnnmem.qnn.tensor import TensorInfo
    from qnnmem.verbs import ProgressListener

# LPAI options with their default values.
_LPAI_ONLY = {
    "direct_mode": None,
    "hw_ver": None,
    "alignment": "default",
    "lenient_scratch": False,
    "no_sanitize": False,
    "inputs": (),
    "native_input_tensor_names": None,
}
_NO_EFFECT = ("config_file", "asynchronous", "profiling_level", "use_mmap")
_SKIP = "__"
# Maximum number of inferences per load, because the inputs and outputs of all are in memory
# together.
_MOST_PER_LOAD = 1000
_MOST_TIMED = 16  # with --duration, which is checked only between loads
_MOST_BYTES = 64 << 20
_MOST_PLACES = 19_000  # tensors of one request

Arrays = Mapping[str, "NDArray[Any]"]
Feed = Callable[[], Arrays]  # returns the inputs of one inference


def run_on_htp(
    binary: Path, options: NetRunOptions, console: Console, listener: ProgressListener
) -> int:
    """Run each graph of a binary for each line of its input list; return the exit code."""
    _check(binary, options)
    for name in _NO_EFFECT:
        if getattr(options, name):
            console.warn(f"--{name} is ignored: the library for x86 emulates HTP")
    console.note(
        "note: HTP is emulated by the library for x86; memory and times are not those of a device"
    )
    context = read_context(binary)
    graphs = context.graphs
    feeds = _feeds(graphs, options, console)
    console.say(f"Creating context from binary file: {binary}")
    form = OutputForm(options.output_data_type != "native_only", _is_native_output(options))
    done = 0
    with folder_for_output(Path(options.output_dir)):
        tree = OutputTree(Path(options.output_dir), form)
        console.say("Executing Graphs")
        try:
            for graph in graphs:
                for number in _executed(
                    binary, graph, context.soc_model, feeds, options, tree, console
                ):
                    done += 1
                    listener.say(f"inference {number}")
        finally:
            metadata = f"inferences_completed: {done}\nproducer: qnnmem {__version__}\n"
            tree.write_text("execution_metadata.yaml", metadata)
    console.say("Finished Executing Graphs")
    kept = done if options.keep_num_outputs is None else min(done, options.keep_num_outputs)
    console.note(f"Wrote the results of {counted(kept, 'inference')} to {options.output_dir}")
    return 0


def _check(binary: Path, options: NetRunOptions) -> None:
    """Raise UsageError for contradictory options, before the library is loaded."""
    if kind_of_file(binary).name == "lpai":
        mismatch = "is a binary for LPAI, but --backend names the HTP library"
        raise UsageError(mismatch, where=binary, cure="name libQnnLpai.so")
    for name, usual in _LPAI_ONLY.items():
        if getattr(options, name) != usual:
            raise UsageError(f"--{name} is for LPAI, but --backend names the HTP library")
    if (options.input_list is None) == (options.random_inputs is None):
        raise UsageError("pass the inputs with either --input_list or --random-inputs N")


class _Batch:
    """Inferences that run after one load; their inputs and outputs share one buffer."""

    def __init__(self, graph: HtpGraph, feeds: Sequence[Feed]) -> None:
        tensors = graph.tensors
        offsets, end = packed_offsets(tensor.nbytes for _ in feeds for tensor in tensors)
        self._buffer = SharedBuffer(end)
        self.turns = []
        for number, feed in enumerate(feeds):
            places = {}
            for tensor, offset in zip(tensors, offsets[number * len(tensors) :], strict=False):
                view = self._buffer.view[offset : offset + tensor.nbytes]
                places[tensor.name] = MappedBytes(self._buffer.fd, self._buffer.file, offset, view)
            for name, value in feed().items():
                places[name].view[:] = value.tobytes()
            self.turns.append((places, places))

    def outputs(self, graph: HtpGraph, number: int) -> Arrays:
        """Return copies of an inference's outputs."""
        places = self.turns[number][1]
        blobs = {tensor.name: bytes(places[tensor.name].view) for tensor in graph.outputs}
        return _arrays(graph.outputs, blobs)

    def close(self) -> None:
        """Free the shared buffer."""
        for places, _ in self.turns:
            for place in places.values():
                place.view.release()
        self._buffer.close()


def _executed(
    binary: Path,
    graph: HtpGraph,
    soc: int | None,
    feeds: Mapping[str, Sequence[Feed]],
    options: NetRunOptions,
    tree: OutputTree,
    console: Console,
) -> Iterator[int]:
    """Execute a graph as often as the options require; yield the index of each inference."""
    if soc is None:
        raise CannotTell("the binary does not name a SoC")
    check_names(graph)
    folder = tree.graph_folder(file_stems(feeds)[graph.name] if len(feeds) > 1 else None)
    size = sum(tensor.nbytes for tensor in graph.tensors)
    largest = _MOST_TIMED if options.duration is not None else _MOST_PER_LOAD
    largest = max(1, min(largest, _MOST_BYTES // max(size, 1), _MOST_PLACES // len(graph.tensors)))
    waiting = schedule(feeds[graph.name], options.num_inferences, options.duration)
    first, later = list[float](), list[float]()
    with Worker() as worker:
        library = LibraryGraph(
            binary, graph, soc, worker, options.time_limit, memory_limit=options.memory_limit
        )
        while wanted := list(islice(waiting, largest)):
            with closing(_Batch(graph, [feed for _, feed in wanted])) as batch:
                library.execute_each(batch.turns)
                for place, (number, _) in enumerate(wanted):
                    if options.keep_num_outputs is None or number < options.keep_num_outputs:
                        _write(folder, tree.form, graph, number, batch.outputs(graph, place))
                    yield number
            first.append(library.seconds[0])
            later += library.seconds[1:]
    if not first:
        return
    summary = f"{counted(len(first) + len(later), 'execution')} after {counted(len(first), 'load')}"
    summary += f", first inference after loading {median(first) * 1000:.1f} ms"
    summary += f", later inferences {median(later) * 1000:.1f} ms (median)" if later else ""
    console.log(LogLevel.INFO, f"Graph {quote(graph.name)}: {summary}")
    copied = 0 if _is_shared(options) else size
    mode = "memhandle" if _is_shared(options) else "raw"
    console.log(LogLevel.INFO, f"IO passed as {mode}, {copied} bytes copied in each execution")


def _is_shared(options: NetRunOptions) -> bool:
    return options.shared_buffer or options.io_tensor_mem_handle_type is not None


def _is_native_output(options: NetRunOptions) -> bool:
    return options.use_native_output_files or options.output_data_type in (
        "native_only",
        "float_and_native",
    )


def _feeds(
    graphs: Sequence[HtpGraph], options: NetRunOptions, console: Console
) -> dict[str, Sequence[Feed]]:
    """Return, by graph name, functions that each return the inputs of one inference."""
    if options.random_inputs is not None:
        seeds = range(options.seed, options.seed + options.random_inputs)
        return {
            graph.name: [
                partial(lambda g, s: _arrays(g.inputs, random_inputs(g, s)), graph, seed)
                for seed in seeds
            ]
            for graph in graphs
        }
    names = (options.input_list or "").split(",")
    if len(names) != len(graphs):
        raise UsageError(
            f"--input_list names {counted(len(names), 'list')}, but the binary has "
            f"{counted(len(graphs), 'graph')}; {_SKIP} skips a graph"
        )
    if set(names) == {_SKIP}:
        raise UsageError("--input_list skips every graph; name a list for at least one graph")
    return {
        graph.name: () if name == _SKIP else _listed(graph, name, options, console)
        for graph, name in zip(graphs, names, strict=True)
    }


def _listed(graph: HtpGraph, name: str, options: NetRunOptions, console: Console) -> Sequence[Feed]:
    """Return one function for each line of an input list, to read the inputs of this line."""
    native = options.use_native_input_files or options.input_data_type == "native"
    inputs = InputList.read(Path(name))
    console.say("Processing inference input(s):")
    for line in inputs.lines:
        console.say(line.rstrip("\r"))

    def read(files: Mapping[str, Path]) -> Arrays:
        blobs = {
            tensor.name: read_input(files[tensor.name], *_as_ir(tensor), native=native).tobytes()
            for tensor in graph.inputs
        }
        return _arrays(graph.inputs, blobs)

    lines = inputs.assigned([tensor.name for tensor in graph.inputs], console.warn)
    return [partial(read, lines[number]) for number in range(len(lines))]


def _as_ir(info: TensorInfo) -> tuple[Any, Quant | None]:
    """Return a tensor and its scale in the form that the file readers expect."""
    scale = info.scale_offset
    quant = None if scale is None else Quant(scale.scale, -scale.offset)
    return Tensor(info.name, DType(numpy_type(info)), tuple(info.dimensions)), quant


def _arrays(tensors: Sequence[TensorInfo], blobs: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    import numpy

    def array(tensor: TensorInfo) -> NDArray[Any]:
        values = numpy.frombuffer(blobs[tensor.name], numpy_type(tensor))
        return values.reshape(tensor.dimensions)

    return {tensor.name: array(tensor) for tensor in tensors}


def _write(folder: Path, form: OutputForm, graph: HtpGraph, number: int, outputs: Arrays) -> None:
    """Write an inference's outputs in the format of the real tool."""
    results = folder / f"Result_{number}"
    results.mkdir(exist_ok=True)
    stems = file_stems(tensor.name for tensor in graph.outputs)
    for tensor in graph.outputs:
        if form.as_float:
            value = to_float(outputs[tensor.name], _as_ir(tensor)[1])
            write_whole(results / f"{stems[tensor.name]}.raw", value.astype("<f4").tobytes())
        if form.native:
            native = outputs[tensor.name].tobytes()
            write_whole(results / f"{stems[tensor.name]}_native.raw", native)
