"""The compiled search made ready ahead of time, so that the first hard problem does not wait.

The search needs numba, which the extra `search` installs; without it all else works as before.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec


def has_numba() -> bool:
    """Whether the search could be loaded, without loading it."""
    return find_spec("numba") is not None


@cache
def warm_up() -> bool:
    """Imports and compiles the search; False where numba is missing or cannot be loaded.

    Takes seconds once on a machine, then a fraction of one.
    """
    try:
        import_module("qnnmem.plan.compiled.search")
    except ImportError:
        return False
    from qnnmem.ir.span import Span
    from qnnmem.plan.effort import Effort
    from qnnmem.plan.exact import fit
    from qnnmem.plan.instance import arrange
    from qnnmem.plan.problem import Buffer, Problem
    from qnnmem.units import Bytes, Step

    # Too tight for elimination at one byte less than they need, so that every compiled loop runs;
    # at their optimum what was found is also placed.
    lives = ((0, 2), (1, 3), (2, 4), (0, 4))
    buffers = tuple(
        Buffer(str(i), Bytes(2 + i), Span(Step(lower), Step(upper)))
        for i, (lower, upper) in enumerate(lives)
    )
    for capacity in (10, 12):
        fit(arrange(Problem(buffers)), capacity, Effort(10_000, float("inf")))
    return True


if __name__ == "__main__":
    if not warm_up():
        sys.stdout.write("numba is not installed, so there is no search to compile\n")
