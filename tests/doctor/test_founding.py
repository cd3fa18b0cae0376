"""The founding entries: the call by its founding name, the code in whatever spelling."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import run

from qnnmem.doctor.kb.check import judged
from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, pack, read_folder

KNOWLEDGE = Knowledge(pack(*read_folder(BUILT_IN)))
CALLS = {
    "founding-device-create": ("qnn_htp_device_create failed",),
    "founding-device-init": ("qnn_backend_initialize failed", "Failed to initialize HTP backend"),
    "founding-graph-create": (
        "qnn_graph_create failed",
        "qnn_htp_graph_prepare failed",
        "Failed during graph creation stage",
    ),
    "founding-inference": (
        "qnn_execute_graph failed",
        "qnn_htp_execute failed",
        "Failure occurred during inference execution",
    ),
}
NUMBERS = ("1002", "0x3ea", "0x3EA", "0x000003ea")
BEFORE = (": Error code: ", " with error ", ", err: ", " (rc=", ": status = ", " -> ")
NAMES = (
    "QNN_STATUS_MEMORY_ALLOCATION_FAILED",
    "QNN_COMMON_ERROR_MEM_ALLOC",
    "QNN_GRAPH_ERROR_MEM_ALLOC",
    "qnn_device_error_mem_alloc",
    "QNN_MEM_ALLOC",
)
EACH = [(entry, call) for entry, calls in CALLS.items() for call in calls]


def entry_of(*lines: str) -> str | None:
    """The entry that speaks on these lines."""
    found = judged(KNOWLEDGE, lines)
    return found.entry.id if found and found.entry else None


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_a_number_beside_the_call(entry: str, call: str) -> None:
    """Decimal or hexadecimal, whatever stands between; another code is not memory."""
    for before in BEFORE:
        assert {entry_of(f"{call}{before}{number}") for number in NUMBERS} == {entry}
        for other in ("5005", "11002", "10023", "0x3eab"):
            assert entry_of(f"{call}{before}{other}") != entry


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_a_name_beside_the_call_or_on_a_line_of_its_own(entry: str, call: str) -> None:
    """Above, below or behind."""
    for name in NAMES:
        assert entry_of(f"{call}: {name}") == entry
        assert entry_of(call, f"Error code: {name}") == entry
        assert entry_of(f"returned {name}", call) == entry


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_a_line_of_qnn_with_the_code(entry: str, call: str) -> None:
    """A line that is read, not known."""
    assert entry_of(call, "QNN error 1002") == entry
    assert entry_of(call, "QNN error 5005") != entry


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_the_doctor_says_so(entry: str, call: str, tmp_path: Path) -> None:
    """The whole command, in a log with other lines."""
    log = tmp_path / "dev.log"
    log.write_text(f"starting\n[12:00:01] {call}, error 0x3ea\nbye\n", "utf-8")
    (found,) = msgspec.json.decode(run("doctor", log, "--json").stdout)["incidents"]
    assert (found["entry"], found["is_memory"]) == (entry, True)
