"""Logs in formats of other programs: prefixed, JSON, escaped, quoted or recoded."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from pathlib import Path

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs import envelope, header, json_log
from qnnmem.doctor.logs.envelope import Unwrapping, steps_of
from qnnmem.doctor.logs.json_log import lines_of_json
from qnnmem.doctor.logs.source import find_streams, open_part, size_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import log_formats

FAILED = "QnnDsp <E> Failed to map weights buffer to device! error 1002"


def unwrapped(data: bytes) -> bytes:
    """Return the bytes that are read of a log."""
    steps = steps_of(data, len(data))
    if not steps:
        return data
    wrapping, room = Unwrapping(io.BytesIO(data).read, steps), memoryview(bytearray(1 << 16))
    out = b""
    while got := wrapping.readinto(room):
        out += bytes(room[:got])
    return out


def first_lines(path: Path) -> list[int]:
    """Return the first line number of each incident in a log."""
    diagnosis = diagnose(find_streams([str(path)]), built_in())
    try:
        return [one.first_line for one in diagnosis.incidents()]
    finally:
        diagnosis.close()


def drawn(count: int) -> list[str]:
    """Return the names of some formats."""
    draw = random.Random(11)  # noqa: S311 - reproducible, not secret
    return draw.sample(sorted(log_formats.FORMATS), count)


@pytest.mark.parametrize(
    ("before", "level", "pid"),
    [
        (b"app-1  | 01-02 03:04:05.678  123  456 W QnnDsp: ", "W", 123),
        (b"[2025-01-02T03:04:05.123Z] 01-02 03:04:05.678  123  456 D QnnDsp: ", "D", 123),
        (b"logs/device.log:5:01-02 03:04:05.678  123  456 I QnnDsp: ", "I", 123),
        (b"         1735786005.021  4242  4243 W libc    : ", "W", 4242),
        (b"> > E/QnnDsp(  77): ", "E", 77),
        (b"OnePlus:/data/local/tmp # 2026-11-16 22:40:52.9 [V:onnxruntime:, a.cc:1 F] ", "V", None),
        (b"2025-01-02 03:04:05.678 | DEBUG    | ", "D", None),
        (b"2025-01-02 03:04:05,678 - app.run - WARNING - ", "W", None),
        (b"03:04:05.678 [main] INFO  ", "I", None),
        (b"kern  :warn  : [   78.021123] ", "W", 0),
        (b"[   78.021123] board app[4242]: ", "", 4242),
        (b"2025-01-02T03:04:05+0000 board app[4242]: ", "", 4242),
        (b"03:04:05.678  W  ", "W", None),
        (b"\r 42%|##  | 4/9 [00:03<00:04]\r[WARNING] ", "W", None),
    ],
)
def test_a_head_is_found_behind_what_others_put_before_it(
    before: bytes, level: str, pid: int | None
) -> None:
    """Level and process are those of the inner line head, behind any prefixes."""
    head = header.parse(before + b"the message")
    assert (head.level, head.pid) == (level, pid)
    assert (before + b"the message")[head.body :] == b"the message"


@pytest.mark.parametrize(
    "line",
    [
        b"   in[0]:QNN_DATATYPE_FLOAT_64",
        b"2.04 GB is more than there is",
        b"Failed to load the model, see [WARNING] above",
        b"the context binary was made elsewhere",
    ],
)
def test_a_message_is_no_head(line: bytes) -> None:
    """A tensor name, a size or a level inside a message is not taken for a line head."""
    head = header.parse(line)
    assert (head.style, head.level, head.pid) == ("plain", "", None)


@pytest.mark.parametrize(
    "wrapped",
    [
        json.dumps({"log": f"{FAILED}\n", "stream": "stderr"}),
        json.dumps({"msg": FAILED}),
        json.dumps({"events": [{"message": FAILED}]}),
        json.dumps({"body": json.dumps({"stderr": FAILED})}),
        f"<pre>{FAILED.replace('<', '&lt;').replace('>', '&gt;')}</pre>",
        FAILED.replace(" ", "\u00a0"),
        f"\x1b[1;31m{FAILED}\x1b[0m",
    ],
)
def test_a_log_is_taken_out_of_its_wrapping(wrapped: str) -> None:
    """JSON objects, escapes, entities and typographic spaces are unwrapped."""
    assert unwrapped(f"{wrapped}\n".encode()).decode() == f"{FAILED}\n"


def test_an_object_tells_level_time_and_process() -> None:
    """Level, time and process of a JSON object become a line head."""
    row = {"pid": 77, "level": 50, "msg": "it failed"}
    assert unwrapped(json.dumps(row).encode()) == b"E/json(77): it failed"
    row = {"severity": "warning", "message": "it is slow", "time": "2025-01-02T03:04:05.6Z"}
    assert unwrapped(json.dumps(row).encode()) == b"01-02 03:04:05.6 [WARNING] it is slow"


@pytest.mark.parametrize(
    "text",
    [
        b"01-02 03:04:05.678  123  456 E QnnDsp: failed\n" * 3,
        b"C:\\new\\tools failed\nagain\n",
        b"",
    ],
)
def test_a_plain_log_is_read_as_it_is(text: bytes) -> None:
    """A plain log is read unchanged."""
    assert steps_of(text, len(text)) == ()


def test_lines_have_the_numbers_of_the_file(tmp_path: Path) -> None:
    """Line numbers are those of the file, even after a message with several lines."""
    rows = [{"msg": "one\ntwo\nthree"}, *({"msg": f"step {n}"} for n in range(5)), {"msg": FAILED}]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    assert first_lines(path) == [7]
    path.write_text("one\\ntwo\\n" + FAILED + "\\n", "utf-8")
    assert first_lines(path) == [1]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_other_codings_are_read(tmp_path: Path, coding: str) -> None:
    """UTF-16 and UTF-8 logs are read with and without a byte order mark."""
    path = tmp_path / "a.txt"
    path.write_bytes(f"it starts\n{FAILED}\n".encode(coding))
    assert first_lines(path) == [2]


def test_what_is_packed_may_be_wrapped(tmp_path: Path) -> None:
    """JSON lines in a gzip file are read under any name."""
    path = tmp_path / "log.bin.old"
    path.write_bytes(gzip.compress(f'{{"msg": "it starts"}}\n{{"msg": "{FAILED}"}}\n'.encode()))
    assert first_lines(path) == [2]


def test_a_wrapped_log_is_not_cut_into_ranges(tmp_path: Path) -> None:
    """A wrapped log is not read in ranges, as its offsets differ from those of the file."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"msg": "it starts"}\n', "utf-8")
    assert size_of(str(path)) is None
    part = open_part(str(path))
    part.close()
    assert part.packed == "wrapped"


def test_a_long_line_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line is unwrapped in pieces that never cut an escape."""
    monkeypatch.setattr(envelope, "_LONGEST", 64)
    monkeypatch.setattr(envelope, "_CHUNK", 64)
    text = "".join(f"line {n} \u201csaid\u201d\n" for n in range(99))
    wrapped = text.replace("\n", "\\n").replace("\u201c", "\\u201c").replace("\u201d", "\\u201d")
    assert unwrapped(wrapped.encode()).decode().replace('"', "") == text.replace(
        "\u201c", ""
    ).replace("\u201d", "")
    assert unwrapped(b"\\n\\n" + b"\\" * 999).count(b"\n") == 2


def test_failures_keep_their_verdict_in_other_formats() -> None:
    """At least 95 % of the failures keep their verdict in other formats."""
    rows = tuple(log_formats.tried(built_in(), drawn(40), 1, seed=5))
    kept = sum(one.said == one.expected for one in rows)
    assert kept >= 0.95 * len(rows), [one[:2] for one in rows if one.said != one.expected]


def test_good_runs_raise_hardly_an_alarm_in_other_formats() -> None:
    """At most 10 % of the healthy runs raise an incident in other formats."""
    rows = tuple(log_formats.healthy(built_in(), drawn(30), 1, seed=5))
    alarmed = [one[:2] for one in rows if one.said != one.expected]
    assert len(alarmed) <= 0.1 * len(rows), alarmed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"message":"x","level":"info","time":[1,2,3]}', b"[INFO] x"),
        (b'{"message":"x","level":"' + b"9" * 5000 + b'"}', b"x"),
        (b'{"message":"x","level":"\xc3\x9f"}', b"x"),
        (b'{"message":"x","level":"E\xc3\x9f"}', b"[ERROR] x"),
        (b'{"message":"x","level":"error %s"}' % (b"y" * 90), b"[ERROR] x"),
        (b'{"message":"x","level":true,"pid":4}', b"x"),
        (b'{"message":"x","level":50,"pid":"4"}', b"E/json(4): x"),
    ],
)
def test_any_value_may_stand_where_a_level_or_a_time_is_expected(line: bytes, said: bytes) -> None:
    """Unexpected values of level, time or process do not break the reading of a JSON line."""
    assert lines_of_json(line) == said


def test_objects_of_one_shape_are_told_apart_by_their_values() -> None:
    """JSON objects with the same names but other values are read by their values."""
    values = ("text", [104, 105], '{"message": "inside"}', {"msg": "deeper"}, 7)
    lines = [
        json.dumps({"message": value, "stack": more}) for value in values for more in (None, "s")
    ]
    assert lines_of_json("\n".join(lines).encode()).decode().split("\n") == [
        *("text", "text", "s", "hi", "hi", "s", "inside", "inside", "s", "deeper", "s"),
        *('{"message": 7, "stack": null}', "s"),
    ]


def test_what_is_kept_of_shapes_is_bounded() -> None:
    """The cache of JSON shapes is bounded, for many shapes and for large ones."""
    large = json.dumps({f"name {number}": number for number in range(3000)} | {"message": "x"})
    assert lines_of_json(large.encode()) == b"x"
    before = json_log._kept_shape.cache_info().currsize
    assert lines_of_json(large.encode()) == b"x"
    assert json_log._kept_shape.cache_info().currsize == before
    lines = [json.dumps({f"name {number}": 1, "message": "x"}) for number in range(1000)]
    assert lines_of_json("\n".join(lines).encode()) == b"\n".join([b"x"] * 1000)
    assert json_log._kept_shape.cache_info().currsize <= 256
