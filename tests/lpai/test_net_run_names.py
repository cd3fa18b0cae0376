"""Tensor names in lists, options and file names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import UsageError
from qnnmem.lpai.net_run.files import file_stems, matching, native_tensors, sanitized


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x", "x"),
        ("model/layer:0", "model_layer_0"),
        ("a..//b", "a_b"),
        ("0in", "_0in"),
        ("../../etc/passwd", "_etc_passwd"),
        ("", "_"),
        ("é", "_"),
        ("_x", "_x"),
    ],
)
def test_names_are_sanitised_as_the_tool_does(name: str, expected: str) -> None:
    """Runs of other characters become one underscore, and no name starts with a digit."""
    assert sanitized(name) == expected


@given(st.lists(st.text(max_size=300), unique=True, max_size=8))
def test_every_tensor_has_a_file_of_its_own(names: list[str]) -> None:
    """Output file names are unique and safe, native files included."""
    stems = file_stems(names)
    files = [f"{stem}{ending}" for stem in stems.values() for ending in (".raw", "_native.raw")]
    assert len(set(files)) == 2 * len(names)
    assert all(re.fullmatch(r"[A-Za-z_]\w{0,240}\.raw", file, re.ASCII) for file in files)


def test_names_match_raw_and_sanitised() -> None:
    """A list may use the raw or the sanitised name; the raw name takes precedence."""
    assert matching("a_b", ["a/b", "a_b"]) == "a_b"
    assert matching("a_b", ["x", "a/b"]) == "a/b"
    assert matching("c", ["a/b"]) is None


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("", set(), set()),
        ("g1:a,b:0;g2:a", {"a", "b:0"}, {"a"}),
        ("g1:a,g1:b_0", {"a", "b:0"}, set()),
        ("a", {"a"}, {"a"}),
        ("b:0", {"b:0"}, set()),
    ],
)
def test_native_tensors_are_found_by_graph(text: str, first: set[str], second: set[str]) -> None:
    """Native tensors belong to the graph before the colon, or to every graph that has them."""
    found = native_tensors(text, {"g1": ("a", "b:0"), "g2": ("a",)})
    assert found == {"g1": first, "g2": second}


def test_an_unknown_native_tensor_is_refused() -> None:
    """An unknown native tensor raises UsageError with the list of inputs."""
    with pytest.raises(UsageError, match=r"'z' is not an input; the inputs are 'a'"):
        native_tensors("g:z", {"g": ("a",)})
