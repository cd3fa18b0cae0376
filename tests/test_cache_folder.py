"""The cache folder: where it is, and when nothing is stored."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import qnnmem
from qnnmem.cache import NOWHERE, cache_folder, read_kept, write_kept
from qnnmem.errors import UsageError
from qnnmem.htp.compile_cache import default_folder

EXPANDUSER = os.path.expanduser
LOG = Path(__file__).parents[1] / "examples" / "graph_limit.log"


@pytest.fixture(autouse=True)
def unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a user without a home, for whom `~` does not expand."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    real = os.path.expanduser
    monkeypatch.setattr(os.path, "expanduser", lambda p: real(p) if os.environ.get("HOME") else p)


def test_a_user_without_a_home_keeps_nothing() -> None:
    """Without a home folder, the cache folder cannot be created and nothing is stored."""
    assert cache_folder() == NOWHERE
    with pytest.raises(OSError, match="Not a directory"):
        cache_folder().mkdir(parents=True)
    with pytest.raises(
        UsageError, match="there is no home folder for results; choose a folder with"
    ):
        default_folder()


@pytest.mark.parametrize("home", ["", "relative", "~", ".", "/not/there"])
def test_what_is_no_home_is_not_made(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that is empty, relative or missing is not used."""
    monkeypatch.setenv("HOME", home)
    assert cache_folder() == NOWHERE


def test_an_empty_home_is_not_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty HOME is not taken for the root folder, as Python would."""
    monkeypatch.setattr(os.path, "expanduser", EXPANDUSER)
    monkeypatch.setenv("HOME", "")
    assert cache_folder() == NOWHERE


@pytest.mark.parametrize("limit", [3, 4])
def test_what_was_opened_is_closed(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached file is closed, whether it is read or refused."""
    path = tmp_path / "kept"
    path.write_bytes(b"abcd")
    open_, opened = os.open, list[int]()

    def noted(name: Path, flags: int) -> int:
        opened.append(open_(name, flags))
        return opened[-1]

    monkeypatch.setattr(os, "open", noted)
    with suppress(OSError):
        read_kept(path, limit)
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


@pytest.mark.skipif(os.name != "posix", reason="modes of Unix")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_could_have_written_is_not_read(mode: int, tmp_path: Path) -> None:
    """A cached file that others can write is not read, since it may contain code."""
    path = tmp_path / "kept"
    write_kept(path, b"abcd")
    assert read_kept(path, 4) == b"abcd"
    path.chmod(mode)
    with pytest.raises(OSError, match="not a file that this user's cache wrote"):
        read_kept(path, 4)


@pytest.mark.skipif(os.name != "posix", reason="modes and pipes of Unix")
def test_what_is_kept_is_for_this_user_alone(tmp_path: Path) -> None:
    """A cached file and its folders are private to the user, whatever the umask.

    Writing replaces a pipe or a link, but not a folder.
    """
    folder = tmp_path / "new" / "qnnmem"
    before = os.umask(0)
    try:
        write_kept(folder / "a", b"abcd")
    finally:
        os.umask(before)
    made = (folder.parent, folder, folder / "a")
    assert [stat.S_IMODE(one.stat().st_mode) for one in made] == [0o700, 0o700, 0o600]
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "a")
    for name in ("pipe", "link"):
        write_kept(folder / name, b"new")
        assert read_kept(folder / name, 3) == b"new"
    assert read_kept(folder / "a", 4) == b"abcd"
    (folder / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_kept(folder / "folder", b"new")
    assert not any(path.name.startswith(".") for path in folder.iterdir())


def test_a_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is in HOME, or in an absolute XDG_CACHE_HOME, even if that does not exist yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "qnnmem"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "qnnmem"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert cache_folder() == tmp_path / "new" / "qnnmem"


SCRIPT = """
import os, sys
real = os.path.expanduser
os.path.expanduser = lambda p: real(p) if os.environ.get("HOME") else p
{work}
"""
DOCTOR = f"from qnnmem.cli import main\nsys.argv = ['qnnmem', 'doctor', {str(LOG)!r}]\nmain()"
SEARCH = "from qnnmem.planner.packing import is_compiled\nassert is_compiled()\n"


@pytest.mark.parametrize(
    ("work", "home"), [(DOCTOR, None), (SEARCH, None), (SEARCH, "/dev/null")], ids=["1", "2", "3"]
)
def test_no_folder_called_tilde_is_made(work: str, home: str | None, tmp_path: Path) -> None:
    """Without a home, no folder named `~` is created, and compiled code is not stored."""
    environment = {**os.environ, "PYTHONPATH": str(Path(qnnmem.__file__).parents[1])}
    if home is not None:
        environment["HOME"] = home
    command = [sys.executable, "-c", SCRIPT.format(work=work)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1 if work == DOCTOR else 0, "")
    assert list(tmp_path.iterdir()) == []
