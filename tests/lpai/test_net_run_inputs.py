"""Input lists and input files of net-run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeds import few

from qnnmem.errors import LoadError, QnnMemError, WrongSize
from qnnmem.ir import DType, Tensor
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.net_run import files as net_run_files
from qnnmem.lpai.net_run.files import InputList, read_input


def files(text: str | bytes, folder: Path, *inputs: str) -> list[dict[str, str]]:
    """Return the files of a list with this text for these inputs."""
    found, _ = files_and_warnings(text, folder, *inputs)
    return found


def files_and_warnings(
    text: str | bytes, folder: Path, *inputs: str
) -> tuple[list[dict[str, str]], list[str]]:
    """Return the files of a list and its warnings."""
    path = folder / "list.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    warnings: list[str] = []
    assigned = InputList.read(path).assigned(inputs, warnings.append)
    return [{name: str(file) for name, file in line.items()} for line in assigned], warnings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.raw 2.raw\n", [{"a": "1.raw", "b": "2.raw"}]),
        ("1 2\n\n   \n3 4", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ("b:=2 a:=1\n", [{"a": "1", "b": "2"}]),
        ("b:=2 a:=1\n4 3\n", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ("b:=2 1\n", [{"a": "2", "b": "1"}]),  # not all named: by position
        ("#out\n1 2\n", [{"a": "1", "b": "2"}]),
        ("\n#out\n%out\n1 2\n", [{"a": "1", "b": "2"}]),
        ("%out\n1 2\n", [{"a": "1", "b": "2"}]),
        ("1 2 \n", [{"a": "1", "b": "2"}]),
        ("", []),
        ("#only\n", []),
    ],
)
def test_the_grammar_of_lists(text: str, expected: list[dict[str, str]], tmp_path: Path) -> None:
    """Each line is an inference; entries go by position or by the first line's names."""
    assert files(text, tmp_path, "a", "b") == expected


def test_only_one_header_of_each_kind_is_dropped(tmp_path: Path) -> None:
    """Only the first header line of each kind is dropped."""
    assert files("#a\n#b\n", tmp_path, "x") == [{"x": "#b"}]


def test_names_may_be_sanitised(tmp_path: Path) -> None:
    """A list may use the sanitised name of a tensor."""
    assert files("in_0:=p\n", tmp_path, "in:0") == [{"in:0": "p"}]


def test_a_later_line_with_another_order_is_warned_of_once(tmp_path: Path) -> None:
    """A later line with another order of names keeps the first order, with one warning."""
    found, warnings = files_and_warnings("a:=1 b:=2\nb:=3 a:=4\nb:=5 a:=6", tmp_path, "a", "b")
    assert found[1] == {"a": "3", "b": "4"}
    assert len(warnings) == 1
    assert "line 2 gives a file for 'b', but the file is used for 'a'" in warnings[0]


def test_carriage_returns_are_taken_off_with_a_word(tmp_path: Path) -> None:
    """Carriage returns are removed with one warning, since the vendor's tool keeps them."""
    found, warnings = files_and_warnings("1\r\n2\r\n", tmp_path, "x")
    assert found == [{"x": "1"}, {"x": "2"}]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1\n", r"line 1 \(not counting headers and empty lines\) has 1 file for 2 inputs"),
        (
            "1 2\n1 2 3\n",
            r"line 2 \(not counting headers and empty lines\) has 3 files for 2 inputs",
        ),
        ("1  2\n", r"line 1 .* has an entry without a file"),
        ("a:= b:=1\n", r"entry without a file"),
        ("a:=1 c:=2\n", r"names 'c', which is not an input; the inputs are 'a', 'b'"),
        ("a:=1 a:=2\n", r"names input 'a' twice"),
        ("a:=1\n", r"has no file for input 'b'"),
    ],
)
def test_a_list_that_does_not_suit_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    """A line with missing, extra or unknown inputs is refused before the first inference."""
    with pytest.raises(LoadError, match=reason):
        files(text, tmp_path, "a", "b")


def test_a_large_list_is_refused_unread(tmp_path: Path) -> None:
    """A list over 16 MiB is refused unread."""
    path = tmp_path / "list.txt"
    with path.open("wb") as file:
        file.truncate(net_run_files.MAX_LIST_BYTES + 1)
    with pytest.raises(LoadError, match=r"16,777,217 bytes are over the limit of 16\.00 MiB"):
        InputList.read(path)


def test_a_list_of_too_many_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list with too many lines is refused."""
    monkeypatch.setattr(net_run_files, "MAX_LINES", 3)
    with pytest.raises(LoadError, match="has 4 lines, over the limit of 3"):
        files("1\n2\n3\n4\n", tmp_path, "x")


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("make", "reason"),
    [(_folder, "is a folder"), (_pipe, "is not a regular file"), (_nothing, "no such file")],
)
def test_what_is_no_file_is_refused(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    """A folder, a pipe or a missing file is refused at once, as list and as input."""
    make(tmp_path / "x")
    with pytest.raises(LoadError, match=reason):
        InputList.read(tmp_path / "x")
    with pytest.raises(LoadError, match=reason):
        read_input(tmp_path / "x", Tensor("t", DType.UINT8, (1,)), None, native=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=few(200))
@given(data=st.binary(max_size=200))
def test_hostile_lists_end_in_a_sentence(data: bytes, tmp_path: Path) -> None:
    """Any bytes as an input list end in success or in a one-line error."""
    said = ""
    try:
        for line in files(data, tmp_path, "a"):
            read_input(Path(line["a"]), Tensor("t", DType.UINT8, (77,)), None, native=True)
    except QnnMemError as exc:
        said = str(exc)
    assert "\n" not in said


def test_float_files_are_quantized(tmp_path: Path) -> None:
    """Float inputs are scaled, rounded half to even and clipped to the type."""
    values = np.array([-100, -1.5, 0.25, 0.75, 1000], "<f4")
    path = tmp_path / "x.raw"
    values.tofile(path)
    tensor = Tensor("t", DType.INT8, (5,))
    found = read_input(path, tensor, Quant(0.5, 3), native=False).view(np.int8)
    expected = np.clip(np.rint(values.astype(np.float64) / 0.5 + 3), -128, 127)
    assert np.array_equal(found, expected.astype(np.int8))


def test_native_files_are_taken_as_they_are(tmp_path: Path) -> None:
    """A native input file is used byte for byte."""
    path = tmp_path / "x.raw"
    path.write_bytes(bytes(range(8)))
    found = read_input(path, Tensor("t", DType.INT16, (4,)), Quant(0.5, 3), native=True)
    assert found.tobytes() == bytes(range(8))


@pytest.mark.parametrize(("native", "expected"), [(True, 4), (False, 16)])
def test_the_size_of_a_file_must_be_right(native: bool, expected: int, tmp_path: Path) -> None:
    """A file of the wrong size is refused in the vendor tool's words, with exit code 1."""
    path = tmp_path / "x.raw"
    path.write_bytes(bytes(5))
    with pytest.raises(WrongSize) as caught:
        read_input(path, Tensor("t", DType.UINT8, (4,)), None, native=native)
    text = f"Input file {path}: file size in bytes (5), should be equal to: {expected}"
    assert str(caught.value) == text
    assert caught.value.exit_code == 1


def test_a_type_without_numbers_needs_native_files(tmp_path: Path) -> None:
    """An input type without a float form needs native files, and the message says so."""
    path = tmp_path / "x.raw"
    path.write_bytes(bytes(8))
    tensor = Tensor("t", DType.BFLOAT16, (2,))
    with pytest.raises(LoadError, match="add --use_native_input_files"):
        read_input(path, tensor, None, native=False)
    path.write_bytes(bytes(4))
    assert read_input(path, tensor, None, native=True).size == 4
