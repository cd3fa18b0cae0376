"""Searches for sizes with which a model runs and can be shaped, in few attempts."""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError, OutOfTime, UsageError, Words, chain_words
from qnnmem.ir.model import DType, Tensor
from qnnmem.loader.onnx.inputs import Fixed, dims_of, fix_inputs, free_axes
from qnnmem.loader.onnx.passes.fold import fold
from qnnmem.loader.onnx.passes.resolve import OpenModel, resolve
from qnnmem.loader.onnx.passes.shape import ShapedModel, shape
from qnnmem.loader.onnx.refusal import DependentShapes
from qnnmem.loader.onnx.sizes.free_dimensions import OpenInputs, OpenSize, Switch
from qnnmem.loader.onnx.tensor import OnnxType, type_of, value_info
from qnnmem.loader.onnx.trial import NUMPY, TrialChild
from qnnmem.loader.onnx.trial_program import TrialInput
from qnnmem.text import printable, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    import onnx

# A larger model, or larger inputs, take too long to send to the child and to run.
MAX_TRIED_BYTES = 512 << 20
_INT64 = 7
_MOST = 80  # attempts
_SECONDS = 12.0
_ROUNDS = 32  # rounds for data-dependent shapes, each after the previous ones
_LONGEST = 200  # characters of a reason
_NODE = re.compile(r"while running (\S+) node\. Name:'(.*?)' Status Message: ", re.S)
_SOURCE = re.compile(r"^\S+\.(?:h|cc):\d+ (?:[^()]*\([^()]*\)(?: const)? |\w+ )?")


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The reason why a model does not run, and whether it is the same for all data."""

    text: str
    is_steady: bool

    @property
    def numbers(self) -> list[int]:
        """The numbers in the failure message, which often include a size that fits."""
        found = (int(word) for word in re.findall(r"(?<![\w.])\d{1,6}(?![\w.])", self.text))
        return list(dict.fromkeys(number for number in found if number > 0))


def shape_model(model: OpenModel, fixed: Fixed, child: TrialChild) -> ShapedModel:
    """Return the model after all passes from resolve to shape."""
    return shape(fold(resolve(model, fixed), child), child)


def with_all_dependent(
    model: OpenModel, fixed: Fixed, child: TrialChild, error: LoadError
) -> LoadError:
    """Return the error with every data-dependent shape, not only the first ones."""
    if not isinstance(error, DependentShapes):
        return error
    found = error
    for _ in range(_ROUNDS):
        # The largest shapes are not known yet; shapes of a trial run stand in for them.
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
    """A model opened in the child process, with the number and time of attempts.

    Only the counter and the seen shapes change. A model that cannot run can still be shaped.
    """

    model: OpenModel
    child: TrialChild
    watched: tuple[str, ...] = ()  # tensors whose shapes are recorded when the model runs
    seen: dict[str, tuple[int, ...]] = field(init=False, default_factory=dict)
    barrier: str = field(init=False, default="")  # why the model cannot run at all
    _count: int = field(init=False, default=0)
    _end: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + _SECONDS
        proto = self.model.proto()
        for item in proto.graph.input:  # the caller's sizes may differ from the file's
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
        self._end = time.monotonic() + _SECONDS  # importing onnxruntime does not count

    @property
    def is_over(self) -> bool:
        """True if no further attempt is allowed."""
        return self._count >= _MOST or time.monotonic() > self._end

    def run(self, fixed: Fixed, *, thorough: bool = False) -> RunFailure | None:
        """Return why the model fails with these sizes; None if it runs or there is no verdict.

        Only a `thorough` run, with several kinds of data, shows whether a failure is independent of
        data.
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
        except LoadError as exc:  # the child died
            self.barrier = exc.reason
            return None
        failures = tried.failures
        if not failures:
            self.seen = dict(zip(self.watched, tried.shapes, strict=True))
            return None
        return RunFailure(_cleaned(failures[0]), is_steady=thorough and len(set(failures)) == 1)

    def shape(self, fixed: Fixed) -> ShapedModel:
        """Return the model shaped with these sizes."""
        self._count += 1
        return shape_model(self.model, fixed, self.child)

    def _inputs(self, fixed: Fixed) -> tuple[list[TrialInput], tuple[onnx.TensorProto, ...]]:
        inputs, constants = fix_inputs(self.model.path, self.model.graph, fixed)
        found = []
        for item in inputs:
            kind = type_of(item)
            if kind is None or kind.shape is None or kind.elem not in NUMPY:
                raise ChildFailed(f"no random data can be made for input {quote(item.name)}")
            found.append(TrialInput(item.name, NUMPY[kind.elem], kind.shape))
        size = sum(Tensor(x.name, DType(x.dtype), x.shape).nbytes for x in found)
        if size > MAX_TRIED_BYTES:
            raise ChildFailed(f"the inputs take {format_size(size)}, too much for random data")
        return found, constants


def _cleaned(text: str) -> str:
    """Return onnxruntime's message without source positions."""
    nodes = list(_NODE.finditer(text))  # the innermost node is the last
    rest = text[nodes[-1].end() :] if nodes else text
    rest = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", rest)
    rest = printable(" ".join(_SOURCE.sub("", rest).split()))[:_LONGEST]
    if not nodes:
        return rest
    kind, name = nodes[-1].groups()
    who = f"{kind} {quote(name)}" if name else kind
    return f"{who}: {rest}"


_HINTS = 6  # numbers of one failure that are tried
_UNSHAPED = 3  # tried sizes that run but cannot be shaped, until the search reports that
_LARGEST = 1 << 20
_EARLY = 5  # usual sizes tried with the likeliest switches, before other switches are tried


@dataclass(frozen=True, slots=True)
class OpenChoice:
    """A size for each open size, and a number for each switch."""

    sizes: tuple[tuple[OpenSize, int], ...]
    numbers: tuple[tuple[Switch, int], ...] = ()

    def sized(self, changes: Mapping[OpenSize, int]) -> OpenChoice:
        """Return a copy with some sizes changed."""
        return OpenChoice(tuple((o, changes.get(o, s)) for o, s in self.sizes), self.numbers)

    def switched(self, changes: Mapping[Switch, int]) -> OpenChoice:
        """Return a copy with other switch values; a window keeps its duration at another rate."""
        rates = {o.input: (changes[o], n) for o, n in self.numbers if o in changes and o.is_rate}
        sizes = (
            (o, number * new // old)
            for o, number in self.sizes
            for new, old in [rates.get(o.rate, (1, 1))]
        )
        return OpenChoice(tuple(sizes), tuple((o, changes.get(o, n)) for o, n in self.numbers))


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate, and the reason if it was not tried completely."""

    candidate: OpenChoice
    untried: Words = ""


def fixed_with(open_inputs: OpenInputs, given: Fixed, candidate: OpenChoice) -> Fixed:
    """Return the given settings plus those for a candidate."""
    by_dim = {size.dim: number for size, number in candidate.sizes if size.dim}
    by_axis = {(s.input, s.axis): number for s, number in candidate.sizes if not s.dim}
    dims, shapes = dict(given.dims), dict(given.shapes)
    values = {**given.values, **{s.input: s.value(number) for s, number in candidate.numbers}}
    for item in open_inputs.inputs:
        if item.name in values:
            continue
        sizes = dims_of(item)
        own = [by_dim.get(d.dim_param, by_axis.get((item.name, at))) for at, d in enumerate(sizes)]
        free = free_axes(item)
        if item.name in shapes:
            pairs = zip(own, shapes[item.name], strict=False)
            shapes[item.name] = tuple(old if new is None else new for new, old in pairs)
        elif -1 in free:
            shapes[item.name] = (by_axis[item.name, -1],)
        elif any(not sizes[at].dim_param for at in free):
            known = [dims.get(d.dim_param, d.dim_value) for d in sizes]
            pairs = zip(own, known, strict=True)
            shapes[item.name] = tuple(old if new is None else new for new, old in pairs)
        else:
            dims.update((d.dim_param, by_dim[d.dim_param]) for d in sizes if d.dim_param in by_dim)
    return Fixed(dims, shapes, values)


def search(
    attempts: Attempts,
    open_inputs: OpenInputs,
    given: Fixed,
    start: OpenChoice,
    *,
    grow: bool = False,
) -> Found:
    """Return the first candidate that runs and can be shaped, otherwise a guess and the reason.

    `grow` first doubles and halves the sizes of `start`.
    """
    near: deque[OpenChoice] = deque([start])
    far = iter(_grown(start)) if grow else iter(())
    far = itertools.chain(far, _others(start))
    seen: set[OpenChoice] = set()
    unshaped: list[Found] = []
    while not attempts.is_over and len(unshaped) < _UNSHAPED:
        batch = [near.popleft()] if near else []
        batch += itertools.islice(far, 1)
        if not batch:
            break
        for candidate in batch:
            if candidate in seen:
                continue
            seen.add(candidate)
            fixed = fixed_with(open_inputs, given, candidate)
            failure = attempts.run(fixed)
            if failure is not None:
                near.extend(_hinted(candidate, failure))
                continue
            why = _why_unshaped(attempts, fixed, in_full=not unshaped)
            if not why:
                return Found(candidate)
            unshaped.append(Found(candidate, why))
    return (
        unshaped[0]
        if unshaped
        else Found(start, attempts.barrier or "the model did not run with any of the sizes tried")
    )


def _why_unshaped(attempts: Attempts, fixed: Fixed, *, in_full: bool) -> Words:
    try:
        attempts.shape(fixed)
    except LoadError as exc:
        whole = with_all_dependent(attempts.model, fixed, attempts.child, exc) if in_full else exc
        return chain_words(whole.what, "; " if whole.cure else "", whole.cure)
    except UsageError as exc:
        return chain_words(exc.what, "; " if exc.cure else "", exc.cure)
    return ""


def _others(start: OpenChoice) -> Iterator[OpenChoice]:
    """Yield choices with other usual sizes.

    First all sizes except batch sizes change together, then the switches, then single sizes.
    """
    long = [size for size, number in start.sizes if number != 1]
    most = max((len(size.worth) for size in long), default=0)
    for at in range(1, most):
        yield start.sized({size: size.worth[at] for size in long if at < len(size.worth)})
        if at == _EARLY:
            yield from _switched(start, 1)
    for at in range(1, 16):
        yield from _switched(start, at)
        for size, _ in start.sizes:
            if at < len(size.worth):
                yield start.sized({size: size.worth[at]})


def _switched(start: OpenChoice, at: int) -> Iterator[OpenChoice]:
    for switch, _ in start.numbers:
        if at < len(switch.worth):
            yield start.switched({switch: switch.worth[at]})


def _grown(start: OpenChoice) -> Iterator[OpenChoice]:
    """Yield choices with one size repeatedly doubled or halved."""
    for power in range(1, 12):
        for size, number in start.sizes:
            if number << power <= _LARGEST and number:
                yield start.sized({size: number << power})
            if number >> power:
                yield start.sized({size: number >> power})


def _hinted(candidate: OpenChoice, failure: RunFailure) -> Iterable[OpenChoice]:
    """Yield candidates with sizes taken from the text of a failure."""
    known = {number for _, number in candidate.sizes}
    numbers = [number for number in failure.numbers if number <= _LARGEST]
    fresh = [number for number in numbers if number not in known]
    for number in (*fresh, *(n for n in numbers if n in known))[:_HINTS]:
        for size, old in candidate.sizes:
            if old != number:
                yield candidate.sized({size: number})


def boundary(
    attempts: Attempts,
    open_inputs: OpenInputs,
    given: Fixed,
    found: OpenChoice,
    size: OpenSize,
    bad: int,
) -> int | None:
    """Return the working size closest to a failing size; None if there is no sharp limit."""
    good = dict(found.sizes)[size]

    def runs(number: int) -> bool:
        fixed = fixed_with(open_inputs, given, found.sized({size: number}))
        return attempts.run(fixed) is None

    step = 1 if good > bad else -1
    if not runs(good + step):
        return None
    while abs(good - bad) > 1:
        if attempts.is_over:
            return None
        middle = (good + bad) // 2
        if runs(middle):
            good = middle
        else:
            bad = middle
    return good if runs(good + step) else None
