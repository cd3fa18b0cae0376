"""Hostile files through every reader: a documented end, within limits, nothing left behind."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import cases, load, save
from fuzz_case import Case, End, Link, Runner
from fuzz_targets import CORPUS, READERS, TARGETS

# Each case is a fork; the warning is about the test runner's threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
TOOL = Path(__file__).parents[1] / "tools" / "fuzz.py"


def fuzz(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the tool."""
    command = [sys.executable, str(TOOL), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_hostile_files_have_a_documented_end(tmp_path: Path) -> None:
    """The corpus and some damaged files cause no failure; `make fuzz` tries more."""
    done = fuzz("--short", "--cases", "15", "--seed", "7", "--jobs", "2", "--keep", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed; exit code 70: 0, hangs: 0" in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_same_seed_makes_the_same_cases() -> None:
    """The same seed gives the same cases, so a failure can be repeated."""

    def digest() -> str:
        told = repr([(one.words, sorted(one.files.items(), key=str)) for one in made()])
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()

    def made() -> list[Case]:
        return list(cases(TARGETS, 0, 400, 3))

    assert digest() == digest()
    assert {one.target for one in made()} == {target.name for target in TARGETS}


def test_every_target_has_small_seeds_of_its_own() -> None:
    """The corpus is under 1 MiB and has a folder for every target."""
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1 << 20
    inside = {one.name for one in TARGETS if one.folder is None}
    assert {path.parent.name for path in files} == {*inside, "beside"}


def run(tmp_path: Path, code: str, **more: object) -> End:
    """Return the end of a reader that runs this code."""

    def reader(path: Path) -> None:
        exec(code, {"path": path})  # noqa: S102 - code from this file

    case = Case("test", 0, "test", ("@test", "a.bin"), {"a.bin": b"data", **more})  # type: ignore[dict-item]
    return Runner(tmp_path, {"@test": reader}).one(case)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("1 / 0", "exit code 70: ZeroDivisionError: division by zero"),
        ("1 / 0", "a traceback"),
        ("raise SystemExit(9)", "exit code 9: "),
        ("raise SystemExit(2)", "exit code 2 without a sentence"),
        ("import faulthandler as f, os; f.disable(); os.kill(os.getpid(), 11)", "exit code -11: "),
        ("open('b.bin', 'w')", "left 'b.bin' in the working directory"),
        ("open(path, 'w')", "changed or removed 'a.bin'"),
        ("path.unlink()", "changed or removed 'a.bin'"),
        ("import tempfile; tempfile.mkdtemp(prefix='x', dir=None)", "in the tmp folder"),
        ("import pathlib; (pathlib.Path.home() / 'x').touch()", "left 'x' in the home folder"),
        ("import os; open(os.environ['XDG_CACHE_HOME'] + '/x', 'w')", "left 'x' in the cache"),
        ("print('a\\x1b[31m')", "raw characters U+001B in the output"),
        ("import sys; sys.stderr.write('\\u202e')", "raw characters U+202E in the output"),
        (
            "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)",
            "1 processes left",
        ),
    ],
)
def test_each_fault_would_be_found(tmp_path: Path, code: str, fault: str) -> None:
    """Each forbidden action of a case is found as a fault."""
    assert any(fault in one for one in run(tmp_path, code).faults), run(tmp_path, code).faults


def test_a_hang_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that takes too long is ended, without an exit code."""
    monkeypatch.setattr("fuzz_case.HANG_S", 0.5)
    monkeypatch.setattr("fuzz_case.crowd", lambda: 1.0)
    end = run(tmp_path, "import time; time.sleep(60)")
    assert end.code is None
    assert end.faults[0].startswith("hang: ")


def test_too_much_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case over the memory limit is a fault."""
    monkeypatch.setattr("fuzz_case.MOST_MEMORY", 1 << 20)
    assert run(tmp_path, "pass").faults[0].startswith("memory: ")


def test_a_good_case_has_no_faults(tmp_path: Path) -> None:
    """Reading a file, a link and printing are not faults."""
    assert run(tmp_path, "print(path.read_bytes())", link=Link("a.bin")).faults == ()


def test_a_case_can_be_kept_and_repeated(tmp_path: Path) -> None:
    """A stored case loads as the case that ran."""
    case = Case(
        "csv", 3, "kind", ("plan", "sub/a.csv"), {"sub/a.csv": b"\xff", "b": Link("x", True)}, b"in"
    )
    save(tmp_path / "kept", case, End(70, 0.1, 1, ("a fault",)), Runner(tmp_path / "r", READERS))
    assert load(tmp_path / "kept") == case
    assert "qnnmem plan sub/a.csv" in (tmp_path / "kept" / "why.txt").read_text("utf-8")
