"""Remedies that shrink inputs: a smaller batch, or fewer rows and columns.

A batch of 8 becomes two runs of 4, four of 2 or eight of 1. That is correct only if no op mixes
items of a batch. Therefore the results of the runs are concatenated and compared; a difference
beyond the last bits rejects the change. `run_in_batches` runs the result on the original batch.

Smaller images need a model that accepts any size. Outputs with a changed shape cannot be compared:
only the user can judge whether the results are still good enough. Outputs with an unchanged shape,
such as classes, are compared on resized samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from qnnmem.errors import ChildFailed, LoadError, UsageError, join_words
from qnnmem.fix.lossy.lower_precision import repeated_precision
from qnnmem.fix.parts.chain import TIME_LIMIT_S, ChainChild, packed
from qnnmem.fix.parts.chain_program import PartStep, RunChain
from qnnmem.fix.proof.program import cut_batch
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Step,
    read_again,
    recipe_count,
    with_data,
)
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.planner.pools import PoolOptions
from qnnmem.text import by_sizes, quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shapes = Mapping[str, tuple[int, ...]]


def input_shapes(model: ShapedModel) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input."""
    scope = model.scope
    return {item.name: tuple(scope.types[item.name].shape or ()) for item in scope.graph.input}


def with_sizes(model: ShapedModel, shapes: Shapes) -> ShapedModel:
    """Return the original model with other input sizes; raise ChildFailed if that is impossible."""
    resolved = model.resolved
    inside = sorted(resolved.stated.keys() - input_shapes(model).keys())
    if inside:
        raise ChildFailed(
            f"the shape of {quote(inside[0])} depends on data, so input sizes cannot change"
        )
    proto = resolved.proto()
    for item in proto.graph.input:
        dims = item.type.tensor_type.shape.dim
        for dim, size in zip(dims, shapes.get(item.name, ()), strict=False):
            dim.dim_value = size
    try:
        return read_again(with_data(proto, resolved.path))
    except LoadError as exc:
        raise ChildFailed(join_words(exc.what)) from exc


def first_of(change: Change) -> Change:
    """Return the first change in the history of a change: the original model."""
    while change.of is not None:
        change = change.of
    return change


# With a smaller batch, kernels sum in another order: a few of the 23 mantissa bits differ. Ops that
# mix items of a batch cause far larger differences.
_LAST_BITS = 1e-4


@dataclass(frozen=True, slots=True)
class BatchRemedy:
    """Remedy that runs a smaller batch several times."""

    name: str = "batch"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield ever smaller batches; each step divides the size by its smallest prime factor."""
        whole = batch_of(bench.case)
        size = whole
        while size > 1:
            size //= _smallest_factor(size)
            judged = bench.judged(self._split(bench.case, first_of(base.change), whole, size))
            proof = judged.proof
            mixed = proof is not None and (proof.unmeasured or proof.relative > _LAST_BITS)
            if mixed:  # not intentionally lossy: report it as a change with wrong results
                yield replace(judged, change=replace(judged.change, is_lossy=False))
                return
            yield judged

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's batch size; raise UsageError if the size cannot be used."""
        size, whole = recipe_count(step["size"]), batch_of(case)
        if not 0 < size < whole or whole % size:
            raise UsageError(
                f"the recipe splits the batch into runs of {size}, but the batch is {whole}"
            )
        return self._split(case, base, whole, size)

    def _split(self, case: FixCase, base: Change, whole: int, size: int) -> Change:
        shapes = {
            name: (size, *shape[1:])
            for name, shape in input_shapes(case.model).items()
            if shape and shape[0] == whole
        }
        runs = whole // size
        note = (
            f"a batch of {whole} takes {runs} runs of {size}; split the inputs along the first axis"
        )
        return base.then(
            self.name,
            f"{runs} runs with a batch of {size}",
            {"size": size, "of": whole},
            model=with_sizes(case.model, shapes),
            is_lossy=True,
            notes=(*base.notes, note),
        )


def batch_of(case: FixCase) -> int:
    """Return the batch size: the first axis of the first input; 1 if a batch cannot be divided."""
    shapes = list(input_shapes(case.model).values())
    options = case.options
    if not shapes or len(shapes[0]) < 2 or (isinstance(options, PoolOptions) and options.states):
        return 1  # a state belongs to one item; several runs would mix states
    return max(1, shapes[0][0])


def _smallest_factor(number: int) -> int:
    factors = range(2, math.isqrt(number) + 1)
    return next((factor for factor in factors if number % factor == 0), number)


_FACTORS = (0.75, 0.5)
_IMAGE_AXES = 4
_MOST_CHANNELS = 4  # channels of an image with channels last
_COARSEST = 32  # usual product of a backbone's strides
_LEAST = 8  # rows or columns; a smaller input is not an image

Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ResolutionRemedy:
    """Remedy that gives every image fewer rows and columns."""

    name: str = "resolution"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield the model with images of three quarters of the size, then of half the size."""
        done: list[Sizes] = []
        refusal: ChildFailed | None = None
        for factor in _FACTORS:
            sizes = smaller_images(bench.case, factor)
            if not sizes or sizes in done:
                continue
            done.append(sizes)
            begin = monotonic()
            try:
                change = self._resized(bench.case, first_of(base.change), sizes)
            except ChildFailed as exc:  # half may work even if three quarters do not
                refusal = exc
                continue
            judged = bench.judged(repeated_precision(bench.case, change, base.change))
            yield replace(judged, seconds=monotonic() - begin)
        if refusal is not None:
            raise ChildFailed(f"the model does not accept images of another size: {refusal}")

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's image sizes; raise UsageError if the inputs differ."""
        known = input_shapes(case.model)
        shapes = step["shapes"].items()
        sizes = {str(name): tuple(map(recipe_count, shape)) for name, shape in shapes}
        for name, shape in sizes.items():
            if len(known.get(name, ())) != len(shape) or not all(shape):
                raise UsageError("the recipe uses an image size that this model does not accept")
        return self._resized(case, base, sizes)

    def _resized(self, case: FixCase, base: Change, sizes: Sizes) -> Change:
        model = with_sizes(case.model, sizes)
        before, after = case.model.scope.types, model.scope.types
        outputs = [item.name for item in case.model.scope.graph.output]
        reshaped = sum(before[name].shape != after[name].shape for name in outputs)
        notes = ["smaller images can reduce recognition accuracy"]
        if reshaped:
            notes.append(
                f"{reshaped} of {len(outputs)} outputs have another shape, so their error cannot "
                f"be measured"
            )
        return base.then(
            self.name,
            f"images {by_sizes(next(iter(sizes.values())))}",
            {"shapes": {name: list(shape) for name, shape in sizes.items()}},
            model=model,
            is_lossy=True,
            notes=(*base.notes, *notes),
        )


def smaller_images(case: FixCase, factor: float) -> Sizes:
    """Return a smaller shape for each input that looks like an image, by input name.

    `factor` scales height and width.
    """
    smaller = {}
    for name, shape in input_shapes(case.model).items():
        if len(shape) != _IMAGE_AXES:
            continue
        channels_last = shape[3] <= _MOST_CHANNELS < shape[1]
        axes = (1, 2) if channels_last else (2, 3)
        new = tuple(_scaled(n, factor) if axis in axes else n for axis, n in enumerate(shape))
        if new != shape and min(shape[axis] for axis in axes) >= _LEAST:
            smaller[name] = new
    return smaller


def _scaled(size: int, factor: float) -> int:
    """Return the scaled size, rounded so that the model's strides still divide the size."""
    step = min(_COARSEST, size & -size)
    while step > 1 and size < 4 * step:
        step //= 2
    return max(step, round(size * factor / step) * step)


_WIDEST = 8  # bytes of the widest element type


def run_in_batches(
    model: Path, inputs: Mapping[str, NDArray[Any]], *, time_limit_s: float = TIME_LIMIT_S
) -> dict[str, NDArray[Any]]:
    """Run a small-batch model on a larger batch; return output arrays by name.

    onnxruntime runs the model on the CPU in a limited child process; raise ChildFailed if a run
    fails. An input with the model's own shape goes to every run.
    """
    import numpy

    types, outputs, room = _border(model)
    pieces = {name: _pieces(name, inputs, shape) for name, (_, shape) in types.items()}
    runs = max(map(len, pieces.values()), default=1)
    if any(len(batches) not in (1, runs) for batches in pieces.values()):
        raise UsageError("the batches of the inputs need different numbers of runs")
    part = PartStep(model.absolute(), tuple(types), tuple(outputs))
    results = []
    with ChainChild(time_limit_s) as child:
        for run in range(runs):
            forms, payload = packed(types, {name: p[run % len(p)] for name, p in pieces.items()})
            results.append(child.run(RunChain((part,), forms, tuple(outputs)), payload, room))
    if runs == 1:
        return results[0]
    return {name: numpy.concatenate([result[name] for result in results]) for name in outputs}


def _border(model: Path) -> tuple[dict[str, tuple[str, tuple[int, ...]]], list[str], int]:
    """Return types and shapes of inputs, output names, and an upper bound on the output bytes."""
    from onnx import helper

    from qnnmem.loader.onnx import read_guarded

    graph = read_guarded(model).proto.graph
    stored = {item.name for item in graph.initializer}
    types = {}
    for item in graph.input:
        kind = item.type.tensor_type
        shape = tuple(size.dim_value for size in kind.shape.dim)
        if item.name not in stored:
            types[item.name] = (helper.tensor_dtype_to_np_dtype(kind.elem_type).name, shape)
    sizes = [[d.dim_value for d in item.type.tensor_type.shape.dim] for item in graph.output]
    if not all(map(math.prod, (*sizes, *(shape for _, shape in types.values())))):
        raise LoadError(model, "has inputs or outputs without fixed sizes; set the sizes first")
    return types, [item.name for item in graph.output], _WIDEST * sum(map(math.prod, sizes))


def _pieces(
    name: str, inputs: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
) -> list[NDArray[Any]]:
    if name not in inputs:
        raise UsageError(f"the model needs the input {quote(name)}")
    value = inputs[name]
    pieces = [value] if value.shape == shape else cut_batch(value, shape)
    if not pieces:
        raise UsageError(
            f"input {quote(name)} has shape {value.shape}, which is not a multiple of {shape}"
        )
    return pieces
