from __future__ import annotations

import pytest

from qnnmem.plan import TcmVerdict, judge_tcm
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets import tcm_pool
from qnnmem.units import Align, Bytes


def judge(model: int, *io: int, align: int = 64, limit: int = 2_035_712) -> TcmVerdict:
    """Judge against a pool of 32 allocations."""
    size, most = (Sourced(n, Origin.DOCUMENTED, "test") for n in (limit, 32))
    return judge_tcm(Bytes(model), [Bytes(n) for n in io], Align(align), size, most)


def test_the_pool_is_the_documented_one() -> None:
    """The shipped facts are 2,035,712 bytes and 32 allocations, with their origin."""
    pool = tcm_pool()
    assert (pool.size.value, pool.max_allocations.value) == (2_035_712, 32)
    assert pool.size.origin is Origin.DOCUMENTED
    assert pool.size.source


def test_the_worked_check_fits() -> None:
    """A binary, two inputs and an output, each rounded to 64 bytes, are four allocations."""
    verdict = judge(1_500_000, 100_000, 100_000, 4_000)
    assert (verdict.need, verdict.buffers, verdict.fits) == (1_704_128, 4, True)


def test_larger_inputs_do_not_fit() -> None:
    """The same model with inputs of 300,000 bytes is too large for the pool."""
    verdict = judge(1_500_000, 300_000, 300_000, 4_000)
    assert (verdict.need, verdict.fits) == (2_104_128, False)


@pytest.mark.parametrize(("tensors", "fits"), [(30, True), (31, True), (32, False)])
def test_the_model_and_its_tensors_are_at_most_32_allocations(tensors: int, fits: bool) -> None:
    """The binary counts as one, so that 31 tensors are the most."""
    verdict = judge(64, *[1] * tensors)
    assert (verdict.buffers, verdict.fits) == (tensors + 1, fits)


@pytest.mark.parametrize(("over", "fits"), [(-64, True), (0, True), (1, False)])
def test_an_exact_fit_succeeds(over: int, fits: bool) -> None:
    """A need equal to the pool fits; a byte more costs a whole step of alignment."""
    assert judge(2_035_712 - 128 + over, 128).fits is fits


def test_each_allocation_is_rounded_by_itself() -> None:
    """Three allocations of one byte take three times the alignment."""
    assert judge(1, 1, 1, align=256).need == 768
