"""Searches for sizes with which a model runs and can be shaped, in few attempts."""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.errors import ChildFailed, LoadError, OutOfTime, UsageError, Words, chain_words
from qnnmem.ir.model import DType, Tensor
from qnnmem.loader.onnx.inputs import Fixed, dims_of, fix_inputs, free_axes
from qnnmem.loader.onnx.passes.fold import fold
from qnnmem.loader.onnx.passes.resolve import OpenModel, resolve
from qnnmem.loader.onnx.passes.shape import ShapedModel, shape
from qnnmem.loader.onnx.refusal import DependentShapes
from qnnmem.loader.onnx.sizes.free_dimensions import OpenInputs, OpenSize, Switch
from qnnmem.loader.onnx.tensor import OnnxType, value_info
from qnnmem.loader.onnx.trial import TrialChild, trial_inputs
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
    """The reason why a model does not run, and whether it fails with any input data."""

    text: str
    is_steady: bool

    @property
    def numbers(self) -> list[int]:
        """The numbers in the failure message, which often include a size that fits."""
        numbers = map(int, re.findall(r"(?<![\w.])\d{1,6}(?![\w.])", self.text))
        return list(dict.fromkeys(number for number in numbers if number > 0))


def shape_model(model: OpenModel, fixed: Fixed, child: TrialChild) -> ShapedModel:
    """Return the model after all passes from resolve to shape."""
    return shape(fold(resolve(model, fixed), child), child)


def with_all_dependent(
    model: OpenModel, fixed: Fixed, child: TrialChild, error: LoadError
) -> LoadError:
    """Return the error extended to all data-dependent shapes of the model."""
    if not isinstance(error, DependentShapes):
        return error
    joined = error
    for _ in range(_ROUNDS):
        # The largest shapes are not known yet; shapes of a trial run replace them here.
        tried = replace(fixed, shapes={**fixed.shapes, **joined.seen})
        try:
            shape_model(model, tried, child)
            break
        except DependentShapes as exc:
            more = joined.joined(exc)
        except OutOfTime:
            break
        except (LoadError, UsageError) as exc:
            joined = joined.blocked(exc)
            break
        if len(more.shapes) == len(joined.shapes):
            break
        joined = more
    joined.stage = error.stage
    return joined


@dataclass(slots=True)
class Attempts:
    """Attempts to run a model in the child process, limited in number and time.

    If the model cannot run, `barrier` is the reason; the model can still be shaped.
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
        items, constants = fix_inputs(self.model.path, self.model.graph, fixed)
        inputs = trial_inputs(items)
        size = sum(Tensor(item.name, DType(item.dtype), item.shape).nbytes for item in inputs)
        if size > MAX_TRIED_BYTES:
            limit = f"the limit of {format_size(MAX_TRIED_BYTES)} for a trial run"
            raise ChildFailed(f"the inputs take {format_size(size)}, over {limit}")
        return inputs, constants


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
    """The number chosen for each open size and for each switch."""

    sizes: tuple[tuple[OpenSize, int], ...]
    numbers: tuple[tuple[Switch, int], ...] = ()

    def sized(self, changes: Mapping[OpenSize, int]) -> OpenChoice:
        """Return a copy of this choice with some sizes changed."""
        sizes = tuple((size, changes.get(size, number)) for size, number in self.sizes)
        return OpenChoice(sizes, self.numbers)

    def switched(self, changes: Mapping[Switch, int]) -> OpenChoice:
        """Return a copy with other switch values; at another rate, lengths keep their duration."""
        rates = {s.input: (changes[s], n) for s, n in self.numbers if s in changes and s.is_rate}
        sizes = (
            (size, number * new // old)
            for size, number in self.sizes
            for new, old in [rates.get(size.rate, (1, 1))]
        )
        numbers = ((switch, changes.get(switch, number)) for switch, number in self.numbers)
        return OpenChoice(tuple(sizes), tuple(numbers))


@dataclass(frozen=True, slots=True)
class BestChoice:
    """The best choice of a search; `untried` says why the choice was not fully tried."""

    choice: OpenChoice
    untried: Words = ""


def fixed_with(open_inputs: OpenInputs, given: Fixed, choice: OpenChoice) -> Fixed:
    """Return the given settings plus those of a choice."""
    by_dim = {size.dim: number for size, number in choice.sizes if size.dim}
    by_axis = {(s.input, s.axis): number for s, number in choice.sizes if not s.dim}
    dims, shapes = dict(given.dims), dict(given.shapes)
    values = {**given.values, **{s.input: s.value(number) for s, number in choice.numbers}}
    for item in open_inputs.inputs:
        if item.name in values:
            continue
        sizes = dims_of(item)
        chosen = [
            by_dim.get(dim.dim_param, by_axis.get((item.name, axis)))
            for axis, dim in enumerate(sizes)
        ]
        free = free_axes(item)
        if item.name in shapes:
            shapes[item.name] = _replaced(shapes[item.name], chosen)
        elif -1 in free:
            shapes[item.name] = (by_axis[item.name, -1],)
        elif any(not sizes[axis].dim_param for axis in free):
            known = [dims.get(dim.dim_param, dim.dim_value) for dim in sizes]
            shapes[item.name] = _replaced(known, chosen)
        else:
            dims.update((d.dim_param, by_dim[d.dim_param]) for d in sizes if d.dim_param in by_dim)
    return Fixed(dims, shapes, values)


def _replaced(old: Sequence[int], new: Sequence[int | None]) -> tuple[int, ...]:
    """Return a shape with some sizes replaced; None keeps the old size."""
    return tuple(a if b is None else b for a, b in zip(old, new, strict=False))


def search(
    attempts: Attempts,
    open_inputs: OpenInputs,
    given: Fixed,
    start: OpenChoice,
    *,
    grow: bool = False,
) -> BestChoice:
    """Return the first choice that runs and can be shaped, otherwise a guess and the reason.

    With `grow`, choices that double or halve a size of `start` come before other choices.
    """
    near: deque[OpenChoice] = deque([start])
    far = iter(_grown(start)) if grow else iter(())
    far = itertools.chain(far, _others(start))
    seen: set[OpenChoice] = set()
    unshaped: list[BestChoice] = []
    while not attempts.is_over and len(unshaped) < _UNSHAPED:
        batch = [near.popleft()] if near else []
        batch += itertools.islice(far, 1)
        if not batch:
            break
        for choice in batch:
            if choice in seen:
                continue
            seen.add(choice)
            fixed = fixed_with(open_inputs, given, choice)
            failure = attempts.run(fixed)
            if failure is not None:
                near.extend(_hinted(choice, failure))
                continue
            reason = _why_unshaped(attempts, fixed, in_full=not unshaped)
            if not reason:
                return BestChoice(choice)
            unshaped.append(BestChoice(choice, reason))
    if unshaped:
        return unshaped[0]
    failed = "the model did not run with any of the sizes tried"
    return BestChoice(start, attempts.barrier or failed)


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
    """Yield choices with other usual sizes or other switch values.

    First, all sizes other than 1 change together. Then switches and single sizes change.
    """
    long = [size for size, number in start.sizes if number != 1]
    most = max((len(size.candidates) for size in long), default=0)
    for rank in range(1, most):
        sizes = [size for size in long if rank < len(size.candidates)]
        yield start.sized({size: size.candidates[rank] for size in sizes})
        if rank == _EARLY:
            yield from _switched(start, 1)
    for rank in range(1, 16):
        yield from _switched(start, rank)
        for size, _ in start.sizes:
            if rank < len(size.candidates):
                yield start.sized({size: size.candidates[rank]})


def _switched(start: OpenChoice, rank: int) -> Iterator[OpenChoice]:
    for switch, _ in start.numbers:
        if rank < len(switch.candidates):
            yield start.switched({switch: switch.candidates[rank]})


def _grown(start: OpenChoice) -> Iterator[OpenChoice]:
    """Yield choices with one size repeatedly doubled or halved."""
    for power in range(1, 12):
        for size, number in start.sizes:
            if number << power <= _LARGEST and number:
                yield start.sized({size: number << power})
            if number >> power:
                yield start.sized({size: number >> power})


def _hinted(choice: OpenChoice, failure: RunFailure) -> Iterable[OpenChoice]:
    """Yield choices with sizes taken from the text of a failure."""
    known = {number for _, number in choice.sizes}
    numbers = [number for number in failure.numbers if number <= _LARGEST]
    fresh = [number for number in numbers if number not in known]
    for number in (*fresh, *(n for n in numbers if n in known))[:_HINTS]:
        for size, old in choice.sizes:
            if old != number:
                yield choice.sized({size: number})


def boundary(
    attempts: Attempts,
    open_inputs: OpenInputs,
    given: Fixed,
    choice: OpenChoice,
    size: OpenSize,
    bad: int,
) -> int | None:
    """Return the working size closest to a failing size; None if no sharp limit is found."""
    good = dict(choice.sizes)[size]

    def runs(number: int) -> bool:
        fixed = fixed_with(open_inputs, given, choice.sized({size: number}))
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
