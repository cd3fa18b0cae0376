"""Arguments of `qnnmem doctor`: quoted patterns, and error text in place of a file."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence, verb

from qnnmem.doctor.logs.source import open_part
from qnnmem.errors import LoadError, UsageError

FAILED = "QnnDsp <E> Failed to create context from binary with err 0x3ea\n"
doctor = verb("doctor")


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with three logs, one of them with a failure."""
    monkeypatch.chdir(tmp_path)
    Path("logs/below").mkdir(parents=True)
    Path("logs/good.txt").write_text("QNN started well\n", "utf-8")
    Path("logs/bad.txt").write_text(FAILED, "utf-8")
    Path("logs/below/other.log").write_text("QNN started well\n", "utf-8")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["logs/*.txt"], ["logs/bad.txt", "logs/good.txt"]),
        (["logs/g*.txt"], ["logs/good.txt"]),
        (["logs/goo?.txt"], ["logs/good.txt"]),
        (["logs/[g]ood.txt"], ["logs/good.txt"]),
        (["logs/**/*.log"], ["logs/below/other.log"]),
        (["logs/**"], ["logs/bad.txt", "logs/below/other.log", "logs/good.txt"]),
        (["logs/*"], ["logs/bad.txt", "logs/below/other.log", "logs/good.txt"]),
        (["logs/*.txt", "logs/good.txt"], ["logs/bad.txt", "logs/good.txt"]),
    ],
)
def test_a_pattern_in_quotes_stands_for_what_it_matches(words: list[str], files: list[str]) -> None:
    """A quoted pattern expands as in a shell, folders included, with each file once."""
    values = json.loads(doctor(*words, "--json").stdout)
    assert values["files"] == files


def test_a_file_whose_name_is_a_pattern_is_itself() -> None:
    """An existing file whose name is a pattern is read as that file."""
    Path("logs/[x].txt").write_text("QNN started well\n", "utf-8")
    Path("logs/x.txt").write_text(FAILED, "utf-8")
    assert doctor("logs/[x].txt").return_value == 0


@pytest.mark.parametrize("pattern", ["logs/*.log", "nowhere/*", "logs/[0-9].txt", "["])
def test_a_pattern_without_a_match_is_refused(pattern: str) -> None:
    """A pattern without a match is refused by name."""
    done = doctor(pattern)
    assert exit_code(done) == 2
    assert sentence(done) == f"no file matches {pattern!r}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["error 1002"], "1002"),
        (["error", "1002"], "1002"),
        (["1002"], "1002"),
        (["err=0x3ea"], "1002"),
        (["QNN_COMMON_ERROR_MEM_ALLOC"], "QNN_COMMON_ERROR_MEM_ALLOC"),
        (["Failed to create context, err 0x80000406"], "2147484678"),
        (["[E] it's failed: 6031"], "6031"),
    ],
)
def test_a_code_in_place_of_a_file_is_sent_to_explain(words: list[str], code: str) -> None:
    """An error code in place of a file is refused with an `explain` command that works."""
    done = doctor(*words)
    assert isinstance(done.exception, LoadError)
    assert exit_code(done) == 2
    said = sentence(done)
    assert ": no such file; " in said
    assert f"`qnnmem explain {code}`" in said
    explained = run("explain", code)
    assert (explained.exception, explained.return_value) == (None, 0)
    piped = re.search(r"`(echo .* \| qnnmem doctor -)`", said)
    assert (piped is not None) is (" " in " ".join(words))
    if piped:
        command = piped[1].replace("qnnmem", f"{shlex.quote(sys.executable)} -m qnnmem")
        made = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False
        )
        assert made.returncode in (0, 1, 3), made.stderr


@pytest.mark.parametrize(
    "name", ["nofile.log", "nowhere/nofile 12.log", "nowhere/1002", "log2", "https.txt", "a 1.log"]
)
def test_a_file_that_is_missing_is_just_missing(name: str) -> None:
    """A missing path that looks like a file name is reported only as missing."""
    assert sentence(doctor(name)) == f"{name}: no such file"


def test_a_text_beside_a_log_is_a_file_that_is_missing() -> None:
    """Error text beside a log is reported as skipped, and the log is read."""
    done = doctor("logs/bad.txt", "error 1002")
    assert done.exception is None
    assert "skipped: error 1002: no such file" in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("words", [["logs"], ["logs/good.txt", "logs/below/other.log"]])
def test_a_log_that_may_not_be_read_is_said(words: list[str]) -> None:
    """An unreadable log is skipped with exit code 2, not called healthy."""
    Path("logs/bad.txt").unlink()
    Path("logs/good.txt").chmod(0)
    done = doctor(*words)
    assert exit_code(done) == 2
    assert "skipped: logs/good.txt: Permission denied" in done.stdout
    assert not done.stdout.startswith("healthy")


def test_a_log_that_cannot_be_opened_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that fails to open does not stop the reading of other logs."""

    def refuse(name: str) -> object:
        if name == "logs/good.txt":
            raise LoadError(name, "Permission denied")
        return open_part(name)

    monkeypatch.setattr("qnnmem.doctor.logs.source.open_part", refuse)
    done = doctor("logs/good.txt", "logs/below/other.log")
    assert done.exception is None
    assert done.return_value == 2
    assert "skipped: logs/good.txt: Permission denied" in done.stdout
    with pytest.raises((LoadError, UsageError), match="Permission denied"):
        raise doctor("logs/good.txt").exception or AssertionError
