"""The parent's end of the pipe to the child program, with its limits on time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qnnmem.child import REPLY_LIMIT, ChildProcess
from qnnmem.errors import ChildFailed, ChildLost, LoadError, OutOfTime
from qnnmem.loader.onnx.trial.program import (
    TRIES,
    Attempted,
    AttemptRun,
    Fold,
    Infer,
    Inline,
    NodeOrder,
    Open,
    OptimiseBasic,
    Order,
    OutputTypes,
    Run,
    TrialInput,
)
from qnnmem.loader.onnx.wire import check_wire
from qnnmem.wire import Done, Frame, WireMessage

if TYPE_CHECKING:
    import onnx


# Of constants that are computed: real models have kilobytes, a few nodes can ask for terabytes.
MAX_COMPUTED = 256 << 20
T = TypeVar("T", bound=WireMessage)


class RunRequest(NamedTuple):
    """What to run, names to fetch, how many runs."""

    model: onnx.ModelProto
    inputs: Sequence[TrialInput]
    fetch: Sequence[str]
    runs: int


class RunResult(NamedTuple):
    """Per successful run the fetched tensors in order, and the type of each model output."""

    values: list[list[onnx.TensorProto]]
    types: Mapping[str, str]


class TrialChild(ChildProcess):
    """A limited process for one model; starts at once so that it imports while we parse."""

    def __init__(self, path: Path, time_limit_s: float) -> None:
        super().__init__("qnnmem.loader.onnx.trial.program", time_limit_s)
        self._path = path

    def inline(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Model with its own functions inlined."""
        import onnx

        _, reply = self._ask(Inline(), Done, model.SerializeToString())
        check_wire(self._path, reply)  # calls of calls of calls can be more than any file holds
        inlined: onnx.ModelProto = _parse(onnx.ModelProto(), reply)
        return inlined

    def optimise(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Model after the optimisations that come before any execution provider."""
        import onnx

        request = OptimiseBasic(self._path.parent.resolve())
        _, reply = self._ask(request, Done, model.SerializeToString(), MAX_COMPUTED)
        check_wire(self._path, reply)
        folded: onnx.ModelProto = _parse(onnx.ModelProto(), reply)
        return folded

    def infer(self, model: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
        """Types that shape inference finds."""
        import onnx

        _, reply = self._ask(Infer(), Done, model.SerializeToString())
        graph: onnx.GraphProto = _parse(onnx.GraphProto(), reply)
        return list(graph.value_info)

    def run(self, request: RunRequest) -> RunResult:
        """Run a model and fetch tensors."""
        import onnx

        folder = self._path.parent.resolve()
        inputs, fetch = list(request.inputs), list(request.fetch)
        asked = Run(folder, inputs, fetch, request.runs, MAX_COMPUTED)
        blob = request.model.SerializeToString()
        outputs, reply = self._ask(asked, OutputTypes, blob, MAX_COMPUTED)
        found = list(_parse(onnx.GraphProto(), reply).initializer)
        width = len(request.fetch)
        runs = [found[start : start + width] for start in range(0, len(found), width)]
        return RunResult(runs, outputs.types)

    def fold(self, request: RunRequest, folder: Path | None) -> list[onnx.TensorProto]:
        """Values of constants in order, computed without any optimisation.

        Inputs are those of which only the shape is asked; `folder` holds external data.
        """
        import onnx

        where = None if folder is None else folder.resolve()
        asked = Fold(where, list(request.inputs), list(request.fetch), MAX_COMPUTED)
        _, reply = self._ask(asked, Done, request.model.SerializeToString(), MAX_COMPUTED)
        return list(_parse(onnx.GraphProto(), reply).initializer)

    def order(
        self, model: onnx.ModelProto, inputs: Sequence[tuple[str, int, tuple[int, ...]]]
    ) -> NodeOrder:
        """The order that onnxruntime runs the nodes in; opening the model must not fail."""
        return self._ask(Order(list(inputs)), NodeOrder, model.SerializeToString())[0]

    def open(self, model: onnx.ModelProto) -> None:
        """Open a model for `attempt`."""
        self._ask(Open(self._path.parent.resolve()), Done, model.SerializeToString())

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
        return self._ask(AttemptRun(list(inputs), list(tries), watched), Attempted, given)[0]

    def _ask(
        self, request: WireMessage, kind: type[T], payload: bytes, values: int = 0
    ) -> Frame[T]:
        """Answer that holds at most `values` bytes of values beside what describes a model."""
        try:
            return self.ask(request, kind, payload, len(payload) + values + REPLY_LIMIT)
        except ChildLost as lost:
            if self.expired:
                raise OutOfTime(self._path, str(lost), cure="fix more shapes by hand") from lost
            reason = (
                "an operator that onnxruntime cannot run, large shapes and damage are usual reasons"
            )
            raise LoadError(self._path, f"{lost}; {reason}") from lost


def _parse(message: Any, blob: bytes) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    try:
        message.ParseFromString(blob)
    except DecodeError as exc:
        raise ChildFailed("an unreadable reply") from exc
    return message
