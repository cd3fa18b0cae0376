"""Matches of lines that differ from others only in digits."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from search_engines import engine_named

from qnnmem.doctor.kb.entry import Line
from qnnmem.doctor.kb.knowledge import Knowledge, pack
from qnnmem.doctor.kb.matcher import Matcher, _steps
from qnnmem.doctor.kb.template import parse
from qnnmem.doctor.logs import line, scanner
from qnnmem.doctor.logs.header import parse as parse_head
from qnnmem.doctor.logs.line import Hit
from qnnmem.doctor.logs.scanner import LogScanner
from qnnmem.doctor.logs.search import ENGINES

HEAD = b"03-17 16:13:%02d.%03d %5d %5d E QnnDsp: "
BROKE = "the widget broke at {place:int} of {size:KB} KB with {code:code}, see {name}"


def hits_of(knowledge: Knowledge, *messages: bytes, engine: str = "plain") -> list[Hit]:
    """Return every hit of a logcat log with these messages."""
    log = b"".join(
        HEAD % (n % 60, n % 1000, 5, n) + text + b"\n" for n, text in enumerate(messages)
    )
    return list(
        LogScanner(knowledge, engine_named(knowledge, engine), BytesIO(log).readinto).hits()
    )


def known(*texts: str) -> Knowledge:
    """Return a knowledge base of these templates."""
    return Knowledge(pack([Line(f"sign-{n}", text) for n, text in enumerate(texts)], ()))


def test_a_message_with_other_numbers_is_matched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with other numbers reuses the first match, with its own values."""
    asked = 0

    def counted(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return line.match(*given)

    monkeypatch.setattr(scanner, "match", counted)
    text = b"the widget broke at %d of %d KB with 0x%x, see layer_%d"
    numbers = [(100 + n, 200 + n, 0x100 + n % 10, n % 10) for n in range(90)]
    found = hits_of(known(BROKE), *(text % row for row in numbers))
    values = [hit.found[0][1] for hit in found]
    assert values == [(a, b << 10, code, f"layer_{name}") for a, b, code, name in numbers]
    assert asked == 1
    assert [hit.number for hit in found] == list(range(1, 91))
    assert found[7].time is not None
    assert found[7].text.startswith(b"03-17 16:13:07.007     5     7 E QnnDsp: the widget")


@pytest.mark.parametrize(
    ("template", "good", "bad"),
    [
        ("the widget broke with {code:code}, see", b"broke with 0x12", b"broke with 1x12"),
        ("the widget broke, pin {pin:int} of 8", b"broke, pin 3 of 8", b"broke, pin 3 of 9"),
        ("the widget {*} broke {code:code}, see", b"7 broke 0x12", b"7 broke 1x12"),
    ],
)
def test_digits_that_a_template_asks_for_count(template: str, good: bytes, bad: bytes) -> None:
    """Digits in fixed texts of a template must match, in any order of lines."""
    knowledge = known(template)
    lines = [b"the widget " + text + b", see" for text in (good, bad, good, bad)]
    for order in (lines, lines[::-1]):
        found = [hit.text for hit in hits_of(knowledge, *order) if hit.found[0][0] == 0]
        assert [good in text for text in found] == [True, True]


def test_a_template_that_may_begin_in_a_head_is_matched_each_time() -> None:
    """A template that covers the line head is matched for every line."""
    knowledge = known("{pid:int} E QnnDsp: the widget broke")
    found = hits_of(knowledge, *[b"the widget broke"] * 3)
    assert [hit.found[0][1] for hit in found] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("region", [300, 1 << 18])
def test_a_message_is_known_by_all_its_letters(
    monkeypatch: pytest.MonkeyPatch, engine: str, region: int
) -> None:
    """A repeated message is matched once, behind any head, with and without CR, by any engine."""
    heads = (
        b"03-17 16:13:01.123  5  5 E QnnDsp: ",
        b"12-31 23:59:59.999  7  8 E QnnDsp: ",
        b"01-02 03:04:05.006 9123  9 E QnnDsp: ",
        b"01-02 03:04:05.007\t9124\t 8 E QnnDsp: ",
        b"[   12.000001] ",
    )
    text = b"the widget broke at %d of 10 KB with 0x1%d, see x"
    lines = [head + text % (n, n) + end for n in range(9) for head in heads for end in (b"", b"\r")]
    log = b"".join(line + b"\n" for line in lines)
    knowledge, asked = known(BROKE), 0

    def counted(*given: Any) -> Any:
        nonlocal asked
        asked += not given[1].startswith(b"[")
        return line.match(*given)

    monkeypatch.setattr(scanner, "match", counted)
    chosen = engine_named(knowledge, engine)
    found = list(LogScanner(knowledge, chosen, BytesIO(log).readinto, region=region).hits())
    assert [hit.text for hit in found] == [line.rstrip() for line in lines]
    assert [hit.number for hit in found] == list(range(1, len(lines) + 1))
    for hit in found:
        head = parse_head(hit.text)
        assert (hit.pid, hit.time) == (head.pid, head.time)
        at = hit.text.index(b"at ") + 3
        assert hit.found[0][1][0] == int(hit.text[at : at + 1])
    assert asked == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_word_of_ours_with_a_digit_in_it_hides_none_without(engine: str) -> None:
    """A line that holds a keyword only once its digits are removed hides no other line."""
    knowledge = known("the widget broke")
    odd = b"q7nn graph failed, the wid3get broke"
    lines = [odd, odd, b"the widget broke", odd, b"qnn graph failed, the widget broke"]
    assert [hit.number for hit in hits_of(knowledge, *lines, engine=engine)] == [3, 5]


def test_plain_parts_are_not_compiled() -> None:
    """A template with numbers is matched step by step; a template with choices uses `re`."""
    plain = parse(BROKE).regex
    assert _steps(plain)
    assert not _steps(parse("the large (widget|gadget) broke").regex)
    assert not _steps(parse("{n:int} widgets broke").regex)
    text = b"the widget the widget broke at 5 of 1.5 KB with -0x1F, see x y"
    assert Matcher(plain).search(text, text.lower()) == (11, (b"5", b"1.5", b"-0x1F", b"x"))
