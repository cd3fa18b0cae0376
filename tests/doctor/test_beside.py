"""Text beside a failed call: its code, also on the next line, and a cause in words."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.reading import code_alone, code_at_end

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from doctor_cases import incidents

NAMES = {
    "qnn_htp_device_create": "init",
    "qnn_backend_initialize": "init",
    "qnn_htp_graph_prepare": "graph",
    "qnn_execute_graph": "execute",
}
CODES = ("1002", "0x3EA", "QNN_COMMON_ERROR_MEM_ALLOC", "QNN_GRAPH_ERROR_MEM_ALLOC")
FORMS = ("{}", "Error code: {}", "Error code {}", "err={}", "({})")


@pytest.mark.parametrize(("name", "code"), list(product(NAMES, CODES)))
def test_founding_names_with_a_code(name: str, code: str) -> None:
    """A founding call with code 1002, in any spelling, is a memory incident at its stage."""
    for word, form, between in product(("failed", "returned error"), FORMS, (" ", "\n")):
        text = f"{name} {word}{between}{form.format(code)}\n"
        found = incidents(text.encode(), built_in())
        assert [(one.stage, one.is_memory) for one in found] == [(NAMES[name], True)], text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"Failed to finalize QNN graph. Error code 1002", 1002),
        (b"graph create failed (0x3ea)", 1002),
        (b"failed to do it, err=14001.", 14001),
        (b"failed after 1002 ms", None),
        (b"failed in qnn_model.cc:1002", None),
    ],
)
def test_code_at_end(text: bytes, code: int | None) -> None:
    """A known code at the end of a line is read; a duration or a line number is not."""
    assert code_at_end(text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"1002", 1002),
        (b"  (0x3ea)", 1002),
        (b"Error code: 5005", 5005),
        (b"err=1002", 1002),
        (b"QNN_STATUS_MEMORY_ALLOCATION_FAILED", 1002),
        (b"## failed with QNN_GRAPH_ERROR_MEM_ALLOC.", 1002),
        (b"QNN_NO_NAME_OF_A_CODE", None),
        (b"2048", None),
        (b"error 1002 in the second part", None),
    ],
)
def test_code_alone(text: bytes, code: int | None) -> None:
    """A code is read from a line only if the line holds nothing else."""
    assert code_alone(text) == code


@pytest.mark.parametrize(
    ("text", "entry", "numbers"),
    [
        ("lpai: scratch buffer not aligned", "named-lpai-alignment", {}),
        ("eNPU: io buffer must be 64 byte aligned, offset 12", "named-lpai-alignment", {}),
        (
            "eNPU TCM allocation failed, requested 65536",
            "named-lpai-tcm",
            {"needed_bytes": 65536, "size_bytes": 2035712},  # the documented size of the pool
        ),
        (
            "LPAI: persistent buffer too small: need 8 KB, got 4096",
            "named-lpai-size",
            {"needed_bytes": 8192, "limit_bytes": 4096},
        ),
        (
            "[lpai] Failed to allocate scratch memory of 262144 bytes",
            "named-lpai-memory",
            {"needed_bytes": 262144},
        ),
    ],
)
def test_lpai_in_words(text: str, entry: str, numbers: dict[str, int]) -> None:
    """A line that names LPAI gives an LPAI entry with the sizes it states."""
    (found,) = incidents(f"{text}\n".encode(), built_in())
    assert (found.entry, found.quantities) == (entry, numbers)


def test_a_mapping_names_no_cause_for_sure() -> None:
    """A failed mapping of 2 GB decides the cause; at 800 MB the cause has low confidence."""
    line = "<E> fastrpc memory map for fd: 9 with length: {} failed with error: 0x1\n"
    said = [
        (one.verdict, one.confidence)
        for length in (312_475_648, 817_889_280, 2_040_528_896)
        for one in incidents(line.format(length).encode(), built_in())
    ]
    assert [verdict for verdict, _ in said[1:]] == ["cause", "cause"]
    assert said[1][1] == "low"
