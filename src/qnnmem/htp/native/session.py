"""Requests that use ONNX Runtime: compile, run and compose with QNN's provider; quantize."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from ctypes import CFUNCTYPE, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input, find_samples, random_sample, read_sample
from qnnmem.errors import Refused
from qnnmem.htp.requests import (
    CompareReply,
    CompareRequest,
    CompileReply,
    CompileRequest,
    CpuDifference,
    HtpSettings,
    ListenReply,
    ListenRequest,
    Node,
    QuantizeReply,
    QuantizeRequest,
)
from qnnmem.loader.dlc.recorder import (
    ADD_NODE,
    CONTEXT_TENSOR,
    GRAPH_CREATE,
    GRAPH_TENSOR,
    OK,
    Composition,
    FunctionTable,
)
from qnnmem.qnn.abi import BackendInterface, first_provider
from qnnmem.qnn.codes import code_of
from qnnmem.quiet_onnxruntime import import_onnxruntime

if TYPE_CHECKING:
    import onnx

PROVIDER = "QNNExecutionProvider"
# Severities of ONNX Runtime's session and default loggers. The library uses the session's level,
# but its lines come through the default logger, always with severity verbose.
LOG_LEVELS = {"verbose": (0, 0), "info": (1, 0), "error": (3, 0)}
_CODE = re.compile(r"\bCode: (\d{1,5})\b|error code:? (\d{4,5})\b")
_MOST = 1e300
_EXTERNAL = b"location"  # key of every reference to external data in an ONNX file
_NUMPY = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{
        f"tensor({sign}int{bits})": f"{sign}int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def compile_model(folder: Path, request: CompileRequest) -> CompileReply:
    """Compile a model; return the files written and the nodes that stay on the CPU."""
    settings = session_options(folder, request.settings)
    target = request.output
    for key, value in (
        ("ep.context_enable", "1"),
        ("ep.context_file_path", str(target)),
        ("ep.context_embed_mode", "0"),
        ("session.disable_cpu_ep_fallback", "1" if request.strict else "0"),
        ("session.record_ep_graph_assignment_info", "1"),
    ):
        settings.add_session_config_entry(key, value)
    started = time.perf_counter()
    session = session_of(request.model, request.folder, settings)
    seconds = time.perf_counter() - started
    _quiet()
    on_cpu, on_htp = assignment(session)
    binaries = sorted(target.parent.glob(f"{target.stem}*.bin"))
    epcontext = target if target.is_file() else None
    return CompileReply(binaries, epcontext, on_cpu, on_htp, seconds)


def compare(folder: Path, request: CompareRequest) -> CompareReply:
    """Run a model on the CPU and its EPContext model on HTP; return differences per output.

    Raise Refused: with stage `sample` if the CPU also fails, with stage `run` if only HTP fails.
    """
    onnxruntime = import_onnxruntime()
    both = session_at(request.epcontext, session_options(folder, request.settings))
    _quiet()
    plain = onnxruntime.SessionOptions()
    plain.intra_op_num_threads = 1
    alone = session_of(request.model, request.folder, plain)
    names = [item.name for item in alone.get_outputs()]
    outputs: list[CpuDifference] = []
    for low in (-1, 1):  # some operators have no value below 1
        feeds = {item.name: _sample(item, low) for item in both.get_inputs()}
        on_cpu = _guarded(partial(alone.run, names, feeds), "sample")
        on_htp = _guarded(partial(both.run, names, feeds), "run")
        pairs = zip(names, on_cpu, on_htp, strict=True)
        outputs = [CpuDifference(name, *_difference(cpu, htp)) for name, cpu, htp in pairs]
        if any(output.size for output in outputs):
            break
    return CompareReply(outputs)


def _difference(on_cpu: Any, on_htp: Any) -> tuple[float, float]:
    """Return the largest absolute CPU-HTP difference and the largest absolute CPU value.

    Only elements whose CPU value is finite count.
    """
    import numpy

    cpu, htp = (numpy.asarray(value, "float64") for value in (on_cpu, on_htp))
    if cpu.shape != htp.shape:
        raise Refused("run", f"an output has shape {htp.shape} instead of {cpu.shape}")
    finite = numpy.isfinite(cpu)
    difference = numpy.abs(cpu[finite] - htp[finite])
    # A value that is finite only on the CPU counts as an infinite difference.
    worst = numpy.nan_to_num(difference, nan=_MOST, posinf=_MOST).max(initial=0.0)
    return float(worst), float(numpy.abs(cpu[finite]).max(initial=0.0))


def _sample(item: Any, low: int) -> Any:
    """Return a random input: floats from `low` to `low` + 2, or integers 0 and 1.

    Integers might be indices, for which 0 and 1 are usually valid.
    """
    import numpy

    kind = _NUMPY.get(item.type)
    if kind is None or not all(isinstance(size, int) for size in item.shape):
        raise Refused("sample", f"no values are given for input {item.name} of type {item.type}")
    random = numpy.random.default_rng(0)
    if kind.startswith("float"):
        return random.uniform(low, low + 2, item.shape).astype(kind)
    return random.integers(max(0, low), 2, item.shape).astype(kind)


def session_options(folder: Path, wanted: HtpSettings) -> Any:
    """Return session options with the QNN library of a folder as provider."""
    onnxruntime = import_onnxruntime()
    of_session, of_default = LOG_LEVELS[wanted.log]
    onnxruntime.set_default_logger_severity(of_default)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = of_session
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    onnxruntime.register_execution_provider_library(
        PROVIDER, str(folder / "libonnxruntime_providers_qnn.so")
    )
    devices = [item for item in onnxruntime.get_ep_devices() if item.ep_name == PROVIDER]
    if not devices:
        raise Refused("start", "ONNX Runtime found no device of the QNN provider")
    settings.add_provider_for_devices(devices[:1], _provider_options(folder, wanted))
    return settings


def _provider_options(folder: Path, wanted: HtpSettings) -> dict[str, str]:
    chosen = {
        "backend_path": str(folder / "libQnnHtp.so"),
        "soc_model": str(wanted.soc),
        "enable_htp_fp16_precision": "1",
    }
    if wanted.vtcm_mb is not None:
        chosen["vtcm_mb"] = str(wanted.vtcm_mb)
    if wanted.opt_level is not None:
        chosen["htp_graph_finalization_optimization_mode"] = str(wanted.opt_level)
    if wanted.memhandle:
        chosen["enable_htp_shared_memory_allocator"] = "1"
    return chosen


def session_of(model: Path, folder: Path, settings: Any) -> Any:
    """Return a session made from a model's bytes.

    From a path, ONNX Runtime would name the graph by a hash of the path, which changes the binary.
    Here ONNX Runtime gets bytes, and reads weights from a folder whose path is always the same.
    """
    onnxruntime = import_onnxruntime()
    blob = model.read_bytes()
    if _EXTERNAL in blob:
        os.chdir(folder)
        settings.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", "/proc/self/cwd"
        )
    return _guarded(lambda: onnxruntime.InferenceSession(blob, settings, enable_fallback=0))


def session_at(model: Path, settings: Any) -> Any:
    """Return a session made from a path; an EPContext model names its binary relative to itself."""
    onnxruntime = import_onnxruntime()
    return _guarded(lambda: onnxruntime.InferenceSession(str(model), settings, enable_fallback=0))


def _guarded(work: Any, stage: str = "compile") -> Any:
    try:
        return work()
    except MemoryError:
        raise
    except Exception as exc:  # onnxruntime raises classes of its own and plain RuntimeError
        text = " ".join(str(exc).split())
        match = _CODE.search(text)
        raise Refused(stage, text, int(match[1] or match[2]) if match else None) from exc


def _quiet() -> None:
    """Stop logging, because thousands of irrelevant lines follow a compile."""
    onnxruntime = import_onnxruntime()
    onnxruntime.set_default_logger_severity(4)
    os.write(2, b"[qnnmem] session made\n")


def assignment(session: Any) -> tuple[list[Node], int]:
    """Return the nodes that stay on the CPU, and the number of the other nodes."""
    on_cpu: list[Node] = []
    on_htp = 0
    for part in session.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        if part.ep_name == PROVIDER:
            on_htp += len(nodes)
        else:
            on_cpu += [(node.name, node.op_type) for node in nodes]
    return on_cpu, on_htp


# --- Recording ONNX Runtime while it composes a model for libQnnHtp, without compiling -----------
# The functions of the real library are called as usual: they decide which operators are supported,
# and assign tensor ids. Only the last function, which compiles, is not called.


_FINALIZE = (19, (c_void_p, c_void_p, c_void_p))


def listen(folder: Path, request: ListenRequest) -> ListenReply:
    """Return the graphs that ONNX Runtime composes, and the nodes that it leaves on the CPU.

    If the request has an `output`, the bytes of constants are written to that file.
    """
    target = request.output
    listener = Listener(folder, with_data=target is not None)
    settings = session_options(folder, request.settings)
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = session_of(request.model, request.folder, settings)
    seen = listener.seen
    if seen.failure:
        raise Refused("listen", seen.failure)
    on_cpu, on_htp = assignment(session)
    if target is not None:
        target.write_bytes(seen.data)
    return ListenReply(seen.graphs, seen.shared, on_cpu, on_htp, target)


class Listener:
    """The library's function table with wrappers that record the composed graphs.

    A library is loaded once per process, so later callers get the same table.
    """

    def __init__(self, folder: Path, *, with_data: bool) -> None:
        self.seen = Composition(with_data=with_data)
        library = ctypes.CDLL(str(folder / "libQnnHtp.so"))
        table = first_provider(library, "QnnInterface_getProviders", BackendInterface).table
        self._functions = FunctionTable(table, self.seen)
        real = {
            place: CFUNCTYPE(c_uint64, *kinds)(table[place])
            for place, kinds in (GRAPH_CREATE, ADD_NODE, CONTEXT_TENSOR, GRAPH_TENSOR)
        }
        self._put(GRAPH_CREATE, real, lambda _c, name, _g, out: self.seen.add_graph(out[0], name))
        self._put(ADD_NODE, real, self.seen.add_op)
        self._put(
            CONTEXT_TENSOR, real, lambda _c, tensor: self.seen.add_tensor(None, tensor.contents)
        )
        self._put(GRAPH_TENSOR, real, lambda g, tensor: self.seen.add_tensor(g, tensor.contents))
        self._functions.put(*_FINALIZE, lambda *_: OK)

    def _put(self, entry: tuple[int, tuple[Any, ...]], real: dict[int, Any], note: Any) -> None:
        place, kinds = entry

        def call(*arguments: Any) -> int:
            code = int(real[place](*arguments))
            if not code_of(code):
                note(*arguments)
            return code

        self._functions.put(place, kinds, call)


# --- Quantizing a float model in the way that ONNX Runtime prepares models for QNN ----------------


# Activation and weight types by their names in onnxruntime.quantization.
PRECISIONS = {"int8": ("QUInt8", "QUInt8"), "w8a16": ("QUInt16", "QUInt8")}


def quantize(request: QuantizeRequest) -> QuantizeReply:
    """Write a quantized model with Q and DQ nodes, and return the reply.

    Every shape of the input model must be fixed.
    """
    quantization = import_onnxruntime("quantization")
    for_qnn = import_onnxruntime("quantization.execution_providers.qnn")
    folded = _folded(request)
    source, target = request.scratch / "preprocessed.onnx", request.output
    if not for_qnn.qnn_preprocess_model(folded, source):
        source = folded
    activation, weight = PRECISIONS[request.precision]
    samples = _Samples(source, request)
    config = for_qnn.get_qnn_qdq_config(
        source,
        samples,
        activation_type=quantization.QuantType[activation],
        weight_type=quantization.QuantType[weight],
    )
    quantization.quantize(source, target, config)
    return QuantizeReply(target, samples.count)


def _folded(request: QuantizeRequest) -> Path:
    """Return the model with constants folded, because Q and DQ nodes would block folding later."""
    import onnx

    from qnnmem.loader.onnx.tensor import embed, tensors

    onnxruntime = import_onnxruntime()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = levels.ORT_ENABLE_BASIC
    target = request.scratch / "folded.onnx"
    settings.optimized_model_filepath = str(target)
    settings.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(request.folder)
    )
    blob = request.model.read_bytes()
    onnxruntime.InferenceSession(blob, settings, providers=["CPUExecutionProvider"])
    model = onnx.load(target, load_external_data=False)
    # Weights that were not folded still refer to files in the user's model folder.
    for tensor in tensors(model):
        embed(request.folder / target.name, tensor)
    # The preprocessing of ONNX Runtime 1.31 fails on any model with metadata.
    del model.metadata_props[:]
    _check_float(model)
    onnx.save(model, target)
    return target


def _check_float(model: onnx.ModelProto) -> None:
    quantized = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"}
    if any(node.op_type in quantized for node in model.graph.node):
        raise Refused("quantize", "the model is already quantized; compile it with precision fp16")


class _Samples:
    """A calibration data reader in the form that ONNX Runtime requires."""

    def __init__(self, model: Path, request: QuantizeRequest) -> None:
        self.count = 0
        self._feeds = self._read(list(model_inputs(model)), request)

    def _read(self, inputs: list[Input], request: QuantizeRequest) -> Iterator[dict[str, Any]]:
        if request.calibration is None and request.files is None:
            for number in range(request.samples):
                self.count += 1
                yield random_sample(inputs, request.seed, number)
            return
        samples = request.files or ()
        if request.calibration is not None:  # else another machine has found them already
            samples = find_samples(request.calibration, inputs, request.here or Path())
        for sample in samples:
            self.count += 1
            yield read_sample(sample, inputs)

    def get_next(self) -> dict[str, Any] | None:
        """Return one sample, or None after the last."""
        return next(self._feeds, None)

    def rewind(self) -> None:
        """Do nothing; required by the interface, but there is only one pass."""

    def set_range(self, start_index: int, end_index: int) -> None:
        """Do nothing; required by the interface for strides, which are not used."""

    def __len__(self) -> int:
        return self.count


def model_inputs(path: Path) -> Iterator[Input]:
    """Yield the inputs of a model with fixed shapes."""
    import onnx
    from onnx import helper

    from qnnmem.loader.onnx.inputs import index_limits

    graph = onnx.load(path, load_external_data=False).graph
    rows = index_limits(graph)
    constants = {item.name for item in graph.initializer}
    for item in graph.input:
        if item.name not in constants:
            kind = item.type.tensor_type
            shape = tuple(size.dim_value for size in kind.shape.dim)
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
            yield Input(item.name, dtype, shape, below=rows.get(item.name))
