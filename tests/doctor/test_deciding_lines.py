"""The deciding line of a failure, with the built-in knowledge base."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.source import find_streams

FAULT = "arm-smmu 15000000.iommu: Unhandled context fault: fsr=0x402, iova=0xfd7ff000, cb=10"
FATAL = "qcom_q6v5_pas 26300000.remoteproc: fatal error received: SFR Init: wdog suspected."
CRASH = "remoteproc remoteproc2: crash detected in cdsp: type fatal error"
CONTEXT = "<E> Context create from binary failed for deviceId 0 coreId 0 pdId 0, err 1002"
SMALL = "<E> Failed to map buffer of size 12582912"
LARGE = "<E> fastrpc memory map for fd: 47 with length: 1258291200 failed with error: 0x1"
CLOSED = "<E> DspTransport.openSession qnn_open failed, 0x00000068, prio 100"


def said(path: Path, *lines: str) -> list[tuple[str, str, str]]:
    """Return verdict, cause and confidence of each incident."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    found = diagnose(find_streams([str(path)]), built_in())
    try:
        return [(one.verdict, one.cause, one.confidence) for one in found.incidents()]
    finally:
        found.close()


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((FAULT, FATAL), "driver_firmware"),
        ((FAULT, FATAL, CRASH), "driver_firmware"),
        ((FATAL, CRASH), "dsp_crash"),
        ((CRASH, FAULT), "dsp_crash"),
    ],
)
def test_the_first_error_of_a_crash_decides(
    tmp_path: Path, lines: tuple[str, ...], cause: str
) -> None:
    """The first error decides: a lost mapping gives driver_firmware, a crash dsp_crash."""
    assert [cause_ for _, cause_, _ in said(tmp_path / "a.log", *lines)] == [cause]


def test_a_failed_call_without_a_reason_decides_nothing(tmp_path: Path) -> None:
    """A failed call without a reason stays undecided, even if all candidates are on one side."""
    lines = (
        "PreRegisterMem failed to get file descriptor.",
        "Fail to pre register custom memory handle",
    )
    assert said(tmp_path / "a.log", *lines) == [("undecided", "unknown", "low")]


def test_a_code_of_a_registration_is_a_guess(tmp_path: Path) -> None:
    """The code 8002 alone gives a cause with low confidence."""
    lines = ("[ERROR] memRegister ERROR(8002)", "[ERROR] Create From Binary FAILED!")
    assert said(tmp_path / "a.log", *lines) == [("memory", "buffer_misuse", "low")]


def test_no_session_after_a_failed_context_is_memory_not_given_back(tmp_path: Path) -> None:
    """A refused session after a failed context suggests a leak, unless the mapping was large."""
    assert said(tmp_path / "a.log", SMALL, CONTEXT, CLOSED) == [("cause", "mem_leak", "low")]
    assert said(tmp_path / "a.log", CONTEXT, CLOSED) == [("cause", "mem_leak", "low")]
    ((verdict, cause, _),) = said(tmp_path / "a.log", LARGE, CONTEXT, CLOSED)
    assert (verdict, cause) == ("cause", "mem_dsp_va")
    ((_, _, confidence),) = said(tmp_path / "a.log", CLOSED)
    assert confidence == "low"


def test_a_file_of_another_format_was_only_tried(tmp_path: Path) -> None:
    """A failed attempt to parse a tokenizer is ignored if another format loads afterwards."""
    tried = "E tokenizers:hf_tokenizer.cpp:167] Error parsing json file: parse error at line 1"
    rest = (
        "I 00:00:00.067467 executorch:llm_runner_helper.cpp:72] Loaded TikToken tokenizer",
        "[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 1",
        "[INFO] [Qnn ExecuTorch]: Caching: Caching is in RESTORE MODE.",
    )
    assert said(tmp_path / "a.log", tried, *rest) == []
    assert said(tmp_path / "a.log", tried, *rest[1:]) == [("memory", "unknown", "low")]
