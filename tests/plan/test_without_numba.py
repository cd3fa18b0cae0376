"""The planner where numba is not installed: same proofs where greedy finds them, honest elsewhere.

Each test runs in a process of its own in which importing numba fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qnnmem
from qnnmem.installation import command_for
from qnnmem.plan import plan_model

ROOT = Path(__file__).parents[2]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.csv")), ROOT / "examples" / "tiny.eaix"]
NOTE = "the exact search is not installed"
INSTALL = command_for("search")

# The load is 21 bytes and the least peak is above it, which only the search can prove.
HARD = """id,lower,upper,size
a,0,3,5
b,8,13,6
c,8,12,4
d,1,6,9
e,1,5,7
f,5,10,11
"""


@pytest.fixture
def without_numba(tmp_path: Path) -> dict[str, str]:
    """Make an environment whose Python cannot import numba."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['numba'] = None\n")
    paths = (str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments."""
    return subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def hard(tmp_path: Path) -> str:
    """Write a list of buffers that needs the search."""
    path = tmp_path / "hard.csv"
    path.write_text(HARD, "utf-8")
    return str(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_get_the_same_proven_plans(path: Path, without_numba: dict[str, str]) -> None:
    """No byte and no proof is lost where greedy placement meets the bound."""
    done = run(without_numba, "-m", "qnnmem", "plan", str(path), "--format", "json")
    values = json.loads(done.stdout)
    plan = plan_model(qnnmem.load(path))
    assert values["optimal"] is True
    assert values["scratch_bytes"] == plan.scratch_bytes
    assert {b["name"]: b["offset_bytes"] for b in values["buffers"]} == {
        b.name: b.offset for b in plan.buffers
    }
    assert not any(NOTE in note for note in values["notes"])


def test_a_hard_list_gets_an_honest_gap_and_one_line(
    hard: str, without_numba: dict[str, str]
) -> None:
    """The text states the distance to the proven bound and how to install the search."""
    done = run(without_numba, "-m", "qnnmem", "plan", hard)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].startswith("scratch 25 bytes, at most 19.05 % above the minimum")
    assert [line for line in lines if INSTALL in line] == [
        f"note: {NOTE} and may find a lower plan or prove this one minimal: {INSTALL}"
    ]
    assert "search longer" not in done.stdout


def test_the_json_of_a_hard_list_has_the_line_in_its_notes(
    hard: str, without_numba: dict[str, str]
) -> None:
    """A program reads the same sentence."""
    done = run(without_numba, "-m", "qnnmem", "plan", hard, "--format", "json")
    values = json.loads(done.stdout)
    assert values["optimal"] is False
    assert [INSTALL in note for note in values["notes"]] == [True]


def test_a_question_that_needs_the_search_stays_open(
    hard: str, without_numba: dict[str, str]
) -> None:
    """Neither yes nor no is claimed, and the exit code says that it cannot be told."""
    done = run(without_numba, "-m", "qnnmem", "plan", hard, "--capacity", "22")
    assert done.returncode == 3
    assert done.stdout.startswith("cannot tell: no scratch plan within 22 bytes was found and none")
    assert INSTALL in done.stdout


@pytest.mark.parametrize(("capacity", "code"), [("25", 0), ("20", 1)])
def test_a_question_that_greedy_or_the_bound_answers_is_answered(
    hard: str, without_numba: dict[str, str], capacity: str, code: int
) -> None:
    """Yes and no need no search where a plan or the bound shows them."""
    done = run(without_numba, "-m", "qnnmem", "plan", hard, "--capacity", capacity)
    assert done.returncode == code
    assert done.stdout.startswith("fits:" if code == 0 else "does not fit:")


def test_with_numba_the_hard_list_is_proven(hard: str) -> None:
    """What the line promises holds: the search decides this list."""
    plan = plan_model(qnnmem.load(Path(hard)))
    assert plan.scratch.optimal
    assert not plan.search_missing


def test_python_gets_a_field_and_no_exception(hard: str, without_numba: dict[str, str]) -> None:
    """`search_missing` tells that a search would say more."""
    program = (
        "import sys, qnnmem; p = qnnmem.plan(qnnmem.load(sys.argv[1])); "
        "print(p.search_missing, p.scratch.search_missing, p.scratch.optimal, p.scratch.peak)"
    )
    done = run(without_numba, "-c", program, hard)
    assert done.stdout.split() == ["True", "True", "False", "25"], done.stderr


def test_warming_up_says_that_there_is_nothing_to_compile(without_numba: dict[str, str]) -> None:
    """One sentence, and no failure: `make install` may run it anywhere."""
    done = run(without_numba, "-m", "qnnmem.plan.warm")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "numba is not installed, so there is no search to compile\n"
