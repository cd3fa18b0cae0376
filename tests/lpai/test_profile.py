from __future__ import annotations

from typing import Any

import pytest

from qnnmem.errors import UsageError
from qnnmem.lpai.profiles import Mode, profile
from qnnmem.qnn.enums import HwVersion, MemRegisterType, MemType, Target


def test_the_desk_is_an_x86_simulator_of_v6() -> None:
    """The default profile is x86, v6, alignment 64/64 and strict about scratch."""
    desk = profile()
    assert (desk.mode, desk.hw_version, desk.target) == (Mode.X86, HwVersion.V6, Target.X86)
    assert (desk.start_alignment, desk.size_alignment) == (64, 64)
    assert not desk.lenient_scratch


@pytest.mark.parametrize(
    ("mode", "pools", "persistent", "island", "heaps"),
    [
        ("x86", True, False, False, {MemType.DDR}),
        ("arm", True, False, True, {MemType.DDR}),
        ("adsp", True, True, False, set(MemType) - {MemType.UNDEFINED}),
    ],
)
def test_a_mode_says_who_brings_what(
    mode: str, pools: bool, persistent: bool, island: bool, heaps: set[MemType]
) -> None:
    """The mode determines persistent binaries, island use and memory types.

    In every mode the client supplies the pools.
    """
    made = profile(mode)
    assert made.client_brings_pools is pools
    assert made.require_persistent_binary is persistent
    assert made.island_allowed is island
    assert set(made.mem_types) == heaps


def test_a_lenient_platform_brings_its_own_pools() -> None:
    """A profile may let the platform supply the pools, as some ARM platforms do."""
    assert not profile("arm", client_brings_pools=False).client_brings_pools


@pytest.mark.parametrize(
    ("mode", "version", "allowed"),
    [
        ("adsp", "v5", False),
        ("adsp", "v5_1", False),
        ("adsp", "v6", True),
        ("adsp", "v7", True),
        ("arm", "v6", False),
        ("x86", "v7", False),
    ],
)
def test_tcm_is_for_direct_mode_from_v6_on(mode: str, version: str, allowed: bool) -> None:
    """TCM is allowed in direct mode from v6 on, so not on v5_1."""
    assert profile(mode, version).tcm_allowed is allowed


def test_ion_and_dma_buf_are_for_arm() -> None:
    """ION and DMA-BUF can be registered on ARM only; other modes register CUSTOM memory."""
    assert set(profile("arm").register_types) == set(MemRegisterType) - {MemRegisterType.UNDEFINED}
    assert profile("adsp").register_types == (MemRegisterType.CUSTOM,)


@pytest.mark.parametrize(
    ("name", "pair"), [("default", (64, 64)), ("conservative", (256, 64)), ("v4-era", (16, 16))]
)
def test_alignment_profiles_have_names(name: str, pair: tuple[int, int]) -> None:
    """Each named alignment profile has its start and size alignment."""
    made = profile(alignment=name)
    assert (made.start_alignment, made.size_alignment, made.alignment) == (*pair, name)


def test_every_detail_can_be_overridden() -> None:
    """Every field of a profile can be overridden; a changed alignment is named "custom"."""
    made = profile("x86", start_alignment=128, mem_types=["ddr", MemType.TCM], core_count=1)
    assert (made.start_alignment, made.size_alignment, made.alignment) == (128, 64, "custom")
    assert made.mem_types == (MemType.DDR, MemType.TCM)
    assert made.core_count == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "dsp"},
        {"mode": None},
        {"hw_version": "v8"},
        {"hw_version": "v3"},
        {"hw_version": HwVersion.UNKNOWN},
        {"alignment": "loose"},
        {"lenient_scratch": 1},
        {"start_alignment": 48},
        {"start_alignment": 0},
        {"start_alignment": 8192},
        {"size_alignment": "64"},
        {"size_alignment": True},
        {"core_count": 0},
        {"core_count": 33},
        {"mem_types": "ddr"},
        {"mem_types": ["sram"]},
        {"mem_types": [MemType.UNDEFINED]},
        {"register_types": 3},
        {"register_types": [MemType.DDR]},
        {"inference_us": 0},
        {"tcm_allowed": True},
        {"colour": "red"},
    ],
    ids=repr,
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    """An impossible profile raises UsageError in one line."""
    with pytest.raises(UsageError) as caught:
        profile(**wrong)
    assert "\n" not in str(caught.value)
