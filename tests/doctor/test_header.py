"""Line heads: writer, time and process."""

from __future__ import annotations

import pytest

from qnnmem.doctor.logs.header import parse, process_of, producer

LINES = [
    (b"05-28 20:26:43.123  5013  5014 E QnnDsp  : text", "threadtime", 5013, "E", "QnnDsp"),
    (b"2025-05-28 20:26:43.123  5013  5014 W adsprpc : text", "threadtime", 5013, "W", "adsprpc"),
    (
        b"2025-05-28 20:26:43.123  5013-5014  QnnDsp      com.example.app      E  text",
        "studio",
        5013,
        "E",
        "QnnDsp",
    ),
    (
        b"05-28 20:26:43.123 5013-5014/com.example.app E/QnnDsp: text",
        "studio",
        5013,
        "E",
        "QnnDsp",
    ),
    (b"05-28 20:26:43.123  5013  5014 d qnndsp  : text", "threadtime", 5013, "D", "qnndsp"),
    (b"E/QnnDsp( 5013): text", "brief", 5013, "E", "QnnDsp"),
    (b"E/QnnDsp: text", "tag", None, "E", "QnnDsp"),
    (
        b"2025-05-28 20:26:43.123456789 [E:onnxruntime:, file.cc:12 Func] text",
        "onnxruntime",
        None,
        "E",
        "onnxruntime",
    ),
    (b"[   21.772486] text", "kernel", 0, "", "kernel"),
    (b"<3>[   21.772486][  T123] text", "kernel", 0, "", "kernel"),
    (b"Nov 15 20:01:02 host adsprpcd[1772]: text", "journal", 1772, "", "adsprpcd"),
    (b"Nov 29 20:13:49.999 WRN main.go:66 text", "go", None, "W", ""),
    (b"2025-03-04 14:07:06.123 W/libc    (13058): text", "brief", 13058, "W", "libc    "),
    (b"Nov 29 20:13:49.999 TRC main.go:66 text", "go", None, "V", ""),
    (b"adsprpcd[1772]: text", "journal", 1772, "", "adsprpcd"),
    (b"   23631.1ms [ ERROR ] text", "tool", None, "E", ""),
    (b"     0.0ms [WARNING] text", "tool", None, "W", ""),
    (b"E 00:00:06.622743 executorch:File.cpp:268] text", "glog", None, "E", "executorch"),
    (b"2025-05-28T20:26:43.123 D nop: text", "dated", None, "D", ""),
    (b"[ERROR] text", "level", None, "E", ""),
    (b" <E> text", "mark", None, "E", "QnnDsp"),
    (b"QnnDsp <W> text", "mark", None, "W", "QnnDsp"),
    (b"ADSPRPC: 5013 5014 E qnn-net-run: file.c:12: text", "fastrpc", 5013, "E", "qnn-net-run"),
    (
        b"0:00:04.021093786 5013 0xffff8c0012a0 ERROR     ml-qnn-engine file.cc:12:func:<mle> text",
        "gstreamer",
        5013,
        "E",
        "ml-qnn-engine",
    ),
    (b"[2025-03-02 10:11:12.123] [error] [file.cpp:12] text", "dated", None, "E", ""),
    (b"[2025-03-02 10:11:12.123] [snpe] [warning] text", "dated", None, "W", ""),
    (b"just text", "plain", None, "", ""),
]


@pytest.mark.parametrize(("line", "style", "pid", "level", "tag"), LINES)
def test_each_writer_is_recognised(
    line: bytes, style: str, pid: int | None, level: str, tag: str
) -> None:
    """Style, process, level and tag are read from each line head."""
    head = parse(line)
    assert (head.style, head.pid, head.level, head.tag) == (style, pid, level, tag)
    assert line[head.body :].endswith(b"text")


@pytest.mark.parametrize("line", [row[0] for row in LINES])
def test_the_quick_way_says_the_same(line: bytes) -> None:
    """The quick parser gives the same process and time as the full parser."""
    head = parse(line)
    pid, time = process_of(line)
    assert pid == head.pid
    assert time == pytest.approx(head.time)


def test_times_can_be_subtracted() -> None:
    """Times differ correctly, also across midnight."""
    before = parse(b"05-28 23:59:59.995  1  1 E T: x").time
    after = parse(b"05-29 00:00:00.005  1  1 E T: x").time
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"[ERROR] [Qnn ExecuTorch]: QnnDsp <E> x", "executorch"),
        (b"ggml-hex: failed to open session 0 : error 0x43", "ggml-hexagon"),
        (b'[ERROR] "Create From Binary FAILED!"', "genie"),
        (b"qcom,fastrpc 3700000.remoteproc: No session available", "kernel"),
        (b"QnnDsp <E> x", "qnn"),
        (b"something else", "other"),
    ],
)
def test_producers_give_themselves_away(line: bytes, name: str) -> None:
    """The program behind a line is recognised from its words."""
    assert producer(line) == name
