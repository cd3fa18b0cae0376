"""A failure in a device log with good and bad messages of other processes."""

from __future__ import annotations

import pytest
from doctor_cases import incidents

from qnnmem.doctor.kb.knowledge import built_in

FAILURES = {
    "mem_dsp_va": (
        "Failed to map weights buffer to device!",
        "Could not allocate persistent weights buffer!",
        "Failed to allocate persistent weights buffer. Error code: 1002",
    ),
    "unknown": (
        "java.lang.RuntimeException: ai.onnxruntime.OrtException: Status Message: "
        "QNN graph execute error. Error code: 6001",
    ),
}
OVER_VTCM = (
    'ERROR:A single op, "q::ForceFormat_Crouton" (Op ID: 1165b600001430), requires '
    "0x2400000 bytes of TCM, which is greater than the TCM size of 0x800000!"
)
OTHERS = (
    ("I", "QnnGraph", " <I> Finalized graph whisper_small (id: 70), ops 540, duration 288 us"),
    ("W", "SELinux", "avc:  denied  { read } for  pid=61 comm=input name=radio dev=tmpfs ino=9"),
    ("I", "Genie", "graph create retry succeeded after cache drop, no error reported"),
    ("W", "BroadcastQueue", "Background execution not allowed: receiving Intent"),
    ("D", "QnnDsp", " <D> memory map of fd 715 length 67881022 done on domain 3 in 613 us"),
)


def _device_log(lines: tuple[str, ...], others: int, process: str) -> bytes:
    """Return a log with the failure in the middle of lines of other processes."""
    around = [
        f"05-28 20:26:43.{n:03}   83{n % len(OTHERS)}   897 {level} {tag}: {text}"
        for n in range(others)
        for level, tag, text in [OTHERS[n % len(OTHERS)]]
    ]
    if not process:
        around = [line.split(maxsplit=4)[4] for line in around]
    own = [f"{process}{line}" for line in lines]
    return "\n".join([*around[: others // 2], *own, *around[others // 2 :]]).encode() + b"\n"


@pytest.mark.parametrize("others", [6, 16, 60])
@pytest.mark.parametrize("cause", FAILURES)
def test_other_processes_change_nothing(cause: str, others: int) -> None:
    """Messages of other processes neither cancel the failure nor add incidents."""
    head = "05-28 20:26:43.500  5000  5001 E QnnDsp  : "
    alone = incidents(_device_log(FAILURES[cause], 0, head), built_in())
    mixed = incidents(_device_log(FAILURES[cause], others, head), built_in())
    assert [one.cause for one in alone] == [cause]
    assert [(one.cause, one.verdict) for one in mixed] == [
        (one.cause, one.verdict) for one in alone
    ]


@pytest.mark.parametrize("cause", FAILURES)
def test_lines_without_a_process_undo_no_failure(cause: str) -> None:
    """In a long log without process ids, later good news does not cancel a failure."""
    mixed = incidents(_device_log(FAILURES[cause], 60, ""), built_in())
    assert [one.cause for one in mixed] == [cause]


def test_failures_of_a_long_log_without_processes_are_apart() -> None:
    """In a long log without process ids, distance separates failures."""
    text = "2026-05-28 20:26:43.095 [E:onnxruntime:, qnn.cc:1 Run] {}\n"
    failures = ["".join(map(text.format, FAILURES["mem_dsp_va"])), text.format(OVER_VTCM)]
    other = "2026-05-28 20:26:43.095 [I:onnxruntime:, x.cc:1 Run] a frame was drawn\n"
    apart = (other * 300).join(failures).encode()
    causes = [one.cause for one in incidents(apart, built_in())]
    assert causes == ["mem_dsp_va", "mem_vtcm"]
