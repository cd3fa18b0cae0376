"""The Python snippets of the docs under a user's type checker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_snippets_pass_a_strict_type_checker(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All snippets pass `mypy --strict` without further settings."""
    pytest.importorskip("mypy")
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    found = [(page, text) for page in pages for text in FENCE.findall(page.read_text("utf-8"))]
    assert len(found) >= 3
    for number, (page, text) in enumerate(found):
        name = f"snippet_{number}_{re.sub('[^a-z]', '_', page.stem.lower())}.py"
        (tmp_path / name).write_text(text, "utf-8")
    # Errors inside installed packages are silent, as in a user's mypy.
    kept = pytestconfig.cache.mkdir("mypy") if pytestconfig.cache else tmp_path / "cache"
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    options = ["--strict", "--config-file", os.devnull, "--follow-imports", "silent"]
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", str(kept)]
    files = sorted(map(str, tmp_path.glob("*.py")))
    done = subprocess.run(
        [*command, *files], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
