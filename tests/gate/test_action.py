from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from budget_project import grow, make_project
from published_schemas import check_junit, check_sarif

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]


def action() -> dict[str, Any]:
    """Return the parsed action.yml."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    return found


def test_an_action_has_what_github_asks_of_it() -> None:
    """The action is composite, each script has a shell, and every used input is declared."""
    found = action()
    assert {"name", "description", "inputs", "runs"} <= set(found)
    assert found["runs"]["using"] == "composite"
    for step in found["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert "shell" in step or "uses" in step
    text = (ROOT / "action.yml").read_text("utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(found["inputs"])


def test_no_input_becomes_part_of_a_script() -> None:
    """No script of the action contains an expression, so that inputs cannot inject commands."""
    scripts = [step["run"] for step in action()["runs"]["steps"] if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


def test_the_script_of_the_action_runs(tmp_path: Path) -> None:
    """The action's script runs as on GitHub: annotations, summary, files and exit code."""
    bash = shutil.which("bash")
    if bash is None or sys.platform == "win32":
        pytest.skip("there is no bash")
    project = make_project(tmp_path / "my project")
    grow(project, 9000)
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "qnnmem"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qnnmem "$@"\n', "utf-8")
    program.chmod(0o755)
    step = next(one for one in action()["runs"]["steps"] if one.get("id") == "check")
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    given = {"CONFIG": "pyproject.toml", "SARIF": "a b.sarif", "JUNIT": "c.xml", "MAPS": "maps"}
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    words = [bash, "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    environment = {**os.environ, **files, **given, "PATH": path, "GITHUB_WORKSPACE": str(project)}
    done = subprocess.run(
        words, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error file=models/spotter.csv,line=1,")
    assert Path(files["GITHUB_OUTPUT"]).read_text("utf-8") == "exit-code=1\n"
    assert "616 over" in Path(files["GITHUB_STEP_SUMMARY"]).read_text("utf-8")
    check_sarif((project / "a b.sarif").read_text("utf-8"))
    check_junit((project / "c.xml").read_text("utf-8"))
    assert len(list((project / "maps").iterdir())) == 2


def test_the_hook_runs_one_check_for_all_files() -> None:
    """The pre-commit hook runs one check for models, budgets and baselines."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert (hook["id"], hook["entry"]) == ("qnnmem-check", "qnnmem check")
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    names = ("models/a.onnx", "b.bin", "pyproject.toml", "sub/qnnmem.toml", "qnnmem-baseline.json")
    assert all(re.search(hook["files"], name) for name in names)
    assert not re.search(hook["files"], "src/a.py")
