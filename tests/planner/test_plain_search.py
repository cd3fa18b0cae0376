"""The planner without compiled code: the same answers more slowly, with honest gaps.

Each command runs in its own process with an empty cache and a PATH without a C compiler.
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

# Greedy placement reaches 25 bytes; only the search finds the least peak, 21.
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
    """Return an environment without compiled code and without a C compiler."""
    empty = tmp_path / "empty"
    empty.mkdir()
    here = {**os.environ, "PATH": str(empty), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    here.pop("CC", None)
    return here


def run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in this environment."""
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
    """Return the path of a small buffer list that greedy placement cannot solve."""
    path = tmp_path / "small.csv"
    path.write_text(SMALL, "utf-8")
    return str(path)


@pytest.fixture
def hard(tmp_path: Path) -> str:
    """Return the path of a buffer list too hard for plain Python in the given time."""
    import recorded_search_cases

    problem = dict(recorded_search_cases.published())["A"]
    rows = (f"{b.name},{b.live.lower},{b.live.upper},{b.size}" for b in problem.buffers)
    path = tmp_path / "hard.csv"
    path.write_text("\n".join(("id,lower,upper,size", *rows)) + "\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_get_the_same_proven_plans(path: Path, no_compiler: dict[str, str]) -> None:
    """Without compiled code, each example gets the same proven plan, byte for byte."""
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
    """Without compiled code, a small list gets the same minimal peak, with proof."""
    done = run(no_compiler, "-m", "qnnmem", "plan", small, "--format", "json")
    values = json.loads(done.stdout)
    plan = plan_model(qnnmem.load(Path(small)))
    assert (values["optimal"], values["scratch_bytes"]) == (True, plan.scratch_bytes)
    assert plan.scratch.optimal


@pytest.mark.parametrize(("capacity", "code"), [("25", 0), ("20", 1), ("22", 0)])
def test_a_question_about_a_small_list_is_answered(
    small: str, no_compiler: dict[str, str], capacity: str, code: int
) -> None:
    """Without compiled code, `--capacity` still gets a yes or no that only the search can prove."""
    done = run(no_compiler, "-m", "qnnmem", "plan", small, "--capacity", capacity)
    assert done.returncode == code
    assert done.stdout.startswith("fits:" if code == 0 else "does not fit:")


def test_a_hard_list_gets_an_honest_gap_and_one_line(
    hard: str, no_compiler: dict[str, str]
) -> None:
    """The plan of a hard list states its gap to the bound and asks for a C compiler, once."""
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
    """In Python, `search_missing` is true when compiled code would search further."""
    # The limit leaves time for the search after the greedy orders.
    program = (
        "import sys, qnnmem; "
        f"p = qnnmem.plan(qnnmem.load(sys.argv[1]), time_limit={patient(0.5)}); "
        "print(p.search_missing, p.scratch.search_missing, p.scratch.optimal)"
    )
    done = run(no_compiler, "-c", program, hard)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr
