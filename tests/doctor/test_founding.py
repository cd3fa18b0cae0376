"""The founding entries: the call by its founding name, the code in any spelling."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import exit_code, run

from qnnmem.doctor.kb.check import judged
from qnnmem.doctor.kb.knowledge import built_in

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
    """Return the entry that matches these lines."""
    found = judged(built_in(), lines)
    return found.entry.id if found and found.entry else None


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_a_number_beside_the_call(entry: str, call: str) -> None:
    """The number 1002 beside the call, decimal or hexadecimal, selects the entry."""
    for before in BEFORE:
        assert {entry_of(f"{call}{before}{number}") for number in NUMBERS} == {entry}
        for other in ("5005", "11002", "10023", "0x3eab"):
            assert entry_of(f"{call}{before}{other}") != entry


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_a_name_beside_the_call_or_on_a_line_of_its_own(entry: str, call: str) -> None:
    """The code's name selects the entry, whether it stands above, below or behind the call."""
    for name in NAMES:
        assert entry_of(f"{call}: {name}") == entry
        assert entry_of(call, f"Error code: {name}") == entry
        assert entry_of(f"returned {name}", call) == entry


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_a_line_of_qnn_with_the_code(entry: str, call: str) -> None:
    """A QNN line with code 1002 after the call selects the entry."""
    assert entry_of(call, "QNN error 1002") == entry
    assert entry_of(call, "QNN error 5005") != entry


@pytest.mark.parametrize(("entry", "call"), EACH)
def test_the_doctor_says_so(entry: str, call: str, tmp_path: Path) -> None:
    """The `doctor` verb gives the entry and memory for a log with other lines."""
    log = tmp_path / "dev.log"
    log.write_text(f"starting\n[12:00:01] {call}, error 0x3ea\nbye\n", "utf-8")
    (found,) = msgspec.json.decode(run("doctor", log, "--json").stdout)["incidents"]
    assert (found["entry"], found["is_memory"]) == (entry, True)


# Fragments of the notes' Root Cause lists, which the ranked causes contain.
CAUSES_OF = {
    "founding-device-create": ("HTP memory is insufficient", "graph is too large", "system heap"),
    "founding-device-init": ("fragmentation", "not released properly", "system heap"),
    "founding-graph-create": ("tensor count", "activation tensors", "constant weights"),
    "founding-inference": ("activation buffers", "dynamic input shapes", "concurrent QNN sessions"),
}
NOTES = {
    "founding-device-create": ("qnn_htp_device_create failed",),
    "founding-device-init": (
        "qnn_htp_device_create failed",
        "qnn_backend_initialize failed",
        "Failed to initialize HTP backend",
    ),
    "founding-graph-create": CALLS["founding-graph-create"],
    "founding-inference": CALLS["founding-inference"],
}
STAGE_OF = {"founding-graph-create": "graph", "founding-inference": "execute"}
CODE_LINE = "Error code: QNN_STATUS_MEMORY_ALLOCATION_FAILED"


@pytest.mark.parametrize("entry", NOTES)
def test_the_whole_note_ranks_its_own_causes(entry: str, tmp_path: Path) -> None:
    """The report and the JSON rank each item of the note's Root Cause list."""
    log = tmp_path / "dev.log"
    log.write_text("\n".join((*NOTES[entry], CODE_LINE)) + "\n", "utf-8")
    text = run("doctor", log).stdout
    ranked = text.partition("possible causes:")[2].partition("what to do:")[0]
    assert [words for words in CAUSES_OF[entry] if words not in ranked] == []
    collect = text.partition("what to collect next:")[2]
    assert f"`qnnmem doctor {log} --model MODEL --soc SOC`" in collect
    assert f"`qnnmem fix MODEL --log {log} --soc SOC -o fixed`" in collect
    (found,) = msgspec.json.decode(run("doctor", log, "--json").stdout)["incidents"]
    assert found["entry"] == entry
    assert sum("meaning" in one for one in found["candidates"]) >= 2


@pytest.mark.parametrize(("entry", "lines"), [*((e, (c,)) for e, c in EACH), *NOTES.items()])
def test_a_failed_call_alone_decides_no_side(
    entry: str, lines: tuple[str, ...], tmp_path: Path
) -> None:
    """A failed call alone gives exit code 3 and shows the stage, the causes and what to collect."""
    log = tmp_path / "dev.log"
    log.write_text("\n".join(lines) + "\n", "utf-8")
    done = run("doctor", log)
    assert exit_code(done) == 3
    stage = STAGE_OF.get(entry, "init")
    assert done.stdout.startswith(f"undecided: the {stage} stage failed")
    assert "what to collect next:" in done.stdout
    named = [words for words in CAUSES_OF[entry] if words in done.stdout]
    assert len(named) >= 2
    (found,) = msgspec.json.decode(run("doctor", log, "--json").stdout)["incidents"]
    assert (found["verdict"], found["is_memory"]) == ("undecided", "unknown")


@pytest.mark.parametrize(
    "line",
    [
        CODE_LINE,
        "QNN_STATUS_MEMORY_ALLOCATION_FAILED",
        "## QNN_STATUS_MEMORY_ALLOCATION_FAILED",
        "status: QNN_COMMON_ERROR_MEM_ALLOC",
        "Error code: 1002",
        "QNN error 0x3ea",
    ],
)
def test_the_code_alone_names_the_four_notes(line: str, tmp_path: Path) -> None:
    """The code alone gives exit code 3 and suggests `kb find`, which lists the four notes."""
    log = tmp_path / "dev.log"
    log.write_text(f"{line}\n", "utf-8")
    done = run("doctor", log)
    assert exit_code(done) == 3
    assert done.stdout.startswith("undecided: something failed")
    assert "qnnmem kb find QNN_STATUS_MEMORY_ALLOCATION_FAILED" in done.stdout


def test_the_commands_carry_the_dimensions_of_the_model(tmp_path: Path) -> None:
    """The suggested commands repeat the model and its dimensions."""
    log = tmp_path / "dev.log"
    log.write_text("qnn_graph_create failed\n", "utf-8")
    model = Path(__file__).parents[2] / "examples" / "small.onnx"
    text = run("doctor", log, "--model", model, "--dim", "N=1").stdout
    assert f"qnnmem doctor {log} --model {model} --dim N=1 --soc SOC" in text


@pytest.mark.parametrize(
    ("words", "entries"),
    [
        ("QNN_STATUS", set(CAUSES_OF)),
        ("QNN_STATUS_MEMORY_ALLOCATION_FAILED", set(CAUSES_OF)),
        ("fragmentation", {"founding-device-init"}),
        # Root causes as the notes state them.
        ("HTP memory insufficient", {"founding-device-create"}),
        ("Graph too large", {"founding-device-create"}),
        ("Large intermediate activation tensors", {"founding-graph-create"}),
        ("Excessive constant weights loaded to HTP", {"founding-graph-create"}),
        ("Dynamic input shapes cause unexpected buffer growth", {"founding-inference"}),
        ("Insufficient system heap for HTP device creation", {"founding-device-init"}),
        ("System heap pressure", {"founding-device-create"}),
        # Solutions, and a line without its code.
        ("Use INT8 / FP16 model", {"founding-device-create"}),
        ("Check SoC HTP memory config", {"founding-device-create"}),
        ("Fallback to CPU/GPU for validation", {"founding-device-create"}),
        ("Verify HTP supports all operators in the graph", {"founding-graph-create"}),
        ("Fix input shapes and avoid dynamic dimensions", {"founding-inference"}),
        ("Ensure proper cleanup of previous QNN contexts", {"founding-device-init"}),
        ("Validate HTP firmware and driver compatibility", {"founding-device-init"}),
        ("qnn_htp_device_create failed", {"founding-device-create"}),
        ("qnn_htp_graph_prepare failed", {"founding-graph-create"}),
    ],
)
def test_kb_find_puts_the_founding_entries_first(words: str, entries: set[str]) -> None:
    """`kb find` lists founding entries first for the code's name or a word of a cause."""
    rows = msgspec.json.decode(run("kb", "find", words, "--json").stdout)["entries"]
    assert {row["id"] for row in rows[: len(entries)]} == entries
