from __future__ import annotations

import pytest

from qnnmem.finding import Finding
from qnnmem.qnn.codes import UNKNOWN, code_name, code_of, codes, describe, qnn_error

# Codes that an LPAI client can meet, as runs of numbers.
LPAI_CODES = {
    0,
    1000,
    *range(1002, 1012),
    1100,
    2000,
    4000,
    *range(4002, 4013),
    *range(5000, 5015),
    *range(6000, 6008),
    *range(6020, 6026),
    *range(6030, 6040),
    *range(8000, 8006),
    *range(9000, 9006),
    *range(14000, 14004),
    *range(30000, 30003),
    30010,
}
COMPONENT_BY_THOUSAND = {
    0: "Common",
    1: "Common",
    2: "Property",
    3: "OpPackage",
    4: "Backend",
    5: "Context",
    6: "Graph",
    7: "Tensor",
    8: "Mem",
    9: "Signal",
    10: "Error",
    11: "Log",
    12: "Profile",
    13: "HtpPerfInfrastructure",
    14: "Device",
    15: "GlobalConfig",
    30: "System",
}


def test_every_code_an_lpai_client_can_meet_has_a_name() -> None:
    """Every documented code of the LPAI calls has a name."""
    assert LPAI_CODES - set(codes()) == set()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "QNN_SUCCESS"),
        (1000, "QNN_COMMON_ERROR_NOT_SUPPORTED"),
        (1002, "QNN_COMMON_ERROR_MEM_ALLOC"),
        (4003, "QNN_BACKEND_ERROR_NOT_SUPPORTED"),
        (5010, "QNN_CONTEXT_ERROR_INVALID_CONFIG"),
        (6000, "QNN_GRAPH_ERROR_INVALID_ARGUMENT"),
        (6002, "QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST"),
        (6025, "QNN_GRAPH_ERROR_EXECUTION_ASYNC_FIFO_FULL"),
        (6038, "QNN_GRAPH_ERROR_EARLY_TERMINATION"),
        (8004, "QNN_MEM_ERROR_INVALID_SHAPE"),
        (30010, "QNN_SYSTEM_CONTEXT_ERROR_MALFORMED_BINARY"),
    ],
)
def test_a_code_has_the_name_of_the_headers(code: int, name: str) -> None:
    """A code has the full name of the QNN headers."""
    assert code_name(code) == name


def test_a_number_with_several_names_keeps_the_others_as_aliases() -> None:
    """A number with several names has the common name first and the others as aliases."""
    assert "QNN_GRAPH_ERROR_MEM_ALLOC" in describe(1002).aliases
    assert "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE" in describe(1000).aliases


@pytest.mark.parametrize("code", [-1, 1, 1001, 6026, 1 << 70])
def test_a_number_that_qnn_does_not_define_is_unknown(code: int) -> None:
    """An unknown code keeps its number and is called unknown."""
    assert code_name(code) == UNKNOWN == "unknown QNN code"
    assert describe(code).code == code


def test_a_code_is_in_the_range_of_its_component() -> None:
    """The thousands of a code give its component."""
    found = {code: described.component for code, described in codes().items()}
    assert found == {code: COMPONENT_BY_THOUSAND[code // 1000] for code in found}


def test_names_are_unique_and_every_code_has_a_meaning() -> None:
    """No name or alias stands for two numbers, and no meaning is empty."""
    names = [name for code in codes().values() for name in (code.name, *code.aliases)]
    assert len(set(names)) == len(names)
    assert [code.name for code in codes().values() if not code.meaning] == []


def test_a_handle_carries_its_code_in_the_low_bits() -> None:
    """Only the low bits of a 64-bit handle are the code."""
    assert code_of((7 << 32) | 6004) == 6004


def test_an_error_says_name_number_rule_and_cure() -> None:
    """A QNN error prints its name, number, rule, sentence and cure."""
    error = qnn_error(6000, Finding("R4", "scratch is 64 bytes short", cure="allocate 128"))
    assert str(error) == (
        "QNN_GRAPH_ERROR_INVALID_ARGUMENT (6000) [R4]: scratch is 64 bytes short; allocate 128"
    )
