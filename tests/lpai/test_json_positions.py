"""The JSON reader with positions: what it reads, notes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnmem.errors import LoadError
from qnnmem.lpai.config.json_positions import (
    MAX_DEPTH,
    MAX_FILE,
    Document,
    JsonKind,
    JsonNode,
    Position,
    read_document,
    read_strictly,
)


def read(folder: Path, text: str | bytes) -> Document:
    """Return the document read from this text."""
    path = folder / "x.conf"
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return read_document(path)


def plain(node: JsonNode) -> Any:
    """Return the value as Python's JSON reader returns it."""
    if node.kind is JsonKind.OBJECT:
        return {member.name: plain(member.node) for member in node.members}
    if node.kind is JsonKind.LIST:
        return [plain(item) for item in node.items]
    return node.value


scalars = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text()
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), values, max_size=5), st.booleans(), st.booleans())
def test_it_reads_what_python_reads(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], ascii_only: bool, wide: bool
) -> None:
    """Every JSON object reads as with Python's reader."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=2 if wide else None)
    content = text.encode("utf-8", "surrogatepass")
    folder = tmp_path_factory.mktemp("values")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        with pytest.raises(LoadError, match="not UTF-8"):
            read(folder, content)
        return
    assert plain(read(folder, content).root) == json.loads(text)


def test_every_value_knows_its_place(tmp_path: Path) -> None:
    """Each key and value has its line and column, counted from 1."""
    root = read(tmp_path, '{\n  "a": {"é": 1},\n\t"b": []}').root
    a, b = root.members
    assert (a.at, a.node.at) == (Position(2, 3), Position(2, 8))
    assert a.node.members[0].node.at == Position(2, 14)
    assert b.at == Position(3, 2)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """A byte order mark is accepted and does not shift the columns."""
    root = read(tmp_path, b'\xef\xbb\xbf{"a": 1}').root
    assert root.members[0].at == Position(1, 2)


def test_repeated_keys_are_kept_and_the_last_counts(tmp_path: Path) -> None:
    """A repeated key is kept twice, and a lookup by name returns the last value."""
    root = read(tmp_path, '{"a": 1, "a": 2}').root
    found = root.get("a")
    assert len(root.members) == 2
    assert found is not None
    assert found.node.value == 2


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        ('{\n// why\n"a": 1}', "comment", 2),
        ('{"a": 1 # why\n}', "comment", 1),
        ('{"a": /* one\n two */ 1}', "comment", 1),
        ('{"a": 1}\n// end', "comment", 2),
        ('{"a": 1,\n}', "comma", 1),
        ('{"a": [1,\n2,]}', "comma", 2),
    ],
)
def test_slips_are_named_and_read_over(text: str, word: str, line: int, tmp_path: Path) -> None:
    """A comment or an extra comma is noted with its line, and the rest is read."""
    document = read(tmp_path, text)
    (issue,) = document.issues
    assert word in issue.sentence
    assert issue.at.line == line
    assert document.root.get("a") is not None


def test_strict_reading_refuses_slips(tmp_path: Path) -> None:
    """Strict reading refuses an extra comma, as the vendor's tools do."""
    path = tmp_path / "x.conf"
    path.write_text('{"a": 1,}')
    with pytest.raises(LoadError, match="line 1: a comma before the closing }"):
        read_strictly(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" \n ", "contains only white space"),
        ("[1]", "not a list"),
        ('"a"', "not a string"),
        ("12", "one JSON object"),
        ('{"a": 1', "ends inside the object or list that began on line 1"),
        ('{"a"', "ends inside the object or list that began on line 1"),
        ('{\n"a": [1, 2', "ends inside the object or list that began on line 2"),
        ('{"a":', "ends where a value is expected"),
        ('{"a": 1} x', "text follows the end"),
        ('{"a": 1}}', "text follows the end"),
        ('{"a": 1 "b": 2}', "a comma or } is missing"),
        ('{"a" 1}', "a colon is missing after 'a'"),
        ("{'a': 1}", "single quotes"),
        ("{a: 1}", "'a' needs double quotes"),
        ('{"a": tcm}', "'tcm' needs double quotes"),
        ('{"a": True}', "True is written true"),
        ('{"a": None}', "None is written null"),
        ('{"a": NaN}', "is not a JSON number"),
        ('{"a": -Infinity}', "is not a JSON number"),
        ('{"a": 0x10}', "not a valid JSON number"),
        ('{"a": 01}', "not a valid JSON number"),
        ('{"a": +1}', "not a valid JSON number"),
        ('{"a": 1' + "0" * 5000 + "}", "a number with 5001 characters"),
        ('{"a": "x\ny"}', "not closed on its line"),
        ('{"a": "\\q"}', "invalid escape"),
        ('{"a": /* 1}', "never closed"),
        ('{"a": 1,, "b": 2}', "',' is found where a key"),
        ('{"a": ]}', "']' is found where a value"),
    ],
)
def test_what_is_no_json_object_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    """A text that is not a JSON object is refused in a short sentence with the reason."""
    with pytest.raises(LoadError) as caught:
        read(tmp_path, text)
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 300


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", '{"a": 1}'.encode("utf-16")])
def test_binary_files_are_refused(content: bytes, tmp_path: Path) -> None:
    """A binary or UTF-16 file is refused for its NUL bytes."""
    with pytest.raises(LoadError, match="NUL bytes"):
        read(tmp_path, content)


def test_bad_utf8_is_refused(tmp_path: Path) -> None:
    """Invalid UTF-8 is refused with the position of the byte and the cure."""
    with pytest.raises(LoadError, match=r"byte 7.*save it again as UTF-8"):
        read(tmp_path, b'{"a": "\xff"}')


def nested(levels: int) -> str:
    """Return an object with this many levels, itself included."""
    return '{"x": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


def test_as_many_levels_as_allowed_are_read(tmp_path: Path) -> None:
    """A document with the maximum of 64 levels is read."""
    assert read(tmp_path, nested(MAX_DEPTH)).root.members


@pytest.mark.parametrize("text", [nested(MAX_DEPTH + 1), nested(100_000), '{"a":' * 100_000])
def test_deeper_nesting_is_refused(text: str, tmp_path: Path) -> None:
    """A document with more than 64 levels is refused."""
    with pytest.raises(LoadError, match="the nesting is deeper than 64 levels"):
        read(tmp_path, text)


def test_size_is_limited(tmp_path: Path) -> None:
    """A file of exactly 1 MiB is read; one byte more is refused."""
    fits = b"{" + b" " * (MAX_FILE - 2) + b"}"
    assert read(tmp_path, fits).root.members == ()
    with pytest.raises(LoadError, match=r"over the limit of 1\.00 MiB"):
        read(tmp_path, fits + b"\n")


@pytest.mark.parametrize("name", ["missing.conf", "."])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    """A missing file or a folder raises LoadError."""
    with pytest.raises(LoadError):
        read_document(tmp_path / name)
