from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import LoadError, OutputError
from qnnmem.ir import FixedBuffer, Span
from qnnmem.loader import csv
from qnnmem.units import Align, Bytes, Offset, Step


def buf(
    name: str, lower: int, upper: int, size: int, align: int = 1, offset: int | None = None
) -> FixedBuffer:
    """Return a buffer from plain numbers."""
    place = None if offset is None else Offset(offset)
    return FixedBuffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align), place)


def parse(folder: Path, content: str | bytes) -> tuple[FixedBuffer, ...]:
    """Return the buffers read from a file with this content."""
    path = folder / "buffers.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return csv.read(path).buffers


def test_reads_rows_as_buffers(tmp_path: Path) -> None:
    """Each row becomes a buffer, in file order; a lifetime may begin before step 0."""
    text = "id,lower,upper,size\nb,-1,3,16\na,0,2,0\n"
    assert parse(tmp_path, text) == (buf("b", -1, 3, 16), buf("a", 0, 2, 0))


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    """The header defines the order of the columns."""
    text = "size,offset,alignment,id,upper,lower\n8,128,64,x,5,2\n"
    assert parse(tmp_path, text) == (buf("x", 2, 5, 8, 64, 128),)


@pytest.mark.parametrize("header", ["buffer,start,upper,size", "buffer_id,begin,upper,size"])
def test_other_names_of_columns_are_known(tmp_path: Path, header: str) -> None:
    """The column names buffer, buffer_id, start and begin are accepted."""
    assert parse(tmp_path, f"{header}\nx,2,5,8\n") == (buf("x", 2, 5, 8),)


def test_end_is_the_last_step(tmp_path: Path) -> None:
    """A column named `end` holds the last live step, so `upper` is one more."""
    assert parse(tmp_path, "id,start,end,size\nx,2,2,8\n") == (buf("x", 2, 3, 8),)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfid,lower,upper,size\nx,2,5,8\n",
        b"id,lower,upper,size\r\nx,2,5,8\r\n",
        b"id,lower,upper,size\nx,2,5,8\n\n\n",
        b"id,lower,upper,size\nx,2,5,8",
        b"ID, Lower, Upper, Size\nx, 2, 5, 8\n",
    ],
)
def test_editors_habits_are_accepted(tmp_path: Path, content: bytes) -> None:
    """Byte order marks, CRLF, blanks, capitals and a missing last newline are accepted."""
    assert parse(tmp_path, content) == (buf("x", 2, 5, 8),)


def test_hints_are_ignored_with_a_note(tmp_path: Path) -> None:
    """A hint column does not change the buffers; a note says that it was ignored."""
    path = tmp_path / "hints.csv"
    path.write_text("id,lower,upper,size,hint\nx,2,5,8,0\n")
    model = csv.read(path)
    assert model.notes == ("the hint column was ignored",)
    assert model.format == "csv"


def test_empty_gaps_are_accepted(tmp_path: Path) -> None:
    """An empty gaps column is accepted."""
    assert parse(tmp_path, "id,lower,upper,size,gaps\nx,2,5,8,\n") == (buf("x", 2, 5, 8),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id,lower,upper,size,gaps\nx,2,5,8,3-4\n", "gaps"),
        ("id,lower,upper\nx,2,5\n", "line 1 has too few columns"),
        ("id,lower,upper,size,colour\nx,2,5,8,red\n", "unknown column 'colour'"),
        ("id,lower,upper,size,size\nx,2,5,8,8\n", "names a column twice"),
        ("id,lower,upper,end,size\nx,2,5,5,8\n", "names a column twice"),
        ("id,lower,upper,size\nx,2,5,8\ny,2,5\n", "line 3 has 3 fields where the header has 4"),
        ("id,lower,upper,size\nx,2,5,8,9\n", "line 2 has 5 fields where the header has 4"),
        ("id,lower,upper,size\n\nx,2,5,8\n", "line 2 has 1 fields"),
        ("id,lower,upper,size\nx,2,5,8\nx,2,5,8\n", "line 3 repeats the id 'x'"),
        ("id,lower,upper,size\n,2,5,8\n", "the id on line 2 is empty"),
        ("id,lower,upper,size\nx,5,5,8\n", "line 2 has a lifetime"),
        ("id,start,end,size\nx,5,4,8\n", "line 2 has a lifetime"),
        ("id,lower,upper,size\nx,2,5,-8\n", "line 2: size -8"),
        ("id,lower,upper,size,alignment\nx,2,5,8,0\n", "line 2: alignment 0"),
        ("id,lower,upper,size,offset\nx,2,5,8,-1\n", "line 2: offset -1"),
        ("id,lower,upper,size,offset\nx,2,5,8,\n", "offset is '', not a whole number"),
        ("id,lower,upper,size\nx,2,5,8.5\n", "line 2: size is '8.5', not a whole number"),
        ("id,lower,upper,size\nx,2,5,1_000\n", "not a whole number"),
        ("id,lower,upper,size\nx,2,5,٣\n", "not a whole number"),
        ("id,lower,upper,size\nx,2,5,²\n", "not a whole number"),
        ("id,lower,upper,size\nx,2,5," + "9" * 10_000 + "\n", "not a whole number"),
        (f"id,lower,upper,size\nx,2,5,{1 << 60}\n", " is out of range"),
        (f"id,lower,upper,size\nx,{-(1 << 60)},5,8\n", " is out of range"),
        (f"id,lower,upper,size\nx,2,5,{1 << 59}\ny,2,5,{(1 << 59) + 1}\n", "add up to more"),
        ('id,lower,upper,size\n"x",2,5,8\n', "line 2 contains '\"'"),
        ("id,lower,upper,size\rx,2,5,8\r", "line 1 contains"),
        ("\n\n", "has no header line"),
        ("id" + "," * 100_000, "too many columns"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """A file that breaks the format is refused in a short sentence with the line and the reason."""
    with pytest.raises(LoadError) as caught:
        parse(tmp_path, text)
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 200


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    """A buffer list that is not UTF-8 is refused."""
    with pytest.raises(LoadError, match="not UTF-8 text"):
        parse(tmp_path, "id,lower,upper,size\nä,2,5,8\n".encode("latin-1"))


def test_writes_only_columns_that_say_something() -> None:
    """The alignment column is written if a buffer is aligned, the offset column if placed."""
    assert csv.write([buf("x", 2, 5, 8)]) == "id,lower,upper,size\nx,2,5,8\n"
    assert csv.write([buf("x", 2, 5, 8, 64)]).startswith("id,lower,upper,size,alignment\n")
    assert csv.write([buf("x", 2, 5, 8, 1, 0)]) == "id,lower,upper,size,offset\nx,2,5,8,0\n"


@pytest.mark.parametrize("name", ["a,b", 'a"b', "a\nb", "a\rb", ""])
def test_names_that_need_quotes_are_not_written(name: str) -> None:
    """A name that would need quotes is refused, since the format has no quoting."""
    with pytest.raises(OutputError, match="no quoting"):
        csv.write([buf(name, 2, 5, 8)])


def test_half_placed_buffers_are_not_written() -> None:
    """A list in which only some buffers have an offset is not written."""
    with pytest.raises(OutputError, match="1 of 2 buffers have an offset"):
        csv.write([buf("x", 2, 5, 8, 1, 0), buf("y", 2, 5, 8)])


NAMES = st.text(
    st.characters(exclude_characters=',"', exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8
)
STEPS = st.integers(-(1 << 58), 1 << 58)


@st.composite
def buffer_lists(draw: st.DrawFn) -> list[FixedBuffer]:
    """Return buffers that a file can hold."""
    placed, aligned = draw(st.booleans()), draw(st.booleans())
    return [
        buf(
            name,
            lower := draw(STEPS),
            lower + draw(st.integers(1, 1 << 58)),
            draw(st.integers(0, 1 << 50)),
            draw(st.integers(1, 1 << 59)) if aligned else 1,
            draw(st.integers(0, (1 << 60) - 1)) if placed else None,
        )
        for name in draw(st.lists(NAMES, unique=True, min_size=1, max_size=6))
    ]


@given(buffers=buffer_lists())
def test_writing_and_reading_are_inverse(
    tmp_path_factory: pytest.TempPathFactory, buffers: list[FixedBuffer]
) -> None:
    """Written buffers read back as the same buffers, and write again as the same bytes."""
    text = csv.write(buffers)
    again = parse(tmp_path_factory.getbasetemp(), text)
    assert again == tuple(buffers)
    assert csv.write(again) == text


def test_large_lists_are_read_fast(tmp_path: Path) -> None:
    """A list of 100,000 rows is read in less than 3 seconds of processor time."""
    rows = (f"b{row},{row},{row + 9},{row % 4096},64\n" for row in range(100_000))
    text = "id,lower,upper,size,alignment\n" + "".join(rows)
    began = time.process_time()
    assert len(parse(tmp_path, text)) == 100_000
    assert time.process_time() - began < 3


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return a damaged copy: one bit flipped, or bytes cut, deleted, repeated or inserted."""
    at, end = sorted((chance.randrange(len(content)), chance.randrange(len(content))))
    kind = chance.randrange(5)
    if kind == 0:
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[end:]
    if kind == 3:
        return content[:end] + content[at:]
    return content[:at] + chance.choice([b",", b"\n", b'"', b"-", b"\0", b"9" * 30]) + content[at:]


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    """500 damaged buffer lists each end in buffers or in LoadError, all within 60 seconds."""
    rows = (f"b{row},{row - 2},{row + 9},{row * 7},64,{row}\n" for row in range(12))
    content = ("id,lower,upper,size,alignment,offset\n" + "".join(rows)).encode()
    chance = random.Random(7)  # noqa: S311 - reproducible, not secret
    began = time.monotonic()
    for _ in range(500):
        with suppress(LoadError):
            parse(tmp_path, mutate(content, chance) or b"x")
    assert time.monotonic() - began < 60
