"""The cache between runs: found by content, checked, and optional."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest
from command_line import exit_code, verb

from qnnmem.cache import read_kept
from qnnmem.doctor import cache
from qnnmem.doctor.kb import knowledge

doctor = verb("doctor", "a.log")
NOTE = "## Camera one\n\n### Typical Logs\n- boardcam: cdsp busy, owner camera\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a small built-in base and return the cache folder."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "ours.md").write_text(NOTE.replace("camera", "sensor"))
    monkeypatch.setattr(knowledge, "BUILT_IN", tmp_path / "ours")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("a.log").write_text("E boardcam: cdsp busy, owner camera\n")
    return tmp_path / "cache" / "qnnmem"


def folder(name: str, text: str) -> Path:
    """Write a folder with one note of a fixed age and return its path."""
    path = Path(name)
    path.mkdir(parents=True, exist_ok=True)
    (path / "note.md").write_text(text)
    os.utime(path / "note.md", (1_000_000_000, 1_000_000_000))
    return path


def titles(*paths: Path) -> list[str]:
    """Return the titles of a base, the user's own entries first."""
    return [entry.title for entry in knowledge._with_own(paths).entries]


def test_folders_of_equal_size_and_time_are_two(here: Path) -> None:
    """Notes with equal size, time and name but other bytes are cached separately."""
    assert titles(folder("kb", NOTE))[0] == "Camera one"
    assert titles(folder("kb", NOTE.replace("one", "two")))[0] == "Camera two"
    assert titles(folder("kb", NOTE))[0] == "Camera one"
    assert len(list(here.glob("kb-*"))) == 2


def test_the_name_is_made_of_every_fact() -> None:
    """The cache key covers file names, file boundaries and the order of folders."""
    one, two = folder("a", NOTE), folder("b", NOTE.replace("one", "two"))
    (folder("c", NOTE) / "note.md").rename("c/other.md")
    keys = {
        knowledge._with_own(paths).key
        for paths in ((), (one,), (two,), (one, two), (two, one), (Path("c"),))
    }
    assert len(keys) == 6
    assert cache.name_of("x", [b"ab", b"c"], "") != cache.name_of("x", [b"a", b"bc"], "")
    assert knowledge._with_own([folder("elsewhere/a", NOTE)]).key == knowledge._with_own([one]).key


def test_a_base_of_ours_that_changes_is_noticed(tmp_path: Path) -> None:
    """A change of the built-in base is noticed, even with the same size and time."""
    file = tmp_path / "ours" / "ours.md"
    before, state = titles(), file.stat()
    file.write_text(file.read_text().replace("one", "two"))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert titles() != before


def kept(here: Path) -> Path:
    """Return the only cached file."""
    (found,) = here.glob("kb-*")
    return found


def valid_lie(path: Path) -> None:
    """Write valid JSON with wrong content."""
    packed = knowledge.unpack(path.read_bytes()[32:])
    lie = msgspec.structs.replace(packed, by_sign={"x": [99_999]}, entries=(), regexes=["("])
    path.write_bytes(path.read_bytes()[:32] + msgspec.json.encode(lie))


def other_name(path: Path) -> None:
    """Write a valid cached file under another file's name."""
    cache.keep("kb-other.json", b"{}")
    (path.parent / "kb-other.json").replace(path)


def replaced(path: Path, data: bytes) -> None:
    """Write other bytes."""
    path.write_bytes(data)


def linked(path: Path) -> None:
    """Replace the file by a link to the right bytes."""
    path.rename("moved")
    path.symlink_to(Path("moved").absolute())


def piped(path: Path) -> None:
    """Replace the file by a pipe."""
    path.unlink()
    os.mkfifo(path)


def foldered(path: Path) -> None:
    """Replace the file by a folder."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        valid_lie,
        other_name,
        linked,
        piped,
        foldered,
        lambda path: replaced(path, b""),
        lambda path: replaced(path, b"x" * 31),
        lambda path: replaced(path, path.read_bytes()[:-1]),
        lambda path: replaced(path, path.read_bytes()[32:]),
        lambda path: replaced(path, b"[" * 100_000),
        lambda path: path.unlink() or path.symlink_to("/dev/zero"),
        lambda path: path.unlink() or path.symlink_to("nowhere"),
    ],
    ids=range(12),
)
def test_a_damaged_file_counts_as_none(here: Path, damage: object) -> None:
    """A damaged cached file is ignored and written again if possible."""
    before = titles()
    path = kept(here)
    assert callable(damage)
    damage(path)
    assert cache.load(path.name) is None
    assert titles() == before
    assert cache.load(path.name) is not None or path.is_dir()


def test_what_another_user_wrote_is_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached file of another user is not read."""
    titles()
    name = kept(here).name
    assert cache.load(name) is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.load(name) is None


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """A cached file over the size limit is not read."""
    path = tmp_path / "kept"
    path.write_bytes(b"abcd")
    assert read_kept(path, 4) == b"abcd"
    with pytest.raises(OSError, match="not a file that this user's cache wrote"):
        read_kept(path, 3)


@pytest.mark.parametrize("state", ["file", "full", "read-only"])
def test_no_cache_is_no_matter(here: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """The doctor works with an unusable cache folder or a full disk."""
    if state == "file":
        here.parent.write_text("")
    elif state == "full":
        monkeypatch.setattr("os.fsync", no_space)
    else:
        here.parent.mkdir()
        here.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    folder("kb", NOTE)
    for _ in range(2):
        assert exit_code(doctor("--kb", "kb")) == 1
    if state == "read-only":
        here.parent.chmod(stat.S_IRWXU)


def no_space(*_values: object, **_more: object) -> None:
    """Raise a disk-full error."""
    raise OSError(28, "No space left on device")


def test_eight_files_of_a_kind_are_kept(here: Path) -> None:
    """The eight newest files of each kind are kept."""
    cache.keep("other-1", b"x")
    for number in range(10):
        cache.keep(f"kb-{number}", b"x")
    assert len(list(here.glob("kb-*"))) == 8
    assert cache.load("other-1") == b"x"
    assert cache.load("kb-9") == b"x"


def test_what_is_too_large_to_be_read_is_not_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content that exceeds the size limit with its digest is not cached."""
    monkeypatch.setattr(cache, "_MAX_BYTES", 40)
    cache.keep("kb-1", bytes(8))
    assert cache.load("kb-1") == bytes(8)
    cache.keep("kb-2", bytes(9))
    assert [path.name for path in here.iterdir()] == ["kb-1"]


def test_a_sound_file_stays_where_a_new_one_cannot_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a new file cannot be written, the old valid file stays."""
    cache.keep("kb-1", b"old")
    monkeypatch.setattr("os.fsync", no_space)
    cache.keep("kb-1", b"new")
    assert cache.load("kb-1") == b"old"
