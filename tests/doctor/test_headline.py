"""The first line about real logs: plain words, and a stage only if a line shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import exit_code, run

KNOWN = "graph requires estimated allocation of 2347229 KB, limit is 2097152 KB"
STRANGE = "E/QnnFoo: the widget exploded, failed with error 77"


def said(folder: Path, *lines: str) -> tuple[int, str]:
    """Return the exit code and the report of a log."""
    log = folder / "dev.log"
    log.write_text("\n".join(lines) + "\n", "utf-8")
    done = run("doctor", log)
    return exit_code(done), done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 77 (qnn-net-run) total-vm:1kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task=qnn-net-run",
        "qnn-net-run: terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_a_kill_alone_tells_no_stage(line: str, tmp_path: Path) -> None:
    """An out-of-memory kill alone gives a memory verdict without a stage."""
    code, text = said(tmp_path, line)
    assert (code, text.startswith("out of memory")) == (1, True)
    assert "stage" not in text.splitlines()[0]


def test_a_call_beside_it_tells_the_stage(tmp_path: Path) -> None:
    """A line that names the call adds the stage to the verdict."""
    code, text = said(
        tmp_path,
        "Failed to finalize QNN graph. Error code: 1002 at location qnn_model.cc:167",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    )
    assert (code, text.startswith("graph stage: out of memory")) == (1, True)


def test_a_bare_code_is_a_sentence_and_a_list(tmp_path: Path) -> None:
    """A bare code gives a first line without cause ids; the list below explains them."""
    _, text = said(tmp_path, "QNN error 1002")
    first, *rest = text.splitlines()
    assert first.startswith("undecided: something failed, but the log does not show why; ")
    assert "whether memory is short (memory causes " in first
    assert "mem_" not in first
    assert any(
        line.endswith("exceed the address space of the DSP process (mem_dsp_va)") for line in rest
    )


def test_an_unknown_error_before_is_told_and_shown(tmp_path: Path) -> None:
    """An unknown error before the deciding line adds doubt and is shown; one after it does not."""
    _, before = said(tmp_path, STRANGE, KNOWN)
    assert before.startswith("graph stage: probably out of memory: the compiler's estimate")
    assert "an unknown error line comes before the decisive line: " in before
    assert f"dev.log:1: {STRANGE}" in before
    _, after = said(tmp_path, KNOWN, STRANGE)
    assert after.startswith("graph stage: out of memory: the compiler's estimate")
    assert "no entry matches" not in after
