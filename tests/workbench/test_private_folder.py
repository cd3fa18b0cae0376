"""The workbench's folder is private to its user."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence

from qnnmem.errors import QnnMemError, UsageError
from qnnmem.workbench.bench import Bench
from qnnmem.workbench.private_folder import MARKER, private_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of files are those of POSIX")


def mode(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_all(folder: Path) -> list[Path]:
    """Return the paths that others could read."""
    return [path for path in (folder, *folder.iterdir()) if mode(path) & 0o077]


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every path of a folder with its permissions and content."""
    return {
        str(path): (mode(path), path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


def test_nobody_else_can_rename_the_folder(tmp_path: Path) -> None:
    """Created parent folders get mode 0700, whatever the umask."""
    folder = tmp_path / "cache" / "qnnmem" / "workbench"
    before = os.umask(0)
    try:
        private_folder(folder)
    finally:
        os.umask(before)
    assert [mode(one) for one in (folder, *folder.parents[:2])] == [0o700] * 3


def refusal(folder: Path) -> str:
    """Return the sentence with which the command refuses a folder."""
    done = run("serve", "--no-browser", "--port", "0", "--data", folder)
    assert exit_code(done) == 2
    return sentence(done)


def of_earlier_version(folder: Path) -> None:
    """Create a folder without a marker, as earlier versions did."""
    Bench(folder, keeps_spare=False).close()
    (folder / MARKER).unlink()


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    """A folder of an earlier version is made private, with all its files."""
    folder = tmp_path / "data"
    of_earlier_version(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with closing(sqlite3.connect(folder / "history.sqlite")) as base:
        base.execute("CREATE TABLE left_open (x)")
        assert (folder / "history.sqlite-wal").exists()
        with closing(Bench(folder, keeps_spare=False)):
            assert open_to_all(folder) == []
            assert (folder / MARKER).is_file()


def test_a_history_that_a_kill_left_in_its_log_is_known(tmp_path: Path) -> None:
    """A history whose tables are only in the SQLite log is recognised."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    with closing(Bench(folder, keeps_spare=False)):
        shutil.copytree(folder, copy)
    (copy / MARKER).unlink()
    assert b"CREATE TABLE" not in (copy / "history.sqlite").read_bytes()
    Bench(copy, keeps_spare=False).close()


@pytest.mark.parametrize("history", [None, b"", b"SQLite format 3\0 of another program"])
def test_a_folder_with_things_of_its_user_is_refused(tmp_path: Path, history: bytes | None) -> None:
    """A folder with the user's own files is refused and unchanged."""
    for name in ("work/src/main.c", "files/x.onnx", "made/mine/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    if history is not None:
        (tmp_path / "history.sqlite").write_bytes(history)
    before = state_of(tmp_path)
    assert "choose an empty or a new folder" in refusal(tmp_path)
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("part", ["files/x.onnx", "work/note.txt", "made/mine", "README.md"])
def test_a_folder_of_an_earlier_version_with_other_things_is_refused(
    tmp_path: Path, part: str
) -> None:
    """A folder of an earlier version with other files is refused and unchanged."""
    of_earlier_version(tmp_path)
    (tmp_path / part).write_text("mine")
    before = state_of(tmp_path)
    assert "choose an empty or a new folder" in refusal(tmp_path)
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("part", ["files", "work", "made", "history.sqlite-wal", MARKER])
def test_a_part_that_leads_elsewhere_is_refused(tmp_path: Path, part: str) -> None:
    """A link in place of a part of the folder is refused, and its target is unchanged."""
    victim, folder = tmp_path / "victim", tmp_path / "data"
    (victim / "sub").mkdir(parents=True)
    (victim / "sub" / "x").write_text("mine")
    victim.chmod(0o755)
    Bench(folder, keeps_spare=False).close()
    if (folder / part).is_dir():
        (folder / part).rmdir()
    else:
        (folder / part).unlink(missing_ok=True)
    (folder / part).symlink_to(victim)
    before = state_of(victim)
    assert part in refusal(folder)
    assert state_of(victim) == before


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    """A link to a folder, or a file, is refused as the data folder."""
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "data").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("mine")
    before = state_of(tmp_path)
    assert "is a link" in refusal(tmp_path / "data")
    assert "is a file" in refusal(tmp_path / "file")
    assert state_of(tmp_path) == before


def test_other_things_that_came_later_stay_as_they_are(tmp_path: Path) -> None:
    """Files that others added later stay; the workbench's own files are private."""
    Bench(tmp_path, keeps_spare=False).close()
    tmp_path.chmod(0o755)
    others = [tmp_path / name for name in ("notes.txt", "work/a", "files/x.onnx", "made/mine/x")]
    for one in others:
        one.parent.mkdir(exist_ok=True)
        one.write_text("mine")
    left = tmp_path / "work" / ".qnnmem-killed00"
    left.mkdir()
    notes = mode(tmp_path / "notes.txt")
    with closing(Bench(tmp_path, keeps_spare=False)):
        assert mode(tmp_path) == 0o755
        assert mode(tmp_path / "notes.txt") == notes
        assert all(one.read_text() == "mine" for one in others)
        assert not left.exists()
        assert set(open_to_all(tmp_path)) <= {tmp_path, tmp_path / "notes.txt"}


@pytest.mark.parametrize("rights", [0o775, 0o777, 0o1777])
def test_a_folder_that_others_fill_is_refused(tmp_path: Path, rights: int) -> None:
    """A folder that others can write to is refused and unchanged."""
    (tmp_path / MARKER).touch()
    (tmp_path / "theirs").touch()
    tmp_path.chmod(rights)
    before = state_of(tmp_path)
    with pytest.raises(UsageError, match="choose a folder for the workbench alone"):
        Bench(tmp_path, keeps_spare=False)
    assert state_of(tmp_path) == before


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of another user is refused."""
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        private_folder(tmp_path)


def test_a_history_behind_a_link_is_refused(tmp_path: Path) -> None:
    """A history behind a link is refused, and its target is unchanged."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(mode=0o644)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / MARKER).touch()
    (tmp_path / "data" / "history.sqlite").symlink_to(elsewhere)
    with pytest.raises(QnnMemError, match="is not a file of the workbench"):
        Bench(tmp_path / "data", keeps_spare=False)
    assert mode(elsewhere) == 0o644
