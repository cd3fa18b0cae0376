"""JSON output of a failed verb: an object with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import jsonschema
import pytest

from qnnmem.cli.outcome import outcome, wants_json
from qnnmem.results.schema import load_schema


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("plan", "gone.onnx", "--json"), 2, "gone.onnx"),
        (("plan", "gone.onnx", "--format", "json"), 2, "gone.onnx"),
        (("plan", "gone.onnx", "--format=json", "--dim", "batch"), 2, "--dim"),
        (("footprint", "gone.bin", "--json"), 2, "gone.bin"),
        (("place", "gone.bin", "--json"), 2, "gone.bin"),
        (("fit", "--json", "gone.bin", "--soc", "nonsense"), 2, "nonsense"),
        (("explain", "nonsense", "--json"), 2, "nonsense"),
        (("inspect", "gone.bin", "--json", "--nonsense"), 2, "--nonsense"),
    ],
)
def test_the_reason_is_an_object(
    words: Sequence[str],
    code: int,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The JSON error has the exit code and the same sentence as standard error."""
    monkeypatch.setattr(sys, "argv", ["qnnmem", *words])
    assert outcome(lambda: False) == code
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    jsonschema.Draft202012Validator(load_schema("qnnmem.error/1")).validate(values)
    assert values["exit_code"] == code
    assert part in values["error"]
    assert " ".join(printed.err.split()).startswith("qnnmem: ")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("plan", "a"), False),
        (("plan", "--", "--json"), False),
        (("plan", "--format", "csv", "json"), False),
        (("plan", "--json", "--"), True),
        (("plan", "--json", "--format", "text"), False),
        (("plan", "--format=csv", "--json"), False),
        (("--format", "json"), True),
    ],
)
def test_only_where_json_was_asked_for(words: Sequence[str], wanted: bool) -> None:
    """A JSON error is printed only if JSON was requested; words after `--` are file names."""
    assert wants_json(words) is wanted


def test_the_whole_program_does_so() -> None:
    """The program prints one JSON object on standard output and one sentence on standard error."""
    command = [sys.executable, "-m", "qnnmem", "plan", os.devnull, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert done.stderr.startswith("qnnmem: ")
