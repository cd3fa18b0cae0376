"""Sizes tried on a model: onnxruntime runs it with them, and the passes shape it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError, OutOfTime, UsageError
from qnnmem.ir.model import DType, Tensor
from qnnmem.loader.onnx.inputs import Fixed, dims_of, fix_inputs
from qnnmem.loader.onnx.passes.fold import fold
from qnnmem.loader.onnx.passes.resolve import OpenModel, resolve
from qnnmem.loader.onnx.passes.shape import ShapedModel, shape
from qnnmem.loader.onnx.refusal import DependentShapes
from qnnmem.loader.onnx.tensor import OnnxType, type_of, value_info
from qnnmem.loader.onnx.trial.child import TrialChild
from qnnmem.loader.onnx.trial.program import TrialInput
from qnnmem.loader.onnx.trial.questions import NUMPY
from qnnmem.text import printable, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    import onnx

# A larger model or larger inputs take too long to send to the child and to run.
MAX_TRIED_BYTES = 512 << 20
_INT64 = 7
_MOST = 80  # attempts
_SECONDS = 12.0
_ROUNDS = 32  # rounds for tensors whose shapes depend on data, each after the previous ones
_LONGEST = 200  # characters of a reason
_NODE = re.compile(r"while running (\S+) node\. Name:'(.*?)' Status Message: ", re.S)
_SOURCE = re.compile(r"^\S+\.(?:h|cc):\d+ (?:[^()]*\([^()]*\)(?: const)? |\w+ )?")


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a model does not run, and whether the reason is the same for all data."""

    text: str
    is_steady: bool

    @property
    def numbers(self) -> list[int]:
        """Return the numbers in the reason; they often include a size that fits."""
        found = (int(word) for word in re.findall(r"(?<![\w.])\d{1,6}(?![\w.])", self.text))
        return list(dict.fromkeys(number for number in found if number > 0))


def shape_model(model: OpenModel, fixed: Fixed, child: TrialChild) -> ShapedModel:
    """All passes from an open model to one with a type for every tensor."""
    return shape(fold(resolve(model, fixed), child), child)


def with_all_dependent(
    model: OpenModel, fixed: Fixed, child: TrialChild, error: LoadError
) -> LoadError:
    """Return the error with every data-dependent shape, not only the first ones."""
    if not isinstance(error, DependentShapes):
        return error
    found = error
    for _ in range(_ROUNDS):
        # The largest shapes are not known yet; shapes of a trial run replace them.
        tried = replace(fixed, shapes={**fixed.shapes, **found.seen})
        try:
            shape_model(model, tried, child)
            break
        except DependentShapes as exc:
            more = found.joined(exc)
        except OutOfTime:
            break
        except (LoadError, UsageError) as exc:
            found = found.blocked(exc)
            break
        if len(more.shapes) == len(found.shapes):
            break
        found = more
    found.stage = error.stage
    return found


@dataclass(slots=True)
class Attempts:
    """A model open in the child, with the count and time of attempts.

    Only the counter and the seen shapes change. A model that cannot run can still be shaped.
    """

    model: OpenModel
    child: TrialChild
    watched: tuple[str, ...] = ()  # tensors whose shapes are seen when the model runs
    seen: dict[str, tuple[int, ...]] = field(init=False, default_factory=dict)
    barrier: str = field(init=False, default="")  # why the model cannot be run at all
    _count: int = field(init=False, default=0)
    _end: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + _SECONDS
        proto = self.model.proto()
        for item in proto.graph.input:  # a caller may give other sizes than the file states
            for dim in dims_of(item):
                dim.Clear()
        for number, name in enumerate(self.watched):
            shape = f"qnnmem shape {number}"
            proto.graph.node.add(op_type="Shape", input=[name], output=[shape])
            proto.graph.output.append(value_info(shape, OnnxType(_INT64, None)))
        if proto.ByteSize() > MAX_TRIED_BYTES:
            self.barrier = "the model is large"
            return
        try:
            self.child.open(proto)
        except ChildFailed as exc:
            self.barrier = _cleaned(str(exc))
        except LoadError as exc:
            self.barrier = exc.reason
        self._end = time.monotonic() + _SECONDS  # importing onnxruntime is no attempt

    @property
    def is_over(self) -> bool:
        """True if the attempts are used up."""
        return self._count >= _MOST or time.monotonic() > self._end

    def run(self, fixed: Fixed, *, thorough: bool = False) -> RunFailure | None:
        """Run the model with these sizes; return None if it runs or cannot be judged.

        Only a `thorough` run, with several data, tells whether a failure is steady.
        """
        if self.barrier:
            return None
        self._count += 1
        try:
            tried = self.child.attempt(
                *self._inputs(fixed), thorough=thorough, watched=len(self.watched)
            )
        except UsageError as exc:
            return RunFailure(str(exc), is_steady=True)
        except ChildFailed as exc:
            return RunFailure(str(exc), is_steady=False)
        except LoadError as exc:  # the child is gone
            self.barrier = exc.reason
            return None
        failures = tried.failures
        if not failures:
            self.seen = dict(zip(self.watched, tried.shapes, strict=True))
            return None
        return RunFailure(_cleaned(failures[0]), is_steady=thorough and len(set(failures)) == 1)

    def shape(self, fixed: Fixed) -> ShapedModel:
        """Shape the model with these sizes."""
        self._count += 1
        return shape_model(self.model, fixed, self.child)

    def _inputs(self, fixed: Fixed) -> tuple[list[TrialInput], tuple[onnx.TensorProto, ...]]:
        inputs, constants = fix_inputs(self.model.path, self.model.graph, fixed)
        found = []
        for item in inputs:
            kind = type_of(item)
            if kind is None or kind.shape is None or kind.elem not in NUMPY:
                raise ChildFailed(f"no data can be made up for input {quote(item.name)}")
            found.append(TrialInput(item.name, NUMPY[kind.elem], kind.shape))
        size = sum(Tensor(x.name, DType(x.dtype), x.shape).nbytes for x in found)
        if size > MAX_TRIED_BYTES:
            raise ChildFailed(f"inputs of {format_size(size)}, which is more than is made up")
        return found, constants


def _cleaned(text: str) -> str:
    """Return onnxruntime's message without positions in its source code."""
    nodes = list(_NODE.finditer(text))  # the innermost node is the last
    rest = text[nodes[-1].end() :] if nodes else text
    rest = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", rest)
    rest = printable(" ".join(_SOURCE.sub("", rest).split()))[:_LONGEST]
    if not nodes:
        return rest
    kind, name = nodes[-1].groups()
    who = f"{kind} {quote(name)}" if name else kind
    return f"{who}: {rest}"
