"""Results in SQLite: each once, none incomplete, bounded, and kept after a crash."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from served import serving

from qnnmem.errors import LoadError, UsageError
from qnnmem.workbench import history as module
from qnnmem.workbench.bench import Bench
from qnnmem.workbench.history import History, KeptResult

EMPTY = KeptResult(
    0, "f", "a.csv", "plan", {"bits": "8"}, "qnnmem plan a.csv", "s", "said", 0, 1.0, 0.0
)
# Writes results quickly and prints the number of each stored result.
WRITER = """
import sys
from pathlib import Path
from qnnmem.workbench.history import History, KeptResult
history = History(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 10**9):
    new = KeptResult(0, "f", "a", "plan", {}, "", "s", str(number), 0, 0.0, 0.0)
    history.add(f"key {number}", new, {"number": number, "fill": "x" * 50_000})
    print(number, flush=True)
"""


def test_a_result_is_found_again_by_key_and_number(tmp_path: Path) -> None:
    """A result is found by its key and its number after reopening."""
    history = History(tmp_path / "h.sqlite")
    kept = history.add("key", EMPTY, {"x": [1, 2]})
    history.close()
    again = History(tmp_path / "h.sqlite")
    assert again.found("key") == kept
    assert again.result(kept.id) == {"x": [1, 2]}
    assert again.entries() == [kept]
    assert again.latest("f", "plan") == kept
    again.close()


def test_the_same_key_is_one_result(tmp_path: Path) -> None:
    """A result with the same key replaces the older one."""
    history = History(tmp_path / "h.sqlite")
    for number in range(3):
        history.add("key", EMPTY, {"x": number})
    [entry] = history.entries()
    assert history.result(entry.id) == {"x": 2}
    history.close()


def test_the_oldest_go_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest results are removed by count and by size; the newest always stays."""
    history = History(tmp_path / "h.sqlite")
    monkeypatch.setattr(module, "MAX_RESULTS", 3)
    for number in range(6):
        history.add(f"key {number}", EMPTY, {"x": number})
    assert history.keys() == ["key 3", "key 4", "key 5"]
    monkeypatch.setattr(module, "MAX_HISTORY", 1)
    history.add("large", EMPTY, {"x": 9})
    assert history.keys() == ["large"]
    history.close()


def test_a_damaged_result_counts_as_missing(tmp_path: Path) -> None:
    """A result with damaged content counts as missing."""
    history = History(tmp_path / "h.sqlite")
    kept = history.add("key", EMPTY, {"x": 1})
    history.close()
    with sqlite3.connect(tmp_path / "h.sqlite") as base:
        base.execute("UPDATE results SET result = x'00'")
    base.close()
    again = History(tmp_path / "h.sqlite")
    assert again.result(kept.id) is None
    assert again.found("key") is None
    again.close()


def test_a_history_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    """A history of a later version is refused and unchanged."""
    with sqlite3.connect(tmp_path / "h.sqlite") as base:
        base.execute("PRAGMA user_version=99")
    base.close()
    with pytest.raises(LoadError, match="another version"):
        History(tmp_path / "h.sqlite")


def test_one_folder_is_for_one_workbench(tmp_path: Path) -> None:
    """A second workbench in the same folder is refused."""
    first = Bench(tmp_path, keeps_spare=False)
    with pytest.raises(UsageError, match="another workbench"):
        Bench(tmp_path, keeps_spare=False)
    first.close()
    Bench(tmp_path, keeps_spare=False).close()


def test_killed_while_it_writes_it_has_every_result_once_and_none_half(tmp_path: Path) -> None:
    """A killed writer leaves every reported result once, and none incomplete."""
    path, told = tmp_path / "h.sqlite", -1
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(told + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(7):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        told = max([told, *map(int, re.findall(r"^([0-9]+)\n", writer.stdout.read(), re.M))])
        writer.wait()
        writer.stdout.close()
        history = History(path)
        numbers = [int(one.summary) for one in reversed(history.entries())]
        assert numbers[: told + 1] == list(range(told + 1))
        assert len(numbers) <= told + 2
        assert all(history.result(one.id) is not None for one in history.entries())
        history.close()
        told = numbers[-1]


def test_results_and_files_are_there_after_a_restart_and_halves_are_gone(tmp_path: Path) -> None:
    """After a restart results and files remain, and incomplete uploads and jobs are removed."""
    with serving(tmp_path) as first:
        job = first.read("a.csv", b"id,lower,upper,size\na,0,2,640\n")
    (tmp_path / "files" / "0123456789abcdef").write_bytes(b"half")
    (tmp_path / "work" / ".qnnmem-left0000").mkdir()
    (tmp_path / "made" / ("0" * 64)).mkdir()
    with serving(tmp_path) as second:
        state = second.get("/api/state").values
        assert [one["id"] for one in state["results"]] == [job["result"]]
        assert [one["id"] for one in state["files"]] == [job["file"]]
        assert [path.name for path in (tmp_path / "files").iterdir()] == [job["file"]]
        assert not list((tmp_path / "work").iterdir())
        assert not list((tmp_path / "made").iterdir())
        assert second.get(f"/api/results/{job['result']}/shown").status == 200
