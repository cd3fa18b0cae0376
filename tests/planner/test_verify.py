from __future__ import annotations

import random

import pytest

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Plan, Problem, verify
from qnnmem.units import Align, Bytes, Offset, Step


def buf(name: str, size: int, lower: int, upper: int, align: int = 1) -> Buffer:
    """Make a buffer of plain integers."""
    return Buffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align))


def placed(*pairs: tuple[Buffer, int], bound: int = 0) -> Plan:
    """Return a plan of buffers at the given offsets."""
    buffers = tuple(buffer for buffer, _ in pairs)
    return Plan(Problem(buffers), tuple(Offset(o) for _, o in pairs), Bytes(bound))


def is_right(plan: Plan) -> bool:
    """True if the plan is legal, checked byte by byte at every step."""
    taken: set[tuple[int, int]] = set()
    for buffer, offset in zip(plan.problem.buffers, plan.offsets, strict=True):
        if offset < 0 or offset % buffer.align or plan.lower_bound > plan.peak:
            return False
        for step in range(buffer.live.lower, buffer.live.upper):
            for byte in range(offset, offset + buffer.size):
                if (step, byte) in taken:
                    return False
                taken.add((step, byte))
    return True


def test_a_right_plan_passes() -> None:
    """Live buffers at disjoint offsets pass."""
    assert verify(placed((buf("a", 4, 0, 2), 0), (buf("b", 4, 1, 3), 4), bound=8)) is None


def test_a_plan_of_nothing_passes() -> None:
    """A plan without buffers passes."""
    assert verify(placed()) is None


def test_touching_lives_may_share_bytes() -> None:
    """A buffer that dies at step 3 and a buffer born at step 3 may have the same offset."""
    assert verify(placed((buf("a", 4, 0, 3), 0), (buf("b", 4, 3, 6), 0))) is None


def test_touching_bytes_are_not_shared() -> None:
    """A buffer may start at the byte where another ends."""
    assert verify(placed((buf("a", 4, 0, 3), 4), (buf("b", 4, 0, 3), 0))) is None


@pytest.mark.parametrize("offset", [0, 1, 3, 5, 7])
def test_shared_bytes_are_found(offset: int) -> None:
    """Two live buffers that overlap, by one byte or by all, are both named."""
    wrong = verify(placed((buf("a", 4, 0, 3), 4), (buf("b", 8, 2, 3), offset)))
    assert wrong is not None
    assert "'a'" in wrong
    assert "'b'" in wrong


def test_a_buffer_inside_another_is_found() -> None:
    """A small buffer inside a large live one is an error."""
    small, large = buf("small", 1, 0, 9), buf("large", 100, 4, 5)
    assert verify(placed((small, 50), (large, 0))) is not None
    assert verify(placed((large, 0), (small, 50))) is not None


def test_a_misaligned_offset_is_found() -> None:
    """An offset that is not a multiple of the buffer's alignment is an error."""
    wrong = verify(placed((buf("a", 4, 0, 1, align=8), 12)))
    assert wrong is not None
    assert "multiple of 8" in wrong


def test_a_negative_offset_is_found() -> None:
    """A negative offset is an error, even if it is aligned."""
    assert verify(placed((buf("a", 4, 0, 1, align=4), -4))) is not None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_offsets_is_found(count: int) -> None:
    """A plan whose number of offsets differs from its number of buffers is an error."""
    problem = Problem((buf("a", 4, 0, 1), buf("b", 4, 1, 2)))
    wrong = verify(Plan(problem, (Offset(0),) * count, Bytes(0)))
    assert wrong == f"2 buffers but {count} offsets"


def test_a_bound_above_the_peak_is_found() -> None:
    """A lower bound above the peak is an error."""
    assert verify(placed((buf("a", 4, 0, 1), 0), bound=5)) is not None


def test_empty_buffers_collide_with_nothing() -> None:
    """An empty buffer overlaps nothing, but its offset must be aligned."""
    assert verify(placed((buf("a", 4, 0, 2), 0), (buf("e", 0, 0, 2), 2))) is None
    assert verify(placed((buf("e", 0, 0, 2, align=4), 2))) is not None


def test_random_plans_get_the_verdict_of_a_byte_by_byte_check() -> None:
    """On 3,000 random plans, the verifier agrees with a byte-by-byte check."""
    rng = random.Random(5)  # noqa: S311 - reproducible, not secret
    verdicts = {True: 0, False: 0}
    for _ in range(3000):
        pairs = []
        for k in range(rng.randint(1, 6)):
            lower, align = rng.randint(0, 5), rng.choice((1, 1, 2, 4))
            buffer = buf(str(k), rng.randint(0, 5), lower, lower + rng.randint(1, 4), align)
            pairs.append((buffer, align * rng.randint(0, 16 // align) + (rng.random() < 0.03)))
        plan = placed(*pairs, bound=rng.randint(0, 3))
        right = is_right(plan)
        verdicts[right] += 1
        assert (verify(plan) is None) == right
    assert min(verdicts.values()) > 300
