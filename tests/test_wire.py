"""Frames and messages between processes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest

from qnnmem.wire import (
    LENGTHS,
    ChildFailure,
    Done,
    WireMessage,
    decode,
    encode,
    read_frame,
    write_frame,
)


class Ask(WireMessage, frozen=True):
    """A message for tests."""

    count: int
    path: Path | None = None


def framed(text: bytes, payload: bytes = b"") -> io.BytesIO:
    """Return a frame of any bytes."""
    return io.BytesIO(LENGTHS.pack(len(text), len(payload)) + text + payload)


def test_a_frame_comes_back() -> None:
    """Written frames are read back in order, and then None."""
    stream = io.BytesIO()
    write_frame(stream, Ask(1), b"xyz")
    write_frame(stream, Done())
    stream.seek(0)
    assert read_frame(stream, Ask | Done, 99) == (Ask(1), b"xyz")
    assert read_frame(stream, Ask | Done, 99) == (Done(), b"")
    assert read_frame(stream, Ask | Done, 99) is None


def test_a_frame_is_sent_at_once() -> None:
    """A frame is flushed at once, since the reader waits for it."""
    below = io.BytesIO()
    stream = io.BufferedWriter(below)
    write_frame(stream, Done())
    assert below.getvalue()


def test_a_frame_is_read_up_to_its_limit() -> None:
    """A frame with a part over its limit is refused before it is read."""
    text = encode(Done())
    for part in (text, bytes(len(text))):
        stream = framed(text, part)
        assert read_frame(stream, Done, len(text)) == (Done(), part)
    for stream in (framed(text), framed(b"", bytes(len(text)))):
        with pytest.raises(ValueError, match="more than"):
            read_frame(stream, Done, len(text) - 1)
        assert stream.tell() == LENGTHS.size


def test_a_frame_that_breaks_off_is_none() -> None:
    """A frame that breaks off at any point counts as None."""
    whole = framed(encode(Ask(1)), b"xyz").getvalue()
    for length in range(len(whole)):
        assert read_frame(io.BytesIO(whole[:length]), Ask, 99) is None


def test_a_stream_may_give_less_than_it_is_asked_for() -> None:
    """A frame is read whole from a stream that returns fewer bytes than requested."""

    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 3))

    stream = Dripping(framed(encode(Ask(1)), bytes(1000)).getvalue())
    assert read_frame(stream, Ask, 1000) == (Ask(1), bytes(1000))


def test_a_path_needs_no_encoding() -> None:
    """A path with any bytes survives encoding."""
    path = Path(os.fsdecode(b"/a/\xff"))
    assert decode(encode(Ask(1, path)), Ask).path == path


NONSENSE = {
    "nothing": b"",
    "an array": msgspec.msgpack.encode([]),
    "no type": msgspec.msgpack.encode({"count": 1}),
    "another type": encode(ChildFailure("no")),
    "a type that is none": msgspec.msgpack.encode({"type": 3, "count": 1}),
    "a field missing": msgspec.msgpack.encode({"type": "Ask"}),
    "a field of another kind": msgspec.msgpack.encode({"type": "Ask", "count": "1"}),
    "a path that is none": msgspec.msgpack.encode({"type": "Ask", "count": 1, "path": 3}),
    "nested deeply": b"\x91" * 100_000,
    "nested deeply inside": b"\x82\xa4type\xa3Ask\xa1x" + b"\x91" * 100_000 + b"\x90",
    "an array that no memory holds": b"\xdd\xff\xff\xff\xff",
    "more than a message": encode(Ask(1)) + b"x",
    "text that is none": b"\x81\xa4type\xa3\xed\xa0\x80",
}


@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE)
def test_another_message_is_a_value_error(text: bytes) -> None:
    """Invalid bytes from the other end raise ValueError."""
    with pytest.raises(ValueError, match=r"."):
        decode(text, Ask | Done)
