"""ExecuTorch's client under the contract: a real program from outside this project."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, verb

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("executorch") is None, reason="the package executorch is not installed"
)


def checked(tmp_path: Path, *words: str | Path) -> dict[str, Any]:
    """Return the JSON of `check-client` for the client."""
    target = tmp_path / "found.json"
    script = Path(__file__).parent / "drive_executorch.py"
    done = verb("check-client")("--json", "-o", target, "--", sys.executable, script, *words)
    assert done.exception is None, done.exception
    found: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return {**found, "left_with": exit_code(done)}


def test_it_restores_a_binary_of_ours(tmp_path: Path) -> None:
    """ExecuTorch's client restores a binary from `qnnmem prepare` and frees everything."""
    found = checked(tmp_path, ROOT / "examples" / "small_lpai.bin")
    assert (found["left_with"], found["findings"], found["failed_calls"]) == (0, [], {})
    assert found["calls"]["QnnSystemContext_getMetadata"] == 1


def test_composing_a_graph_is_refused(tmp_path: Path) -> None:
    """Composing an LPAI graph is refused, because no compiler exists; the client accepts that."""
    found = checked(tmp_path)
    assert (found["exit_code"], found["findings"]) == (0, [])
    assert found["failed_calls"] == {"QnnContext_create": 1}
