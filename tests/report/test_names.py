from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qnnmem.text import shorten


@given(st.text(), st.integers(4, 80))
def test_a_cleaned_name_is_printable_and_short(name: str, width: int) -> None:
    """A shortened name is printable and at most as long as asked."""
    shown = shorten(name, width)
    assert shown.isprintable()
    assert len(shown) <= width


def test_a_harmless_name_stays() -> None:
    """An ordinary name is shown unchanged."""
    assert shorten("model/conv1:0 é") == "model/conv1:0 é"


def test_a_long_name_keeps_both_ends() -> None:
    """A long name keeps its beginning and its end."""
    shown = shorten("first" + "x" * 10_000_000 + "last", 20)
    assert (len(shown), shown[:5], shown[-4:]) == (20, "first", "last")
