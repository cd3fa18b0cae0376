"""`net-run --backend libQnnHtp.so`: a context binary of HTP, run by the real library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.htp.binary.context import HtpGraph
    from qnnmem.lpai.compiled import Quant
    from qnnmem.lpai.net_run.log import Console
    from qnnmem.options.sdk_tools import NetRunOptions
    from qnnmem.qnn.tensor import TensorInfo
    from qnnmem.verbs import ProgressListener

# Options about LPAI, each with its value where it is not given.
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


def run_on_htp(
    binary: Path, options: NetRunOptions, console: Console, listener: ProgressListener
) -> int:
    """Run the one graph of a binary for each line of the list; return the exit code."""
    from qnnmem.htp.qmem.client import HtpSession
    from qnnmem.htp.qmem.table import made_up_inputs
    from qnnmem.lpai.net_run.files import OutputForm, OutputTree
    from qnnmem.qnn.enums import LogLevel

    for name, usual in _LPAI_ONLY.items():
        if getattr(options, name) != usual:
            raise UsageError(f"--{name} is for LPAI, and --backend names the HTP library")
    if (options.input_list is None) == (options.random_inputs is None):
        raise UsageError("give the inputs with either --input_list or --random-inputs N")
    for name in _NO_EFFECT:
        if getattr(options, name):
            console.warn(f"--{name} is ignored: the library for x86 emulates HTP")
    console.note(
        "note: HTP is emulated by the library for x86; memory and times are not a device's"
    )
    console.say(f"Creating context from binary file: {binary}")
    mode = "memhandle" if _is_shared(options) else "raw"
    with HtpSession(binary, io=mode) as session:
        graph = session.graph.described
        form = OutputForm(options.output_data_type != "native_only", _is_native_output(options))
        tree = OutputTree(Path(options.output_dir), form)
        if options.random_inputs is not None:
            seeds = range(options.seed, options.seed + options.random_inputs)
            made = (_arrays(graph, made_up_inputs(graph, seed)) for seed in seeds)
            feeds: Iterator[dict[str, NDArray[Any]]] = made
        else:
            feeds = _listed(graph, options, console)
        if options.num_inferences is not None:
            feeds = islice(feeds, options.num_inferences)
        console.say("Executing Graphs")
        times = []
        for number, feed in enumerate(feeds):
            listener.say(f"inference {number}")
            start = perf_counter()
            found = session.run(feed)
            times.append(perf_counter() - start)
            if options.keep_num_outputs is None or number < options.keep_num_outputs:
                _write(tree, form, graph, number, found)
        copied = session.last.copied_in + session.last.copied_out if session.last else 0
    if times:
        later = f", later ones {median(times[1:]) * 1000:.1f} ms (median)" if times[1:] else ""
        said = f"first inference {times[0] * 1000:.1f} ms{later}, each with loading the context"
        console.log(LogLevel.INFO, f"Graph '{graph.name}': executions {len(times)}, {said}")
        console.log(LogLevel.INFO, f"IO handed over {mode}, bytes copied each time {copied}")
    console.say("Finished Executing Graphs")
    console.note(f"Wrote the results of {len(times)} inferences to {options.output_dir}")
    return 0


def _is_shared(options: NetRunOptions) -> bool:
    return options.shared_buffer or options.io_tensor_mem_handle_type is not None


def _is_native_output(options: NetRunOptions) -> bool:
    return options.use_native_output_files or options.output_data_type in (
        "native_only",
        "float_and_native",
    )


def _listed(
    graph: HtpGraph, options: NetRunOptions, console: Console
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the inputs of each line of the one list."""
    from qnnmem.lpai.net_run.files import InputList, read_input

    name = options.input_list or ""
    if "," in name:
        raise UsageError("--input_list: one list, as the binary has one graph")
    native = options.use_native_input_files or options.input_data_type == "native"
    lines = InputList.read(Path(name)).assigned([one.name for one in graph.inputs], console.warn)
    for files in lines:
        console.say(" ".join(f"{name}:={os.fspath(path)}" for name, path in files.items()))
        blobs = {
            one.name: read_input(files[one.name], *_as_ir(one), native=native).tobytes()
            for one in graph.inputs
        }
        yield _arrays(graph, blobs)


def _as_ir(info: TensorInfo) -> tuple[Any, Quant | None]:
    """Return a tensor and its scale as the readers of files take them."""
    from qnnmem.htp.qmem.layer import numpy_type
    from qnnmem.ir import DType, Tensor
    from qnnmem.lpai.compiled import Quant

    scale = info.scale_offset
    quant = None if scale is None else Quant(scale.scale, -scale.offset)
    return Tensor(info.name, DType(numpy_type(info)), tuple(info.dimensions)), quant


def _arrays(graph: HtpGraph, blobs: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    import numpy

    from qnnmem.htp.qmem.layer import numpy_type

    return {
        one.name: numpy.frombuffer(blobs[one.name], numpy_type(one)).reshape(one.dimensions)
        for one in graph.inputs
    }


def _write(
    tree: Any, form: Any, graph: HtpGraph, number: int, found: Mapping[str, NDArray[Any]]
) -> None:
    """Write an inference's outputs as the real tool does."""
    from qnnmem.atomic_file import write_whole
    from qnnmem.lpai.net_run.files import file_stems
    from qnnmem.lpai.runtime.graph_io import to_float

    folder = tree.graph_folder(f"Result_{number}")
    stems = file_stems(one.name for one in graph.outputs)
    for one in graph.outputs:
        if form.as_float:
            value = to_float(found[one.name], _as_ir(one)[1])
            write_whole(folder / f"{stems[one.name]}.raw", value.astype("<f4").tobytes())
        if form.native:
            write_whole(folder / f"{stems[one.name]}_native.raw", found[one.name].tobytes())
