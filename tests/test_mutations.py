"""Damaged files of every kind: an answer or one sentence, never a traceback, never a hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mutate
import pytest

TOOL = Path(__file__).parents[1] / "tools" / "mutate.py"


def test_damaged_files_are_planned_or_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of some hundred mutants none crashes a reader, the planner or a report."""
    kept = tmp_path / "failed"
    code = mutate.main(["--count", "400", "--seed", "7", "--keep", str(kept)])
    said = capfd.readouterr().out
    assert code == 0, said
    assert "\n400 mutants, 0 failed, " in said
    assert not kept.exists()


@pytest.mark.parametrize("reader", ["onnx", "tflite", "eaix", "csv"])
def test_a_crash_would_be_found(reader: str, tmp_path: Path) -> None:
    """With a reader that breaks on every file, each of its mutants is reported and kept."""
    program = (
        "import runpy, sys, qnnmem\n"
        "def load(path):\n"
        f"    if path.suffix == '.{reader}': raise IndexError('planted')\n"
        "    raise qnnmem.LoadError(path, 'not read here')\n"
        "qnnmem.load = load\n"
        f"sys.argv = ['mutate', '--count', '20', '--keep', {str(tmp_path)!r}]\n"
        f"sys.path.insert(0, {str(TOOL.parent)!r})\n"
        f"runpy.run_path({str(TOOL)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    kept = {path.suffix for path in tmp_path.iterdir()}
    assert (done.returncode, kept) == (1, {f".{reader}"})
    assert "IndexError: planted" in done.stdout


def test_the_same_seed_makes_the_same_mutants() -> None:
    """A failure can be made again from its seed and number."""
    program = (
        f"import sys; sys.path.insert(0, {str(TOOL.parent)!r})\n"
        "import hashlib, mutate\n"
        "content = b''.join(m.content for m in mutate.mutants(200, 3))\n"
        "print(hashlib.sha256(content).hexdigest())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
