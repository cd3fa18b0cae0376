"""Lines against templates: what counts where only words are known."""

from __future__ import annotations

import pytest

from qnnmem.doctor.kb.entry import Line
from qnnmem.doctor.kb.knowledge import Knowledge, pack
from qnnmem.doctor.kb.read import read_lines
from qnnmem.doctor.logs.line import bare_line, match
from qnnmem.errors import UsageError

KNOWLEDGE = Knowledge(
    pack(
        (
            Line("known", "mapping of fd {fd:int} failed"),
            Line("loose", "failed", also=("qnn|htp", "graph|context")),
        ),
        (),
    )
)


def signs(text: bytes) -> list[str]:
    """The signs that a line gives."""
    return [KNOWLEDGE.signs[index] for index, _ in match(KNOWLEDGE, text, range(2))]


def test_a_loose_line_needs_a_word_of_each_group() -> None:
    """The order of the words does not matter."""
    assert signs(b"[ERROR] graph of QnnHtp failed") == ["loose"]
    assert signs(b"[ERROR] failed: QNN context") == ["loose"]
    assert signs(b"[ERROR] failed: QNN session") == []
    assert signs(b"[ERROR] graph failed") == []


def test_a_loose_line_counts_only_where_nothing_else_is_known() -> None:
    """What is known of a line says more than its words."""
    assert signs(b"[ERROR] qnn graph: mapping of fd 5 failed") == ["known"]


@pytest.mark.parametrize(
    "text",
    [b"[INFO] qnn graph failed once", b"QnnDsp <I> graph failed", b"I/Qnn( 5): graph failed"],
)
def test_a_line_that_says_all_is_well_is_no_loose_line(text: bytes) -> None:
    """Its level says that the program does not mind."""
    assert signs(text) == []


def test_errors_are_relayed_at_any_level() -> None:
    """ONNX Runtime hands on the library's errors at verbose level."""
    line = b"2026-11-15 21:40:53.365 [V:onnxruntime:Default, x.cc:5 QnnLogging] <E> graph failed"
    assert signs(line) == ["loose"]


def test_a_loose_line_has_no_holes() -> None:
    """Its words are all that is looked for."""
    row = '[[line]]\nsign = "x"\ntext = "failed with {code:code}"\nalso = ["qnn"]\n'
    with pytest.raises(UsageError, match="neither holes nor choices"):
        read_lines(row, "x.toml")


def test_colours_and_nul_bytes_are_cleaned_away() -> None:
    """As terminals and broken writers leave them."""
    assert bare_line(b"\x1b[31mred\x1b[0m te\0xt\r\n") == b"red text"
