"""The diagnosis does not depend on how a log is cut, buffered, scanned and merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seeds import few

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.fleet import diagnose_with
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import attribution, session
from qnnmem.doctor.logs.search import ENGINES
from qnnmem.doctor.logs.source import Stream

MESSAGES = [
    b"graph requires estimated allocation of 4194304 KB, limit is 3670016 KB",
    b"GRAPH requires estimated allocation of 12.5 KB, limit is 3 KB (soft)",
    b"failed to map 268435456 bytes on domain 3 gross use",
    b"failed to map 12 bytes on domain 3 net use",
    b"Failed in graph preparation with 0x3ea",
    b"Could not create context from binary with err 5005",
    b"skel not found in /vendor/lib, trying the next one",
    b"adsprpc: mapping refused, 12 kB free",
    b"[ro.product.model]: [Phone 8 Pro]",
    b"Backend build version: v2.33.0",
    b"failed to map 7 bytes and failed to map 9999 bytes on domain 1 gross use",
    b"everything is fine",
    b"a\0b \xff\xfe\x80 \x1b[31mred\x1b[0m",
    b"",
]
WHOLE = st.sampled_from(MESSAGES)
# The first or last part of a message, as loggers with short buffers cut it.
CUT = st.builds(lambda m, k: (m[:k], m[k:]), WHOLE, st.integers(0, 70))
HEADS = st.builds(
    lambda pid, tid, second, tag: f"03-17 16:13:{second:02d}.123 {pid:5d} {tid:5d} E {tag}: ",
    st.integers(0, 3),
    st.integers(7, 8),
    st.integers(0, 59),
    st.sampled_from(["QnnDsp", "other"]),
).map(str.encode) | st.sampled_from(
    [b"", b"[  12.345678] ", b"[   19.000001] ", b"E/qnn( 2): ", b" 1.0ms [ ERROR ] ", b"<E> "]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b"\0\n"])
# Near the length of a long line, and near the length of one buffer.
FILLED = st.sampled_from([0, 0, 0, 0, 0, 1, 100, 3990, 4030, 4096, 8150, 8192, 17_000, 40_000])


@st.composite
def lines(draw: Any) -> bytes:
    """Return one line, a message over two lines, or a long line with messages."""
    head: bytes = draw(HEADS)
    end, fill = draw(ENDS), b"x " * (draw(FILLED) // 2)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        first, rest = draw(CUT)
        long = draw(st.sampled_from([b"", b"p" * 200, b"q" * 4000]))
        again = draw(st.sampled_from([head, b""]))
        return b"".join((head, long, first, end, again, rest, end))
    if kind == 1:
        return b"".join((head, draw(WHOLE), fill, draw(WHOLE), fill, draw(WHOLE), end))
    return b"".join((head, draw(WHOLE), fill, end))


LOGS = st.lists(lines(), min_size=1, max_size=12).map(b"".join)


@contextmanager
def short_reach() -> Iterator[None]:
    """Shorten the reach of sessions to hundreds of bytes, so that small logs have many sessions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "CLOSE", 100)
        patch.setattr(session, "NEAR", 300)
        patch.setattr(attribution, "NEAR", 300)
        patch.setattr(session, "REACH", 2000)
        patch.setattr(session, "_SWEEP", 500)
        yield


@settings(max_examples=few(25))
@given(
    logs=st.lists(LOGS, min_size=1, max_size=3),
    region=st.integers(24, 3000) | st.integers(1, 100_000),
    pieces=st.integers(1, 60),
    engine=st.sampled_from(ENGINES),
    lost=st.frozensets(st.integers(0, 20)),
    rotated=st.booleans(),
)
@example([b"x" * 50_000 + b"\n" + MESSAGES[0] + b"\n"], 24, 60, "plain", frozenset(), False)
def test_any_cut_gives_the_same_json(
    tmp_path_factory: pytest.TempPathFactory,
    knowledge: Knowledge,
    say: Any,
    here: Any,
    logs: list[bytes],
    region: int,
    pieces: int,
    engine: str,
    lost: frozenset[int],
    rotated: bool,
) -> None:
    """Buffer size, ranges, engine, order of completion and lost workers do not change the JSON."""
    folder = tmp_path_factory.mktemp("logs")
    names = []
    for number, log in enumerate(logs):
        names.append(str(folder / f"{number}.log"))
        Path(names[-1]).write_bytes(log)
    streams = [Stream(tuple(names))] if rotated else [Stream((name,)) for name in names]
    size = max(map(len, logs)) // pieces + 1
    with short_reach():
        expected = say(diagnose(streams, knowledge, engine="plain", region=1 << 20))
        assert say(diagnose(streams, knowledge, engine=engine, region=region)) == expected
        cut = diagnose_with(
            streams, knowledge, here(lost), range_bytes=size, engine=engine, region=region
        )
        assert say(cut) == expected
