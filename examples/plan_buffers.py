"""Plan a handful of buffers, then ask for a capacity that is too small."""

from __future__ import annotations

from qnnmem import Buffer, Infeasible, Problem, Span, plan
from qnnmem.units import Align, Bytes, Step


def buffer(name: str, size: int, lower: int, upper: int) -> Buffer:
    """Return a 64-byte aligned buffer that is alive for lower <= t < upper."""
    return Buffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(64))


BUFFERS = (
    buffer("input", 640, -1, 1),
    buffer("hidden", 1024, 0, 3),
    buffer("mask", 256, 1, 4),
    buffer("output", 640, 2, 5),
)


def main() -> None:
    """Find the lowest plan for the buffers, then check whether they fit 1,800 bytes."""
    lowest = plan(Problem(BUFFERS))
    if isinstance(lowest, Infeasible):
        raise AssertionError("without a capacity there is always a plan")
    print(f"peak {lowest.peak:,} bytes, optimal: {lowest.optimal}")
    for name, offset in lowest.offset_of.items():
        print(f"{name} at {offset:,}")

    answer = plan(Problem(BUFFERS, capacity=Bytes(1800)))
    if isinstance(answer, Infeasible):
        missing = answer.lower_bound - 1800
        print(f"1,800 bytes are {missing:,} too few: {', '.join(answer.blockers)}")


if __name__ == "__main__":
    main()
