"""Matching in linear time, with the answers of a backtracking engine."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable
from typing import Any

import pytest

from qnnmem.doctor.kb import matcher
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.kb.matcher import ANY_WORD, BLANKS, TEXT, WORD, Matcher
from qnnmem.doctor.kb.template import parse

FILL = [
    *(
        "123",
        "0x1F",
        "-5",
        "12,345",
        "1.5",
        "word",
        " ",
        "  ",
        "\t",
        "0x",
        "-",
        ":",
        "\r",
        "a b c ",
    ),
    *("x" * 70, "y" * 119, "y" * 130, "w" * 199, "w" * 201, " " * 30),
]


def mixed(text: str, rng: random.Random) -> bytes:
    """Return a random line made of pieces of a template, or a line that it should match."""
    bare = text.replace("\\", "")
    if rng.random() < 0.4:
        line = re.sub(r"\{[^}]*\}", lambda _: rng.choice(FILL), bare)
        line = re.sub(r"\(([^)]*)\)", lambda choice: rng.choice(choice[1].split("|")), line)
        line = line[: rng.randrange(40)] + line
    else:
        words = [word for word in re.split(r"\{[^}]*\}|[()|]", bare) if word]
        line = "".join(
            rng.choice(words if rng.random() < 0.55 else FILL) for _ in range(rng.randint(1, 9))
        )
    return (line.upper() if rng.random() < 0.5 else line).encode()


def alike(groups: Iterable[bytes]) -> list[bytes]:
    """Return the captured values with hexadecimal numbers in lower case."""
    number = re.compile(rb"-?0x[0-9a-f]+", re.IGNORECASE)
    return [one.lower() if number.fullmatch(one) else one for one in groups]


def test_answers_are_those_of_a_backtracking_engine() -> None:
    """The matcher agrees with `re` for every template, on matching and nearly matching lines."""
    rng, found = random.Random(7), 0  # noqa: S311 - reproducible, not secret
    for text in built_in().texts:
        if "{" not in text and "|" not in text:
            continue
        regex = parse(text).regex
        slow, quick = re.compile(regex.encode()), Matcher(regex)
        for _ in range(25):
            line = mixed(text, rng)
            hit = slow.search(line.lower())
            caught = hit and [line[slice(*hit.span(k))] for k in range(1, slow.groups + 1)]
            expected = hit and (hit.start(), alike(caught or []))
            match = quick.search(line, line.lower())
            assert (match and (match[0], alike(match[1]))) == expected, (text, line)
            found += hit is not None
    assert found > 1000


HOSTILE = [
    "{}" * 12 + "failed to do",
    "failed to do" + "{}" * 11 + "x",
    "failed " + "{}a" * 11 + "z",
    "{} " * 11 + "failed no",
    "failed" + " {*} {} a" * 3 + "z",
    " ".join(f"{{a{k}}}" for k in range(12)) + " failed.",
    "(|a)(|aa)(|aaa)" + "(a|aa)" * 20 + "failed to",
    "(|a) (|b) (|c) (|d) (|e) (|f) (|g) failed to",
    "".join(f"{{a{k}:int}}" for k in range(12)) + "failed",
    "{a:bytes}" + ",{}" * 5 + " failed",
    "failed {*}{a:int}{*}{b:int}{*}zz",
    "needed {*} failed {*} failed {*} with that",
    "aaaaaa{*}a{*}a{*}b",
]
UNITS = ["a", "1", " ", "f", "failed ", "failed to do", "aaaaa ", "a b c d ", "1,234 ", "needed "]
UNITS += ["failed" + "a" * 195, "failed to do" + "a" * 300 + "x", "failed 1 a "]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_part_moves_more_often_than_the_line_is_long(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No template part is placed more often than the line has bytes."""
    moves = 0
    place = matcher._Part.place

    def counted(part: matcher._Part, low: bytes, at: int, need: int = 0) -> Any:
        nonlocal moves
        moves += 1
        return place(part, low, at, need)

    monkeypatch.setattr(matcher._Part, "place", counted)
    ready = Matcher(parse(text).regex)
    for unit in UNITS:
        line = (unit * (2000 // len(unit) + 1))[:2000].encode()
        moves = 0
        ready.search(line, line)
        assert moves <= len(ready.parts) * (len(line) + 2), unit


def test_twelve_holes_and_a_short_line() -> None:
    """Twelve holes on a short line end quickly; backtracking took over a minute."""
    ready = Matcher(parse("{}" * 11 + "failed here {}").regex)
    line = b"x" * 50 + b" failed her, failed"
    assert ready.search(line, line) is None


@pytest.mark.parametrize("text", ["failed with {x} ", "failed with{x}(|b)", "failed{x:word}(|) "])
def test_a_hole_at_the_end_is_not_beyond_it(text: str) -> None:
    """A hole at the end needs a word: a line that ends before it does not match."""
    ready = Matcher(parse(text).regex)
    start = text.partition("{")[0].strip().encode()
    for line in (start, start + b" ", start + b" \t"):
        assert ready.search(line, line) is None
    assert ready.search(start + b"5", start + b"5") == (0, (b"5",))


def small(hole: str, least: int, most: int) -> str:
    """Return a hole with other bounds, so that short lines reach them."""
    return re.sub(r"\{[0-9]+,[0-9]+\}", f"{{{least},{most}}}", hole) + "?"


WORDS, ANY, NAMED = small(WORD, 1, 2), small(ANY_WORD, 0, 2), f"({small(WORD, 1, 2)})"
TEXTS = small(TEXT, 0, 2)
SHORT = [
    *(f"a{NAMED}b", f"a{TEXTS}b", f"a({TEXTS})b", f"{NAMED}a", f"a{NAMED}", f"{WORDS}a{NAMED}b"),
    *(f"a{BLANKS}{NAMED}{BLANKS}b", f"{BLANKS}{NAMED}{BLANKS}a", f"a{NAMED}{BLANKS}"),
    *(f"a({ANY})b", f"({ANY})a({ANY})", f"a({TEXTS}){BLANKS}b", f"([ab]){NAMED}(a)"),
    *(f"a{BLANKS}{NAMED}{NAMED}b", f"({TEXTS}){BLANKS}({TEXTS})b", f"aa{NAMED}a{NAMED}b"),
    *("a", "(a)b", f"a{BLANKS}b", f"a({small(WORD, 2, 3)})b", f"a({small(TEXT, 2, 2)})b"),
    f"a({small(TEXT, 2, 2)}){BLANKS}b",
]


@pytest.fixture
def few_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the matcher accept holes with small bounds."""
    lazy = "|".join(
        re.escape(small(hole, least, most))
        for hole, least, most in (
            *((WORD, 1, 2), (WORD, 2, 3), (ANY_WORD, 0, 2)),
            *((TEXT, 0, 2), (TEXT, 2, 2)),
        )
    )
    monkeypatch.setattr(matcher, "_HOLE", re.compile(rf"(\((?:{lazy})\)|{lazy})"))


@pytest.mark.parametrize("regex", SHORT)
@pytest.mark.usefixtures("few_holes")
def test_every_short_line(regex: str) -> None:
    """For all lines of up to six characters, the matcher agrees with `re`."""
    slow, quick = re.compile(regex.encode()), Matcher(regex)
    for length in range(7):
        for letters in itertools.product(b"ab ", repeat=length):
            line = bytes(letters)
            hit, found = slow.search(line), quick.search(line.upper(), line)
            assert (hit is None) == (found is None), line
            if hit is not None and found is not None:
                groups = tuple(group.lower() for group in found[1])
                assert groups == hit.groups(), line
                if regex[0] == "a":
                    assert found[0] == hit.start(), line
