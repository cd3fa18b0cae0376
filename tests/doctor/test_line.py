"""Lines against templates, as written and in other spellings."""

from __future__ import annotations

import pytest

from qnnmem.doctor.kb.entry import Line
from qnnmem.doctor.kb.knowledge import Knowledge, pack
from qnnmem.doctor.kb.read import read_lines
from qnnmem.doctor.logs.line import bare_line, match, read_failure
from qnnmem.errors import UsageError

KNOWLEDGE = Knowledge(
    pack(
        (
            Line("read-graph", "", reads="graph"),
            Line("coded-graph", "", reads="graph code"),
            Line("known", "mapping of fd {fd:int} failed with {code:code}"),
        ),
        (),
    )
)


def failure(text: bytes) -> list[tuple[str, tuple[int | str, ...]]]:
    """Return the signs and values that a failure line gives."""
    found = read_failure(KNOWLEDGE, text)
    return [(KNOWLEDGE.signs[index], values) for index, values in found]


def test_lines_without_a_text_come_last() -> None:
    """Templates without text come last, so that a template's number is its index in every list."""
    assert KNOWLEDGE.signs == ["known", "read-graph", "coded-graph"]
    assert KNOWLEDGE.reads == {"graph": 1, "graph code": 2}
    assert KNOWLEDGE.holes == [(("fd", "int"), ("code", "code")), (), (("code", "code"),)]
    text = b"mapping of fd 7 failed with 0x3ea"
    assert match(KNOWLEDGE, text, [0]) == [(0, (7, 1002))]


@pytest.mark.parametrize(
    "text",
    [
        b"E QnnDsp: mapping of FD 7 failed, with: 1002",
        b"[ERROR] QNN: Mapping fd: 7 FAILED with QNN_COMMON_ERROR_MEM_ALLOC",
        b"<E> unable: mapping of fd=7 failed with 0x3EA",
    ],
)
def test_another_spelling_is_the_same_message(text: bytes) -> None:
    """Case, punctuation, filler words and number forms do not change the match."""
    assert failure(text) == [("known", (7, 1002))]


def test_a_failure_in_other_words_is_read() -> None:
    """A failure in other words gives its stage and its code."""
    assert failure(b"[ERROR] QNN: graph finalize broke, error 6004") == [("coded-graph", (6004,))]
    assert failure(b"[ERROR] QNN: finalizing the graph is impossible") == [("read-graph", ())]
    assert failure(b"[ERROR] QNN: context of no stage that is asked for") == []
    assert failure(b"[INFO] QNN: graph finalized without errors") == []


def test_what_can_be_read_is_a_closed_set() -> None:
    """`reads` accepts only stages and `other`, with or without a code."""
    with pytest.raises(UsageError, match="'reads' must be one of init, init code, graph"):
        read_lines('[[line]]\nsign = "x"\nreads = "moon"\n', "x.toml")
    with pytest.raises(UsageError, match="'text' is missing"):
        read_lines('[[line]]\nsign = "x"\n', "x.toml")


def test_colours_and_nul_bytes_are_cleaned_away() -> None:
    """Colour codes and NUL bytes are removed from a line."""
    assert bare_line(b"\x1b[31mred\x1b[0m te\0xt\r\n") == b"red text"
