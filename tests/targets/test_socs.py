"""The table of SoCs: complete, consistent, and found by any of their names."""

from __future__ import annotations

import pytest

from qnnmem.errors import CannotTell, UsageError
from qnnmem.provenance import Origin
from qnnmem.targets.socs import any_soc, find_soc, htp_constant, pd_budget, soc_by_id, socs


@pytest.mark.parametrize(
    "text", ["SM8650", "sm8650", " 57 ", "Snapdragon 8 Gen 3", "snapdragon8GEN3", "8 gen 3"]
)
def test_a_soc_has_many_names(text: str) -> None:
    """Name, id and marketing name in any case lead to the same SoC."""
    soc = find_soc(text)
    assert (soc.name, soc.model_id, soc.arch, soc.fp16) == ("SM8650", 57, 75, True)


def test_numbers_carry_their_origin() -> None:
    """VTCM and compile limit were asked from the library."""
    soc = find_soc("SM7325")
    assert soc.vtcm_mb is not None
    assert soc.vtcm_bytes is not None
    assert soc.compile_limit is not None
    assert (soc.vtcm_mb.value, soc.vtcm_bytes.value) == (2, 2 << 20)
    assert (soc.compile_limit.value, soc.compile_limit.origin) == (2 << 30, Origin.MEASURED)
    assert "onnxruntime-qnn 2.7.0" in soc.vtcm_mb.source


def test_an_unknown_name_is_met_with_near_ones() -> None:
    """A typing error gets suggestions, nonsense gets the command that lists all."""
    with pytest.raises(UsageError, match="did you mean SM8650"):
        find_soc("SM865O")
    with pytest.raises(UsageError, match="`qnnmem socs` lists all"):
        find_soc("??")


@pytest.mark.parametrize("text", ["SM8250", "21", "IPQ6018"])
def test_a_soc_without_htp_cannot_be_a_target(text: str) -> None:
    """It is known, and it is said that it has no HTP."""
    with pytest.raises(CannotTell, match="not a target of the HTP backend"):
        find_soc(text)
    assert not any_soc(text).has_htp


def test_an_id_gives_the_name_that_the_library_uses() -> None:
    """Where names share an id, the library's own comes first."""
    shared = soc_by_id(52)
    assert shared is not None
    assert shared.name == "SA8255"
    assert soc_by_id(99_999) is None


def test_the_table_is_consistent() -> None:
    """Every target has an architecture, VTCM, a limit and a source; names are unique."""
    table = socs()
    assert len({soc.name for soc in table}) == len(table) == 142
    for soc in table:
        known = {soc.vtcm_mb is None, soc.compile_limit is None, soc.fp16 is None}
        assert len(known) == 1
        assert soc.source
        if soc.has_htp:
            assert soc.arch in (68, 69, 73, 75, 79, 81, 85)


def test_names_of_one_id_agree() -> None:
    """The compiler knows only the id, so its answers are the same for each name."""
    answers: dict[int, set[object]] = {}
    for soc in socs():
        answers.setdefault(soc.model_id, set()).add((soc.arch, soc.vtcm_mb, soc.fp16))
    assert {model: found for model, found in answers.items() if len(found) > 1} == {}


def test_constants_of_the_backend_have_sources() -> None:
    """The budget of a process domain is a measured number of bytes."""
    budget = pd_budget()
    assert (budget.value, budget.origin) == (3_650_722_201, Origin.MEASURED)
    assert htp_constant("io", "unit").value == 8192
