"""The table of SoCs is complete and consistent, and each SoC is found by all its names."""

from __future__ import annotations

import pytest

from qnnmem.errors import CannotTell, UsageError
from qnnmem.provenance import Origin
from qnnmem.targets.socs import (
    any_soc,
    find_soc,
    htp_constant,
    pd_budget,
    soc_by_id,
    socs,
    with_hexagon,
)


@pytest.mark.parametrize(
    "text", ["SM8650", "sm8650", " 57 ", "Snapdragon 8 Gen 3", "snapdragon8GEN3", "8 gen 3"]
)
def test_a_soc_has_many_names(text: str) -> None:
    """Name, id and marketing name, in any letter case, give the same SoC."""
    soc = find_soc(text)
    assert (soc.name, soc.model_id, soc.arch, soc.fp16) == ("SM8650", 57, 75, True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((text, "SM8650") for text in ("8gen3", "8g3", "sd8gen3", "SD 8 Gen 3", "sm8650-ab")),
        *((text, "SM8650") for text in ("SM8650AC", "SM-8650", "sm_8650", "SM8650-3-AB", "id 57")),
        *((text, "SM8650") for text in ("Snapdragon® 8 Gen 3 Mobile Platform", "soc_model: 57")),
        *((text, "SM8650") for text in ("Snapdragon 8 Gen 3 (SM8650)", "snapdragon_8_gen_3")),
        *((text, "SM8650") for text in ("SM8650 (Snapdragon 8 Gen 3)", "snapdragon-8-gen-3\n")),
        ("8 elite", "SM8750"),
        ("Qualcomm Snapdragon 8 Elite for Galaxy", "SM8750"),
        ("X Elite", "SC8380XP"),
        ("x-elite", "SC8380XP"),
        ("8 plus gen 1", "SM8475"),
        ("8+gen1", "SM8475"),
        ("8s gen 3", "SM8635"),
        ("888", "SM8350"),
        ("sd865", "SM8250"),
        ("QCS6490-RB3", "QCS6490"),
        ("Dragonwing IQ9075", "QCS9075"),
        ("dragonwing qcs6490", "QCS6490"),
        ("SA8295P", "SA8295"),
        ("sa8775p automotive", "SA8775"),
        ("8 gen 5", "SM8845"),
    ],
)
def test_a_soc_is_found_as_people_write_it(text: str, name: str) -> None:
    """Brand names, bins, spaces and short forms do not change the SoC."""
    assert any_soc(text).name == name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SM8560", "SM8650 or SM8550"),
        ("8650", "SA8650 or SM8650"),
        ("QCS6940", "QCS6490"),
        ("QSC6490", "QCM6490 or QCS6490"),
        ("RB3", "QCS6490 or SDM845"),
        ("rb3 gen 2", "QCS6490"),
        ("x1e-80-100", "SC8380XP"),
        ("pineapple", "SM8650"),
        ("IQ-9", "QCS9075 or QCS9100"),
        ("elite", "SC8380XP, SC8480XP, SM8750 or SM8850"),
    ],
)
def test_what_is_not_certain_is_asked_back(text: str, names: str) -> None:
    """Swapped digits, boards, platforms and partial names are refused with suggestions."""
    with pytest.raises(UsageError) as caught:
        find_soc(text)
    assert str(caught.value).endswith(f"; did you mean {names}?")


@pytest.mark.parametrize("text", ["v75", "Hexagon v75", "HTP75", "hexagon_v75", "dsp_arch=75"])
def test_a_version_of_hexagon_is_none_and_names_those_that_have_it(text: str) -> None:
    """A Hexagon version is not an SoC; the error names SoCs with it, and a bare number is an id."""
    with pytest.raises(UsageError, match=r"Hexagon version, not a SoC; .*: SM8650, QCS8275"):
        find_soc(text)
    assert {soc.arch for soc in with_hexagon(text)} == {75}
    assert with_hexagon("75") == with_hexagon("v12") == ()


def test_every_soc_is_found_by_what_it_is_called() -> None:
    """Each SoC is found by its name in any case and by its marketing name."""
    for soc in socs():
        assert any_soc(soc.name) == any_soc(soc.name.lower()) == soc
        if soc.marketing_name:
            assert any_soc(soc.marketing_name) == soc


@pytest.mark.parametrize("text", ["", " ", "x" * 5000, "\x1b[31m", "Snapdragon", "1" * 400, "٣"])
def test_nonsense_is_refused_safely(text: str) -> None:
    """Nonsense is refused in one short, printable sentence."""
    with pytest.raises(UsageError, match="is not a known SoC") as caught:
        find_soc(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_numbers_carry_their_origin() -> None:
    """VTCM and compile limit of an SoC have a measured origin and a source."""
    soc = find_soc("SM7325")
    assert soc.vtcm_bytes is not None
    assert soc.compile_limit is not None
    assert (soc.vtcm_mb, soc.vtcm_bytes.value) == (2, 2 << 20)
    assert (soc.compile_limit.value, soc.compile_limit.origin) == (2 << 30, Origin.MEASURED)
    assert "onnxruntime-qnn 2.7.0" in soc.vtcm_bytes.source


def test_an_unknown_name_is_met_with_near_ones() -> None:
    """A typing error gets suggestions; nonsense gets the command `qnnmem socs`."""
    with pytest.raises(UsageError, match="did you mean SM8650"):
        find_soc("SM865O")
    with pytest.raises(UsageError, match="`qnnmem socs` lists all SoCs"):
        find_soc("??")


@pytest.mark.parametrize("text", ["SM8250", "21", "IPQ6018"])
def test_a_soc_without_htp_cannot_be_a_target(text: str) -> None:
    """An SoC without HTP is known but cannot be a target."""
    with pytest.raises(CannotTell, match="not a target of the HTP backend"):
        find_soc(text)
    assert not any_soc(text).has_htp


def test_an_id_gives_the_name_that_the_library_uses() -> None:
    """For an id with several names, the library's own name comes first."""
    shared = soc_by_id(52)
    assert shared is not None
    assert shared.name == "SA8255"
    assert soc_by_id(99_999) is None


def test_the_table_is_consistent() -> None:
    """Every HTP target has an architecture, VTCM, a limit and a source; names are unique."""
    table = socs()
    assert len({soc.name for soc in table}) == len(table) == 142
    for soc in table:
        known = {soc.vtcm_mb is None, soc.compile_limit is None, soc.fp16 is None}
        assert len(known) == 1
        assert soc.source
        if soc.has_htp:
            assert soc.arch in (68, 69, 73, 75, 79, 81, 85)


def test_names_of_one_id_agree() -> None:
    """Names with the same id have the same architecture, VTCM and FP16 support."""
    answers: dict[int, set[object]] = {}
    for soc in socs():
        answers.setdefault(soc.model_id, set()).add((soc.arch, soc.vtcm_mb, soc.fp16))
    assert {model: found for model, found in answers.items() if len(found) > 1} == {}


def test_constants_of_the_backend_have_sources() -> None:
    """The constants of the backend, such as the process domain budget, have sources."""
    budget = pd_budget()
    assert (budget.value, budget.origin) == (3_650_722_201, Origin.MEASURED)
    assert htp_constant("io", "unit").value == 8192
