"""What a line tells of a failure, whatever words it uses."""

from __future__ import annotations

import pytest

from qnnmem.doctor.logs.reading import FAILING, OURS, read


@pytest.mark.parametrize(
    ("text", "stage", "code"),
    [
        (b"QNN error 1002", "", 1002),
        (b"E/QnnDsp: graph finalize returned 0x3ea", "graph", 1002),
        (b"QnnContext_createFromBinary returned 1002", "context", 1002),
        (b"QnnGraph_execute ret 6004", "execute", 6004),
        (b"[ERROR] QNN returned status 0x8000040d", "", 0x8000040D),
        (b"QnnDevice_create failed: -1002", "init", 1002),
        (b"QnnMem_register: QNN_MEM_ERROR_MAPPING", "memreg", 8003),
        (b"qnn: QNN_STATUS_MEMORY_ALLOCATION_FAILED", "", 1002),
        (b"rpcmem_alloc failed: AEE_ENOMEMORY", "memreg", 2),
        (b"could not execute on HTP, rc=-12", "execute", -12),
        (b"     0.1ms [ ERROR ] graph prepare failed 12", "graph", 12),
        (b"11-16 10:00:00.1  12  12 E QnnDsp: something else entirely", "", None),
        (b"2026-11-15 21:40:53.365 [V:onnxruntime:, x.cc:5 Log] <E> graph failed", "graph", None),
    ],
)
def test_failures(text: bytes, stage: str, code: int | None) -> None:
    """The stage of the call or thing named; codes in all their forms."""
    failure = read(text)
    assert failure is not None
    assert (failure.stage, failure.code) == (stage, code)
    low = text.lower()
    assert any(word in low for word in OURS), "or no engine hands the line over"
    assert any(word in low for word in FAILING)


@pytest.mark.parametrize(
    "text",
    [
        b"[INFO] QnnDsp: graph finalized without errors",
        b"QNN: finished with 0 errors",
        b"qnn-net-run: error code: 0",
        b"apps_std_fopen_fd done for libQnnHtpV79Skel.so error_code 0x0",
        b"QNN: registered the error handler",
        b"[INFO] qnn graph failed once",
        b"QnnDsp <I> graph failed",
        b"I/Qnn( 5): graph failed",
        b"windspeed sensor failed",
        b"skeleton animation failed",
        b"E CameraApp: frame dropped, error 5",
        b"QnnGraph_execute returned 0",
        b"QnnContext_create returned QNN_SUCCESS",
        b"",
    ],
)
def test_lines_that_tell_of_none(text: bytes) -> None:
    """Calm levels, failures that did not happen, failures of others."""
    assert read(text) is None
