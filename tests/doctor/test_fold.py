"""The normal form of a message."""

from __future__ import annotations

import pytest

from qnnmem.doctor.kb.fold import SecondReading, fold, folded, with_rarest


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("<E> Failed to createFromBinary, Error: 0x3EA", "e fail create from binary error 1002"),
        ("unable to create_from-binary; err=1002", "fail create from binary error 1002"),
        ("could not open dma_heap", "fail open dma heap"),
        ("can't open /dev/dma-heap", "fail open dev dma heap"),
        ("QNN_COMMON_ERROR_MEM_ALLOC", "1002"),
        ("QNN_OF_NOBODY_KNOWS", "qnn nobody knows"),
        ("4,194,304KB of 2.5 GiB", "4194304 kb 2.5 gb"),
        ("... - / {}", ""),
    ],
)
def test_form(text: str, form: str) -> None:
    """The normal form has only words and numbers, and is its own normal form."""
    assert fold(text) == form
    assert fold(form) == form


def test_a_form_of_each_choice() -> None:
    """Choices that only inflect a word share one form."""
    assert len(list(folded(0, "Fail(|ed) to create context from binary"))) == 1
    assert len(list(folded(0, "no room for the (graph|context) binary"))) == 2
    assert not list(folded(0, "(a|b)(a|b)(a|b)(a|b) of a very long message"))


def test_too_little_is_no_form() -> None:
    """A message of two words, or of holes and common words only, gets no normal form."""
    assert not list(folded(0, "context failed"))
    assert not list(folded(0, "a{x} b{y} c{z} d{u}"))
    assert not list(folded(0, "is not supported by QNN"))


def test_a_name_in_a_hole() -> None:
    """A name in a hole matches several words."""
    second = SecondReading(
        with_rarest(list(folded(7, "could not register tensor {name} of {n:int} bytes")))
    )
    found = second.find(b"Cannot register tensor: past_key-0.out, of 4096 bytes!")
    assert found == [(7, (b"past key 0 out", b"4096"))]
    assert second.find(b"Cannot register tensor: past_key-0.out, of some bytes!") == []


def test_numbers_do_not_make_lines_strangers() -> None:
    """Lines that differ only in numbers share their remembered result."""
    second = SecondReading(with_rarest(list(folded(7, "mapping of {n:int} bytes failed"))))
    for number in (b"1", b"22"):
        assert second.find(b"mapping " + number + b" bytes: failed") == [(7, (number,))]
