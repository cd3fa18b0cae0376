"""The report beside a fixed model: everything needed to repeat the fix, and no foreign markup."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
from command_line import exit_code, run
from fix_samples import wide_picture


def test_a_report_says_where_a_model_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has verdict, proof, commands and digest; hostile names are escaped."""
    monkeypatch.chdir(tmp_path)
    name = "<script>_a_|.onnx"
    model = onnx.load(wide_picture(Path("wide.onnx")))
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "<b>`|x"
    onnx.save(model, name)
    words = ("--dim", "batch=1", "--budget", "scratch=8K", "-o", "out", "--cache", "kept")
    done = run("fix", name, *words)
    assert exit_code(done) == 0
    text = Path("out", "<script>_a_|.report.md").read_text("utf-8")
    assert text.startswith("# fits: scratch ")
    assert hashlib.sha256(Path(name).read_bytes()).hexdigest() in text
    assert "the same bit for bit" in text
    assert "qnnmem prepare" in text
    assert "--apply" in text
    assert "--budget" in text
    assert "kept" not in text
    outside = text.split("```")
    assert "<script>" not in outside[0] + outside[2]
    assert "<b>" not in text
    again = run("fix", name, *words, "--force")
    assert exit_code(again) == 0
    assert Path("out", "<script>_a_|.report.md").read_text("utf-8") == text
