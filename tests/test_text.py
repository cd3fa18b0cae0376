"""Untrusted text: quoted, printable and short, checked to the character."""

from __future__ import annotations

import pytest

from qnnmem.text import listed, plain_or_quoted, printable, quote, sentence, shorten

UNSHOWN = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("conv1", "'conv1'"),
        ("a\x1b[31mb", r"'a\x1b[31mb'"),
        ("x" * 78, repr("x" * 78)),  # 80 with its quotes
        ("x" * 79, repr("x" * 78)[:77] + "..."),
        ("x" * 10_000, "'" + "x" * 76 + "..."),
        ("\0" * 50, repr("\0" * 50)[:77] + "..."),
        (7, "7"),
        (-7, "-7"),
        ((1 << 64) - 1, "18446744073709551615"),
        (1 << 64, "2^64 or more"),
        (-(1 << 64) + 1, "-18446744073709551615"),
        (-(1 << 64), "-2^64 or more"),
        pytest.param(10**6000, "2^64 or more", id="more digits than Python writes"),
        (True, "True"),
        (None, "a NoneType"),
        ([["deep"]], "a list"),
        (1.5, "a float"),
    ],
)
def test_a_value_is_quoted_in_bounded_space(value: object, shown: str) -> None:
    """Any value from a file is quoted in bounded space."""
    assert quote(value) == shown


@pytest.mark.parametrize("size", [79, 80, 81, 82])
def test_a_quoted_text_is_at_most_eighty_long(size: int) -> None:
    """A quoted text has at most 80 characters."""
    assert len(quote("y" * size)) == 80


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("plain", 80, "plain"),
        ("x" * 80, 80, "x" * 80),
        ("x" * 81, 80, "'" + "x" * 76 + "..."),
        ("abc", 3, "abc"),
        ("abcd", 3, "'abcd'"),
        ("a\nb", 80, r"'a\nb'"),
    ],
)
def test_a_plain_name_stays_as_it_is(name: str, width: int, shown: str) -> None:
    """Only long or unusual names are quoted."""
    assert plain_or_quoted(name, width) == shown


def test_a_plain_name_may_have_eighty_characters() -> None:
    """The default width of a plain name is 80 characters."""
    assert [len(plain_or_quoted("x" * size)) for size in (79, 80, 81)] == [79, 80, 80]
    assert plain_or_quoted("x" * 81).startswith("'")


@pytest.mark.parametrize(
    ("text", "keep", "shown"),
    [
        ("as it is", "", "as it is"),
        ("a\x1b[31mb\x7f", "", f"a{UNSHOWN}[31mb{UNSHOWN}"),
        ("a\nb\tc", "\n", f"a\nb{UNSHOWN}c"),
        ("a\nb\tc", "", f"a{UNSHOWN}b{UNSHOWN}c"),
        ("\u202eabc\u2028", "", f"{UNSHOWN}abc{UNSHOWN}"),
        ("é\ud800", "", f"é{UNSHOWN}"),
    ],
)
def test_control_characters_are_replaced(text: str, keep: str, shown: str) -> None:
    """Control characters, bidirectional marks and surrogates are replaced."""
    assert printable(text, keep=keep) == shown


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("abcdefghij", 10, "abcdefghij"),
        ("abcdefghijk", 10, "abcde…hijk"),
        ("abcdefghijk", 5, "ab…jk"),
        ("abcdefghijk", 4, "ab…k"),
        ("a" * 20 + "b" * 20, 10, "aaaaa…bbbb"),  # four times the width: checked whole
        ("a" * 20 + "x" + "b" * 20, 10, "aaaaa…bbbb"),
        ("a\x1bb", 10, f"a{UNSHOWN}b"),
        ("a" * 1_000_000 + "b" * 1_000_000, 10, "aaaaa…bbbb"),
    ],
)
def test_a_name_is_cut_in_the_middle(name: str, width: int, shown: str) -> None:
    """A long name keeps its start and its end, which identify it."""
    assert shorten(name, width) == shown


def test_a_name_has_sixty_characters_by_default() -> None:
    """The default width of a shortened name is 60 characters."""
    assert [len(shorten("x" * size)) for size in (59, 60, 61, 500)] == [59, 60, 60, 60]
    assert "…" not in shorten("x" * 60)
    assert "…" in shorten("x" * 61)


def test_only_the_ends_of_a_giant_name_are_looked_at() -> None:
    """Shortening reads only the ends of a giant name."""

    class Watched(str):
        """A string that records the lengths of its slices."""

        taken: list[int]

        def __getitem__(self, key: object) -> str:
            piece = super().__getitem__(key)  # type: ignore[index]
            self.taken.append(len(piece))
            return piece

    name = Watched("a" * 41)
    name.taken = []
    assert shorten(name, 10) == "aaaaa…aaaa"
    assert name.taken == [20, 20]
    name = Watched("a" * 40)
    name.taken = []
    assert shorten(name, 10) == "aaaaa…aaaa"
    assert name.taken in ([], [5, 4])  # `printable` returns the text itself


@pytest.mark.parametrize(
    ("exc", "shown"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("  spaced  "), "spaced"),
        (ValueError(""), "ValueError"),
        (ValueError("\n\n"), "ValueError"),
        (ValueError("a\x1b[31m"), f"a{UNSHOWN}[31m"),
        (ValueError("x" * 201), "x" * 200),
        (ValueError("x" * 200), "x" * 200),
    ],
)
def test_an_exception_is_one_line(exc: Exception, shown: str) -> None:
    """An exception is shown as one printable line of at most 200 characters."""
    assert sentence(exc) == shown


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["a"], "a", id="one"),
        pytest.param(["a", "b"], "a, b", id="as many as allowed"),
        pytest.param(["a", "b", "c"], "a, b and 1 more", id="one more"),
        pytest.param(["a"] * 2002, "a, a and 2,000 more", id="thousands"),
    ],
)
def test_a_list_names_the_first_and_counts_the_others(names: list[str], text: str) -> None:
    """A sentence about many names stays short."""
    assert listed(names, 2) == text
