"""Difficult logs: compressed, truncated, dirty or with endless lines, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from search_engines import engine_named

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.fleet import diagnose_with
from qnnmem.doctor.kb.entry import Line
from qnnmem.doctor.kb.knowledge import Knowledge, pack
from qnnmem.doctor.logs import unpack
from qnnmem.doctor.logs.header import parse, process_of
from qnnmem.doctor.logs.search import ENGINES, SearchEngine
from qnnmem.doctor.logs.source import Stream
from qnnmem.errors import LoadError
from qnnmem.results.incident import Incident

HEAD = b"03-17 16:13:%02d.123 %5d  1235 E QnnDsp: "
CALM = HEAD.replace(b" E ", b" I ")  # read a hundred times as fast as errors
ESTIMATE = b"graph requires estimated allocation of 4194304 KB, limit is 3670016 KB"
MAP = b"failed to map 268435456 bytes on domain 3 gross use"
NOISE = b"everything is as it should be, and this line says so at length"


def told(path: Path, knowledge: Knowledge, **how: Any) -> list[Incident]:
    """Return the incidents of one file."""
    diagnosis = diagnose([Stream((str(path),))], knowledge, **how)
    found = list(diagnosis.incidents())
    diagnosis.close()
    return found


def one_log(path: Path, *lines: bytes) -> Path:
    """Return a file of these lines."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def plain_log(failures: int = 3) -> bytes:
    """Return a log with failures of different processes, far apart."""
    quiet = b"".join(CALM % (k % 60, 9) + NOISE + b"\n" for k in range(900))
    return b"".join(
        HEAD % (n, 100 + n) + ESTIMATE + b"\r\n" + HEAD % (n, 100 + n) + MAP + b"\n" + quiet
        for n in range(failures)
    )


def zstd(data: bytes) -> bytes:
    """Return the data compressed as zstd; skip without the package."""
    module = pytest.importorskip(
        "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    )
    return bytes(module.compress(data))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}
packed = pytest.mark.parametrize("name", PACKERS)


@packed
def test_packed_logs_say_the_same(tmp_path: Path, knowledge: Knowledge, name: str) -> None:
    """A compressed log gives the same incidents, even in two members."""
    path, log = tmp_path / "log", plain_log()
    path.write_bytes(log)
    expected = told(path, knowledge)
    half = log.index(b"\n", len(log) // 2) - 7
    path.write_bytes(PACKERS[name](log[:half]) + PACKERS[name](log[half:]))
    assert told(path, knowledge) == expected
    assert len(expected) == 3


@packed
def test_a_cut_off_tail_is_a_note(tmp_path: Path, knowledge: Knowledge, name: str) -> None:
    """Truncated compressed data gives its incidents and a note."""
    noise = random.Random(1).randbytes(700_000).hex().encode()  # noqa: S311 - incompressible
    path = tmp_path / "log"
    path.write_bytes(PACKERS[name](plain_log(1) + noise)[:-2000])
    diagnosis = diagnose([Stream((str(path),))], knowledge)
    assert len(diagnosis) == 1
    assert len(diagnosis.notes) == 1
    assert f"the {name} data ends after" in diagnosis.notes[0]
    diagnosis.close()


def test_what_stands_before_the_break_is_not_kept_back(
    tmp_path: Path, knowledge: Knowledge
) -> None:
    """A small compressed log without its trailer still gives its incident and a note."""
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(plain_log(1), 0)[:-8])  # stored, without checksum and length
    diagnosis = diagnose([Stream((str(path),))], knowledge)
    assert len(diagnosis) == 1
    assert "the gzip data ends after" in diagnosis.notes[0]
    diagnosis.close()


@packed
def test_rubbish_after_the_magic_is_an_error(
    tmp_path: Path, knowledge: Knowledge, name: str
) -> None:
    """Data that cannot be unpacked raises a LoadError."""
    path = tmp_path / "log"
    path.write_bytes(PACKERS[name](b"x")[:6] + b"\xff" * 100)
    with pytest.raises(LoadError, match="cannot be read"):
        told(path, knowledge)


def test_a_bomb_is_refused(
    tmp_path: Path, knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch, here: Any
) -> None:
    """A decompression bomb is refused by the reader and by workers."""
    monkeypatch.setattr(unpack, "BOMB_BYTES", 4 << 20)
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"\0" * (32 << 20)))
    with pytest.raises(LoadError, match="no log compresses so well") as caught:
        told(path, knowledge)
    assert caught.value.exit_code == 2
    with pytest.raises(LoadError, match="no log compresses so well"):
        diagnose_with([Stream((str(path),))], knowledge, here())


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_read(tmp_path: Path, knowledge: Knowledge, encoding: str) -> None:
    """A UTF-16 log gives the same evidence as the UTF-8 log."""
    path, text = tmp_path / "log", plain_log()
    path.write_bytes(text)
    expected = told(path, knowledge)
    path.write_bytes(("\N{ZERO WIDTH NO-BREAK SPACE}" + text.decode()).encode(encoding))
    assert [one.evidence for one in told(path, knowledge)] == [one.evidence for one in expected]


@pytest.mark.parametrize("region", [64 << 10, 1 << 20, 64 << 20])
def test_regions_of_every_size_find_the_same(
    tmp_path: Path, knowledge: Knowledge, say: Any, region: int
) -> None:
    """Buffers of 64 KB, 1 MB and 64 MB give the same bytes."""
    path = tmp_path / "log"
    path.write_bytes(plain_log(40))
    streams = [Stream((str(path),))]
    expected = say(diagnose(streams, knowledge, region=5000, engine="plain"))
    assert say(diagnose(streams, knowledge, region=region)) == expected


def test_dirt_does_not_hide_a_message(tmp_path: Path, knowledge: Knowledge) -> None:
    """NUL bytes, colour codes, CR and invalid UTF-8 beside a message do not hide the message."""
    head = HEAD % (1, 5)
    dirty = b"\0\0" + head + b"\xff\xfe \x1b[31m" + ESTIMATE + b"\x1b[0m\0 \x80\r"
    found = told(one_log(tmp_path / "log", b"\0" * 5000, dirty, b"\xc3"), knowledge)
    assert [one.shortage_bytes for one in found] == [(4194304 - 3670016) << 10]
    assert found[0].first_line == 2


@pytest.mark.parametrize("cut", [38, 41, 60])
def test_a_message_split_over_lines_is_one(tmp_path: Path, knowledge: Knowledge, cut: int) -> None:
    """A message that the logger splits over two lines is one incident, even at the start."""
    head = HEAD % (1, 5) + b"p" * 200
    path = one_log(tmp_path / "log", head + ESTIMATE[:cut], HEAD % (1, 5) + ESTIMATE[cut:])
    found = told(path, knowledge)
    assert [(one.entry, one.first_line, one.count) for one in found] == [("over-limit", 1, 1)]


def test_a_message_is_found_by_its_second_half(tmp_path: Path, knowledge: Knowledge) -> None:
    """A message is found if only its second line holds the keywords."""
    head = HEAD % (1, 5)
    first, rest = b"p" * 200 + b"skel not fo", b"und in /vendor/lib, trying the next one"
    diagnosis = diagnose(
        [Stream((str(one_log(tmp_path / "log", head + first, head + rest)),))], knowledge
    )
    assert diagnosis.noise == {"retry": 1}
    diagnosis.close()


def test_lines_of_other_writers_are_not_joined(tmp_path: Path, knowledge: Knowledge) -> None:
    """Halves of a message from two processes are not joined."""
    path = one_log(tmp_path / "log", HEAD % (1, 5) + MAP[:30], HEAD % (1, 6) + MAP[30:])
    assert told(path, knowledge) == []


def test_a_whole_message_is_not_counted_again(tmp_path: Path, knowledge: Knowledge) -> None:
    """A later line with part of the message is not counted as a second message."""
    head = HEAD % (1, 5)
    path = one_log(tmp_path / "log", head + ESTIMATE, head + ESTIMATE[:40])
    assert [one.count for one in told(path, knowledge)] == [1]


def test_interleaved_processes_are_kept_apart(tmp_path: Path, knowledge: Knowledge) -> None:
    """Interleaved lines of two processes give two incidents with their counts."""
    lines = [HEAD % (k, 5 + k % 2) + (ESTIMATE, MAP)[k % 2] for k in range(20)]
    found = told(one_log(tmp_path / "log", *lines), knowledge)
    assert [(one.process, one.entry, one.count) for one in found] == [
        (5, "over-limit", 10),
        (6, "big-map", 10),
    ]


def test_a_clock_that_jumps_does_not_split_a_chain(tmp_path: Path, knowledge: Knowledge) -> None:
    """Lines near each other are one incident, even if the clock jumps."""
    lines = [HEAD % (second, 5) + ESTIMATE for second in (50, 3, 59, 0)]
    assert [one.count for one in told(one_log(tmp_path / "log", *lines), knowledge)] == [4]


def test_a_line_of_megabytes_is_searched_whole(tmp_path: Path, knowledge: Knowledge) -> None:
    """Messages anywhere in a line of megabytes are found, with the line's process and number."""
    path = tmp_path / "log"
    long = HEAD % (1, 77) + b"{" * 3_000_000 + ESTIMATE + b"}" * 3_000_000 + MAP + b"]" * 50_000
    path.write_bytes(NOISE + b"\n" + long + b"\n" + HEAD % (2, 78) + ESTIMATE)
    found = told(path, knowledge)
    assert [(one.process, one.first_line, one.entry) for one in found] == [
        (77, 2, "over-limit"),
        (78, 3, "over-limit"),
    ]
    assert "4194304 KB" in found[0].evidence[0].text


def test_texts_in_each_other_are_few_to_hold() -> None:
    """For nested texts, an engine returns at most one match per 8 bytes of a long line."""
    lines = [Line(f"s{length}", "a" * length) for length in range(6, 65)]
    nested = Knowledge(pack(lines, ()))
    long = b"a" * 20_000
    for engine in (engine_named(nested, name) for name in ENGINES):
        found = engine.scan(long, 0, len(long))
        assert {number for _, number in found} == set(range(59))
        assert len(found) <= len(long) // 8
        short = b"aaaaaa\naaaaaaa\n" * 100
        assert len(engine.scan(short, 0, 1500)) == 300  # each line has its own matches
        assert len(engine.lines(short, 0, 1500, engine.memory())) == 200


def test_texts_in_each_other_are_found_in_every_line(tmp_path: Path, knowledge: Knowledge) -> None:
    """A message after many partial matches is found, wherever blocks of the line end."""
    false = b"graph requires estimated allocation of x "
    for more in (0, 1, 20):
        text = HEAD % (1, 7) + false * (100 + more) + ESTIMATE + b" " + false * 100
        found = told(one_log(tmp_path / f"log{more}", text), knowledge)
        assert [one.entry for one in found] == ["over-limit"]


def anchors_behind_prefilters(
    knowledge: Knowledge, text: bytes, engine: SearchEngine
) -> list[tuple[int, int, int]]:
    """Return each template whose anchor the engine finds in a line with its prefilter."""
    found = []
    for end, anchor in engine.scan(text, 0, len(text)):
        line = text[text.rfind(b"\n", 0, end - 1) + 1 :].split(b"\n")[0].lower()
        for index in knowledge.anchors[engine.anchors[anchor].decode()]:
            if knowledge.prefilters[index].encode() in line:
                found.append((end, anchor, index))
    return found


def test_engines_agree(knowledge: Knowledge) -> None:
    """All engines find the same texts at the same places in mutated lines."""
    draw = random.Random(7)  # noqa: S311 - reproducible, not secret
    seeds = [text.encode() for text in knowledge.texts] + [ESTIMATE, MAP, NOISE]
    engines = [engine_named(knowledge, name) for name in ENGINES]
    for _ in range(300):
        lines = [bytearray(draw.choice(seeds)) for _ in range(20)]
        for line in lines:
            for _ in range(draw.randrange(4)):
                line[draw.randrange(len(line))] = draw.choice(b"\0\xff Aaz{\r")
            if draw.random() < 0.3:
                line[:] = line.swapcase()
        text = b"\n".join(lines)
        found = [anchors_behind_prefilters(knowledge, text, engine) for engine in engines]
        assert all(one == found[0] for one in found)


def test_the_quick_look_at_a_head_is_the_whole_one() -> None:
    """The quick parser of a line head gives the same process and time as the full parser."""
    heads = [HEAD % (1, 5), b"[  12.345678] ", b"E/qnn( 2): ", b" 1.0ms [ ERROR ] ", b"<E> ", b"x"]
    for line in [head + rest for head in heads for rest in (MAP, b"", b": x", b"\0\xff")]:
        head = parse(line)
        assert process_of(line) == (head.pid, head.time), line


CHILD = """
import json, sys
from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import Knowledge, unpack
from qnnmem.doctor.logs.source import Stream
knowledge = Knowledge(unpack(sys.stdin.buffer.read()))
diagnosis = diagnose([Stream((sys.argv[1],))], knowledge)
status = open("/proc/self/status").read()
print(json.dumps([int(status.split("VmHWM:")[1].split()[0]) * 1024, len(diagnosis)]))
"""


# The peak of getrusage would include that of the parent process.
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def peak_of(path: Path, knowledge: Knowledge) -> int:
    """Return the peak memory of a child process that reads a log with incidents."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        input=msgspec.json.encode(knowledge.packed),
        capture_output=True,
        check=True,
    )
    peak, incidents = json.loads(run.stdout)
    assert incidents
    return int(peak)


def failing(count: int, quiet: int) -> bytes:
    """Return failures of this many processes, each followed by quiet lines."""
    rest = b"".join(CALM % (k % 60, 9) + NOISE + b"\n" for k in range(quiet))
    return b"".join(HEAD % (1, 10 + k) + ESTIMATE + b"\n" + rest for k in range(count))


@needs_proc
@pytest.mark.parametrize("kind", ["many lines", "one line", "packed"])
def test_memory_is_bounded(tmp_path: Path, knowledge: Knowledge, kind: str) -> None:
    """An 80 MB log is read in less than 64 MB of memory."""
    path = tmp_path / "log"
    with gzip.open(path, "wb", 1) if kind == "packed" else path.open("wb") as file:
        if kind == "one line":
            file.write(HEAD % (1, 77))
            for _ in range(80):
                file.write(b"x" * (1 << 20))
            file.write(ESTIMATE)
        else:
            block = failing(4, 1999)
            for _ in range(100):
                file.write(block)
    assert peak_of(path, knowledge) < 64 << 20


@needs_proc
def test_memory_does_not_grow_with_failures(tmp_path: Path, knowledge: Knowledge) -> None:
    """6,400 more failures of the same processes add less than 1 MiB of memory."""
    path, block = tmp_path / "log", failing(400, 1)
    peaks = []
    for times in (8, 24):  # even the first exceeds one read
        path.write_bytes(block * times)
        peaks.append(peak_of(path, knowledge))
    assert peaks[1] - peaks[0] < 1 << 20


@pytest.mark.parametrize("lines", ["hits", "zeros"])
@packed
def test_a_bomb_in_a_pipe_is_refused(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch, name: str, lines: str
) -> None:
    """A decompression bomb from a pipe is refused, although a pipe has no position."""
    monkeypatch.setattr(unpack, "BOMB_BYTES", 1 << 18)
    text = (HEAD % (1, 7) + MAP + b"\n") * 8000 if lines == "hits" else bytes(1 << 20)
    data = PACKERS[name](text)
    with piped(data * 2, monkeypatch), pytest.raises(LoadError, match="no log compresses so well"):
        diagnose([Stream(("-",))], knowledge)


@packed
def test_a_packed_log_in_a_pipe_is_read(
    tmp_path: Path, knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A compressed log from a pipe gives the same incidents as from a file."""
    path = tmp_path / "log"
    path.write_bytes(plain_log())
    expected = told(path, knowledge)
    with piped(PACKERS[name](plain_log()), monkeypatch):
        diagnosis = diagnose([Stream(("-",))], knowledge)
    assert [one.process for one in diagnosis.incidents()] == [one.process for one in expected]
    diagnosis.close()


@contextmanager
def piped(data: bytes, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide these bytes as standard input through a pipe."""
    out, into = os.pipe()

    def write() -> None:
        with os.fdopen(into, "wb") as end, suppress(BrokenPipeError):
            end.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(out) as text:
        patch.setattr(sys, "stdin", text)
        yield
    writer.join()


def zstd_frame(window_log: int, text: bytes) -> bytes:
    """Return a zstd frame of one stored block that requests a window of this size."""
    size = (len(text) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3]) + size + text


@pytest.mark.parametrize(("window", "fits"), [(23, True), (25, True), (26, False), (31, False)])
def test_a_frame_with_a_huge_window_is_refused(
    tmp_path: Path, knowledge: Knowledge, window: int, fits: bool
) -> None:
    """A zstd frame that requests a window over 32 MiB is refused."""
    zstd(b"")  # skips without the zstd package
    path = tmp_path / "log"
    path.write_bytes(zstd_frame(window, HEAD % (1, 7) + MAP + b"\n"))
    if fits:
        assert len(told(path, knowledge)) == 1
    else:
        with pytest.raises(LoadError, match="cannot be read"):
            told(path, knowledge)


@pytest.mark.parametrize(("size", "fits"), [(22, True), (28, True), (30, False), (40, False)])
def test_a_huge_dictionary_is_refused(
    tmp_path: Path, knowledge: Knowledge, size: int, fits: bool
) -> None:
    """An xz dictionary of up to 64 MiB, as in `xz -9`, is accepted; a larger one is refused."""
    raw = bytearray(lzma.compress(HEAD % (1, 7) + MAP + b"\n", preset=0))
    length = (raw[12] + 1) * 4  # of the block's header, which ends with its checksum
    assert raw[14:16] == b"\x21\x01"
    raw[16] = size
    raw[12 + length - 4 : 12 + length] = zlib.crc32(raw[12 : 12 + length - 4]).to_bytes(4, "little")
    path = tmp_path / "log"
    path.write_bytes(raw)
    if fits:
        assert len(told(path, knowledge)) == 1
    else:
        with pytest.raises(LoadError, match="cannot be read"):
            told(path, knowledge)


@packed
def test_empty_streams_are_skipped(tmp_path: Path, knowledge: Knowledge, name: str) -> None:
    """Empty compressed streams and zeros before the log are skipped."""
    path = tmp_path / "log"
    empty = PACKERS[name](b"")
    path.write_bytes(empty * 3000 + b"\0" * 8 + PACKERS[name](plain_log(1)))
    assert len(told(path, knowledge)) == 1
