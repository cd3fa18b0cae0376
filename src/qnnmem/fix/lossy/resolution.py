"""The remedy that takes smaller pictures, where the model is made for any size.

Outputs of another shape than before cannot be compared; whoever allows this has to know whether the
model still sees what it is to see. Outputs of the same shape, such as classes, are compared on the
same samples, resized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from qnnmem.errors import ChildFailed, UsageError
from qnnmem.fix.lossy.precision import repeated_precision
from qnnmem.fix.lossy.sizes import first_of, input_shapes, with_sizes
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.remedy import count

_FACTORS = (0.75, 0.5)
_PICTURE_AXES = 4
_MOST_CHANNELS = 4  # of a picture whose channels come last
_COARSEST = 32  # strides of usual backbones together
_LEAST = 8  # rows and columns; what has fewer is no picture

Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ResolutionRemedy:
    """Fewer rows and columns in every picture."""

    name: str = "resolution"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Three quarters of rows and columns, then half."""
        done: list[Sizes] = []
        refusal: ChildFailed | None = None
        for factor in _FACTORS:
            sizes = smaller_pictures(bench.case, factor)
            if not sizes or sizes in done:
                continue
            done.append(sizes)
            begin = monotonic()
            try:
                made = self._made(bench.case, first_of(base.change), sizes)
            except ChildFailed as exc:  # half may pass where three quarters do not
                refusal = exc
                continue
            judged = bench.judged(repeated_precision(bench.case, made, base.change))
            yield replace(judged, seconds=monotonic() - begin)
        if refusal is not None:
            raise ChildFailed(f"the model takes no picture of another size: {refusal}")

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Pictures of the same size."""
        known = input_shapes(case.model)
        sizes = {str(name): tuple(map(count, shape)) for name, shape in step["shapes"].items()}
        for name, shape in sizes.items():
            if len(known.get(name, ())) != len(shape) or not all(shape):
                raise UsageError("the recipe has pictures that this model does not take")
        return self._made(case, base, sizes)

    def _made(self, case: FixCase, base: Change, sizes: Sizes) -> Change:
        model = with_sizes(case.model, sizes)
        outputs = [item.name for item in case.model.scope.graph.output]
        before = {name: case.model.scope.types[name].shape for name in outputs}
        after = {name: model.scope.types[name].shape for name in before}
        others = sum(before[name] != after[name] for name in before)
        notes = ["pictures are smaller: what the model recognises may suffer"]
        if others:
            notes.append(
                f"{others} of {len(before)} outputs have another shape now, so how far their "
                "results are off cannot be measured"
            )
        shown = next(iter(sizes.values()))
        return base.then(
            self.name,
            f"pictures {'x'.join(map(str, shown))}",
            {"shapes": {name: list(shape) for name, shape in sizes.items()}},
            model=model,
            is_lossy=True,
            notes=(*base.notes, *notes),
        )


def smaller_pictures(case: FixCase, factor: float) -> Sizes:
    """Inputs that are pictures, with fewer rows and columns; none where there is no picture."""
    found = {}
    for name, shape in input_shapes(case.model).items():
        if len(shape) != _PICTURE_AXES:
            continue
        last = shape[3] <= _MOST_CHANNELS < shape[1]
        axes = (1, 2) if last else (2, 3)
        new = tuple(_less(n, factor) if at in axes else n for at, n in enumerate(shape))
        if new != shape and min(shape[at] for at in axes) >= _LEAST:
            found[name] = new
    return found


def _less(size: int, factor: float) -> int:
    """A part of a size that strides divide as they do the size, where it is not too coarse."""
    step = min(_COARSEST, size & -size)
    while step > 1 and size < 4 * step:
        step //= 2
    return max(step, round(size * factor / step) * step)
