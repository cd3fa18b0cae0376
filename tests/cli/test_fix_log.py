"""`qnnmem fix --log`: from a failing log to a working model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import exit_code, run, sentence
from fix_samples import wide_picture

from qnnmem import lpai
from qnnmem.errors import QnnError
from qnnmem.htp.library import has_library
from qnnmem.qnn.enums import MemType
from qnnmem.results.schema import load_schema

KEPT = ("--cache", "kept")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with a model that needs 11,264 bytes of scratch."""
    monkeypatch.chdir(tmp_path)
    wide_picture(Path("wide.onnx"))


def full_heap(size: int, taken: int) -> str:
    """Return the runtime's error line for a heap without space for scratch."""
    heap = lpai.Heap(MemType.DDR, size)
    held = heap.allocate(taken, 64, "other") if taken else None
    with pytest.raises(QnnError) as caught:
        heap.allocate(11264, 64, "scratch")
    if held is not None:
        held.free()
    return f"{caught.value}\n"


def fix(*words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the JSON of a fix from run.log."""
    done = run("fix", "wide.onnx", "--dim", "batch=1", "--log", "run.log", *words, *KEPT, "--json")
    return exit_code(done), json.loads(done.stdout) if done.stdout else {}


def test_a_full_heap_gives_the_budget() -> None:
    """The free part of a full heap becomes the scratch budget, with the log line as its source."""
    Path("run.log").write_text("hello\n" + full_heap(65536, 56832))
    code, told = fix("-o", "out")
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix/1")).validate(told)
    assert code == 0
    assert told["limit_bytes"] == 65536 - 56832
    assert Path("out/wide.onnx").exists()
    line, found, wanted = told["from_log"]
    assert line.startswith("run.log:2: QNN_COMMON_ERROR_MEM_ALLOC")
    assert "memreg stage, mem_system_ram" in found
    assert wanted.endswith("the model must keep scratch within 8,704 bytes")
    assert "keep scratch within 8,704 bytes" in Path("out/wide.report.md").read_text("utf-8")


def test_a_full_pool_of_tcm_is_judged_whole() -> None:
    """A TCM failure in the log sets the budget to the whole TCM, which holds binary and IO too."""
    Path("run.log").write_text(
        "TCM pool current size: 0 max_size: 2048\n"
        "Allocate size 1024 from tcm pool 0\n"
        "TCM memory allocation failure: required size: 3072\n"
    )
    code, told = fix("-o", "out", "--time-limit", "0")
    assert (code, told["over_budget"]) == (1, ["tcm"])


def test_what_the_user_says_goes_before() -> None:
    """A given --budget takes precedence over the log."""
    Path("run.log").write_text(full_heap(100, 0))
    code, told = fix("--budget", "scratch=1M", "-o", "out")
    assert (code, told["limit_bytes"]) == (0, 1 << 20)


def test_without_a_number_it_is_made_as_small_as_it_gets() -> None:
    """A log line without a size gives no budget; the model is made as small as possible."""
    Path("run.log").write_text("Fail to allocate scratch buffer\n")
    code, told = fix("-o", "out", "--time-limit", "0")
    assert (code, told["limit_bytes"]) == (0, None)
    request = "no line states the limit; state the device's limit with --budget scratch=SIZE"
    assert [request in one for one in told["from_log"]] == [False, False, True]


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ("dlopen failed: cannot find libQnnHtpV73Skel.so", 3, "not memory"),
        ("healthy", 3, "no failure was found that a change"),
        (
            "QNN_GRAPH_ERROR_INVALID_ARGUMENT (6000) [R4]: scratch needs 256 bytes, 192 were given",
            3,
            "no change to the model can prevent this",
        ),
    ],
)
def test_what_no_change_helps_is_said(lines: str, code: int, said: str) -> None:
    """A log whose failure no model change can prevent gives exit code 3 and writes nothing."""
    Path("run.log").write_text(f"{lines}\n")
    done = run("fix", "wide.onnx", "--log", "run.log", "-o", "out")
    assert exit_code(done) == code
    assert said in sentence(done)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "line",
    [
        "hello world",
        "[INFO] QNN graph executed successfully in 12 ms",
        "QNN something",
        "qnn_execute_graph failed",
        "dlopen failed: cannot find libQnnHtpV73Skel.so",
        "QnnDsp <E> signature check of the module failed on the DSP",
    ],
)
def test_the_verdict_is_that_of_the_doctor(line: str) -> None:
    """Fix reports the doctor's verdict for every log, even a healthy or ambiguous log."""
    Path("run.log").write_text(f"{line}\n")
    verdict = run("doctor", "run.log").stdout.splitlines()[0]
    assert verdict in sentence(run("fix", "wide.onnx", "--log", "run.log", "-o", "out"))


def test_the_log_may_name_no_model() -> None:
    """A log that does not name its model needs one model on the command line."""
    Path("run.log").write_text("Fail to allocate scratch buffer\n")
    done = run("fix", "--log", "run.log", "-o", "out")
    assert (exit_code(done), "does not name the model" in sentence(done)) == (2, True)
    done = run("fix", "wide.onnx", "other.onnx", "--log", "run.log", "-o", "out")
    assert (exit_code(done), "one model" in sentence(done)) == (2, True)
    done = run("fix", "wide.onnx", "--log", "gone.log", "-o", "out")
    assert exit_code(done) == 2


def test_the_doctor_names_the_fix() -> None:
    """The doctor's remedy is a fix command with the user's files, and that command works."""
    Path("run.log").write_text(full_heap(65536, 56832))
    done = run("doctor", "run.log", "--model", "wide.onnx", "--dim", "batch=1")
    command = "qnnmem fix wide.onnx --dim batch=1 --log run.log -o fixed"
    assert command in done.stdout
    assert exit_code(run(*command.split()[1:], *KEPT)) == 0


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the HTP library is not installed")
def test_a_model_that_failed_is_not_said_to_fit_as_it_is() -> None:
    """A model that fits the SoC's limits but failed gives exit code 3 and asks for --budget."""
    Path("run.log").write_text("qnn_execute_graph failed: QNN_STATUS_MEMORY_ALLOCATION_FAILED\n")
    words = ("--dim", "batch=1", "--log", "run.log", "--soc", "SM8650", "-o", "out")
    done = run("fix", "wide.onnx", *words)
    assert exit_code(done) == 3
    asked = "which limit was exceeded; state the device's limit with --budget pd=SIZE"
    assert asked in sentence(done)
    assert not Path("out").exists()
