"""Statements of the LPAI pages that had no place: versions, the size of the binary info."""

from __future__ import annotations

import pytest

from qnnmem import lpai
from qnnmem.lpai.profiles import choices, profile
from qnnmem.qnn.abi import BINARY_INFO_BYTES


@pytest.mark.parametrize(("version", "has_tcm"), [("v5_1", False), ("v6", True)])
def test_version_v6_is_that_of_the_hardware(version: str, has_tcm: bool) -> None:
    """A choice with its reason, which the profile follows."""
    assert profile("adsp", version).tcm_allowed is has_tcm
    choice = choices()["tcm-version"]
    assert "LPAI hardware v6" in choice.what
    assert "SDK" in choice.why


def test_the_size_of_the_binary_info_is_given() -> None:
    """As the fifth argument of QnnSystemContext_getBinaryInfo gives it in C."""
    system = lpai.SystemContext.create()
    assert system.binary_info_size == BINARY_INFO_BYTES > 0
    assert system.binary_info_size % 8 == 0
    system.free()
