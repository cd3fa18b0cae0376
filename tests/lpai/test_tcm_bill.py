from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import TcmFatal, UsageError
from qnnmem.lpai.runtime.tcm_pool import TcmPool
from qnnmem.lpai.tcm import TcmBill, explain_tcm

POOL = 2_035_712


def bill(binary: int, inputs: list[int], outputs: list[int], bits: int = 0) -> TcmBill:
    """The account of tensors x0, x1, ... and y0, y1, ..., of elements of so many bits."""
    named_inputs = [(f"x{i}", size) for i, size in enumerate(inputs)]
    named_outputs = [(f"y{i}", size) for i, size in enumerate(outputs)]
    widths = {name: bits for name, _ in (*named_inputs, *named_outputs)}
    return explain_tcm(binary, named_inputs, named_outputs, io_bits=widths)


def test_the_worked_example_fits() -> None:
    """Binary, two inputs and an output are four allocations of 1,704,128 bytes together."""
    made = bill(1_500_000, [100_000, 100_000], [4_000])
    assert (made.fits, made.total, made.allocations, made.missing) == (True, 1_704_128, 4, 0)
    assert made.cures == ()
    assert made.first_failure is None


def test_larger_inputs_fail_on_the_second() -> None:
    """The table shows where the room went and where it ends."""
    made = bill(1_500_000, [300_000, 300_000], [4_000])
    assert (made.fits, made.total, made.missing) == (False, 2_104_128, 2_104_128 - POOL)
    assert made.first_failure is not None
    assert made.first_failure.what == "input 'x1'"
    assert [row.fits for row in made.rows] == [True, True, False, False]
    assert [row.padding for row in made.rows] == [32, 32, 32, 32]
    assert [row.running_total for row in made.rows] == [1_500_032, 1_800_064, 2_100_096, 2_104_128]


def test_an_exact_fit_passes_and_one_byte_more_does_not() -> None:
    """The limit belongs to the pool."""
    assert bill(POOL - 128, [64], [64]).fits
    over = bill(POOL - 127, [64], [64])
    assert (over.fits, over.missing) == (False, 64)


def test_narrower_elements_are_suggested_where_they_are_known() -> None:
    """Float32 IO of twice the room: 16 bits are not enough here, 8 bits are."""
    made = bill(100_000, [4_000_000], [64], bits=32)
    found = {cure.what: cure.sufficient for cure in made.cures}
    assert found["inputs and outputs of 8-bit elements"]
    assert not found["inputs and outputs of 16-bit elements"]
    assert made.advice.startswith("enough by itself: inputs and outputs of 8-bit elements")


def test_narrower_elements_are_not_suggested_for_8_bit_io() -> None:
    """What is narrow already cannot become narrower."""
    assert not any("-bit" in cure.what for cure in bill(3_000_000, [64], [64], bits=8).cures)


def test_the_smaller_binary_is_the_largest_that_fits() -> None:
    """So many bytes less are enough, one less than that is not."""
    made = bill(3_000_000, [1000], [10])
    (less,) = (
        int(match[1].replace(",", ""))
        for cure in made.cures
        if (match := re.search(r"smaller by ([\d,]+) bytes", cure.what))
    )
    assert bill(3_000_000 - less, [1000], [10]).fits
    assert not bill(3_000_000 - less + 1, [1000], [10]).fits


def test_the_smallest_output_that_is_enough_is_named() -> None:
    """Not the largest: only as much of the model goes as has to."""
    made = bill(1_500_000, [64], [200_000, 300_000, 600_000])
    assert made.cures[0].what == "the model without output 'y2'"
    made = bill(1_000_000, [64], [200_000, 300_000, 600_000])
    assert made.cures[0].what == "the model without output 'y0'"


def test_the_only_input_is_never_dropped() -> None:
    """A model without input or output is no model."""
    assert not any("without" in cure.what for cure in bill(10, [POOL], [64]).cures)


def test_two_changes_are_combined_where_one_is_not_enough() -> None:
    """16-bit IO still fills the pool: the binary has to shrink as well."""
    made = bill(1_900_000, [2 * POOL], [64], bits=16)
    assert not any(cure.sufficient and " + " not in cure.what for cure in made.cures)
    assert made.advice == "no change of the known ones is enough; use mem_type ddr"
    made = bill(1_900_000, [POOL], [64], bits=16)
    assert made.advice.startswith("no single change is enough: inputs and outputs of 8-bit")
    assert " + a model binary smaller by " in made.advice


def test_too_many_tensors_are_joined() -> None:
    """31 tensors and the binary pass; with 33 the three smallest become one."""
    assert bill(64, [64] * 30, [64]).fits
    made = bill(64, [64] * 32, [64])
    assert (made.fits, made.missing) == (False, 0)
    assert made.cures[0].what == "the 3 smallest inputs joined into one"
    assert made.cures[0].sufficient


def test_names_from_files_are_escaped() -> None:
    """A name cannot send commands to a terminal."""
    made = explain_tcm(64, [("a\x1b[31m", 64)], [])
    assert made.rows[1].what == "input 'a\\x1b[31m'"


def test_sizes_below_zero_are_bad_usage() -> None:
    """A negative size would make room from nothing."""
    with pytest.raises(UsageError):
        bill(64, [-64], [64])


sizes = st.lists(st.integers(1, 700_000), min_size=1, max_size=4)
alignments = st.sampled_from([(64, 64), (256, 64), (16, 16)])


@given(st.integers(1, 2_500_000), sizes, sizes, alignments)
def test_the_account_agrees_with_the_pool(
    binary: int, inputs: list[int], outputs: list[int], pair: tuple[int, int]
) -> None:
    """The account says that everything fits exactly when the pool gives everything."""
    named = [(str(size), size) for size in inputs], [(str(size), size) for size in outputs]
    made = explain_tcm(binary, *named, *pair)
    pool = TcmPool(lambda level, text: None, start_alignment=pair[0], size_alignment=pair[1])
    fits = [pool.allocate(size) is not None for size in (binary, *inputs, *outputs)]
    assert made.fits is all(fits)
    if not made.fits:
        assert made.first_failure is made.rows[fits.index(False)]


@given(st.integers(30, 40))
def test_the_account_agrees_with_the_pool_on_the_number(tensors: int) -> None:
    """Too many allocations are fatal in the pool and do not fit in the account."""
    pool = TcmPool(lambda level, text: None)
    try:
        fits = all(pool.allocate(64) is not None for _ in range(1 + tensors))
    except TcmFatal:
        fits = False
    assert bill(64, [64] * tensors, []).fits is fits


@given(st.integers(1, 4_000_000), sizes, sizes, st.sampled_from([0, 8, 16, 32]))
def test_what_does_not_fit_always_gets_advice(
    binary: int, inputs: list[int], outputs: list[int], bits: int
) -> None:
    """Sufficient changes save at least the missing bytes, others do not."""
    made = bill(binary, inputs, outputs, bits)
    for cure in made.cures:
        assert cure.sufficient is (cure.saves >= made.missing)
    assert bool(made.cures) or made.fits or "mem_type ddr" in made.advice
