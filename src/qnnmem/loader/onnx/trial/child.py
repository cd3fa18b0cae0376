"""The parent's end of the pipe to the child program, with its limits on time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.child import REPLY_LIMIT, ChildProcess, Frame, describe_limit
from qnnmem.errors import ChildFailed, LoadError, OutOfTime
from qnnmem.loader.onnx.trial.program import TRIES
from qnnmem.loader.onnx.wire import check_wire

if TYPE_CHECKING:
    import onnx


# Of constants that are computed: real models have kilobytes, a few nodes can ask for terabytes.
MAX_COMPUTED = 256 << 20
_DOING = {
    "inline": "inlining functions",
    "infer": "shape inference",
    "run": "a trial run",
    "fold": "computing constants",
    "order": "a trial run",
    "open": "opening the model",
    "attempt": "a trial run",
    "optimise": "folding constants",
}


class TrialInput(NamedTuple):
    """An input of a trial run that is filled with made-up values."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class RunRequest(NamedTuple):
    """What to run: inputs as (name, numpy dtype, shape), names to fetch, how many runs."""

    model: onnx.ModelProto
    inputs: Sequence[tuple[str, str, tuple[int, ...]]]
    fetch: Sequence[str]
    runs: int


class RunResult(NamedTuple):
    """Per successful run the fetched tensors in order, and the type of each model output."""

    values: list[list[onnx.TensorProto]]
    types: Mapping[str, str]


class NodeOrder(NamedTuple):
    """Names of nodes in the order they ran, shapes of outputs, or why every run failed."""

    names: Sequence[str]
    shapes: Mapping[str, tuple[int, ...]]
    failure: str = ""

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> NodeOrder:
        """What the child's answer says."""
        shapes = {name: tuple(shape) for name, shape in header["shapes"].items()}
        return cls(list(header["order"]), shapes, str(header.get("failure", "")))


class Attempted(NamedTuple):
    """Why each try failed, or the shapes that were watched when one did not."""

    failures: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()


class TrialChild(ChildProcess):
    """A limited process for one model; starts at once so that it imports while we parse."""

    def __init__(self, path: Path, time_limit_s: float) -> None:
        super().__init__("qnnmem.loader.onnx.trial.program", time_limit_s)
        self._path = path

    def inline(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Model with its own functions inlined."""
        import onnx

        _, reply = self._ask({"verb": "inline"}, model.SerializeToString())
        check_wire(self._path, reply)  # calls of calls of calls can be more than any file holds
        inlined: onnx.ModelProto = _parse(onnx.ModelProto(), reply)
        return inlined

    def optimise(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Model after the optimisations that come before any execution provider."""
        import onnx

        options = {"verb": "optimise", "folder": str(self._path.parent.resolve())}
        _, reply = self._ask(options, model.SerializeToString(), MAX_COMPUTED)
        check_wire(self._path, reply)
        folded: onnx.ModelProto = _parse(onnx.ModelProto(), reply)
        return folded

    def infer(self, model: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
        """Types that shape inference finds."""
        import onnx

        _, reply = self._ask({"verb": "infer"}, model.SerializeToString())
        graph: onnx.GraphProto = _parse(onnx.GraphProto(), reply)
        return list(graph.value_info)

    def run(self, request: RunRequest) -> RunResult:
        """Run a model and fetch tensors."""
        import onnx

        options = {
            "verb": "run",
            "folder": str(self._path.parent.resolve()),
            "inputs": [list(item) for item in request.inputs],
            "fetch": list(request.fetch),
            "runs": request.runs,
            "most": MAX_COMPUTED,
        }
        header, reply = self._ask(options, request.model.SerializeToString(), MAX_COMPUTED)
        found = list(_parse(onnx.GraphProto(), reply).initializer)
        width = len(request.fetch)
        runs = [found[start : start + width] for start in range(0, len(found), width)]
        return RunResult(runs, header["types"])

    def fold(self, request: RunRequest, folder: Path | None) -> list[onnx.TensorProto]:
        """Values of constants in order, computed without any optimisation.

        Inputs are those of which only the shape is asked; `folder` holds external data.
        """
        import onnx

        options = {
            "verb": "fold",
            "folder": "" if folder is None else str(folder.resolve()),
            "inputs": [list(item) for item in request.inputs],
            "fetch": list(request.fetch),
            "most": MAX_COMPUTED,
        }
        _, reply = self._ask(options, request.model.SerializeToString(), MAX_COMPUTED)
        return list(_parse(onnx.GraphProto(), reply).initializer)

    def order(
        self, model: onnx.ModelProto, inputs: Sequence[tuple[str, int, tuple[int, ...]]]
    ) -> NodeOrder:
        """The order that onnxruntime runs the nodes in; opening the model must not fail."""
        options = {"verb": "order", "inputs": [list(item) for item in inputs]}
        header, _ = self._ask(options, model.SerializeToString())
        return NodeOrder.of(header)

    def open(self, model: onnx.ModelProto) -> None:
        """Open a model for `attempt`."""
        folder = str(self._path.parent.resolve())
        self._ask({"verb": "open", "folder": folder}, model.SerializeToString())

    def attempt(
        self,
        inputs: Sequence[TrialInput],
        values: Sequence[onnx.TensorProto],
        *,
        thorough: bool,
        watched: int = 0,
    ) -> Attempted:
        """Run the open model with made-up and given values; its last outputs are shapes."""
        import onnx

        given = onnx.GraphProto(initializer=values).SerializeToString()
        # Floats fail by their sizes; integers may be indices that are out of range.
        quick = 1 if all(item.dtype.startswith("float") for item in inputs) else 2
        tries = TRIES if thorough else TRIES[:quick]
        rows = [list(item) for item in inputs]
        options = {"verb": "attempt", "inputs": rows, "tries": list(tries), "watched": watched}
        header, _ = self._ask(options, given)
        shapes = tuple(tuple(map(int, shape)) for shape in header.get("shapes", ()))
        return Attempted(tuple(map(str, header["failures"])), shapes)

    def _ask(self, options: dict[str, Any], payload: bytes, values: int = 0) -> Frame:
        """Answer that holds at most `values` bytes of values beside what describes a model."""
        frame = self.ask(options, payload, len(payload) + values + REPLY_LIMIT)
        if frame is None:
            raise self._dead(options["verb"])
        if "error" in frame[0]:
            raise ChildFailed(str(frame[0]["error"]))
        return frame

    def _dead(self, verb: str) -> LoadError:
        if self.expired:
            reason = f"did not finish within {self.time_limit_s:.3g} s"
            return OutOfTime(self._path, f"{_DOING[verb]} {reason}", cure="fix more shapes by hand")
        reason = (
            f"crashed or ran out of memory, {describe_limit(self.memory_limit)}; "
            "an operator that onnxruntime cannot run, large shapes and damage are usual reasons"
        )
        return LoadError(self._path, f"{_DOING[verb]} {reason}")


def _parse(message: Any, blob: bytes) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    try:
        message.ParseFromString(blob)
    except DecodeError as exc:
        raise ChildFailed("an unreadable reply") from exc
    return message
