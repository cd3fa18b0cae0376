from __future__ import annotations

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Problem
from qnnmem.planner.instance import arrange
from qnnmem.planner.problem_plan import find_blockers
from qnnmem.units import Align, Bytes, Step


def buf(name: str, size: int, lower: int, upper: int, align: int = 1) -> Buffer:
    """Make a buffer of plain integers."""
    return Buffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align))


def blockers(capacity: int, *buffers: Buffer, proven: bool = True) -> tuple[str, ...]:
    """Return the names of the buffers that keep the problem from fitting."""
    problem = Problem(buffers, Bytes(capacity))
    return find_blockers(problem, arrange(problem), proven)


def test_one_buffer_larger_than_the_capacity_is_enough() -> None:
    """A buffer larger than the capacity is the only blocker named."""
    assert blockers(9, buf("a", 10, 0, 1), buf("b", 9, 0, 1), buf("c", 1, 0, 1)) == ("a",)


def test_ties_are_broken_by_name() -> None:
    """Among buffers of equal size, the blockers are those whose names sort first."""
    assert blockers(3, *(buf(name, 2, 0, 1) for name in "dcba")) == ("a", "b")


def test_alignment_alone_can_block() -> None:
    """Two buffers of one byte with 64-byte alignment do not fit into 64 bytes."""
    assert blockers(64, *(buf(name, 1, 0, 1, align=64) for name in "cab")) == ("a", "b")


def test_what_fits_into_the_padding_is_not_blamed() -> None:
    """A one-byte buffer that fits into the padding of two aligned buffers is not a blocker."""
    small = buf("a", 1, 0, 1, align=64), buf("b", 1, 0, 1, align=64)
    assert blockers(64, *small, buf("c", 1, 0, 1)) == ("a", "b")


def test_buffers_of_other_times_are_not_blamed() -> None:
    """Only buffers alive at the overfull step are blockers."""
    far = [buf(f"far{k}", 8, 10 + k, 11 + k) for k in range(5)]
    assert set(blockers(9, *far, buf("a", 5, 0, 2), buf("b", 5, 1, 3))) == {"a", "b"}


def test_without_a_proof_the_fullest_step_is_suspected() -> None:
    """Without a proof, the blockers are the buffers of the fullest step, largest first."""
    names = blockers(11, buf("a", 5, 0, 2), buf("b", 6, 1, 3), buf("c", 9, 5, 6), proven=False)
    assert names == ("b", "a")


def test_empty_buffers_are_never_blamed() -> None:
    """A buffer of zero bytes is never a blocker."""
    assert blockers(3, buf("e", 0, 0, 2), buf("a", 4, 0, 2)) == ("a",)
