"""A damaged history is moved aside with its reason, and readable rows are kept."""

from __future__ import annotations

import random
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from served import serving

from qnnmem.errors import OutputError
from qnnmem.workbench.history import REASON, History, KeptFile, KeptResult
from qnnmem.workbench.private_folder import DAMAGED, HISTORY

ROWS = 40
Damage = Callable[[Path], None]


def written(folder: Path) -> Path:
    """Return a history of several pages, with one file."""
    path = folder / HISTORY
    with closing(History(path)) as history:
        history.add_file(KeptFile("0123456789abcdef", "a.csv", "csv", 10, "d", 1.0))
        for number in range(ROWS):
            said = ("plan", {"bits": "8"}, "", "s", "said", 0, 1.0, 0.0)
            new = KeptResult(0, "f", f"n{number}", *said)
            fill = random.Random(number).randbytes(1500).hex()  # noqa: S311
            history.add(f"key {number}", new, {"number": number, "fill": fill})
    return path


def kept(path: Path) -> tuple[set[str], str]:
    """Return the names of the readable results and the repair message."""
    with closing(History(path)) as history:
        found = {entry.name for entry in history.entries() if history.result(entry.id)}
        assert len(history.files()) <= 1
        history.add("new", KeptResult(0, "f", "new", "plan", {}, "", "s", "", 0, 1.0, 0), {"x": 1})
        return found, history.repaired


def change(query: str) -> Damage:
    """Return a function that damages a history by an SQL statement."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.executescript(query)

    return damage


def overwrite(at: float, what: bytes) -> Damage:
    """Return a function that damages a history by overwriting bytes at this fraction."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        place = int(at * len(content)) // 4096 * 4096
        content[place : place + len(what)] = what
        path.write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (change("UPDATE results SET options = 'no JSON' WHERE name = 'n7'"), {"n7"}),
        (change("UPDATE results SET options = '[]' WHERE name = 'n7'"), {"n7"}),
        (change("UPDATE results SET outputs = '[1]' WHERE name = 'n7'"), {"n7"}),
        (change("UPDATE results SET exit_code = 'x' WHERE name = 'n7'"), {"n7"}),
        (change("UPDATE results SET summary = x'ff' WHERE name = 'n7'"), {"n7"}),
        (change("UPDATE results SET summary = CAST(x'ff' AS TEXT) WHERE name = 'n7'"), {"n7"}),
        (change("UPDATE files SET kind = 'nonsense'"), set()),
        (change("UPDATE files SET size = 'nonsense'"), set()),
    ],
)
def test_one_bad_row_costs_that_row(tmp_path: Path, damage: Damage, lost: set[str]) -> None:
    """A bad row costs only that row; the damaged history is kept aside unchanged."""
    path = written(tmp_path)
    damage(path)
    before = path.read_bytes()
    found, said = kept(path)
    assert found == {f"n{number}" for number in range(ROWS)} - lost
    [aside] = (tmp_path / DAMAGED).iterdir()
    assert (aside / HISTORY).read_bytes() == before
    assert (aside / REASON).read_text("utf-8") == f"{said}\n"
    assert f"{len(found)} results" in said
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700
    assert kept(path)[1] == ""  # only once


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"this is no base" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        overwrite(0.0, bytes(64)),
        change("DROP TABLE results; CREATE TABLE results (id INTEGER PRIMARY KEY)"),
        change("ALTER TABLE files RENAME COLUMN kind TO other"),
    ],
)
def test_what_cannot_be_read_at_all_is_moved_aside(tmp_path: Path, damage: Damage) -> None:
    """An unreadable history is moved aside, and a new one is started."""
    path = written(tmp_path)
    damage(path)
    before = path.read_bytes()
    _, said = kept(path)
    assert "the history was damaged" in said
    [aside] = (tmp_path / DAMAGED).iterdir()
    assert (aside / HISTORY).read_bytes() == before


def test_rows_before_and_behind_a_destroyed_page_are_kept(tmp_path: Path) -> None:
    """Rows before and after a destroyed page are kept."""
    path = written(tmp_path)
    overwrite(0.5, b"\xff" * 4096)(path)
    found, said = kept(path)
    assert "damaged" in said
    numbers = {int(name[1:]) for name in found if name != "new"}
    assert min(numbers) < 5
    assert max(numbers) == ROWS - 1
    assert len(numbers) >= ROWS - 8  # a row has its own page or shares one with few others


def test_rows_between_two_destroyed_pages_are_kept(tmp_path: Path) -> None:
    """Rows between two destroyed pages are kept."""
    path = written(tmp_path)
    overwrite(0.3, b"\xff" * 4096)(path)
    overwrite(0.7, b"\xff" * 4096)(path)
    numbers = {int(name[1:]) for name in kept(path)[0] if name != "new"}
    assert len(numbers & set(range(ROWS // 2 - 3, ROWS // 2 + 3))) >= 4
    assert len(numbers) >= ROWS - 14


def test_two_repairs_are_kept_apart(tmp_path: Path) -> None:
    """Several repairs are kept in separate folders, even within a second."""
    for _ in range(3):
        path = written(tmp_path)
        path.write_bytes(b"no base")
        kept(path)
    assert len(list((tmp_path / DAMAGED).iterdir())) == 3


def test_whatever_is_damaged_the_history_opens(tmp_path: Path) -> None:
    """The history opens after damage at random bytes."""
    whole = written(tmp_path).read_bytes()
    chance = random.Random(3)  # noqa: S311
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        content = bytearray(whole)
        for _ in range(chance.choice([1, 5, 200])):
            content[chance.randrange(100, len(content))] = chance.randrange(256)
        (folder / HISTORY).write_bytes(content)
        kept(folder / HISTORY)


def test_a_locked_history_is_not_moved_aside(tmp_path: Path) -> None:
    """A locked history is not damaged and not moved aside."""
    path = written(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OutputError, match="locked"):
            History(path)
    assert not (tmp_path / DAMAGED).exists()


def test_the_workbench_answers_with_what_is_left(tmp_path: Path) -> None:
    """Damage at the start is repaired; damage while running gives a 507 with one sentence."""
    path = written(tmp_path)
    (tmp_path / ".qnnmem-workbench").touch()
    change("UPDATE results SET options = '{' WHERE id = 3")(path)
    with serving(tmp_path) as served:
        state = served.ask("GET", "/api/state")
        assert state.status == 200
        assert len(state.values["results"]) == ROWS - 1
        change("DROP TABLE files")(path)
        answer = served.ask("GET", "/api/state")
        assert (answer.status, "start the workbench again" in answer.said) == (507, True)
