"""Files are written whole or not at all, with the right mode, and replace only regular files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qnnmem import atomic_file
from qnnmem.atomic_file import (
    check_replaceable,
    folder_for_output,
    write_pieces,
    write_together,
    write_whole,
)
from qnnmem.errors import OutputError


@contextmanager
def masked(mask: int) -> Iterator[None]:
    """Set another umask for the block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    """Return all names in a folder, hidden ones included."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["links", "no links"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with hard links and without them."""

    def refuse(*_names: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022, 0o000])
@pytest.mark.parametrize("force", [True, False])
def test_the_umask_is_honoured(mask: int, force: bool, tmp_path: Path, file_system: str) -> None:
    """A new file gets the mode that the user's umask sets."""
    with masked(mask):
        write_whole(tmp_path / "one", b"1", force=force)
        write_together({tmp_path / "two": b"2"}, force=force)
    assert [mode(tmp_path / name) for name in ("one", "two")] == [0o666 & ~mask] * 2


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o444, 0o777])
def test_a_replaced_file_keeps_its_mode(kept: int, tmp_path: Path, file_system: str) -> None:
    """A replaced file keeps its mode, without a set-user-id bit."""
    path = tmp_path / "file"
    for write in (write_whole, lambda path, data: write_together({path: data})):
        path.unlink(missing_ok=True)
        path.write_bytes(b"old")
        path.chmod(kept | stat.S_ISUID)
        write(path, b"new")
        assert (mode(path), path.read_bytes()) == (kept, b"new")
    assert names(tmp_path) == ["file"]


def test_of_two_writers_one_succeeds(tmp_path: Path, file_system: str) -> None:
    """Of two writers, the later one raises OutputError, even if no file was there at its start."""
    path = tmp_path / "file"

    def slow() -> Iterator[bytes]:
        yield b"first "
        write_whole(path, b"second", force=False)
        yield b"half"

    with pytest.raises(OutputError, match="already exists; force replaces it"):
        write_pieces(path, slow(), force=False)
    assert (path.read_bytes(), names(tmp_path)) == (b"second", ["file"])


def test_of_many_processes_one_says_wrote(tmp_path: Path) -> None:
    """Of six processes that write one file, exactly one succeeds, and the file has its content."""
    script = (
        "import sys, pathlib\n"
        "from qnnmem.atomic_file import write_whole\n"
        "from qnnmem.errors import OutputError\n"
        "sys.stdin.read()\n"  # all start when the pipe closes
        "try: write_whole(pathlib.Path(sys.argv[1]), sys.argv[2].encode(), force=False)\n"
        "except OutputError: sys.exit(2)\n"
    )
    path, (reading, writing) = tmp_path / "file", os.pipe()
    command = [sys.executable, "-c", script, str(path)]
    started = [subprocess.Popen([*command, str(i)], stdin=reading) for i in range(6)]
    os.close(reading)
    os.close(writing)
    codes = [process.wait() for process in started]
    assert sorted(codes) == [0, 2, 2, 2, 2, 2]
    assert path.read_text() == str(codes.index(0))
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("force", [True, False])
def test_only_ordinary_files_are_replaced(force: bool, tmp_path: Path) -> None:
    """A link, a pipe or a folder is never replaced, with force or without."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    before = names(tmp_path)
    for name in before:
        for write in (
            lambda path: write_whole(path, b"new", force=force),
            lambda path: write_together({path: b"new"}, force=force),
            lambda path: check_replaceable(path, force=force),
        ):
            with pytest.raises(OutputError, match="not a regular file"):
                write(tmp_path / name)
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("x" * 300, "too long"),
        ("missing/file", "No such file"),
        ("file/below", "Not a directory"),
        ("nul\0byte", "null"),
    ],
)
def test_a_bad_name_is_a_sentence(name: str, reason: str, tmp_path: Path) -> None:
    """An impossible path raises OutputError in one sentence, before the work and after it."""
    (tmp_path / "file").write_bytes(b"")
    for work in (
        lambda path: check_replaceable(path, force=True),
        lambda path: write_whole(path, b"new"),
        lambda path: write_whole(path, b"new", force=False),
        lambda path: write_together({path: b"new"}, force=False),
    ):
        with pytest.raises(OutputError, match=f"cannot be written: .*{reason}"):
            work(tmp_path / name)
    assert names(tmp_path) == ["file"]


def test_a_name_with_a_newline_is_shown_escaped(tmp_path: Path) -> None:
    """A newline in a path is escaped, so the message stays one line."""
    path = tmp_path / "two\nlines\x1b[31m"
    write_whole(path, b"new", force=False)
    with pytest.raises(OutputError) as caught:
        write_whole(path, b"new", force=False)
    assert str(caught.value).isprintable()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody can write to")
def test_a_folder_that_takes_no_files_is_a_sentence(tmp_path: Path) -> None:
    """A folder that takes no files, like /proc, raises OutputError."""
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(Path("/proc/self/file"), b"new")


@pytest.mark.parametrize("stopped_by", [OSError(28, "full"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("at", [0, 1])
def test_all_files_appear_or_none(
    stopped_by: BaseException,
    at: int,
    tmp_path: Path,
    file_system: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If writing several files is interrupted, the old files are back and the new ones gone."""
    (tmp_path / "old").write_bytes(b"mine")
    place, calls = atomic_file.put_in_place, iter(range(9))

    def fail(temporary: Path, path: Path, *, force: bool) -> None:
        if next(calls) == at:
            raise stopped_by
        place(temporary, path, force=force)

    monkeypatch.setattr(atomic_file, "put_in_place", fail)
    with pytest.raises((OutputError, KeyboardInterrupt, MemoryError)):
        write_together({tmp_path / "old": b"new", tmp_path / "new": b"new"})
    assert (names(tmp_path), (tmp_path / "old").read_bytes()) == (["old"], b"mine")


def test_one_file_in_the_way_is_enough(tmp_path: Path, file_system: str) -> None:
    """Without force, one existing file prevents all writes and stays unchanged."""
    (tmp_path / "b").write_bytes(b"mine")
    with pytest.raises(OutputError, match="already exists"):
        write_together({tmp_path / "a": b"1", tmp_path / "b": b"2"}, force=False)
    assert (names(tmp_path), (tmp_path / "b").read_bytes()) == (["b"], b"mine")


def test_a_folder_made_for_nothing_is_removed_with_its_parents(tmp_path: Path) -> None:
    """If the block fails, the folders made for it are removed; older ones stay."""
    (tmp_path / "there").mkdir()
    with pytest.raises(ZeroDivisionError), folder_for_output(tmp_path / "there" / "a" / "b"):
        raise ZeroDivisionError
    assert names(tmp_path / "there") == []
    with folder_for_output(tmp_path / "c" / "d"):
        (tmp_path / "c" / "d" / "file").write_bytes(b"")
    assert (tmp_path / "c" / "d" / "file").exists()


def test_what_is_no_folder_is_said(tmp_path: Path) -> None:
    """A file, a too long name or a dangling link raises OutputError as an output folder."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "file/below", "x" * 300, "link", "nul\0byte"):
        with (
            pytest.raises(OutputError, match=r"is not a folder|cannot be created"),
            folder_for_output(tmp_path / name),
        ):
            pass


def test_a_name_taken_at_the_last_moment_is_not_replaced(
    tmp_path: Path, file_system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that appears at the last moment is not replaced without force."""
    path = tmp_path / "file"
    path.write_bytes(b"theirs")
    monkeypatch.setattr(atomic_file, "_replaceable_mode", lambda _path: None)
    with pytest.raises(OutputError, match="already exists; force replaces it"):
        write_whole(path, b"ours", force=False)
    assert (path.read_bytes(), names(tmp_path)) == (b"theirs", ["file"])


def test_a_name_that_cannot_be_filled_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links, a name that cannot be filled is removed again."""

    def refuse(*_names: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OutputError, match="cannot be written: Input/output error"):
        write_whole(tmp_path / "file", b"new", force=False)
    assert names(tmp_path) == []


def test_what_could_not_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file without force, and an unwritable folder, are refused before the work."""
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_bytes(b"mine")
    for path, force in ((new, True), (new, False), (there, True)):
        check_replaceable(path, force=force)
    with pytest.raises(OutputError, match="there already exists; force replaces it"):
        check_replaceable(there, force=False)
    asked: list[int] = []
    monkeypatch.setattr(os, "access", lambda _path, way: asked.append(way))
    with pytest.raises(OutputError, match="new cannot be written: its folder is not writable"):
        check_replaceable(new, force=True)
    assert asked == [os.W_OK | os.X_OK]


def test_a_folder_that_somebody_else_makes_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that another process makes in the meantime is accepted."""
    mkdir = Path.mkdir

    def late(path: Path, exist_ok: bool = False) -> None:
        mkdir(path)
        mkdir(path, exist_ok=exist_ok)

    monkeypatch.setattr(Path, "mkdir", late)
    with folder_for_output(tmp_path / "a"):
        assert (tmp_path / "a").is_dir()


def test_a_long_path_is_cut_in_sentences() -> None:
    """A path over 200 characters is cut to 80 in messages."""
    assert atomic_file.shown(Path("x" * 200)) == "x" * 200
    assert len(atomic_file.shown(Path("x" * 201))) == 80


def test_a_size_is_that_of_all_pieces(tmp_path: Path) -> None:
    """`write_whole` returns the total size of all pieces."""
    assert write_whole(tmp_path / "file", b"12", b"345") == 5
    assert (tmp_path / "file").read_bytes() == b"12345"
