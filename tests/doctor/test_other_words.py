"""Lines that speak of anything but memory, and those that do not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.memory_words import speaks_of_shortage
from qnnmem.doctor.logs.other_words import is_telling, speaks_of_other
from qnnmem.doctor.logs.source import find_streams
from qnnmem.doctor.logs.topics import named_cause


@pytest.mark.parametrize(
    "text",
    [
        "genie: failed to open tokenizer file tokenizer.json",
        "qnn-net-run: error: missing required argument",
        "loadlibrary failed for qnnhtp.dll",
        "context binary is corrupt, checksum differs",
        "qnn: invalid tensor handle",
        "keyerror: 'input_ids' in qnn_wrapper",
        "driver is too old for this qnn release",
        "fastrpc: connection reset by remote process",
    ],
)
def test_files_options_libraries_and_arguments_are_no_shortage(text: str) -> None:
    """Which of them is at fault stays open."""
    assert speaks_of_other(text)
    assert not speaks_of_other(f"{text}, 12 mb of memory were asked for")


@pytest.mark.parametrize(
    "text",
    [
        "no mem handle found for address (0x7f9a3c0010).",
        "failed to get allocation info for address (0x7f9a3c0010).",
        "rpcmem library is required for file mapping but is uninitialized.",
        "attempting to map dma data for null memory mapped base pointer",
        "illegal written buffer size [602112] bytes. cannot exceed allocated memory of [9] bytes",
        "rpcmem_alloc not found",
        "failed to open dma-buf system heap.",
        "model allocation does not expose a valid fd",
        "tensor buffer is already locked.",
        "magic number configs allocation size overflow",
        "adb push model.bin: no space left on device",
        "this protobuf of the model is too large (>2gb)",
        "undefined reference to `rpcmem_alloc'",
        "libqnnhtp.so: failed to map segment from shared object",
        "in-share input buffer out of bounds. idx=1 size=602112",
        "dispatch op bytecode range is outside the model allocation: offset 4096, size 73400320",
    ],
)
def test_what_is_kept_account_of_is_not_short(text: str) -> None:
    """Handles, records, symbols and ends of memory are spoken of in its words."""
    assert speaks_of_other(text)
    assert not speaks_of_shortage(text)
    assert not named_cause(text)


def test_what_a_good_run_does_without_says_something_only_where_it_stands_alone() -> None:
    """A query that fails, a setting that nobody made."""
    for text in ("failed to get the attribute 4 of the dsp", "hardware accelerators are not set."):
        assert speaks_of_other(text, alone=True)
        assert not speaks_of_other(text)


def test_a_crash_says_something_only_where_it_stands_alone() -> None:
    """In a log it follows from what failed before."""
    crash = "fatal signal 11 (sigsegv) in tid 4521 (qnnhtpworker)"
    assert speaks_of_other(crash, alone=True)
    assert not speaks_of_other(crash)


def test_a_line_that_says_much_would_say_it_of_memory() -> None:
    """Words that any failure is told with do not count, and memory is mentioned or not."""
    assert is_telling("the second stream of the camera broke off before its reply, error")
    assert not is_telling("qnn graph execution failed with error code 5")
    assert not is_telling("the second stream of the camera broke off before its allocation, error")


def sides(path: Path, text: str) -> list[bool | str]:
    """Memory or not, of each incident in a log."""
    path.write_text(text, "utf-8")
    return [one.is_memory for one in diagnose(find_streams([str(path)]), built_in()).incidents()]


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("QNN: rpcmem_alloc(heapid=25, size=1073741824) = NULL\n", True),
        ("spill-fill buffer size 10485760 is smaller than required 20971520 (QNN)\n", True),
        ("WebNN QNN: memory budget exceeded on NPU\n", True),
        ("remote_mmap64 failed with 0x80000402\n", True),
        ("      0.4ms [ ERROR ] mem alloc failed for *tensors\n", True),
        ("RuntimeError: Not enough free blocks available to serve the request.\n", True),
        ("RuntimeError: The key-value cache budget is too small to hold the layers.\n", True),
        ("Failed to create the Genie Dialog config. Please check config file.\n", False),
        ("Unsigned PD not supported on this device\n", False),
        ("Context binary was generated for SM8550 but device is SM8650\n", False),
        ("map::at:  key not found\nERROR at line 244: Failed to create the dialog.\n", False),
        ("E/hta-unnhal: {CONVOLUTION_2D, TENSOR_QUANT8} is not supported. (dsp)\n", False),
        ("libhexagon.so\nmalloc(): invalid size (unsorted)\n", False),
        ("QNN: a W16 convolution fails, it requires v73\n", False),
        ("CL_OUT_OF_RESOURCES in QnnGpu\n", True),
        ("the second model fails with err 1002 on HTP\n", True),
        ("libQnnHtp.so: cannot allocate memory in static TLS block\n", "unknown"),
        ("E STHAL: sthw_load_sound_model failed -12\n", "unknown"),
        ("QNN: model run failed\n", "unknown"),
    ],
)
def test_a_side_is_told_where_the_words_tell_it(
    tmp_path: Path, text: str, memory: bool | str
) -> None:
    """Also by a line before the first failure that has no word of ours."""
    assert sides(tmp_path / "a.log", text) == [memory]


@pytest.mark.parametrize(
    "text",
    [
        "max abs error 1e-5 between HTP and CPU",
        '{"backend": "qnn", "status": "ok", "errors": 0}',
        "No crash since boot (cdsp)",
        "cdsp up 3 days, crashes 0",
        "no ADSP or CDSP crash, the sensors answer",
        "HTP perf mode set to burst",
        "QnnDevice_create failed, continuing without a device handle",
        "Some nodes were not assigned to QNN, which may or may not have an impact",
        "Solved by a newer QNN, no more err 1002",
        "the error of the HTP queue at exit can be safely ignored",
        "QNN converter: Model conversion finished. 0 ops unsupported",
        "mismatches: 0 / 1000 (HTP vs CPU)",
        "spill-fill buffer size: 10485760",
        "Skipping error injection test on HTP",
        "[qnn_init, 2230]: device property is not supported",
        "Qualcomm NPU ready. If acceleration fails, try another model",
    ],
)
def test_words_of_failure_in_harmless_use(tmp_path: Path, text: str) -> None:
    """Counts of none, measures of accuracy, conditions and names of things."""
    assert sides(tmp_path / "a.log", f"{text}\n") == []
