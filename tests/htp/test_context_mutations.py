"""Damaged context binaries: an answer or one sentence, never a traceback, never a hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "mutate_contexts.py"


def test_mutants_are_read_or_refused(tmp_path: Path) -> None:
    """Of some hundred mutants none crashes the reader, the bill or a report."""
    command = [sys.executable, str(TOOL), "--count", "400", "--seed", "7", "--keep"]
    done = subprocess.run(
        [*command, str(tmp_path / "failed")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n400 mutants, 0 failed, " in done.stdout
    assert not (tmp_path / "failed").exists()


def test_a_crash_would_be_found(tmp_path: Path) -> None:
    """With a reader that breaks on everything, mutants are reported and kept."""
    program = (
        f"import sys; sys.path.insert(0, {str(TOOL.parent)!r})\n"
        "import mutate_contexts as tool\n"
        "def broken(*given): raise IndexError('planted')\n"
        "tool.context_from_bytes = broken\n"
        f"sys.exit(tool.main(['--count', '5', '--keep', {str(tmp_path)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "IndexError: planted" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {f"0-{n}.bin" for n in range(1, 5)}
