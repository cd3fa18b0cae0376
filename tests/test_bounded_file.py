"""Untrusted files: only regular files are read, and never more bytes than allowed."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from qnnmem import bounded_file
from qnnmem.bounded_file import file_below, read_bytes, read_head, read_range, regular_size
from qnnmem.errors import Damaged, LoadError


def refused(path: Path, limit: int = 10) -> str:
    """Return the sentence with which a file is refused."""
    with pytest.raises(LoadError) as caught:
        read_bytes(path, limit)
    return str(caught.value)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """A file of exactly the limit is read; one byte more is refused with both numbers."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    assert regular_size(path) == 10
    assert read_bytes(path, 10) == b"0123456789"
    assert "10 bytes are over the limit of 9 B for this format" in refused(path, 9)
    assert read_head(path, 4) == b"0123"
    assert read_head(path, 400) == b"0123456789"


def test_a_file_that_grows_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes added after the size check are not read."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(bounded_file, "regular_size", lambda _: 4)
    assert read_bytes(path, 4) == b"0123"


def test_what_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    """Each type of irregular file is refused with its own reason, and a pipe does not block."""
    assert refused(tmp_path / "missing").endswith("no such file")
    assert "is a folder; give the model file in it" in refused(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert refused(tmp_path / "empty").endswith("is empty")
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "is not a regular file" in refused(tmp_path / "zero")
    (tmp_path / "round").symlink_to("round")
    assert "cannot be opened (too many levels of symbolic links)" in refused(tmp_path / "round")
    assert "cannot be opened (file name too long)" in refused(tmp_path / ("x" * 300))
    assert "cannot be opened (" in refused(tmp_path / "a\0b")


def test_a_name_that_cannot_be_opened_is_quoted(tmp_path: Path) -> None:
    """A NUL byte in a path is escaped in the message."""
    assert "\0" not in refused(tmp_path / "a\0b")


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """A pipe that replaces the file after the check is refused without blocking."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError, match=r"cannot be read \("):
        read_head(tmp_path / "pipe", 10)


def test_reasons_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message includes the system's reason, or says that memory is short."""
    with pytest.raises(LoadError, match=r"cannot be read \(is a directory\)"):
        read_head(tmp_path, 1)

    def run_out(name: str, flags: int) -> int:
        raise MemoryError

    monkeypatch.setattr(bounded_file, "_open_without_waiting", run_out)
    with pytest.raises(LoadError, match=r"cannot be read \(not enough memory\)"):
        read_head(tmp_path, 1)
    monkeypatch.setattr(bounded_file, "_open_without_waiting", _nameless)
    with pytest.raises(LoadError, match=r"cannot be read \(odd\)"):
        read_head(tmp_path, 1)


def _nameless(name: str, flags: int) -> int:
    raise OSError("ODD")


@pytest.mark.parametrize(
    ("start", "count", "found"), [(0, 3, b"012"), (8, 3, b"89"), (10, 3, b""), (99, 3, b"")]
)
def test_a_range_ends_with_the_file(start: int, count: int, found: bytes, tmp_path: Path) -> None:
    """A range past the end of the file returns only the bytes up to the end."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    assert read_range(path, start, count) == found


def test_no_more_room_is_made_than_the_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read never requests more bytes than the file has from that offset."""
    path, asked = tmp_path / "a.bin", list[int]()
    path.write_bytes(b"0123456789")

    class File(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().read(size) or b""

    monkeypatch.setattr("builtins.open", lambda path, mode, opener: File(path, mode, opener=opener))
    read_range(path, 4, 1 << 40)
    read_range(path, 40, 1 << 40)
    monkeypatch.undo()
    assert asked == [6, 0]


@pytest.mark.parametrize(
    "name", ["w.bin", "sub/w.bin", "sub/../w.bin", "./w.bin", "inside.bin", "x" * 255, "sub"]
)
def test_a_name_below_a_folder(name: str, tmp_path: Path) -> None:
    """A name below the folder is accepted, even if it is missing or a link inside."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "inside.bin").symlink_to("sub/w.bin")
    wanted = tmp_path.resolve() / ("sub/w.bin" if name == "inside.bin" else name)
    assert file_below(tmp_path, name) == Path(os.path.normpath(wanted))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "does not name a usable file"),
        ("a\0b", "does not name a usable file"),
        ("./" * 2048 + "w", "does not name a usable file"),
        ("/etc/passwd", "an absolute path, which is refused"),
        ("C:w.bin", "an absolute path, which is refused"),
        ("\\\\host\\share\\w", "an absolute path, which is refused"),
        ("../w.bin", "outside the model's folder, which is refused"),
        ("sub/../../w.bin", "outside the model's folder, which is refused"),
        ("out.bin", "outside the model's folder, which is refused"),
    ],
)
def test_a_name_that_leads_elsewhere(name: str, why: str, tmp_path: Path) -> None:
    """A name that leads outside the folder is refused before a file is opened."""
    top = tmp_path / "top"
    top.mkdir()
    (top / "out.bin").symlink_to("../top-secret")
    with pytest.raises(Damaged) as caught:
        file_below(top, name)
    assert why in str(caught.value)


def test_the_longest_name_is_taken(tmp_path: Path) -> None:
    """A name of 4,096 characters is accepted."""
    assert file_below(tmp_path, "./" * 2047 + "wx") == tmp_path.resolve() / "wx"
