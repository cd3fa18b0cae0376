"""The end of a log that names no QNN failure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from qnnmem.doctor.kb.knowledge import built_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from doctor_cases import incidents

TOOL = "".join(f"{n}.0ms [  INFO ] QnnDsp <I> rpcMemoryAlloc {n} isInit 1\n" for n in range(1, 300))
LOGCAT = "".join(
    f"11-04 16:53:{n % 60:02}.001  2780  2902 I QnnDsp  :  <I> rpcMemoryAlloc {n} isInit 1\n"
    for n in range(1, 300)
)


@pytest.mark.parametrize(
    "end",
    [
        "Segmentation fault",
        "Segmentation fault (core dumped)",
        "Killed",
        "./run.sh: line 12: 4321 Killed                  ./app --model m.bin",
        "Aborted",
        "Process finished with exit code 139",
        "RuntimeError: could not run the model",
    ],
)
def test_a_program_that_died(end: str) -> None:
    """A long QNN log that ends with a crash of the program is an incident."""
    found = incidents(f"{TOOL}{end}\n".encode(), built_in())
    assert [one.evidence[-1].text for one in found] == [end]
    assert found[0].last_line == 300


@pytest.mark.parametrize("end", ["done", "all tests passed, 0 errors", "exit code 0"])
def test_a_program_that_ended_well(end: str) -> None:
    """A normal end of the program is no incident."""
    assert not incidents(f"{TOOL}{end}\n".encode(), built_in())


@pytest.mark.parametrize(("pid", "found"), [(2780, ["mem_system_ram"]), (999, [])])
def test_the_process_of_qnn_is_killed(pid: int, found: list[str]) -> None:
    """The kill of the QNN process, by its id, is an incident; another kill is not."""
    end = f"11-04 16:54:00.000   500   500 I lowmemorykiller: Kill 'com.x.app' ({pid}), adj 900\n"
    assert [one.cause for one in incidents((LOGCAT + end).encode(), built_in())] == found


def test_a_death_in_a_log_about_other_things_says_nothing() -> None:
    """A crash far from the last QNN line is no incident."""
    other = "".join(f"{n} nothing to see\n" for n in range(2000))
    assert not incidents(f"{TOOL}{other}Killed\n".encode(), built_in())


def test_a_failure_in_a_long_line() -> None:
    """A failure inside a line over 4 KiB is found, unless its words are far apart."""
    said = " QnnContext_createFromBinary failed with error 1002 "
    line = "x" * 4000 + said + "y " * 700
    assert [one.stage for one in incidents(f"{TOOL}{line}\n{TOOL}".encode(), built_in())] == [
        "context"
    ]
    apart = "qnn " + "x " * 3000 + " failed "
    assert not incidents(f"{TOOL}{apart}\n{TOOL}".encode(), built_in())


TAKEN = "Allocate size 64 from tcm pool 0\n"
CRASH = "[  150.123456] remoteproc remoteproc0: crash detected in adsp: type fatal error\n"


@pytest.mark.parametrize("before", ["", TOOL], ids=["short", "long"])
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (TAKEN * 32, ["mem_tcm_slots"]),
        (TAKEN * 32 + CRASH, ["mem_tcm_slots"]),
        (TAKEN * 31, []),
        (TAKEN * 31 + CRASH, ["dsp_crash"]),
        (TAKEN * 32 + "QnnLpai: graph finalized\n", []),
    ],
)
def test_the_allocation_after_the_last_prints_nothing(
    before: str, end: str, cause: list[str]
) -> None:
    """After 32 TCM allocations, an end or a DSP crash suggests a fatal 33rd."""
    found = incidents(f"{before}{end}".encode(), built_in())
    assert [one.cause for one in found] == cause
    assert all(one.confidence == "low" for one in found if one.cause == "mem_tcm_slots")


@pytest.mark.parametrize(
    "line",
    [
        "07-01 10:00:00.000   641   641 I lowmemorykiller: Kill 'com.app.qnn' (25702), uid 10123",
        "QnnDsp <E> validateNativeOps master op validator q::Select failed 3110",
    ],
)
def test_what_counts_beside_others_only_is_read_where_it_stands_alone(line: str) -> None:
    """A line that an entry needs beside others is an incident if it stands alone."""
    (found,) = incidents(f"{line}\n".encode(), built_in())
    assert line in {one.text for one in found.evidence}


STRANGERS = (
    "E/QCameraPool(  263): int camera::Pool::take(unsigned int, size_t) : Buffer not found!",
    "D/QCameraPool(  263): static int camera::Pool::make(size_t) : buffer 1 of 458752 allocated",
)


def test_a_piece_of_a_device_log_among_strangers_is_not_of_qnn() -> None:
    """A short device log of other programs is no QNN incident."""
    log = "".join(f"{line}\n" for line in STRANGERS * 2)
    assert incidents(log.encode(), built_in()) == []


@pytest.mark.parametrize(
    "line",
    [
        "E/MyApp   (  263): model failed with error 1002",
        "E/MyApp   (  263): QnnGraph failed",
    ],
)
def test_strangers_are_listened_to_where_one_speaks_of_ours(line: str) -> None:
    """In a log of other programs, a line with a QNN code or name is an incident."""
    log = "".join(f"{one}\n" for one in (*STRANGERS, line, *STRANGERS))
    (found,) = incidents(log.encode(), built_in())
    assert line in {one.text for one in found.evidence}


@pytest.mark.parametrize(
    "end",
    [
        "556/556 tests passed\nBackend HTP0: OK",
        "Library Version   : Not Found\nUnit Test         : Passed",
    ],
)
def test_a_short_log_that_ends_with_all_passed_is_healthy(end: str) -> None:
    """A short log that ends with all tests passed is healthy, whatever came before."""
    log = f"ggml-hex: FASTRPC_GET_DOMAINS query failed (0x6c)\n{end}\n"
    assert not incidents(log.encode(), built_in())


@pytest.mark.parametrize(
    "end",
    [
        "556/556 tests passed\nQnnGraph_execute failed: 1002",
        "556/556 tests passed\nSegmentation fault",
    ],
)
def test_not_all_passed_or_not_to_the_end(end: str) -> None:
    """A later failure or crash after passed tests is an incident."""
    log = f"ggml-hex: Failed to open a session on HTP0: 0x2\n{end}\n"
    assert incidents(log.encode(), built_in())


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("failed: binary for SM8550, device is SM8650", "soc_mismatch"),
        ("the binary has 4 MB VTCM and fails on the board's 2 MB VTCM", "vtcm_config"),
    ],
)
@pytest.mark.parametrize("before", ["", "QNN: ", "QnnDsp <E> "])
def test_a_word_of_ours_hides_no_number(said: str, cause: str, before: str) -> None:
    """Numbers in a short message are read, even behind a QNN word."""
    (one,) = incidents(f"{before}{said}\n".encode(), built_in())
    assert one.cause == cause


@pytest.mark.parametrize(
    "log",
    [
        "hello world\nthis is not a log",
        "Out of memory: Killed process 1234 (java)",
        "[  12.1] cma: cma_alloc: linux,cma: alloc failed, req-size: 9600 pages, ret: -12",
        "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc",
        "E RKNN: rknn_init, load model failed! ret=-6",
        "make: *** [all] Error 2",
    ],
)
def test_nothing_of_qnn_is_a_failure_of_qnn(log: str) -> None:
    """A failure of another program is no incident."""
    assert incidents(f"{log}\n".encode(), built_in()) == []


def test_what_only_the_model_takes_for_a_failure_is_undecided() -> None:
    """Lines that only the learned model takes for a failure are at most undecided."""
    found = incidents(b"qnn one\nqnn two\nqnn three\nqnn four\n", built_in())
    assert {one.verdict for one in found} <= {"undecided"}


HEAD = "11-03 09:00:00.000  6100  6101"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            (
                "E QnnHtp  : Failed to allocate shared buffer of 67108864 bytes from heap system",
                "I App     : rpcmem failed, falling back to malloc",
                "I QnnHtp  : Context created",
                "I App     : frame 1: 21 detections",
            ),
            [],
        ),
        (
            (
                "E QnnHtp  : Failed to allocate shared buffer of 67108864 bytes",
                "I App     : falling back to malloc",
                "I App     : registered input buffer",
                "E QnnHtp  : QnnMem_register failed with error 8003",
            ),
            ["memreg"],
        ),
        (
            (
                "W QnnDsp  : DspTransport.openSession failed 0x80000406",
                "I ui      : settings saved",
            ),
            ["init"],
        ),
    ],
    ids=["fallback that worked", "fallback that failed", "warning before something else"],
)
def test_a_fallback_counts_if_the_run_goes_on(lines: Sequence[str], found: list[str]) -> None:
    """A fallback cancels a failure only if the run then succeeds."""
    log = "".join(f"{HEAD} {line}\n" for line in lines)
    assert [one.stage for one in incidents(log.encode(), built_in())] == found


@pytest.mark.parametrize(
    "line",
    [
        "WARNING:root:vm.overcommit_memory=2 may cause mmap to fail for large QNN binaries",
        'QNN config: {"error_reporting": "disabled", "on_oom": "abort", "fatal_on_error": true}',
        "[W] QnnEP: context cache model_ctx.onnx not found or invalid, recompiling",
        "QnnNet.cpp:1201: warning: unused variable 'error'",
    ],
)
def test_a_line_that_only_might_fail_is_no_failure(line: str) -> None:
    """Possible failures, settings and compiler warnings are no incidents."""
    assert incidents(f"{line}\n".encode(), built_in()) == []


def test_a_guess_does_not_overrule_the_code_for_memory() -> None:
    """The learned model alone does not overrule a memory code; the verdict stays undecided."""
    log = (
        "E QnnHtp: QnnContext_createFromBinary failed with error 1002\n"
        "W App: falling back to CPU\n"
        "I App: 21 detections in 140 ms\n"
    )
    (found,) = incidents(log.encode(), built_in())
    assert (found.verdict, found.is_memory) == ("undecided", "unknown")


LATER_WINS = (
    (
        "E QnnDsp  : QnnContext_createFromBinary failed, error 1002\n"
        "I App     : freeing the old context\n"
        "I App     : QnnContext_createFromBinary done, context created\n",
        "I App     : QnnContext_createFromBinary done, context created\n"
        "E QnnDsp  : QnnContext_createFromBinary failed, error 1002\n",
    ),
    (
        '{"level":"error","msg":"QnnMem_register failed: 8003"}\n'
        '{"level":"info","msg":"QnnMem_register succeeded after unload"}\n'
        '{"level":"info","msg":"HTP inference ok 7 ms"}\n',
        '{"level":"info","msg":"QnnMem_register succeeded"}\n'
        '{"level":"error","msg":"QnnMem_register failed: 8003"}\n',
    ),
    (
        'Traceback (most recent call last):\n  File "a.py", line 3, in load\n'
        "qnn.Error: cannot open libQnnHtpV81.so\nWARNING: HTP V81 is missing, V79 is used\n"
        "QNN session ready\nanswer: 42\n",
        'QNN session ready\nTraceback (most recent call last):\n  File "a.py", line 3, in load\n'
        "qnn.Error: cannot open libQnnHtpV81.so\n",
    ),
    (
        "06-01 10:00:00.000  100  100 E QnnA    : QNN graph finalize failed\n"
        "06-01 10:00:00.200  100  100 I QnnA    : retry: QNN graph finalized in 31 ms\n",
        "06-01 10:00:00.000  100  100 E QnnA    : QNN graph finalize failed, not enough memory\n"
        "06-01 10:00:00.100  200  200 I QnnB    : QNN graph finalized in 30 ms\n",
    ),
    (
        "D QnnDsp  : QnnMem_register failed with 8003\nI QnnDsp  : fastrpc map error 0x1\n",
        "E QnnDsp  : QnnMem_register failed with 8003\nI QnnDsp  : fastrpc map error 0x1\n",
    ),
    (
        "2024-06-14 10:00:00,000 - qnn - INFO - htp open failed once (expected)\n"
        "2024-06-14 10:00:01,000 - qnn - INFO - htp open\n",
        "2024-06-14 10:00:00,000 - qnn - ERROR - htp open failed: libQnnHtpV75Skel.so not found\n",
    ),
)


@pytest.mark.parametrize(("mended", "failed"), LATER_WINS)
def test_what_came_later_wins(mended: str, failed: str) -> None:
    """A success after the failure leaves no verdict; before it or in another process, it does."""
    for log, told in ((mended, False), (failed, True)):
        found = incidents(log.encode(), built_in())
        assert any(one.verdict != "undecided" for one in found) is told
