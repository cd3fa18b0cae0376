"""Compiles the inner loops ahead of time, so that the first hard problem does not wait for it."""

from __future__ import annotations

from functools import cache


@cache
def warm_up() -> None:
    """Imports and compiles the search; takes seconds once on a machine, then a fraction of one."""
    from qnnmem.ir.span import Span
    from qnnmem.plan.effort import Effort
    from qnnmem.plan.exact import fit
    from qnnmem.plan.instance import arrange
    from qnnmem.plan.problem import Buffer, Problem
    from qnnmem.units import Bytes, Step

    # Three buffers of a cycle: too tight for elimination, so that every compiled loop runs.
    lives = ((0, 2), (1, 3), (2, 4), (0, 4))
    buffers = tuple(
        Buffer(str(i), Bytes(2 + i), Span(Step(lower), Step(upper)))
        for i, (lower, upper) in enumerate(lives)
    )
    fit(arrange(Problem(buffers)), 10, Effort(10_000, float("inf")))


if __name__ == "__main__":
    warm_up()
