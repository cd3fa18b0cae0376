"""Leaking and lost sessions of ONNX Runtime are reported with their model and line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, verb
from seeds import share

from qnnmem.htp.library import has_library
from qnnmem.programs.functions import NAMES, number_of

watch = verb("watch")
PROGRAM = Path(__file__).parent / "drive_onnxruntime.py"
LEAKS = ("global_", "exception", "cycle", "coroutine", "function", "twice", "restored")
GO_ON = {
    "lost": "contextCreate#2=1002",
    "executed": "graphExecute#4=1002",
    "damaged": "",
    "finalized": "graphFinalize#2=1002",
    "unsupported": "",
}


def _line(mark: str) -> int:
    """Return the marked line that makes a session."""
    rows = PROGRAM.read_text("utf-8").splitlines()
    return next(at for at, row in enumerate(rows, 1) if row.endswith(f"# {mark}"))


def _seen(tmp_path: Path, what: str, rule: str = "") -> dict[str, Any]:
    target = tmp_path / "seen.json"
    fail = ("--fail", rule) if rule else ()
    words = ("--json", "-o", target, *fail, "--", sys.executable, PROGRAM, what, tmp_path)
    assert exit_code(watch(*words)) == 1
    found: dict[str, Any] = json.loads(target.read_text("utf-8"))
    assert found["exit_code"] == 0
    return found


def _lines(stack: list[dict[str, Any]]) -> list[int]:
    """Return the lines of the program on a call stack, innermost first."""
    return [one["line"] for one in stack if one["file"] == str(PROGRAM)]


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the HTP library is not here")
@pytest.mark.parametrize("what", share(LEAKS, 3))
def test_a_session_that_is_left_has_its_model_and_its_line_of_python(
    tmp_path: Path, what: str
) -> None:
    """A leaked session is reported with its model and its Python line; other sessions are not."""
    found = _seen(tmp_path, what)
    model = "made.onnx" if what == "restored" else "encoder.onnx"
    kinds = [one["kind"] for one in found["unreleased"]]
    assert kinds == ["context", "device", "backend", "log"]
    assert {one["name"] for one in found["unreleased"]} == {model}
    mark = _line(f"culprit: {what.strip('_')}")
    for one in found["unreleased"]:
        lines = _lines(one["stack"])
        assert lines[what == "function"] == mark
        assert lines[-1] in (_line("last line"), mark)  # a thread starts at the mark
        assert one["place"].endswith(f"{PROGRAM.name}:{lines[0]}")
        assert not any(frame["function"].startswith("PyInit_") for frame in one["stack"])
    assert repr(model) in found["verdict"]
    assert found["lost"] == []


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the HTP library is not here")
@pytest.mark.parametrize("what", share([*GO_ON], 3))
def test_a_session_that_goes_on_without_qnn_is_a_finding(tmp_path: Path, what: str) -> None:
    """A session that continues without QNN is a finding with its model, line and failed call."""
    found = _seen(tmp_path, what, GO_ON[what])
    [one] = found["lost"]
    model = {"lost": "encoder", "damaged": "made.onnx"}.get(what, "encoder.onnx")
    assert one["name"] == model
    assert one["place"].endswith(f"{PROGRAM.name}:{_line(f'culprit: {what}')}")
    rule = GO_ON[what].partition("#")[0]
    reads = "QnnSystemContext_getBinaryInfo" if what == "damaged" else ""
    assert one["function"] == (NAMES[number_of(rule)] if rule else reads)
    assert one["executions"] == (2 if what == "executed" else 0)
    assert one["after_ns"] > 0
    assert "continued without QNN" in found["verdict"]
    assert found["unreleased"] == []
