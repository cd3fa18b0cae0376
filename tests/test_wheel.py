"""The wheel, installed without extras into an environment of its own, does the main jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.wheel


def call(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a stranger would: no variables of ours, no sources in reach."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def pip(python: Path | str, *words: str | Path, folder: Path) -> None:
    """Run pip; without an index to ask, the tests are skipped."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    done = call(python, "-m", "pip", *words, *quiet, folder=folder)
    if done.returncode:
        if "No matching distribution" in done.stderr or "connection" in done.stderr.lower():
            pytest.skip("no package index can be reached")
        pytest.fail(done.stderr)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("qnnmem-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    # Not compiled: most of what is installed is never imported here.
    words = ("install", "--no-compile", "--constraint", ROOT / "constraints.txt", wheel)
    pip(sys.executable, "--python", python, *words, folder=folder)
    return python


def test_it_plans(python: Path, tmp_path: Path) -> None:
    """A plan of an example is proven without the extra."""
    model = EXAMPLES / "keyword_spotting.csv"
    done = call(python, "-m", "qnnmem", "plan", model, "--format", "json", folder=tmp_path)
    plan = json.loads(done.stdout)
    assert (plan["scratch_bytes"], plan["optimal"]) == (16_000, True)


def test_it_diagnoses(python: Path, tmp_path: Path) -> None:
    """The knowledge base is in the wheel."""
    log = EXAMPLES / "graph_limit.log"
    done = call(python, "-m", "qnnmem", "doctor", log, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "mem_graph_limit" in done.stdout.splitlines()[0]


def test_it_lints(python: Path, tmp_path: Path) -> None:
    """A pair of configuration files is written and found right."""
    made = call(
        python, "-m", "qnnmem", "config", "--backend", "lpai", "-o", "pair", folder=tmp_path
    )
    assert made.returncode == 0, made.stderr
    files = sorted((tmp_path / "pair").iterdir())
    done = call(python, "-m", "qnnmem", "lint", *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_ships_schemas_and_types(python: Path, tmp_path: Path) -> None:
    """Schema files and the marker for type checkers are in the wheel."""
    program = (
        "from importlib.resources import files; from qnnmem.results.schema import schema_names;"
        "print(len(schema_names()), files('qnnmem').joinpath('py.typed').is_file())"
    )
    count, typed = call(python, "-c", program, folder=tmp_path).stdout.split()
    assert int(count) >= 10
    assert typed == "True"
