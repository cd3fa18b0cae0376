"""Untrusted archives of logs: bug reports, CI results, bombs and damaged files."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import json
import lzma
import os
import random
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, sentence, verb

from qnnmem.doctor.diagnose import Diagnosis
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs import archive, member, source, tar, unpack
from qnnmem.doctor.logs.archive import absolute, contents, split_name
from qnnmem.doctor.logs.source import find_logs, find_streams, open_part, size_of
from qnnmem.errors import LoadError, UsageError

doctor = verb("doctor")
FAILING = b"E QnnDsp: graph requires estimated allocation of 4194304 KB, limit is 3670016 KB\n"
HEALTHY = b"QNN is well\n"
Files = Sequence[tuple[str, bytes]]
LOGS: Files = (
    ("logs/a.log", HEALTHY),
    ("logs/sub/b.log", HEALTHY * 3 + FAILING),
    ("logs/x.png", FAILING),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of these files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as one:
        for name, data in files:
            one.writestr(name, data)
    return made.getvalue()


def tarred(files: Files, form: int = tarfile.PAX_FORMAT, **more: Any) -> bytes:
    """Return a tar archive of these files, with `more` set in each header."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as one:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in more.items():
                setattr(info, key, value)
            one.addfile(info, io.BytesIO(data))
    return made.getvalue()


def begun(files: Files, **more: Any) -> bytes:
    """Return a tar archive without its end marker."""
    data = tarred(files, **more)
    with tarfile.open(fileobj=io.BytesIO(data)) as one:
        one.getmembers()
        return data[: one.offset]


def zstd(data: bytes) -> bytes:
    """Return the data compressed as zstd; skip without the package."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return bytes(pytest.importorskip(name).compress(data))


FORMS: dict[str, Callable[[Files], bytes]] = {
    "a.zip": zipped,
    "stored.zip": lambda files: zipped(files, zipfile.ZIP_STORED),
    "a.tar": tarred,
    "gnu.tar": lambda files: tarred(files, tarfile.GNU_FORMAT),
    "ustar.tar": lambda files: tarred(files, tarfile.USTAR_FORMAT),
    "a.tar.gz": lambda files: gzip.compress(tarred(files)),
    "a.tgz": lambda files: b"".join(map(gzip.compress, halves(tarred(files)))),
    "a.tar.xz": lambda files: lzma.compress(tarred(files)),
    "a.tar.bz2": lambda files: bz2.compress(tarred(files)),
    "a.tar.zst": lambda files: zstd(tarred(files)),
    "no-suffix": zipped,
    "tar.log": lambda files: gzip.compress(tarred(files)),
}


def halves(data: bytes) -> tuple[bytes, bytes]:
    """Return the two halves of some bytes."""
    return data[: len(data) // 2], data[len(data) // 2 :]


def parts(*names: str) -> list[str]:
    """Return the name of every log that would be read."""
    return [part for stream in find_streams(names) for part in stream.parts]


def read(name: str) -> bytes:
    """Return the bytes of a log."""
    part, got = open_part(name), b""
    view = memoryview(bytearray(1000))
    while count := part.readinto(view):
        got += view[:count]
    part.close()
    return got


def answer(*words: str) -> Any:
    """Return the JSON answer without its duration."""
    done = json.loads(doctor(*words, "--json").output)
    del done["stats"]["seconds"]
    return done


@pytest.mark.parametrize("form", FORMS)
def test_the_logs_in_an_archive_are_read_as_those_of_a_folder(form: str, here: Path) -> None:
    """Logs in an archive give the same answer as in a folder, and no file is left on disk."""
    for name, data in LOGS:
        (here / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "folder" / name).write_bytes(data)
    (here / form).write_bytes(FORMS[form](LOGS))
    done = doctor(form)
    assert exit_code(done) == 1
    assert f"{form}: logs/sub/b.log:4" in done.output
    text = json.dumps(answer("folder")).replace("folder/", f"{form}: ").replace("folder", form)
    assert answer(form) == json.loads(text)
    assert answer(form, "--jobs", "2") == answer(form)
    assert sorted(one.name for one in here.iterdir()) == sorted(["folder", form])


def test_every_form_of_report_and_a_name_from_it(here: Path) -> None:
    """The name of a member that a report prints can be passed as an argument."""
    (here / "a.zip").write_bytes(zipped(LOGS))
    for form in ("markdown", "sarif"):
        assert "b.log" in doctor("a.zip", "--format", form).output
    note = "note: skipped: files in a.zip that are not named like logs: 1"
    assert note in doctor("a.zip").output.splitlines()
    assert "a.zip: logs/sub/b.log" in doctor("a.zip", "--group-by", "file").output
    done = doctor("a.zip: logs/sub/b.log")
    assert exit_code(done) == 1
    assert exit_code(doctor("a.zip: logs/a.log")) == 0
    assert sentence(doctor("a.zip: of some log")) == (
        "a.zip: of some log: no such file in the archive"
    )
    assert exit_code(doctor(f"file://{here}/a.zip")) == 1


def test_archives_in_a_folder_are_read_too(here: Path) -> None:
    """Archives in a folder are read; one that is damaged or without logs counts as skipped."""
    (here / "farm").mkdir()
    (here / "farm" / "one.zip").write_bytes(zipped(LOGS))
    (here / "farm" / "two.tgz").write_bytes(gzip.compress(tarred(LOGS)))
    (here / "farm" / "plain.log").write_bytes(HEALTHY)
    (here / "farm" / "model.zip").write_bytes(zipped([("archive/data.pkl", b"x")]))
    (here / "farm" / "noise.zip").write_bytes(b"noise")
    assert parts("farm") == [
        "farm/plain.log",
        *("farm/one.zip: logs/a.log", "farm/one.zip: logs/sub/b.log"),
        *("farm/two.tgz: logs/a.log", "farm/two.tgz: logs/sub/b.log"),
    ]
    assert "skipped: files in farm that are not named like logs: 2" in find_logs(["farm"]).notes


def test_files_of_a_folder_and_of_its_archives_are_counted(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files inside archives count for the limit of files in a folder."""
    (here / "farm").mkdir()
    (here / "farm" / "one.zip").write_bytes(zipped(LOGS))
    monkeypatch.setattr(source, "_MAX_FILES", 2)
    assert len(parts("farm")) == 2
    monkeypatch.setattr(source, "_MAX_FILES", 1)
    with pytest.raises(UsageError, match=r"^farm: more than 1 files$"):
        find_logs(["farm"])


@pytest.mark.parametrize("form", ["a.zip", "a.tar", "a.tar.gz"])
def test_rotated_files_in_an_archive_are_one_log(form: str, here: Path) -> None:
    """Rotated files in an archive are one log, without joining two archives."""
    files = [("cat", b"3\n"), ("cat.2", b"1\n"), ("other", b"x\n"), ("cat.1", b"2\n")]
    for number in (1, 2):
        (here / f"run.00{number}.{form}").write_bytes(FORMS[form](files))
    name = f"run.001.{form}"
    streams = find_streams([name, f"run.002.{form}"])
    assert len(streams) == 4
    assert streams[0].parts == tuple(f"{name}: {part}" for part in ("cat.2", "cat.1", "cat"))
    assert b"".join(map(read, streams[0].parts)) == b"1\n2\n3\n"


def test_a_packed_tar_is_not_read_from_its_start_for_ever(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If joining rotated files would need too many passes, each file is a log of its own."""
    files = [(f"cat.{number}", bytes(2000)) for number in range(1, 60)]
    (here / "a.tgz").write_bytes(gzip.compress(tarred(files)))
    (here / "a.tar").write_bytes(tarred(files))
    assert len(find_streams(["a.tgz"])) == 1
    monkeypatch.setattr(source, "_AGAIN_BYTES", 1000)
    assert len(find_streams(["a.tar"])) == 1
    found = find_logs(["a.tgz"])
    assert [stream.parts for stream in found.streams] == [(f"a.tgz: {name}",) for name, _ in files]
    assert found.notes == (
        "a.tgz: rotated files are read as separate logs; unpack the archive to join them",
    )


def test_members_in_order_cost_one_pass(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members read in order need one pass over the archive, and a thread has its own pass."""
    files = [
        (f"{number}.log", random.Random(number).randbytes(2500).hex().encode())  # noqa: S311
        for number in range(40)
    ]
    (here / "a.tgz").write_bytes(gzip.compress(tarred(files)))
    opened: list[object] = []
    real = tar.PackedTar.__init__

    def counted(self: Any, *values: Any) -> None:
        opened.append(self)
        real(self, *values)

    names = parts("a.tgz")
    monkeypatch.setattr(tar.PackedTar, "__init__", counted)
    assert [read(name) for name in names] == [data for _, data in files]
    assert len(opened) == 1
    got: list[bytes] = []
    other = threading.Thread(target=lambda: got.extend(map(read, names[20:])))
    part = open_part(names[5])
    other.start()
    other.join()
    assert got == [data for _, data in files[20:]]
    view = memoryview(bytearray(5000))
    assert part.readinto(view) == 5000
    assert view == files[5][1]
    part.close()


def test_a_log_in_an_archive_may_be_packed_or_wrapped(here: Path) -> None:
    """A log in an archive may be compressed, JSON or UTF-16."""
    wrapped = json.dumps({"level": "error", "message": FAILING.decode().strip()}).encode() + b"\n"
    files = [("a.log.gz", gzip.compress(FAILING)), ("j.jsonl", wrapped), ("w", utf16())]
    for form in ("a.zip", "a.tar", "a.tar.gz"):
        (here / form).write_bytes(FORMS[form](files))
        done = doctor(form)
        assert exit_code(done) == 1
        assert done.output.startswith("3 incidents")


def utf16() -> bytes:
    """Return the failure in UTF-16, as Windows writes it."""
    return FAILING.decode().encode("utf-16")


@pytest.mark.parametrize(
    ("entry", "why", "code"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "a link", 0),
        ({"type": tarfile.LNKTYPE, "linkname": "a.log"}, "a link", 0),
        ({"type": tarfile.CHRTYPE}, "a device", 0),
        ({"type": tarfile.FIFOTYPE}, "a pipe", 0),
        ({"type": b"Z"}, "of an unknown kind", 2),
        ({"type": b"S"}, "a sparse file, which is not supported", 2),
        ({"pax_headers": {"GNU.sparse.major": "1"}}, "a sparse file, which is not supported", 2),
    ],
)
def test_what_is_no_file_in_a_tar_is_said(
    entry: dict[str, Any], why: str, code: int, here: Path
) -> None:
    """Links, devices and pipes in a tar are noted; unsupported members give exit code 2."""
    data = begun([("odd.log", b"")], **entry) + tarred([("good.log", HEALTHY)])
    (here / "a.tar").write_bytes(data)
    done = doctor("a.tar")
    assert exit_code(done) == code
    assert f"note: skipped: a.tar: odd.log: {why}" in done.output.splitlines()


def changed(data: bytes, place: int, value: bytes, mark: bytes = b"PK\x01\x02") -> bytes:
    """Return a zip archive with other bytes in its first header after a mark."""
    at = data.index(mark) + place
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("place", "value", "why", "code"),
    [
        (8, b"\x01\x00", "encrypted", 2),
        (10, b"\x0e\x00", "compressed with zip method 14, which is not supported", 2),
        (38, struct.pack("<I", 0o120777 << 16), "a link", 0),
        (38, struct.pack("<I", 0o010666 << 16), "a pipe", 0),
        (24, struct.pack("<I", 1 << 31), "to over 2,147,483,648 bytes; no log", 2),
    ],
)
def test_what_is_not_read_of_a_zip_is_said(
    place: int, value: bytes, why: str, code: int, here: Path
) -> None:
    """Encrypted, unsupported and oversized zip members are noted and give exit code 2."""
    data = zipped([("odd.log", HEALTHY), ("good.log", HEALTHY)])
    (here / "a.zip").write_bytes(changed(data, place, value))
    done = doctor("a.zip")
    assert exit_code(done) == code
    assert "note: skipped: a.zip: odd.log" in done.output
    assert why in done.output


@pytest.mark.parametrize("form", ["a.zip", "a.tar", "a.tar.gz"])
def test_an_archive_in_an_archive_is_left_out_and_said(form: str, here: Path) -> None:
    """An archive inside an archive is skipped with exit code 2, except for visible_windows.zip."""
    files = [("a.log", HEALTHY), ("visible_windows.zip", b"x")]
    (here / form).write_bytes(FORMS[form](files))
    assert exit_code(doctor(form)) == 0
    (here / form).write_bytes(FORMS[form]([*files, ("in/other.zip", zipped(LOGS))]))
    done = doctor(form)
    assert exit_code(done) == 2
    assert (
        f"skipped: {form}: in/other.zip: an archive inside an archive; unpack the outer archive"
        in done.output
    )
    (here / form).write_bytes(FORMS[form]([("other.TGZ", b"x")]))
    with pytest.raises(UsageError, match=rf"^no log in {form}; {form}: other.TGZ: an archive in"):
        find_logs([form])


@pytest.mark.parametrize("form", ["a.zip", "gnu.tar"])
@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd.log", "../../up.log", "a: b.log", "x" * 300 + "/" + "y" * 200 + ".log"),
        *("http://localhost:1/x.log", "s3://bucket/x.log", "-", "nl\n\x1b[31m.log", "\u202e.log"),
        *("./a.log", "a//b.log", "C:\\a.log", "[x]*?.log", "äöü 漢字.log", "file:///dev/zero"),
    ],
)
def test_names_of_members_are_only_shown(form: str, name: str, here: Path) -> None:
    """Member names are never used as paths or URLs, and control characters are replaced."""
    (here / form).write_bytes(FORMS[form]([(name, FAILING)]))
    (part,) = parts(form)
    assert part.isprintable()
    assert "://" not in part
    assert read(part) == FAILING
    assert split_name(part) == (form, part.removeprefix(f"{form}: "))
    for words in ([], ["--jobs", "2"], ["--json"], ["--format", "sarif"], ["--format", "markdown"]):
        assert exit_code(doctor(form, *words)) == 1
    assert exit_code(doctor(part)) == 1


@pytest.mark.parametrize("form", ["a.zip", "a.tar", "a.tar.gz"])
def test_of_two_members_of_one_name_the_last_counts(form: str, here: Path) -> None:
    """Of two members with the same name, the last is read, and the exit code is 2."""
    files = [("a.log", FAILING), ("b.log", HEALTHY), ("a.log", HEALTHY * 2)]
    with pytest.warns(UserWarning, match="Duplicate") if form == "a.zip" else nullcontext():
        (here / form).write_bytes(FORMS[form](files))
    assert [read(part) for part in sorted(parts(form))] == [HEALTHY * 2, HEALTHY]
    done = doctor(form)
    assert exit_code(done) == 2
    assert f"skipped: {form}: a.log: another member has the same name" in done.output


def test_a_zip_that_breaks_off_is_one_sentence(here: Path) -> None:
    """A truncated zip gives exit code 2 and one sentence, or a note beside other logs."""
    data = zipped(LOGS)
    for length in (10, 50, len(data) - 30):
        (here / "cut.zip").write_bytes(data[:length])
        done = doctor("cut.zip")
        assert exit_code(done) == 2
        assert sentence(done).startswith("cut.zip: a damaged or truncated zip archive: ")
    (here / "a.log").write_bytes(HEALTHY)
    done = doctor("cut.zip", "a.log")
    assert exit_code(done) == 2
    assert "note: skipped: cut.zip: a damaged or truncated zip archive" in done.output


@pytest.mark.parametrize("form", ["a.tar", "a.tar.gz", "a.tar.xz"])
def test_what_came_before_a_tar_breaks_off_counts(form: str, here: Path) -> None:
    """A truncated tar gives the logs before the break, with a note and exit code 2."""
    noise = random.Random(1).randbytes(60_000).hex().encode()  # noqa: S311
    files = [("a.log", HEALTHY), ("b.log", HEALTHY + noise), ("c.log", HEALTHY)]
    data = FORMS[form](files)
    (here / form).write_bytes(data[: len(data) // 2])
    assert parts(form) == [f"{form}: a.log", f"{form}: b.log"]
    done = doctor(form)
    assert exit_code(done) == 2
    assert f"note: {form}: b.log: the data ends after " in done.output
    assert "truncated" in done.output
    (here / form).write_bytes(data[: len(data) // 2])
    assert answer(form, "--jobs", "2") == answer(form)


def test_damaged_members_are_said(here: Path) -> None:
    """A wrong checksum or an unreadable member is noted."""
    data = zipped([("a.log", HEALTHY * 9)], zipfile.ZIP_STORED)
    (here / "a.zip").write_bytes(data.replace(b"well", b"fine", 1))
    done = doctor("a.zip")
    assert "a.zip: a.log: damaged: the checksum does not match" in done.output
    (here / "a.zip").write_bytes(changed(data, 0, b"PK\x09\x09", b"PK\x03\x04"))
    assert not archive.archive_kind("a.zip")
    data = zipped([("b.log", HEALTHY), ("a.log", HEALTHY * 9)])
    second = data.index(b"PK\x03\x04", 9)
    for place, why in ((second, "its header is damaged"), (second + 35, "")):
        (here / "a.zip").write_bytes(data[:place] + b"\xff" * 8 + data[place + 8 :])
        done = doctor("a.zip")
        assert exit_code(done) == 2
        assert f"note: skipped: a.zip: a.log cannot be read: {why}" in done.output


def test_a_tar_without_an_end_is_not_whole(here: Path) -> None:
    """A tar without its end marker is reported as truncated."""
    data = tarred([("a.log", HEALTHY)])
    (here / "a.tar").write_bytes(data[:1024])
    done = doctor("a.tar")
    assert exit_code(done) == 2
    assert "note: skipped: a.tar: the archive is damaged or truncated" in done.output


@pytest.mark.parametrize(
    "head",
    [
        b"9999999 path=x\n",
        b"0 path=x\n",
        b"path=x\n",
        b"5 a=b\n5 a=b\n",
        b"-5 path=x\n",
        b"18 size=000000001z\n",
        b"30 size=9999999999999999999999\n",
    ],
)
def test_a_header_that_is_none_ends_the_list(head: bytes, here: Path) -> None:
    """An invalid pax header ends the list; the members before it are read."""
    more = tarred([("x", head)], type=b"x")[:1024]
    data = tarred([("a.log", HEALTHY)])[:1024] + more + tarred([("b.log", FAILING)])
    (here / "a.tar").write_bytes(data)
    assert parts("a.tar") == ["a.tar: a.log"]
    assert exit_code(doctor("a.tar")) == 2


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """Return a tar header with any size field."""
    block = bytearray(512)
    block[: len(name)], block[124 : 124 + len(size)] = name, size
    block[156:157], block[257:263], block[148:156] = kind, b"ustar\0", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\x7f" * 11, b"\xff" * 12, b"9z\0"])
@pytest.mark.parametrize("kind", [b"0", b"x", b"L", b"S", b"g"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_size_is_not_believed(
    size: bytes, kind: bytes, pack: Callable[[bytes], bytes], here: Path
) -> None:
    """A wrong size field causes no large allocation and no endless loop, and gives exit code 2."""
    first = tarred([("a.log", HEALTHY)])[:1024]
    (here / "a.tar").write_bytes(pack(first + header(b"b.log", size, kind) + bytes(512)))
    done = doctor("a.tar")
    assert exit_code(done) == 2
    assert "skipped: a.tar" in done.output


def test_a_chain_of_headers_is_no_recursion(here: Path) -> None:
    """A chain of 20,000 extension headers is read without recursion."""
    more = tarred([("x", b"name.log\0")], type=b"L")[:1024]
    (here / "a.tgz").write_bytes(gzip.compress(more * 20_000 + tarred([("a.log", HEALTHY)])))
    assert parts("a.tgz") == ["a.tgz: name.log"]


def test_a_header_made_to_be_slow_is_not(here: Path) -> None:
    """A pax header of a million bytes is parsed in linear time."""
    records = b"5 aa\n" * 190_000 + b"11 path=zz\n"
    head = header(b"x", b"%o" % len(records), b"x") + records + bytes(-len(records) % 512)
    data = head + tarred([("a.log", HEALTHY)])
    (here / "a.tar").write_bytes(data)
    assert parts("a.tar") == ["a.tar: zz"]


def test_members_and_names_are_bounded(here: Path) -> None:
    """Archives over the limit of members or of name bytes are refused in one sentence."""
    for form, letters in (("a.zip", 100), ("a.tar", 20), ("a.tar.gz", 20)):
        (here / form).write_bytes(FORMS[form](LOGS))
        with bounded(archive, "MAX_MEMBERS", 3):
            assert len(parts(form)) == 2
        with bounded(archive, "MAX_MEMBERS", 2):
            assert sentence(doctor(form)) == f"{form}: more than 2 members"
        with bounded(archive, "MAX_LIST", letters):
            why = f"its list of members takes more than {letters} bytes"
            assert sentence(doctor(form)) == f"{form}: {why}"


@contextmanager
def bounded(module: Any, name: str, limit: int) -> Iterator[None]:
    """Set another limit and clear the cached lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, limit)
        archive._contents.cache_clear()
        yield
    archive._contents.cache_clear()


def test_a_long_list_is_refused_before_it_is_read(here: Path) -> None:
    """The length of a zip's list is checked before the list is read."""
    data = zipped([("a" * 60_000 + ".log", b"") for _ in range(1)])
    end = data.index(b"PK\x05\x06")
    size = struct.pack("<I", 64 << 20)
    made = bytes(64 << 20) + data[:end] + data[end : end + 12] + size + data[end + 16 :]
    (here / "a.zip").write_bytes(b"PK\x03\x04" + made)
    assert sentence(doctor("a.zip")).endswith("its list of members takes more than 4,194,304 bytes")


def test_bombs_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompression bombs are refused: one member, overlapping members, a tar, double gzip."""
    monkeypatch.setattr(unpack, "BOMB_BYTES", 1 << 20)
    zeros = bytes(8 << 20)
    (here / "a.zip").write_bytes(zipped([("a.log", zeros)]))
    said = r"a.zip: a.log unpacks from [0-9,]+ to over 8,388,608 bytes"
    with pytest.raises(UsageError, match=said):
        find_logs(["a.zip"])
    (here / "a.tgz").write_bytes(gzip.compress(tarred([("a.log", zeros)])))
    assert "no log compresses so well" in sentence(doctor("a.tgz"))
    (here / "same.zip").write_bytes(overlapping(200))
    assert "same.zip unpacks from " in sentence(doctor("same.zip"))
    twice = gzip.compress(gzip.compress(bytes(1 << 20)) * 100)
    (here / "in.zip").write_bytes(zipped([("a.log.gz", gzip.decompress(twice))]))
    done = doctor("in.zip")
    assert exit_code(done) == 2
    assert "no log compresses so well" in sentence(done)


def overlapping(count: int) -> bytes:
    """Return a zip archive whose members share the same bytes."""
    data = zipped([("a.log", b"a line of a log\n" * 8000)])
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry = data[start:end]
    names = [b"%05d" % number for number in range(count)]
    entries = b"".join(entry[:46] + name + entry[51:] for name in names)
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(entries), start, 0)
    return data[:start] + entries + tail


def test_so_many_bytes_and_no_more(here: Path) -> None:
    """An archive that unpacks to more than the limit is refused, however small the file is."""
    for form, limit in (("a.zip", 100), ("a.tar.gz", 2000)):
        (here / form).write_bytes(FORMS[form](LOGS))
        with bounded(tar, "MAX_UNPACKED", limit):
            assert sentence(doctor(form)) == f"{form} unpacks to more than {limit:,} bytes"


@pytest.mark.parametrize("form", ["a.zip", "a.tar", "a.tar.gz"])
def test_an_archive_on_standard_input_is_one_sentence(form: str, here: Path) -> None:
    """An archive on standard input is refused, since reading archives needs seeking."""
    (here / form).write_bytes(FORMS[form](LOGS))
    command = [sys.executable, "-m", "qnnmem", "doctor", "-"]
    with (here / form).open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60)
    words = "qnnmem: -: archives can be read only from a local file; give the path of the file\n"
    assert (done.returncode, done.stderr) == (2, words)


def test_an_archive_behind_a_url_is_one_sentence() -> None:
    """An archive behind a URL is refused."""
    fsspec = pytest.importorskip("fsspec")
    for form in ("a.zip", "a.tar.gz"):
        with fsspec.open(f"memory://logs/{form}", "wb") as file:
            file.write(FORMS[form](LOGS))
        done = doctor(f"memory://logs/{form}")
        assert exit_code(done) == 2
        assert sentence(done).endswith(
            "archives can be read only from a local file; give the path of the file"
        )


def test_an_archive_does_not_grow(here: Path) -> None:
    """An archive cannot be followed, with one log or with several."""
    (here / "one.zip").write_bytes(zipped(LOGS[:1]))
    (here / "two.zip").write_bytes(zipped(LOGS))
    why = "a compressed log does not grow; read it without --follow"
    assert sentence(doctor("one.zip", "--follow")) == f"one.zip: logs/a.log: {why}"
    assert sentence(doctor("two.zip", "--follow")).startswith("--follow reads only one log")


def test_an_empty_archive_holds_no_log(here: Path) -> None:
    """An empty archive is refused with one sentence."""
    (here / "a.zip").write_bytes(zipped([]))
    (here / "b.tar").write_bytes(b"".join((tarred([("d", b"")], type=b"5")[:512], bytes(1024))))
    assert sentence(doctor("a.zip")) == "no log in a.zip"
    assert sentence(doctor("b.tar")) == "no log in b.tar"


def test_a_log_besides_models_is_read(here: Path) -> None:
    """A zip that also holds a model is read for its logs; NumPy arrays are refused."""
    (here / "a.zip").write_bytes(zipped([("model.tflite", b"x"), ("fail.log", FAILING)]))
    assert exit_code(doctor("a.zip")) == 1
    (here / "a.npz").write_bytes(zipped([("x.npy", b"x")]))
    assert "is NumPy arrays, which qnnmem doctor does not read" in sentence(doctor("a.npz"))


def test_names_of_files_and_of_members_are_told_apart(here: Path) -> None:
    """A file named like an archive member is read as a file."""
    (here / "a.zip").write_bytes(zipped(LOGS))
    (here / "a.zip: logs").mkdir()
    (here / "a.zip: logs/a.log").write_bytes(FAILING)
    (here / "b: c.log").write_bytes(HEALTHY)
    assert read("a.zip: logs/a.log") == FAILING
    assert split_name("b: c.log") is None
    assert split_name("nothing: here") is None
    assert absolute("a.zip: ../x/../y") == f"{here}/a.zip: ../x/../y"
    assert absolute("x/../b: c.log") == f"{here}/b: c.log"
    assert size_of("a.zip: logs/sub/b.log") is None


def test_an_archive_that_changes_is_listed_again(here: Path) -> None:
    """A changed archive is listed again, and a vanished member is reported."""
    (here / "a.zip").write_bytes(zipped(LOGS))
    name = parts("a.zip")[0]
    (here / "a.zip").write_bytes(zipped(LOGS[1:]))
    with pytest.raises(LoadError, match="no such file in the archive"):
        open_part(name)
    (here / "a.zip").unlink()
    with pytest.raises(LoadError, match="no such file"):
        contents("a.zip")
    os.mkfifo(here / "pipe")
    assert not archive.archive_kind("pipe")


def test_what_gnu_tar_and_zip_write_is_read(here: Path) -> None:
    """Archives of GNU tar with long names are read."""
    name = Path("d" * 120, "n" * 120 + ".log")
    (here / name.parent).mkdir()
    (here / name).write_bytes(FAILING * 300)
    for words in (["tar", "--format=gnu", "-cf"], ["tar", "--format=pax", "-czf"]):
        subprocess.run([*words, "made", name.parts[0]], check=True)
        assert [read(part) for part in parts("made")] == [FAILING * 300]
        (here / "made").unlink()


def test_a_zip_of_the_large_kind_is_read(here: Path) -> None:
    """A zip64 archive and a zip written to a pipe are read."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as one,
        one.open("a.log", "w", force_zip64=True) as file,
    ):
        file.write(FAILING)
    (here / "a.zip").write_bytes(made.getvalue())
    assert read("a.zip: a.log") == FAILING

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            written.extend(data)
            return len(data)

    written = bytearray()
    with zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as one:
        one.writestr("a.log", FAILING)
    (here / "b.zip").write_bytes(bytes(written))
    assert read("b.zip: a.log") == FAILING


@pytest.mark.parametrize(("logs", "last"), [(20, []), (25, ["no QNN lines in 5 more files"])])
def test_logs_of_other_things_are_counted_after_the_first(logs: int, last: list[str]) -> None:
    """Of many logs without QNN lines, 20 are named and the others are counted."""
    diagnosis = Diagnosis(built_in())
    for number in range(logs):
        diagnosis.close_log(f"{number}.log", ours=False, look="plain text", unclear=False)
    diagnosis.notes.append("other")
    said = [f"{number}.log: no QNN lines found; it looks like plain text" for number in range(20)]
    assert diagnosis.stats(()).notes == (*said, "other", *last)
    diagnosis.close()


def test_values_of_archives_do_not_change() -> None:
    """The types of members and contents are frozen."""
    for kind in (archive.Member, archive.Contents, tar.TarMember):
        assert kind.__struct_config__.frozen
    assert member.MemberFile.__doc__


@pytest.mark.parametrize("form", ["a.zip", "a.tar", "a.tar.gz"])
def test_a_member_without_a_name_is_read(form: str, here: Path) -> None:
    """A member without a name is read under a replacement character."""
    data = zipped([("Z.log", FAILING)]).replace(b"Z.log", b"\0.log")
    (here / form).write_bytes(data if form == "a.zip" else FORMS[form]([("", FAILING)]))
    assert exit_code(doctor(form)) == 1
    assert parts(form) == [f"{form}: \N{REPLACEMENT CHARACTER}"]


def test_files_of_broken_members_are_closed(here: Path) -> None:
    """A member that cannot be unpacked closes its file."""
    data = zipped([("a.log", HEALTHY * 9)])
    start = data.index(b"a.log") + 5
    (here / "a.zip").write_bytes(data[:start] + b"\xff" * 8 + data[start + 8 :])
    (name,) = parts("a.zip")
    with pytest.raises(LoadError, match="cannot be read: "):
        open_part(name)
    gc.collect()  # unclosed files raise warnings, which are errors here


def test_a_reader_that_broke_is_not_used_again() -> None:
    """A tar reader that failed is not reused, as its position is lost."""
    packed = gzip.compress(tarred([("a.log", HEALTHY * 99), ("b.log", HEALTHY)]))
    reader = tar.PackedTar("a.tgz", io.BytesIO(packed[:-20]), "gzip")
    with pytest.raises(EOFError):
        reader.go(1 << 30)
    assert reader.at > 1 << 40
