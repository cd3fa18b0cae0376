"""Child program that runs foreign C++ code (inliner, shape inference, onnxruntime) on one model.

The parent never runs such code itself: a hostile model can crash it, hang it or make it eat
memory. Here that costs one limited process. Requests and replies are frames on stdin and stdout:
two lengths, a JSON header, a binary payload. What a reply may hold, the request says (`most`).
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from qnnmem.child import serve
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import quote, sentence

if TYPE_CHECKING:
    import numpy

# What inputs hold when only their sizes are tried: what fails alike with all fails by its sizes.
TRIES = ("random", "zeros", "ones")
# Shapes measured with these inputs must agree; the first run that succeeds names them.
RUNS = ("random", "other", "zeros")

_KEPT: dict[str, Any] = {}  # the session between requests
_LONGEST_FAILURE = 4000  # characters

TYPE_NAMES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{
        f"tensor({sign}int{bits})": f"{sign}int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def inline(_options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Replace the calls of the model's own functions by their nodes."""
    import onnx
    import onnx.inliner

    model = onnx.inliner.inline_local_functions(onnx.ModelProto.FromString(payload))
    return {}, bytes(model.SerializeToString())


def infer(_options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Find value infos by shape inference; they come in a graph."""
    import onnx
    import onnx.shape_inference

    model = onnx.ModelProto.FromString(payload)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True)
    found = onnx.GraphProto()
    found.value_info.extend(inferred.graph.value_info)
    found.value_info.extend(inferred.graph.output)
    return {}, bytes(found.SerializeToString())


def run(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Run the model: per run one tensor per fetched name, and the outputs' types."""
    levels = import_onnxruntime().GraphOptimizationLevel
    reasons = []
    # Basic folding removes whatever a shape does not really depend on, but rarely breaks a graph.
    for level in (levels.ORT_ENABLE_BASIC, levels.ORT_DISABLE_ALL):
        try:
            session = _session(payload, options["folder"], level)
            runs = _runs(session, options)
        except MemoryError:
            raise
        except Exception as exc:  # onnxruntime raises classes of its own and plain RuntimeError
            reasons.append(sentence(exc))
            continue
        types = {output.name: output.type for output in session.get_outputs()}
        return {"types": types}, _packed([v for run in runs for v in run], options["most"])
    raise RuntimeError(reasons[-1])


def fold(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Values of constants, by the nodes as they are; inputs are zero, only their shape matters."""
    import numpy

    level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    session = _session(payload, options["folder"], level, threads=1)
    feeds = {name: numpy.zeros(shape, dtype) for name, dtype, shape in options["inputs"]}
    return {}, _packed(session.run(options["fetch"], feeds), options["most"])


def optimise(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Give the model as execution providers get it: constants and constant branches folded."""
    import tempfile
    from pathlib import Path

    level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "optimised.onnx")
        _session(payload, options["folder"], level, save=str(target))
        return {}, target.read_bytes()


def open_session(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Keep a model open for `attempt`; its inputs may leave sizes open."""
    onnxruntime = import_onnxruntime()
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Shapes are asked as soon as a tensor is there, so that none lives longer for it.
    order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    _KEPT["session"] = _session(payload, options["folder"], level, order=order)
    return {}, b""


def attempt(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Run the kept model with inputs of some sizes: why each try fails, or the watched shapes."""
    import onnx
    from onnx import numpy_helper

    given = onnx.GraphProto.FromString(payload).initializer
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in given}
    failures = []
    for kind in options["tries"]:
        feeds = values | {name: _feed(kind, *rest) for name, *rest in options["inputs"]}
        try:
            values = _KEPT["session"].run(None, feeds)
        except MemoryError:
            raise
        except Exception as exc:  # onnxruntime raises classes of its own and plain RuntimeError
            failures.append(str(exc)[:_LONGEST_FAILURE])
        else:
            shapes = [value.tolist() for value in values[len(values) - options["watched"] :]]
            return {"failures": [], "shapes": shapes}, b""
    return {"failures": failures}, b""


def _packed(values: list[Any], most: int) -> bytes:
    """Values as the initializers of a graph; refused when they are more than was asked for."""
    import numpy
    import onnx
    from onnx import numpy_helper

    odd = next((value for value in values if not isinstance(value, numpy.ndarray)), None)
    if odd is not None:
        raise TypeError(f"a value is {quote(odd)}, not a tensor")
    size = sum(value.nbytes for value in values)
    if size > most:
        raise ValueError(f"values take {size:,} bytes, more than the {most:,} handled")
    graph = onnx.GraphProto()
    graph.initializer.extend(numpy_helper.from_array(value) for value in values)
    return bytes(graph.SerializeToString())


def order(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Run the model as it is until it succeeds: the order of its nodes, the shapes it gives."""
    import tempfile
    from pathlib import Path

    from onnx import helper

    onnxruntime = import_onnxruntime()
    with tempfile.TemporaryDirectory() as folder:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(folder, "order"))
        session = onnxruntime.InferenceSession(
            payload, settings, providers=["CPUExecutionProvider"]
        )
        inputs = [
            [name, helper.tensor_dtype_to_np_dtype(element).name, shape]
            for name, element, shape in options["inputs"]
        ]
        for kind in RUNS:
            try:
                values = session.run(None, {name: _feed(kind, *rest) for name, *rest in inputs})
                break
            except Exception as exc:  # as above
                failure = exc
        else:
            return {"order": [], "shapes": {}, "failure": sentence(failure)}, b""
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    ending = "_kernel_time"
    ran = sorted((e["ts"], at) for at, e in enumerate(events) if e["name"].endswith(ending))
    names = [output.name for output in session.get_outputs()]
    shapes = {name: list(value.shape) for name, value in zip(names, values, strict=True)}
    return {
        "order": [events[at]["name"].removesuffix(ending) for _, at in ran],
        "shapes": shapes,
    }, b""


def _runs(session: Any, options: dict[str, Any]) -> list[list[Any]]:
    """Collect fetched values; runs that fail on made-up inputs do not count if one succeeds."""
    runs, failure = [], None
    for kind in RUNS[: options["runs"]]:
        feeds = {name: _feed(kind, dtype, shape) for name, dtype, shape in options["inputs"]}
        try:
            runs.append(session.run(options["fetch"], feeds))
        except Exception as exc:  # as above
            failure = failure or exc
    if not runs and failure is not None:
        raise failure
    return runs


def _session(
    payload: bytes, folder: str, level: Any, threads: int = 2, order: Any = None, save: str = ""
) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Arenas keep freed memory; the process has a limit to live within.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.graph_optimization_level = level
    if order is not None:
        options.execution_order = order
    if save:
        options.optimized_model_filepath = save
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return onnxruntime.InferenceSession(payload, options, providers=["CPUExecutionProvider"])


def _feed(kind: str, dtype: str, shape: list[int]) -> numpy.ndarray[Any, Any]:
    import numpy

    if kind in ("zeros", "ones"):
        return numpy.full(shape, int(kind == "ones"), dtype)
    random = numpy.random.default_rng(RUNS.index(kind))
    if dtype.startswith("float"):
        return random.random(shape).astype(dtype)
    # Small numbers are valid indices, lengths and token ids in nearly every model.
    return random.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype)


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    verbs = {"inline": inline, "infer": infer, "run": run, "fold": fold, "order": order}
    return serve(verbs | {"open": open_session, "attempt": attempt, "optimise": optimise})


if __name__ == "__main__":
    sys.exit(main())
