"""The remedy that computes a batch in smaller ones.

A batch of 8 becomes two runs of 4, four of 2 or eight of 1. That is right only where no op mixes
what belongs to different items; so the runs are made, put together and compared. What differs by
more than the last bits does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qnnmem.errors import UsageError
from qnnmem.fix.lossy.sizes import first_of, input_shapes, with_sizes
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.remedy import count
from qnnmem.planner.pools import PoolOptions

# Kernels sum up in another order when there are fewer rows: some last bits of 23. Ops that mix
# items of a batch are off by far more.
_LAST_BITS = 1e-4


@dataclass(frozen=True, slots=True)
class BatchRemedy:
    """Fewer items in a batch, and more runs."""

    name: str = "batch"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Half of the batch, or the next smaller part of it, down to one item."""
        whole = batch_of(bench.case)
        size = whole
        while size > 1:
            size //= _smallest_factor(size)
            judged = bench.judged(self._made(bench.case, first_of(base.change), whole, size))
            proof = judged.proof
            mixed = proof is not None and (proof.unmeasured or proof.relative > _LAST_BITS)
            if mixed:  # counts as a change that was to lose nothing, and does
                yield replace(judged, change=replace(judged.change, is_lossy=False))
                return
            yield judged

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """A batch of the same size."""
        size, whole = count(step["size"]), batch_of(case)
        if not 0 < size < whole or whole % size:
            raise UsageError(f"the recipe makes a batch of {size}, which {whole} cannot be cut to")
        return self._made(case, base, whole, size)

    def _made(self, case: FixCase, base: Change, whole: int, size: int) -> Change:
        shapes = {
            name: (size, *shape[1:])
            for name, shape in input_shapes(case.model).items()
            if shape and shape[0] == whole
        }
        runs = whole // size
        note = f"a batch of {whole} takes {runs} runs of {size}; split inputs along the first axis"
        return base.then(
            self.name,
            f"{runs} runs with a batch of {size}",
            {"size": size, "of": whole},
            model=with_sizes(case.model, shapes),
            is_lossy=True,
            notes=(*base.notes, note),
        )


def batch_of(case: FixCase) -> int:
    """Items in a batch: the first size of the first input; 1 where there is none to be cut."""
    shapes = list(input_shapes(case.model).values())
    options = case.options
    if not shapes or len(shapes[0]) < 2 or (isinstance(options, PoolOptions) and options.states):
        return 1  # a state belongs to one item; runs after each other would mix them
    return max(1, shapes[0][0])


def _smallest_factor(number: int) -> int:
    return next((one for one in range(2, int(number**0.5) + 1) if number % one == 0), number)
