"""The planner without compiled code: the same answers later, and honest where time ends first.

Each command runs in a process of its own whose cache is empty and whose PATH has no C compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

import qnnmem
from qnnmem.planner import plan_model

ROOT = Path(__file__).parents[2]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.csv")), ROOT / "examples" / "tiny.eaix"]
NOTE = "the search ran in plain Python"

# Greedy placement ends at 25 bytes; only the search finds the least peak, 21.
SMALL = """id,lower,upper,size
a,0,3,5
b,8,13,6
c,8,12,4
d,1,6,9
e,1,5,7
f,5,10,11
"""


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """Make an environment in which nothing is compiled and nothing can be."""
    empty = tmp_path / "empty"
    empty.mkdir()
    here = {**os.environ, "PATH": str(empty), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    here.pop("CC", None)
    return here


def run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments."""
    return subprocess.run(
        [sys.executable, *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Write a list of buffers that needs the search."""
    path = tmp_path / "small.csv"
    path.write_text(SMALL, "utf-8")
    return str(path)


@pytest.fixture
def hard(tmp_path: Path) -> str:
    """Write a list that plain Python does not finish in the time it is given."""
    import recorded_search_cases

    problem = dict(recorded_search_cases.published())["A"]
    rows = (f"{b.name},{b.live.lower},{b.live.upper},{b.size}" for b in problem.buffers)
    path = tmp_path / "hard.csv"
    path.write_text("\n".join(("id,lower,upper,size", *rows)) + "\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_get_the_same_proven_plans(path: Path, no_compiler: dict[str, str]) -> None:
    """No byte and no proof is lost where greedy placement meets the bound."""
    done = run(no_compiler, "-m", "qnnmem", "plan", str(path), "--format", "json")
    values = json.loads(done.stdout)
    plan = plan_model(qnnmem.load(path))
    assert values["optimal"] is True
    assert values["scratch_bytes"] == plan.scratch_bytes
    assert {b["name"]: b["offset_bytes"] for b in values["buffers"]} == {
        b.name: b.offset for b in plan.buffers
    }
    assert not any(NOTE in note for note in values["notes"])


def test_a_small_list_is_proven_all_the_same(small: str, no_compiler: dict[str, str]) -> None:
    """Plain Python finds what compiled code finds."""
    done = run(no_compiler, "-m", "qnnmem", "plan", small, "--format", "json")
    values = json.loads(done.stdout)
    plan = plan_model(qnnmem.load(Path(small)))
    assert (values["optimal"], values["scratch_bytes"]) == (True, plan.scratch_bytes)
    assert plan.scratch.optimal


@pytest.mark.parametrize(("capacity", "code"), [("25", 0), ("20", 1), ("22", 0)])
def test_a_question_about_a_small_list_is_answered(
    small: str, no_compiler: dict[str, str], capacity: str, code: int
) -> None:
    """Yes and no, also where only the search can tell."""
    done = run(no_compiler, "-m", "qnnmem", "plan", small, "--capacity", capacity)
    assert done.returncode == code
    assert done.stdout.startswith("fits:" if code == 0 else "does not fit:")


def test_a_hard_list_gets_an_honest_gap_and_one_line(
    hard: str, no_compiler: dict[str, str]
) -> None:
    """The text states the distance to the proven bound and what would help."""
    words = ("-m", "qnnmem", "plan", hard, "--time-limit", str(patient(0.5)))
    done = run(no_compiler, *words)
    notes = [line for line in done.stdout.splitlines() if NOTE in line]
    assert (done.returncode, done.stderr) == (0, "")
    assert "above the minimum" in done.stdout.splitlines()[0]
    assert len(notes) == 1
    assert "needs a C compiler once, and none was found" in notes[0]
    values = json.loads(run(no_compiler, *words, "--format", "json").stdout)
    assert values["optimal"] is False
    assert [NOTE in note for note in values["notes"]].count(True) == 1


def test_python_gets_a_field_and_no_exception(hard: str, no_compiler: dict[str, str]) -> None:
    """`search_missing` tells that compiled code would say more."""
    # A limit that greedy orders use up alone never reaches the search.
    program = (
        "import sys, qnnmem; "
        f"p = qnnmem.plan(qnnmem.load(sys.argv[1]), time_limit={patient(0.5)}); "
        "print(p.search_missing, p.scratch.search_missing, p.scratch.optimal)"
    )
    done = run(no_compiler, "-c", program, hard)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr
