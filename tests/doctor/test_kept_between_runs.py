"""What the doctor caches between runs: faster, with the same answers."""

import sys
import threading
from pathlib import Path

import pytest
from command_line import run

from qnnmem.doctor import known_codes
from qnnmem.doctor.fleet import executors
from qnnmem.qnn import numbers
from qnnmem.report import doctor_remedies

ENTRY = """## Ours

### Typical Logs

```
the frobnicator gave up
```

### Root Cause

It was tired. It had no room.

### Solutions

- rest
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known_codes._answers.cache_clear()


def test_answers_about_codes_are_those_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached answers about codes equal those of the tables."""
    names = (
        "qnn_graph_error_mem_alloc",
        "aee_enomemory",
        "enomem",
        "qnn_no_such_name",
        "mem_alloc",
    )
    codes = (-1006, -12, 0, 12, 1002, 4000, 5005, 999_999, 0x80000406, 1 << 40)
    wanted = [numbers.code_named(name) for name in names]
    known = [
        (code >= 1000 or code < 0) and any(one.code for one in numbers.meanings(code))
        for code in codes
    ]
    for _ in range(2):  # the second time without the tables
        assert [known_codes.code_named(name) for name in names] == wanted
        assert [known_codes.is_known(code) for code in codes] == known
        known_codes.keep()
        known_codes._answers.cache_clear()
        monkeypatch.setitem(sys.modules, "qnnmem.qnn.numbers", None)


def test_root_causes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root causes come from the cache until the entry changes."""
    log, base = tmp_path / "a.log", tmp_path / "ours.md"
    log.write_text("QNN: the frobnicator gave up 1002\n")
    base.write_text(ENTRY)
    words = ("doctor", "--kb", str(base), "--format", "markdown", str(log))
    first = run(*words)
    assert "It was tired. It had no room." in first.stdout
    monkeypatch.setattr(doctor_remedies.Guide, "_entry", None)
    assert run(*words).stdout == first.stdout
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base.write_text(ENTRY.replace("tired", "hungry"))
    assert "It was hungry." in run(*words).stdout


def test_workers_are_copies_only_where_there_is_one_thread() -> None:
    """Workers are forked only in a single-threaded process, as another thread may hold a lock."""
    alone = sys.platform == "linux" and threading.active_count() == 1
    assert executors._may_fork() == alone
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert not executors._may_fork()
    finally:
        done.set()
        other.join()
