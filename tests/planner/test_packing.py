"""Compiled and plain packing give the recorded answers and stay within their arrays."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recorded_search_cases

from qnnmem.native_parts import find_compiler
from qnnmem.planner import exact, packing
from qnnmem.planner.effort import Effort
from qnnmem.planner.greedy import orders
from qnnmem.planner.instance import Instance
from qnnmem.planner.packing import Packing, Strategy, is_compiled
from qnnmem.planner.plain_packing import PlainPacking

HERE = Path(__file__).parent
RECORDED = {
    row["name"]: row for row in json.loads((HERE / "recorded_searches.json").read_text("utf-8"))
}
CASES = {name: (instance, capacity) for name, instance, capacity in recorded_search_cases.cases()}
QUICK = [name for name, row in RECORDED.items() if row["work"] < 400_000]
EFFORT = 60_000_000
compiled = pytest.mark.skipif(not is_compiled(), reason="no compiled code on this machine")


def digest(offsets: Any) -> str | None:
    """Return a short hash of the offsets, as recorded."""
    text = json.dumps(offsets).encode()
    return None if offsets is None else hashlib.sha256(text).hexdigest()[:16]


def ask(name: str, loops_of: Callable[[Instance], Packing] = exact.packing) -> dict[str, Any]:
    """Search one case, place its buffers in four greedy ways, and return the results."""
    instance, capacity = CASES[name]
    effort, placing = Effort(EFFORT, float("inf")), Effort(1 << 60, float("inf"))
    answer, offsets = exact.fit(instance, capacity, effort, seed=1)
    loops = loops_of(instance)
    placed = [
        exact.place_packed(loops, order, best_fit, placing)
        for order in list(orders(instance))[:2]
        for best_fit in (False, True)
    ]
    return {
        "name": name,
        "answer": answer.value,
        "work": EFFORT - effort.left,
        "offsets": digest(offsets),
        "placing_work": (1 << 60) - placing.left,
        "placed": digest(placed),
    }


def test_forty_cases_are_recorded() -> None:
    """All 40 cases are recorded, and the three answers all occur."""
    assert [*CASES] == [*RECORDED]
    assert len(CASES) == 40
    assert {row["answer"] for row in RECORDED.values()} == {"fits", "no", "unknown"}


@compiled
@pytest.mark.parametrize("name", CASES)
def test_compiled_loops_give_the_recorded_offsets_and_work(name: str) -> None:
    """Compiled code gives the recorded offsets for the recorded amount of work."""
    assert ask(name) == RECORDED[name]


@pytest.mark.parametrize("name", QUICK)
def test_plain_loops_give_the_recorded_offsets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python gives the recorded answers and offsets; its amount of work may differ."""
    monkeypatch.setattr(exact, "packing", PlainPacking)
    monkeypatch.setattr(PlainPacking, "cost", 1)
    found = ask(name, PlainPacking)
    for key in ("answer", "offsets", "placed"):
        assert found[key] == RECORDED[name][key]


@compiled
@pytest.mark.parametrize("name", QUICK)
def test_one_search_counts_the_same_work_in_both(name: str) -> None:
    """After an interrupted search, C and Python still agree on status, work and offsets."""
    instance, capacity = CASES[name]
    limit = [instance.highest_offset(i, capacity) for i in range(len(instance))]
    twin = exact._twins(instance, limit)
    strategy = Strategy(list(range(len(instance))), packing.TIGHT, len(instance) // 2)
    found = []
    for loops in (exact.packing(instance), PlainPacking(instance)):
        core = loops.core(limit, twin)
        first = core.search(strategy, 20_000)
        core.forget(0.5)
        found.append((first[:2], core.search(strategy, 100_000)))
    (cut, (status, work, offsets)), (plain_cut, plain) = found
    assert (cut, status, work) == (plain_cut, plain[0], plain[1])
    assert status != packing.SOLVED or offsets == plain[2]


def test_memory_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative result from the C code raises MemoryError; it is never used as a count."""

    class NoMemory:
        def packing_eliminate(self, *_given: int) -> int:
            return -1

    instance = CASES["rectangle-0"][0]
    made = packing.CompiledPacking(instance)
    monkeypatch.setattr(packing, "_library", NoMemory)
    with pytest.raises(MemoryError):
        made.eliminate([0] * len(instance))


SANITIZED = """
import json, sys
from pathlib import Path
here = Path(sys.argv[1])
sys.path[:0] = [str(here), str(here.parent)]
import ctypes
from qnnmem.planner import packing
packing.load_library = lambda _part, _name: ctypes.CDLL(sys.argv[2])
import test_packing
for name in test_packing.QUICK:
    assert test_packing.ask(name) == test_packing.RECORDED[name], name
test_packing.ask_hostile()
print("done")
"""


def ask_hostile() -> None:
    """Search extreme instances: the largest sizes, one buffer, none, and one per section."""
    largest = (1 << 59) - 1
    instances = (
        Instance((), 1, [], [], [], [], [], 0),
        Instance((0,), 1, [0], [1], [largest], [1], [0], 1),
        Instance((0, 1), 1, [0, 0], [1, 1], [largest, largest], [1, 1], [0, 0], 1),
        Instance(
            tuple(range(300)),
            1,
            [*range(300)],
            [n + 1 for n in range(300)],
            *([1] * 300,) * 2,
            [0] * 300,
            300,
        ),
        Instance(tuple(range(40)), 1, [0] * 40, [1] * 40, [1 << 54] * 40, [1, 3] * 20, [0] * 40, 1),
    )
    for instance in instances:
        for capacity in (0, 1, largest, 1 << 60):
            exact.fit(instance, capacity, Effort(1_000_000, float("inf")))
        everything = list(range(len(instance)))
        exact.place_packed(exact.packing(instance), everything, True, Effort(1 << 40, float("inf")))


@compiled
def test_hostile_numbers_pass_the_address_sanitizer(tmp_path: Path) -> None:
    """The C code passes the address and undefined-behaviour sanitizers on extreme instances."""
    compiler = find_compiler()
    assert compiler is not None
    source = Path(packing.__file__).with_name("packing.c")
    made = tmp_path / "packing.so"
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    build = [compiler, "-shared", "-fPIC", "-O1", "-g", *checks, str(source), "-o", str(made)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if done.returncode or not Path(runtime).exists() or not shutil.which("ldd"):
        pytest.skip("this compiler has no sanitizers")
    env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    checked = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(HERE), str(made)],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout) == (0, "done\n"), checked.stderr[-2000:]
