"""Limits on logs: zstd windows, numbers of files, decompression bombs."""

from __future__ import annotations

import gzip
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnmem.doctor.logs import source, unpack
from qnnmem.doctor.logs.source import find_streams, open_part
from qnnmem.errors import LoadError, UsageError

zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def packed(window_log: int) -> bytes:
    """Return a zstd frame that requests a window of this size."""
    options = {zstd.CompressionParameter.window_log: window_log}
    packer = zstd.ZstdCompressor(options=options)  # unknown size: the header names the window
    return bytes(packer.compress(b"a line\n" * 9) + packer.flush())


def read(path: Path) -> bytes:
    """Return the unpacked bytes of a log."""
    part = open_part(str(path))
    try:
        room = bytearray(1 << 16)
        got = part.readinto(memoryview(room))
        return bytes(room[:got])
    finally:
        part.close()


@pytest.mark.parametrize(("window_log", "good"), [(23, True), (25, True), (26, False), (27, False)])
def test_a_frame_may_not_ask_for_any_memory(tmp_path: Path, window_log: int, good: bool) -> None:
    """A zstd window of 32 MiB is accepted, a larger one refused."""
    path = tmp_path / "a.log.zst"
    path.write_bytes(packed(window_log))
    if good:
        assert read(path) == b"a line\n" * 9
    else:
        with pytest.raises(LoadError, match="cannot be read"):
            read(path)


def test_files_of_a_folder_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on files counts all subfolders and is exact."""
    (tmp_path / "sub").mkdir()
    for name in ("a.log", "b.log", "sub/c.log"):
        (tmp_path / name).write_bytes(b"x\n")
    monkeypatch.setattr(source, "_MAX_FILES", 3)
    assert sum(len(stream.parts) for stream in find_streams([str(tmp_path)])) == 3
    monkeypatch.setattr(source, "_MAX_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        find_streams([str(tmp_path)])


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that unpacks to more than the limit and compresses too well is refused."""
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    monkeypatch.setattr(unpack, "BOMB_BYTES", 1 << 20)
    part, room = open_part(str(path)), memoryview(bytearray(1 << 20))
    with pytest.raises(LoadError, match="no log compresses so well"):
        any(part.readinto(room) == 0 for _ in range(100))
    part.close()


def test_the_limits_are_those_that_are_promised() -> None:
    """The limits equal the documented values; a change also needs SECURITY.md."""
    assert (unpack.BOMB_RATIO, unpack.BOMB_BYTES) == (250, 64 << 20)
    assert (unpack._ZSTD_WINDOW_LOG, source._MAX_FILES) == (25, 100_000)


@pytest.mark.parametrize(("count", "right"), [(3, True), (4, False)])
def test_objects_of_a_store_are_counted(
    count: int, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit on files applies to objects of a remote store."""
    names = [f"s3://bucket/{letter}.log" for letter in "abcd"[:count]]
    monkeypatch.setattr(source, "_MAX_FILES", 3)
    monkeypatch.setattr("qnnmem.doctor.logs.remote.list_urls", lambda _name: names)
    if right:
        assert len(find_streams(["s3://bucket/"])) == 3
    else:
        with pytest.raises(UsageError, match=r"^s3://bucket/: more than 3 files$"):
            find_streams(["s3://bucket/"])


def test_parts_of_a_rotated_log_are_one(tmp_path: Path) -> None:
    """Rotated files are one log, oldest first: inner numbers ascend, suffixes descend."""
    names = ("cat", "cat.1", "cat.2.gz", "cat.10", "dev.000.log", "dev.001.log", "dev.010.log")
    for name in names:
        (tmp_path / name).write_bytes(b"x\n")
    found = [
        [part.rpartition("/")[2] for part in stream.parts]
        for stream in find_streams([str(tmp_path)])
    ]
    assert found == [
        ["cat.10", "cat.2.gz", "cat.1", "cat"],
        ["dev.000.log", "dev.001.log", "dev.010.log"],
    ]


def test_a_log_that_breaks_off_ends_there(tmp_path: Path) -> None:
    """Truncated compressed data ends with a note that states the unpacked bytes."""
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(1 << 18))[:-40])  # noqa: S311
    part, room = open_part(str(path)), memoryview(bytearray(1 << 16))
    got = [part.readinto(room) for _ in range(8)]
    part.close()
    assert got[-1] == 0
    assert all(type(count) is int for count in got)
    assert part.notes[0] == f"{path}: the gzip data ends after {sum(got):,} bytes"


@pytest.mark.parametrize("state", ["none", "for writing", "closed"])
def test_standard_input_that_cannot_be_read(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed or unreadable standard input raises an OSError."""
    with (tmp_path / "file").open("wb") as file:
        number = os.dup(file.fileno())
        stream = SimpleNamespace(
            buffer=SimpleNamespace(fileno=lambda: number, isatty=lambda: False)
        )
        if state == "closed":
            os.close(number)
        monkeypatch.setattr(sys, "stdin", None if state == "none" else stream)
        with pytest.raises(OSError, match="standard input is closed"):
            source.standard_input()
        monkeypatch.undo()
        if state != "closed":
            os.close(number)


def test_members_of_gzip_end_anywhere_in_a_view(tmp_path: Path) -> None:
    """Gzip members may end anywhere in a buffer, without loss or repetition."""
    lines = [b"line %d of a log in many pieces\n" % number for number in range(6)]
    path = tmp_path / "log.gz"
    path.write_bytes(b"".join(gzip.compress(line) for line in lines))
    for size in (1, 7, 20, 31, 32, 33, 50, 64):
        part, got = source.open_part(str(path)), b""
        view = memoryview(bytearray(size))
        while len(got) < 1000 and (count := part.readinto(view)):
            got += view[:count]
        part.close()
        assert (got, part.notes) == (b"".join(lines), [])


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"line\n", 5),
        (b"", 0),
        (gzip.compress(b"x", mtime=0), None),  # otherwise the test's name would contain the time
        ("line\n".encode("utf-16"), None),
    ],
)
def test_only_a_plain_log_is_read_in_ranges(data: bytes, size: int | None, tmp_path: Path) -> None:
    """Only a plain log is read in ranges; a compressed or UTF-16 log has no known size."""
    path = tmp_path / "a.log"
    path.write_bytes(data)
    assert source.size_of(str(path)) == size
