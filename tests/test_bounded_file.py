"""Untrusted files: only ordinary ones, and never more bytes than allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qnnmem import bounded_file
from qnnmem.bounded_file import read_bytes, read_head, regular_size
from qnnmem.errors import LoadError


def refused(path: Path, limit: int = 10) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(LoadError) as caught:
        read_bytes(path, limit)
    return str(caught.value)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """As many bytes as allowed are read, one more is refused with both numbers."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    assert regular_size(path) == 10
    assert read_bytes(path, 10) == b"0123456789"
    assert "10 bytes are more than the 9 B this format may hold" in refused(path, 9)
    assert read_head(path, 4) == b"0123"
    assert read_head(path, 400) == b"0123456789"


def test_a_file_that_grows_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that come after the look at its size are not read."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(bounded_file, "regular_size", lambda _: 4)
    assert read_bytes(path, 4) == b"0123"


def test_what_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    """Each kind is named; a pipe does not block."""
    assert refused(tmp_path / "missing").endswith("no such file")
    assert "is a folder; name the model file inside it" in refused(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert refused(tmp_path / "empty").endswith("is empty")
    os.mkfifo(tmp_path / "pipe")
    assert "is not an ordinary file" in refused(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "is not an ordinary file" in refused(tmp_path / "zero")
    (tmp_path / "round").symlink_to("round")
    assert "cannot be opened (too many levels of symbolic links)" in refused(tmp_path / "round")
    assert "cannot be opened (file name too long)" in refused(tmp_path / ("x" * 300))
    assert "cannot be opened (" in refused(tmp_path / "a\0b")


def test_a_name_that_cannot_be_opened_is_quoted(tmp_path: Path) -> None:
    """A NUL byte cannot be in a path, and not in a sentence either."""
    assert "\0" not in refused(tmp_path / "a\0b")


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """Should one take the file's place after the check, it is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError, match=r"cannot be read \("):
        read_head(tmp_path / "pipe", 10)


def test_reasons_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says, or that memory is short, is part of the sentence."""
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
