"""Line templates: matches, captured values and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.doctor.kb.matcher import Matcher
from qnnmem.doctor.kb.template import literal, parse
from qnnmem.doctor.logs.line import number
from qnnmem.errors import UsageError


def caught(text: str, line: str) -> tuple[int | str, ...] | None:
    """Return the values that a template captures in a line, or None."""
    template = parse(text)
    raw = line.encode()
    hit = Matcher(template.regex).search(raw, raw.lower())
    if hit is None:
        return None
    return tuple(
        group.decode() if kind in ("word", "text") else number(group, kind)
        for group, (_, kind) in zip(hit[1], template.holes, strict=True)
    )


@pytest.mark.parametrize(
    ("text", "line", "values"),
    [
        (
            "requires estimated allocation of {needed:KB} KB, limit is {limit:KB} KB",
            "fa_alloc.cc:1:ERROR:graph requires estimated allocation of 3 KB, limit is 2 KB",
            (3072, 2048),
        ),
        ("Current PD has ~{in_use:MB} MB in use", "current pd has ~1.5 MB in use", (1572864,)),
        ("coreId {} with size estimate {needed:bytes}", "coreId 0with size estimate 77", (77,)),
        ("Fail(|ed) to create with err {code:code}", "Fail to create with err 0x3ea", (1002,)),
        ("Fail(|ed) to create with err {code:code}", "Failed to create with err 1002", (1002,)),
        ("the failing op is {op} here", "the failing op is q::Conv here", ("q::Conv",)),
        ('single op, "{op:text}" is big', 'single op, "a b" is big', ("a b",)),
        ("before {*} after that", "before whatever it is after that", ()),
        (r"device \(id {id:int}\) is gone", "device (id -1) is gone", (-1,)),
        ("Gerät nicht gefunden", "xx Gerät nicht gefunden", ()),
    ],
)
def test_holes_catch_typed_values(text: str, line: str, values: tuple[int | str, ...]) -> None:
    """Sizes are captured in bytes, and codes as numbers in any spelling."""
    assert caught(text, line) == values


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Failed to map weights", "Failed to map the weights"),
        ("limit is {limit:KB} KB", "limit is unknown KB"),
        ("ends with err {code:code}", "ends with err none"),
    ],
)
def test_other_lines_do_not_match(text: str, line: str) -> None:
    """A template does not match approximately."""
    assert caught(text, line) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "short", "{a} {b}", "open { brace is refused", "two {a:int} of {a:int} name"),
        *("an unknown {x:type} of hole", "x" * 401, "{*} a {*} b {*} c {*} text enough"),
    ],
)
def test_what_is_no_template_is_refused(text: str) -> None:
    """An invalid template is refused."""
    with pytest.raises(UsageError):
        parse(text)


def test_every_matching_line_holds_the_anchors() -> None:
    """Every matching line contains all anchors of the template."""
    template = parse("Failed to find PD for context {c:int} with size estimate {n:bytes}")
    line = "failed to FIND pd for context 1 with size estimate 5"
    assert all(anchor in line.lower() for anchor in template.anchors)
    assert len(template.anchors) == 2


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=8, max_size=60))
def test_a_literal_matches_itself(line: str) -> None:
    """Any text can be escaped to a template that matches itself."""
    if len(line.strip()) < 8:
        return
    assert caught(literal(line), line) == ()


def test_letters_beyond_ascii_match_as_they_are() -> None:
    """Only ASCII letters are lowered, in lines and in templates."""
    template = parse("GERÄT NICHT GEFUNDEN")
    assert template.plain == "gerÄt nicht gefunden"
    assert template.anchors == ("gerÄt nicht gefunden",)
