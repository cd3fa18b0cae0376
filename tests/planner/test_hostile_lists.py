"""Hostile buffer lists and eAI reports are refused in one sentence, within known limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_line
import pytest

from qnnmem.errors import LoadError, OutputError
from qnnmem.ir import FixedBuffer, Span
from qnnmem.loader import csv, eaix
from qnnmem.units import Bytes, Step

HEADER = "id,lower,upper,size\n"


def refused(path: Path, content: bytes) -> str:
    """Plan a file that must be refused and return the error message."""
    path.write_bytes(content)
    done = command_line.run("plan", path, "--time-limit", "0")
    assert command_line.exit_code(done) == 2
    return command_line.sentence(done)


@pytest.mark.parametrize(
    "mark", ["\0", "\x1b", "\x07", "\x7f", "\x9b", "\x0b", "\x0c", "\x1f", "\x85"]
)
@pytest.mark.parametrize("text", ["a{}b,0,1,5\n", "a,0,1,5{}\n", "a,0,1,5\nb,0,1,5\n{}"])
def test_control_characters_are_refused(tmp_path: Path, mark: str, text: str) -> None:
    """A buffer list with a control character is refused, and the message does not repeat it."""
    said = refused(tmp_path / "list.csv", (HEADER + text.format(mark)).encode())
    assert "a buffer list must be plain text" in said
    assert mark not in said


@pytest.mark.parametrize("name", ["a\0b", "a\x1b[31m", "\x9b", "a\rb"])
def test_control_characters_are_not_written(name: str) -> None:
    """The CSV writer refuses a name with control characters, since the reader would refuse it."""
    with pytest.raises(OutputError, match="control characters"):
        csv.write([FixedBuffer(name, Bytes(1), Span(Step(0), Step(1)))])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfei\0d\0", "not UTF-8 text"),
        (HEADER.encode("utf-16-le"), "plain text"),
        (HEADER.encode() + b'"a,0,1,5\n' * 9, "no quoting"),
        (HEADER.encode() + b"a,0,nan,5\n", "not a whole number"),
        (HEADER.encode() + b"a,0,1,1e3\n", "not a whole number"),
        (HEADER.encode() + b"a,0,1,0x10\n", "not a whole number"),
        (HEADER.encode() + b"a,0,1,-1\n", "out of range"),
        (HEADER.encode() + b"a,0,1," + b"9" * 4_000_000 + b"\n", "not a whole number"),
        (HEADER.encode() + b"," * 4_000_000, "4000001 fields"),
        (b"x" * 4_000_000, "unknown column"),
        (HEADER.encode() + b"a,0,1,5\na,0,1,5\n", "line 3 repeats the id"),
    ],
)
def test_odd_lists_are_refused_in_a_short_sentence(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """An invalid list is refused with a short reason, however long the file is."""
    said = refused(tmp_path / "list.csv", content)
    assert reason in said
    assert len(said) < 400 + len(str(tmp_path))


def test_rows_are_counted_before_they_are_split(tmp_path: Path) -> None:
    """The CSV reader counts the rows first and refuses more than 1,000,000."""
    path = tmp_path / "list.csv"
    path.write_bytes(HEADER.encode() + b"a,0,1,5\n" * 1_000_001)
    with pytest.raises(LoadError, match="the CSV has 1,000,001 rows, over the limit of 1,000,000"):
        csv.read(path)


@pytest.mark.parametrize(("reader", "name"), [(csv, "a.csv"), (eaix, "a.eaix")])
def test_files_beyond_the_limit_are_not_read(reader: Any, name: str, tmp_path: Path) -> None:
    """A file over 64 MiB is refused unread."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate((1 << 26) + 1)  # sparse: takes no disk space
    with pytest.raises(LoadError, match=r"over the limit of 64\.00 MiB"):
        reader.read(path)


def report(flag: str = "0x2", operator: str = "CONV", tensor: str = "1") -> dict[str, Any]:
    """Return an eAI report with one node."""
    kind = {"dataType": "uint8", "shape": {"dimensions": [4]}}
    value = {"tensor_id": tensor, "tensor_name": "t", "flag": flag, "type": kind}
    node = {"operator": operator, "actual_order": 0, "inputs": [], "outputs": [{"value": [value]}]}
    return {"graphs": [{"nodes": [node], "inputs": [], "outputs": []}]}


@pytest.mark.parametrize("brackets", [b"[],", b"{},", b"0,", b'{"a":[]},'])
def test_values_are_counted_before_they_are_made(tmp_path: Path, brackets: bytes) -> None:
    """A report with over 2,000,000 JSON values is refused; parsed, they would fill gigabytes."""
    said = refused(tmp_path / "a.eaix", b'{"graphs":[' + brackets * 2_000_001 + b"0]}")
    assert "more than 2,000,000 values" in said


@pytest.mark.parametrize("flag", ["0x" + "0" * 20 + "2", "0x0000000000000000002zz", "1" * 5000, ""])
def test_a_flag_is_read_whole_or_not_at_all(tmp_path: Path, flag: str) -> None:
    """An invalid or overlong flag is refused, never cut to another valid flag."""
    said = refused(tmp_path / "a.eaix", json.dumps(report(flag)).encode())
    assert "no valid 'flag'" in said


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_halves_of_characters_can_be_shown(tmp_path: Path, form: str) -> None:
    """A report with lone surrogates in its names is shown in every format as valid UTF-8."""
    path = tmp_path / "a.eaix"
    path.write_text(json.dumps(report(operator="\ud800", tensor="\udfff")), "utf-8")
    result = command_line.run("plan", str(path), "--format", form, "--reorder")
    assert result.exception is None
    result.stdout.encode("utf-8")
    assert all(op.name.isascii() for op in eaix.read(path).ops)
