"""Placement: first-fit, the best order, exact and uncertain sizes, and the real library."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sliced_model import sliced

from qnnmem.errors import CannotTell
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import Compiled, compile_model
from qnnmem.htp.first_fit import EXACT_UP_TO, best_order, place
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import PdEstimate
from qnnmem.htp.place import (
    Resident,
    admissions,
    compare,
    estimated,
    exact,
    one_domain,
    plan_residency,
    resident,
)
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import SizeRange
from qnnmem.targets.socs import find_soc, pd_budget

SM8350 = find_soc("SM8350")
BUDGET = Sourced(10, Origin.MEASURED, "test")
sizes = st.lists(st.integers(1, 10), min_size=0, max_size=6)


def contexts(*bounds: int | tuple[int, int], spill: int = 0) -> list[Resident]:
    """Return contexts of these sizes, each exact or between two bounds."""
    found = []
    for number, bound in enumerate(bounds):
        low, high = bound if isinstance(bound, tuple) else (bound, bound)
        need = SizeRange(*(Sourced(size, Origin.COMPUTED, "test") for size in (low, high)))
        found.append(Resident(f"{number}.bin", need, spill))
    return found


def fewest(given_sizes: Sequence[int], budget: int) -> int:
    """Return the fewest domains over all orders, by brute force."""
    orders = itertools.permutations(range(len(given_sizes)))
    return min(len(place(given_sizes, budget, order).domains) for order in orders)


def test_a_context_goes_to_the_first_domain_with_room() -> None:
    """First-fit puts a small late context into the gap of an early domain."""
    placed = place([6, 6, 4, 3], 10)
    assert [domain.contexts for domain in placed.domains] == [(0, 2), (1, 3)]
    assert [domain.left for domain in placed.domains] == [0, 1]


@given(sizes)
def test_the_best_order_needs_the_fewest_domains(found: list[int]) -> None:
    """The best order contains each context once and needs as few domains as brute force finds."""
    best = best_order(found, 10)
    assert len(best.domains) == fewest(found, 10)
    assert sorted(best.order) == list(range(len(found)))


@given(st.lists(st.integers(1, 12), max_size=20))
def test_no_domain_is_overfull_and_nobody_is_lost(found: list[int]) -> None:
    """Each context is in one domain within the budget, or is larger than the budget."""
    for placed in (place(found, 10), best_order(found, 10)):
        assert all(domain.used <= 10 for domain in placed.domains)
        members = [member for domain in placed.domains for member in domain.contexts]
        assert sorted([*members, *placed.too_large]) == list(range(len(found)))
        assert all(found[one] > 10 for one in placed.too_large)


def test_a_better_order_is_found() -> None:
    """Four contexts need three domains in the given order and two with the largest first."""
    answer = plan_residency(contexts(4, 4, 6, 6), BUDGET)
    assert (len(answer.given.domains), len(answer.best.domains)) == (3, 2)
    assert (answer.fits, answer.best_is_exact) == (True, True)


def test_many_contexts_are_not_called_exact() -> None:
    """Above twelve contexts the order is largest-first, and the result is not marked exact."""
    assert not plan_residency(contexts(*[1] * (EXACT_UP_TO + 1)), BUDGET).best_is_exact


def test_five_domains_are_too_many() -> None:
    """Four full domains fit; five do not, because a process has four."""
    assert plan_residency(contexts(9, 9, 9, 9), BUDGET).fits is True
    assert plan_residency(contexts(9, 9, 9, 9, 9), BUDGET).fits is False


def test_a_context_larger_than_a_domain_never_fits() -> None:
    """A context larger than a domain never fits, even alone."""
    answer = plan_residency(contexts(11), BUDGET)
    assert (answer.fits, answer.given.too_large) == (False, (0,))


def test_bounds_that_give_different_answers_cannot_be_told() -> None:
    """Bounds give a verdict only if the lower and upper sizes have the same placement."""
    assert plan_residency(contexts((4, 5), (4, 5)), BUDGET).fits is True
    assert plan_residency(contexts((4, 6), (4, 6)), BUDGET).fits is None


def test_sharing_saves_all_but_the_largest_spill_buffer() -> None:
    """Shared spill buffers save all but the largest buffer of each domain."""
    assert plan_residency(contexts(3, 3, 3, 9, spill=2), BUDGET).spill_fill_saving == 4


def test_one_domain_lets_later_smaller_contexts_in() -> None:
    """A refused context takes no room; after an uncertain one, later answers are uncertain."""
    needs = [one.need for one in contexts(6, 6, 4)]
    assert one_domain(needs, 10) == (True, False, True)
    unsure = [one.need for one in contexts((3, 4), (6, 7), 2, 1)]
    assert one_domain(unsure, 10) == (True, None, None, None)


def test_the_log_replaces_bounds() -> None:
    """The library's estimates replace the bounds of the contexts."""
    found = [PdEstimate(1, 5, (), True)]
    assert exact(contexts((4, 6)), found)[0].need.is_exact


def test_a_library_that_lies_is_seen() -> None:
    """A context that the library admits against the prediction is marked as a disagreement."""
    found = [PdEstimate(1, 6, (), True), PdEstimate(2, 6, (), True)]
    checked = compare(contexts(6, 6), 10, found, [0, 0])
    assert [one.agrees for one in checked] == [True, False]


def test_a_library_that_died_early_cannot_be_compared() -> None:
    """If the library dies before all answers, the comparison fails with the reason."""
    with pytest.raises(CannotTell, match="ended by SIGSEGV"):
        compare(contexts(6, 6), 10, [PdEstimate(1, 6, (), True)], [], "ended by SIGSEGV")


def test_a_library_that_died_after_all_answers_is_believed() -> None:
    """The log states which contexts were admitted, even if the library returned no code."""
    checked = compare(contexts(11), 10, [PdEstimate(1, 11, (), False)], [])
    assert [(one.admitted, one.code, one.agrees) for one in checked] == [(False, None, True)]


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_the_real_library_admits_as_predicted(tmp_path: Path) -> None:
    """On both sides of the budget, the real library refuses exactly the predicted contexts."""
    binaries: dict[int, Path] = {}
    with Worker(warm=True) as worker:
        for mib in (860, 872, 1700, 1741):
            model = sliced(tmp_path / f"{mib}.onnx", mib)
            binaries[mib] = tmp_path / f"{mib}.bin"
            made = compile_model(model, SM8350, output=binaries[mib], worker=worker)
            assert isinstance(made, Compiled)
        for order, codes in (
            ([860] * 4, [0, 0, 0, 0]),
            ([872] * 4, [0, 0, 0, 1002]),
            ([1741, 1741, 860, 860, 860], [0, 1002, 0, 0, 1002]),
            ([1700, 1741, 860], [0, 0, 1002]),
        ):
            paths = [binaries[mib] for mib in order]
            found = [resident(path.name, bill_of(read_context(path), SM8350)) for path in paths]
            known = [one for one in found if one is not None]
            checked = admissions(paths, known, pd_budget().value, SM8350.model_id, worker)
            assert [one.code for one in checked] == codes
            assert all(one.agrees for one in checked)
            for one, guess in zip(checked, known, strict=True):
                assert one.estimate is not None
                assert guess.need.low.value <= one.estimate <= guess.need.high.value


def test_contexts_that_x86_cannot_keep_have_their_estimates() -> None:
    """If x86 cannot hold contexts with shared weights, their estimates still count."""
    given = contexts((3, 6), (3, 6))
    found = estimated(given, 20, [PdEstimate(1, 5), PdEstimate(1, 9)])
    assert [one.admitted for one in found] == [None, None]
    assert [one.agrees for one in found] == [True, False]
    assert [one.size for one in exact(given, found)] == [5, 9]
