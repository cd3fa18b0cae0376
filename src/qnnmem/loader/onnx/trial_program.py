"""The child program that runs foreign C++ code (inliner, shape inference, onnxruntime).

The parent never runs such code: a hostile model can crash it, hang it or exhaust memory. Here that
ends only one limited process. The payload of a request is a serialized model, and so is that of
most replies. `most` limits the bytes of values in a reply.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from qnnmem.child import serve
from qnnmem.quiet_onnxruntime import exact_session, import_onnxruntime, optimised_model
from qnnmem.text import quote, sentence
from qnnmem.wire import Done, Frame, WireMessage

if TYPE_CHECKING:
    import numpy

# Data for inputs if only sizes are tried: a failure with all kinds of data is caused by sizes.
TRIES = ("random", "zeros", "ones")
# Shapes measured with these inputs must agree; the first successful run gives the shapes.
RUNS = ("random", "other", "zeros")

_KEPT: dict[str, Any] = {}  # the open session between requests
_LONGEST_FAILURE = 4000  # characters
_THREADS = 2  # used if only shapes matter, as the last bits of results may differ

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


class TrialInput(NamedTuple):
    """An input to fill with random values: its NumPy type and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Inline(WireMessage, frozen=True):
    """A request to replace the calls of the model's own functions by their nodes."""

    doing: ClassVar[str] = "inlining functions"


class Infer(WireMessage, frozen=True):
    """A request for the value infos that shape inference finds."""

    doing: ClassVar[str] = "shape inference"


class Fold(WireMessage, frozen=True):
    """A request to compute constants without optimisation; only the shapes of inputs matter."""

    doing: ClassVar[str] = "computing constants"
    folder: Path | None  # folder of external data
    inputs: list[TrialInput]
    fetch: list[str]
    most: int


class Run(Fold, frozen=True):
    """A request to run the model several times with random inputs, and to return tensors."""

    doing: ClassVar[str] = "a trial run"
    runs: int


class OutputTypes(WireMessage, frozen=True):
    """onnxruntime's type of each output; the payload has the fetched tensors of all runs."""

    types: dict[str, str]


class OptimiseBasic(WireMessage, frozen=True):
    """A request to apply the optimisations that precede the choice of execution providers."""

    doing: ClassVar[str] = "folding constants"
    folder: Path


class Order(WireMessage, frozen=True):
    """A request for the node order of a successful run; inputs have ONNX's element type numbers."""

    doing: ClassVar[str] = "a trial run"
    inputs: list[tuple[str, int, tuple[int, ...]]]


class NodeOrder(WireMessage, frozen=True):
    """Node names in execution order, with all output shapes; or why every run failed."""

    names: list[str]
    shapes: dict[str, tuple[int, ...]]
    failure: str = ""


class Open(WireMessage, frozen=True):
    """A request to open the model for `AttemptRun`; the model's inputs may have open sizes."""

    doing: ClassVar[str] = "opening the model"
    folder: Path


class AttemptRun(WireMessage, frozen=True):
    """A request to run the opened model on one kind of data after another until a run succeeds.

    The model's last `watched` outputs are shapes, which the reply contains.
    """

    doing: ClassVar[str] = "a trial run"
    inputs: list[TrialInput]
    tries: list[str]
    watched: int


class Attempted(WireMessage, frozen=True):
    """The shapes from the first successful run, or the reason why each run failed."""

    failures: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()


def inline(_request: Inline, payload: bytes) -> Frame[Done]:
    """Return the model with calls to its own functions replaced by the functions' nodes."""
    import onnx
    import onnx.inliner

    model = onnx.inliner.inline_local_functions(onnx.ModelProto.FromString(payload))
    return Done(), bytes(model.SerializeToString())


def infer(_request: Infer, payload: bytes) -> Frame[Done]:
    """Return a graph with the value infos that shape inference finds."""
    import onnx
    import onnx.shape_inference

    model = onnx.ModelProto.FromString(payload)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True)
    graph = onnx.GraphProto()
    graph.value_info.extend(inferred.graph.value_info)
    graph.value_info.extend(inferred.graph.output)
    return Done(), bytes(graph.SerializeToString())


def run(request: Run, payload: bytes) -> Frame[OutputTypes]:
    """Return one tensor per run and fetched name, and the types of the model's outputs."""
    levels = import_onnxruntime().GraphOptimizationLevel
    reasons = []
    # Basic folding removes false dependencies of shapes and rarely breaks a graph.
    for level in (levels.ORT_ENABLE_BASIC, levels.ORT_DISABLE_ALL):
        try:
            session = exact_session(
                payload,
                folder=request.folder,
                graph_optimization_level=level,
                intra_op_num_threads=_THREADS,
            )
            runs = _runs(session, request)
        except MemoryError:
            raise
        except Exception as exc:  # onnxruntime raises its own classes and plain RuntimeError
            reasons.append(sentence(exc))
            continue
        types = {output.name: output.type for output in session.get_outputs()}
        return OutputTypes(types), _packed([v for run in runs for v in run], request.most)
    raise RuntimeError(reasons[-1])


def fold(request: Fold, payload: bytes) -> Frame[Done]:
    """Return the values of constants, computed without optimisation; inputs are zero."""
    import numpy

    session = exact_session(payload, folder=request.folder)
    feeds = {item.name: numpy.zeros(item.shape, item.dtype) for item in request.inputs}
    return Done(), _packed(session.run(request.fetch, feeds), request.most)


def optimise(request: OptimiseBasic, payload: bytes) -> Frame[Done]:
    """Return the model that execution providers receive, with constants and branches folded."""
    return Done(), optimised_model(payload, folder=request.folder)


def open_session(request: Open, payload: bytes) -> Done:
    """Open a model for later calls of `attempt`."""
    # Shapes are read as soon as a tensor exists, so that no tensor lives longer.
    order = import_onnxruntime().ExecutionOrder.PRIORITY_BASED
    _KEPT["session"] = exact_session(
        payload, folder=request.folder, execution_order=order, intra_op_num_threads=_THREADS
    )
    return Done()


def attempt(request: AttemptRun, payload: bytes) -> Attempted:
    """Return the shapes from the first successful run, or why every kind of data fails."""
    import onnx
    from onnx import numpy_helper

    tensors = onnx.GraphProto.FromString(payload).initializer
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
    failures = []
    for kind in request.tries:
        feeds = values | {item.name: _feed(kind, item) for item in request.inputs}
        try:
            results = _KEPT["session"].run(None, feeds)
        except MemoryError:
            raise
        except Exception as exc:  # onnxruntime raises its own classes and plain RuntimeError
            failures.append(str(exc)[:_LONGEST_FAILURE])
        else:
            watched = results[len(results) - request.watched :]
            return Attempted((), tuple(tuple(shape.tolist()) for shape in watched))
    return Attempted(tuple(failures))


def _packed(values: list[Any], most: int) -> bytes:
    """Return values as initializers of a graph; raise ValueError for more than `most` bytes."""
    import numpy
    import onnx
    from onnx import numpy_helper

    for value in values:
        if not isinstance(value, numpy.ndarray):
            raise TypeError(f"a value is {quote(value)}, not a tensor")
    size = sum(value.nbytes for value in values)
    if size > most:
        raise ValueError(f"the values take {size:,} bytes, over the limit of {most:,}")
    graph = onnx.GraphProto()
    graph.initializer.extend(numpy_helper.from_array(value) for value in values)
    return bytes(graph.SerializeToString())


def order(request: Order, payload: bytes) -> NodeOrder:
    """Return node order and output shapes of the first successful run, without optimisation."""
    import tempfile

    from onnx import helper

    with tempfile.TemporaryDirectory() as folder:
        session = exact_session(
            payload,
            execution_order=import_onnxruntime().ExecutionOrder.PRIORITY_BASED,
            enable_profiling=True,
            profile_file_prefix=str(Path(folder, "order")),
        )
        inputs = [
            TrialInput(name, helper.tensor_dtype_to_np_dtype(element).name, shape)
            for name, element, shape in request.inputs
        ]
        for kind in RUNS:
            try:
                values = session.run(None, {item.name: _feed(kind, item) for item in inputs})
                break
            except Exception as exc:  # as above
                failure = exc
        else:
            return NodeOrder([], {}, sentence(failure))
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    suffix = "_kernel_time"
    kernels = [event for event in events if event["name"].endswith(suffix)]
    kernels.sort(key=lambda event: event["ts"])
    names = [output.name for output in session.get_outputs()]
    shapes = {name: value.shape for name, value in zip(names, values, strict=True)}
    return NodeOrder([event["name"].removesuffix(suffix) for event in kernels], shapes)


def _runs(session: Any, request: Run) -> list[list[Any]]:
    """Return the fetched values of each run; failed runs are ignored if one succeeds."""
    runs, failure = [], None
    for kind in RUNS[: request.runs]:
        feeds = {item.name: _feed(kind, item) for item in request.inputs}
        try:
            runs.append(session.run(request.fetch, feeds))
        except Exception as exc:  # as above
            failure = failure or exc
    if not runs and failure is not None:
        raise failure
    return runs


def _feed(kind: str, item: TrialInput) -> numpy.ndarray[Any, Any]:
    import numpy

    _, dtype, shape = item
    if kind in ("zeros", "ones"):
        return numpy.full(shape, int(kind == "ones"), dtype)
    random = numpy.random.default_rng(RUNS.index(kind))
    if dtype.startswith("float"):
        return random.random(shape).astype(dtype)
    # Small numbers are valid indices, lengths and token ids in nearly every model.
    return random.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype)


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    return serve(
        {
            Inline: inline,
            Infer: infer,
            Run: run,
            Fold: fold,
            OptimiseBasic: optimise,
            Order: order,
            Open: open_session,
            AttemptRun: attempt,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
