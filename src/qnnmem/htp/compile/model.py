"""The model that is compiled, as a file for the library; why a file cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from qnnmem.deadline import Deadline
from qnnmem.errors import LoadError, OutOfTime, Setting, UsageError
from qnnmem.htp.compile.compiled import CompileOptions, HtpPrecision
from qnnmem.htp.requests import OWN_MARK
from qnnmem.htp.worker import RequestOutcome
from qnnmem.loader.dlc.composed import abort_reason

_LEAST_S = 0.01  # a limit of none at all would mean none


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model file for the child, and the folder of its external data."""

    path: Path  # what the user named
    model: Path
    folder: Path
    options: CompileOptions = field(default_factory=CompileOptions)
    scratch: Path | None = None  # None: shapes are fixed already
    deadline: Deadline | None = None

    def fixed(self) -> ModelSource:
        """The same model with every shape fixed."""
        if self.scratch is None:
            return self
        from qnnmem.loader.onnx import executable

        wanted = self.options
        ends = self.deadline or Deadline.after(wanted.time_limit_s)
        try:
            model = executable(
                self.path,
                dims=wanted.dims,
                shapes=wanted.shapes,
                values=wanted.values,
                time_limit_s=max(_LEAST_S, ends.left_s),
            )
        except OutOfTime as exc:
            raise reading_took_too_long(exc, ends) from exc
        target = self.scratch / "fixed.onnx"
        target.write_bytes(model.SerializeToString(deterministic=True))
        return ModelSource(self.path, target, self.folder)


def reading_took_too_long(exc: OutOfTime, ends: Deadline) -> OutOfTime:
    """The same error in terms of the limit that the user gave."""
    what = f"its shapes were not known within {ends.limit_s:g} s"
    cure = ("give more time with ", Setting("time_limit_s"), ", or fix more shapes by hand")
    return OutOfTime(exc.path, what, cure=cure)


def is_composed(path: Path) -> bool:
    """Whether a file holds graphs of QNN already, which go into the library as they are."""
    from qnnmem.loader.file_kind import kind_of_file

    return kind_of_file(path).name == "dlc"


def check_composed(path: Path, options: CompileOptions) -> None:
    """Refuse what can only be done to an ONNX model."""
    asked = (
        *(("dims", options.dims), ("shapes", options.shapes), ("values", options.values)),
        *(("calibration", options.calibration), ("partition", options.partition)),
    )
    kind = "a model library" if options.trust else "a DLC"
    for name, given in asked:
        if given:
            raise UsageError((f"{path} is {kind}; ", Setting(name), " is for ONNX models"))
    if options.precision is not HtpPrecision.FP16:
        what = f"{path} is {kind}, which is compiled as it is; "
        word = Setting("precision", options.precision.value)
        raise UsageError((what, word, " is for ONNX models"))


def model_source(
    path: Path, options: CompileOptions, scratch: Path, deadline: Deadline | None = None
) -> ModelSource:
    """The file itself where its inputs are fixed already, which saves a trial run."""
    source = ModelSource(path, path, path.absolute().parent, options, scratch, deadline)
    if options.dims or options.shapes or options.values or not _is_static(path):
        return source.fixed()
    return source


def _is_static(path: Path) -> bool:
    from qnnmem.loader.onnx import read_guarded

    model = read_guarded(path).proto
    constants = {item.name for item in model.graph.initializer}
    inputs = [item for item in model.graph.input if item.name not in constants]
    # Of a sequence or a map there is nothing to fix; the library says which node cannot have it.
    tensors = [item.type.tensor_type for item in inputs if item.type.HasField("tensor_type")]
    return not model.functions and all(
        tensor.HasField("shape") and all(size.dim_value > 0 for size in tensor.shape.dim)
        for tensor in tensors
    )


_COMPOSING, _COMPOSED = f"{OWN_MARK} composing", f"{OWN_MARK} composed"


def check_read(path: Path, outcome: RequestOutcome, *, trusted: bool = False) -> None:
    """Raises LoadError where the file itself is the reason that there is no binary.

    A `trusted` one is a library, which is not read but executed.
    """
    if outcome.kind == "refused" and outcome.stage == "read":
        who = "" if trusted else "the vendor's reader does not take it: "
        raise LoadError(path, f"{who}{outcome.sentence}")
    marks = {line.text for line in outcome.log}
    if outcome.kind == "crashed" and _COMPOSING in marks and _COMPOSED not in marks:
        said = abort_reason("\n".join(outcome.tail))
        raise LoadError(path, "its code crashed" if trusted else said)
