"""Changes that would make everything fit into the TCM pool."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from qnnmem.lpai.tcm import DEFAULT_ALIGNMENT, TcmAccount, explain_tcm
from qnnmem.planner.tcm_pool import TcmRequest, TcmTensor
from qnnmem.targets import tcm_pool

POOL = 2_035_712


def account(binary: int, inputs: list[int], outputs: list[int], bits: int = 0) -> TcmAccount:
    """Return the account of these inputs and outputs with elements of this many bits."""
    tensors = [TcmTensor(f"x{n}", size, "input", bits) for n, size in enumerate(inputs)]
    tensors += [TcmTensor(f"y{n}", size, "output", bits) for n, size in enumerate(outputs)]
    pool = tcm_pool()
    request = TcmRequest(binary, tuple(tensors), DEFAULT_ALIGNMENT, pool.size, pool.max_allocations)
    return explain_tcm(request)


def test_what_fits_needs_no_change() -> None:
    """When everything fits, no change is suggested."""
    made = account(1_500_000, [100_000, 100_000], [4_000])
    assert (made.verdict.fits, made.changes) == (True, ())
    assert made.advice == "everything fits; no change is needed"


def test_narrower_elements_are_suggested_where_they_are_known() -> None:
    """For float32 IO twice the pool's size, 8-bit elements suffice and 16-bit elements do not."""
    made = account(100_000, [4_000_000], [64], bits=32)
    found = {change.what: change.sufficient for change in made.changes}
    assert found["inputs and outputs of 8-bit elements"]
    assert not found["inputs and outputs of 16-bit elements"]
    assert made.advice.startswith(
        "any one of these is enough: inputs and outputs of 8-bit elements"
    )


def test_narrower_elements_are_not_suggested_for_8_bit_io() -> None:
    """Narrower elements are not suggested for 8-bit IO."""
    assert not any(
        "-bit" in change.what for change in account(3_000_000, [64], [64], bits=8).changes
    )


def test_the_smaller_binary_is_the_largest_that_fits() -> None:
    """The suggested reduction of the binary is exact: one byte less would not fit."""
    made = account(3_000_000, [1000], [10])
    (less,) = (
        int(match[1].replace(",", ""))
        for change in made.changes
        if (match := re.search(r"smaller by ([\d,]+) bytes", change.what))
    )
    assert account(3_000_000 - less, [1000], [10]).verdict.fits
    assert not account(3_000_000 - less + 1, [1000], [10]).verdict.fits


def test_the_smallest_output_that_is_enough_is_named() -> None:
    """The smallest output whose removal suffices is suggested."""
    made = account(1_500_000, [64], [200_000, 300_000, 600_000])
    assert made.changes[0].what == "the model without output 'y2'"
    made = account(1_000_000, [64], [200_000, 300_000, 600_000])
    assert made.changes[0].what == "the model without output 'y0'"


def test_the_only_input_is_never_dropped() -> None:
    """The only input and the only output are never suggested for removal."""
    assert not any("without" in change.what for change in account(10, [POOL], [64]).changes)


def test_two_changes_are_combined_where_one_is_not_enough() -> None:
    """If no single change suffices, two changes are combined; otherwise mem_type ddr remains."""
    made = account(1_900_000, [2 * POOL], [64], bits=16)
    assert not any(change.sufficient and " + " not in change.what for change in made.changes)
    assert made.advice == "no known change is enough; use mem_type ddr"
    made = account(1_900_000, [POOL], [64], bits=16)
    assert made.advice.startswith("no single change is enough, but together these are: inputs")
    assert " + a model binary that is smaller by " in made.advice


def test_too_many_tensors_are_joined() -> None:
    """For more than 32 allocations, joining the smallest inputs is suggested."""
    assert account(64, [64] * 30, [64]).verdict.fits
    made = account(64, [64] * 32, [64])
    assert (made.verdict.fits, made.verdict.missing) == (False, 0)
    assert made.changes[0].what == "the 3 smallest inputs joined into one"
    assert made.changes[0].sufficient


sizes = st.lists(st.integers(1, 700_000), min_size=1, max_size=4)


@given(st.integers(1, 4_000_000), sizes, sizes, st.sampled_from([0, 8, 16, 32]))
def test_what_does_not_fit_always_gets_advice(
    binary: int, inputs: list[int], outputs: list[int], bits: int
) -> None:
    """A change is marked sufficient exactly if it saves the missing bytes."""
    made = account(binary, inputs, outputs, bits)
    for change in made.changes:
        assert change.sufficient is (change.saves >= made.verdict.missing)
    assert bool(made.changes) or made.verdict.fits or "mem_type ddr" in made.advice


def two_graphs(*sizes: int) -> TcmRequest:
    """Return two graphs with an input and an output each, of these sizes."""
    names = (("a", "input"), ("a", "output"), ("b", "input"), ("b", "output"))
    tensors = tuple(
        TcmTensor(f"{graph}/{kind}", size, kind, 8, graph)
        for (graph, kind), size in zip(names, sizes, strict=True)
    )
    pool = tcm_pool()
    return TcmRequest(3_841, tensors, DEFAULT_ALIGNMENT, pool.size, pool.max_allocations)


def test_of_several_graphs_one_may_stay_behind() -> None:
    """With several graphs, a run without the smaller one is suggested if that suffices."""
    made = explain_tcm(two_graphs(600_000, 600_000, 500_000, 500_000))
    assert [(change.what, change.sufficient) for change in made.changes] == [
        ("a run without graph 'b'", True)
    ]


def test_a_larger_graph_goes_where_the_smaller_is_not_enough() -> None:
    """If leaving out the smaller graph does not suffice, the larger one is suggested."""
    made = explain_tcm(two_graphs(1_900_000, 500_000, 100_000, 100_000))
    assert made.advice == "any one of these is enough: a run without graph 'a'; or mem_type ddr"
