"""The search in C finds the same texts as the plain search, in any bytes."""

from __future__ import annotations

import io
import os
import random
import re
import sys

import pytest
from search_engines import engine_named

from qnnmem import native_parts
from qnnmem.doctor.kb.entry import Line
from qnnmem.doctor.kb.knowledge import Knowledge, built_in, pack
from qnnmem.doctor.kb.template import parse
from qnnmem.doctor.logs import compiled_search, failure_texts, search
from qnnmem.doctor.logs.compiled_search import CompiledEngine, FixedTexts
from qnnmem.doctor.logs.line import bare_line, match
from qnnmem.doctor.logs.line_memory import BY_LOGCAT, digits_alike
from qnnmem.doctor.logs.reading import NAMES, OURS
from qnnmem.doctor.logs.scanner import LogScanner
from qnnmem.errors import UsageError

KNOWN, FAILS = 1, 2


@pytest.fixture(scope="module")
def engine() -> CompiledEngine:
    """Return the compiled engine of the built-in knowledge base."""
    found = engine_named(built_in(), "compiled")
    assert isinstance(found, CompiledEngine)
    return found


def texts_of(engine: CompiledEngine, texts: dict[bytes, int], sample: bytes) -> FixedTexts:
    """Return a search for these texts, built from the rare bytes of a sample."""
    return FixedTexts(engine._library, texts, sample)


def ends(data: bytes, texts: dict[bytes, int]) -> list[tuple[int, int]]:
    """Return every place of every text by a plain search."""
    low = data.lower()
    return sorted(
        (at + len(text), number)
        for number, text in enumerate(texts)
        for at in range(len(low))
        if low.startswith(text, at)
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_text_is_found_wherever_it_lies(engine: CompiledEngine, seed: int) -> None:
    """Every text of three or more bytes is found at any position of the data."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    letters = draw.choice([b"ab", b"aAbB ", b"a1B2 ", b"ab\n", b"\0\xff@`[{", bytes(range(256))])

    def some(longest: int) -> bytes:
        return bytes(draw.choices(letters, k=draw.randrange(3, longest)))

    texts = {
        text: draw.choice((KNOWN, FAILS, KNOWN | FAILS))
        for text in dict.fromkeys(some(9).lower() for _ in range(draw.randrange(1, 40)))
        if b"\n" not in text
    } or {b"aaa": KNOWN}
    looked = texts_of(engine, texts, some(200))
    for _ in range(20):
        data = some(draw.choice((4, 12, 300)))
        buffer = draw.choice((bytes, bytearray))(b"xy" + data + b"aAabB")
        found = looked.hits(buffer, 2, 2 + len(data), 1)
        assert sorted(found) == [(2 + end, number) for end, number in ends(data, texts)]
        assert looked.any_in(buffer, 2, 2 + len(data)) == bool(found)


def base(*texts: str) -> Knowledge:
    """Return a knowledge base of these templates."""
    return Knowledge(pack([Line(f"s{n}", text) for n, text in enumerate(texts)], ()))


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_those_that_may_match_or_fail(seed: int) -> None:
    """The engine reports each failing or matching line once, with its place and number."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    known = base("widget broke for {name} (at|near) {n:int} o'clock", "the gadget is bust")
    engine = engine_named(known, "compiled")
    words = [
        *(b"Widget broke for ", b"me", b"at 5", b"near 7", b" o'clock", b"the gadget", b" is bust"),
        *(b"FAIL", b"default", b"segfault", b"qnn", b"htp", b"supported", b"unsupported", b"<e>"),
        *(b"\0", b"x" * 300, b" ", b"\r", b"1002", b"10022", b"[V:", b"<I>"),
    ]
    heads = [b"", b"03-17 16:13:01.123  5  7 I Tag: ", b"[   12.123456] ", b"  12.1ms [   DEBUG ] "]
    lines = [
        draw.choice(heads) + b" ".join(draw.choices(words, k=draw.randrange(9))) for _ in range(300)
    ]
    data = b"\n".join(lines)
    found = {row[0]: row for row in engine.lines(bytearray(data), 0, len(data), engine.memory())}
    at = 0
    for number, line in enumerate(lines):
        text = bare_line(line)
        fails = failure_texts.is_about_us(line.lower()) and not read_as_calm(line)
        row = found.pop(at, None)
        if fails or match(known, text, range(2)):
            assert row is not None, line
        elif row is not None and known_words(line) is False:
            assert failure_texts.is_about_us(line.lower()), line
        if row is not None:
            assert row[:3] == (at, at + len(line), number)
        at += len(line) + 1
    assert not found
    assert engine.newlines(data, 0, len(data)) == data.count(b"\n")


def read_as_calm(line: bytes) -> bool:
    """Return whether a line at info or debug level relays no other level."""
    low = line.lower()
    calm = re.search(rb" i tag: |<[vdi]>|\[[vdi]:|\[   debug \]", low[:48]) is not None
    return calm and not any(text in low for text in failure_texts.RELAYED)


def known_words(line: bytes) -> bool:
    """Return whether a line holds an anchor."""
    return b"widget broke for" in line.lower() or b"the gadget is bust" in line.lower()


def test_a_piece_of_a_message_is_looked_at_where_it_may_go_on() -> None:
    """A partial message is reported only if a neighbouring line may continue it."""
    engine = engine_named(base("widget broke for {name} at five o'clock"), "compiled")
    other, own = b"03-17 16:13:01.123  5  7 I Tag: ", b"03-17 16:13:02.003  5  8 I Tag: "
    piece, strange = own + b"widget broke for me", other + b"hello"

    def told(*lines: bytes) -> bool:
        log = b"\n".join(lines)
        return bool(engine.lines(log, 0, len(log), engine.memory()))

    assert not told(strange, piece, strange, b"")
    assert not told(b"no head", piece, strange, b"")
    assert told(strange, piece, own + b"at five o'clock", b"")
    assert told(strange, piece, b"at five o'clock", b"")
    assert told(own + b"hello", piece, strange, b"")
    assert told(strange, piece, strange)  # the next line may be incomplete
    assert told(strange, piece.replace(b"me", b"\0me"), strange, b"")
    assert told(strange, own + b"widget broke for me at five o'clock", strange, b"")
    log = b"\n".join((strange, piece, strange, b""))
    end = len(log) - len(strange) - 1
    assert engine.lines(log, 0, end, engine.memory())
    assert not engine.lines(log, 0, end, engine.memory(), len(log))


def test_a_name_is_noticed_while_lines_are_found(engine: CompiledEngine) -> None:
    """After a search for lines, the engine knows whether a name occurs in any line."""
    for name in (*NAMES, b"a word of another program"):
        for line in (name.upper(), b"fine\n" + name + b" runs\nfine\n", b"fine\nend " + name):
            engine.lines(line, 0, len(line), engine.memory())
            assert engine.named == engine.has_name(line, 0, len(line)) == (name in NAMES), line


def test_fixed_texts_are_those_of_the_template() -> None:
    """The fixed texts of a template are its runs between holes and its groups of choices."""
    assert [*compiled_search._fixed("a\\{ {x:int} (B|c ) (|d) é")] == [b"a{", b"b\0c", "é".encode()]
    for template in built_in().texts:
        runs = [run.strip(" \t").encode() for run in parse(template).runs]
        fixed = [one for one in compiled_search._fixed(template) if b"\0" not in one]
        assert [run for run in runs if run] == [one for one in fixed if one in runs], template


def test_words_of_the_built_in_base_lead_to_lines(engine: CompiledEngine) -> None:
    """Every anchor and every failure word beside a QNN word selects its line."""
    for anchor in engine.anchors:
        line = b"a line: " + anchor.upper() + b"."
        assert len(engine.lines(line, 0, len(line), engine.memory())) == 1
    for word in failure_texts.FAILING_TEXTS:
        for own in OURS:
            line = own + b"  " + word
            assert len(engine.lines(line, 0, len(line), engine.memory())) == 1, line


HEAD = b"03-17 16:13:%02d.123  %d  77 E QnnDsp: "


@pytest.mark.parametrize(
    ("message", "same", "others"),
    [
        (b"qnn failed 12 of 34", b"qnn failed 7 of 1000", [b"qnn failed 0 of 34"]),
        (b"qnn failed at 0x1f", b"qnn failed at 0xabcdef01", [b"qnn failed at 0x0"]),
        (b"qnn: 0 failed", b"qnn: 000 failed", [b"qnn: 1 failed", b"qnn: 10 failed"]),
        (b"qnn failed a10x5", b"qnn failed a99x5", [b"qnn failed a0x5"]),
    ],
)
def test_dull_messages_are_left_out_whatever_their_numbers_but_zero(
    engine: CompiledEngine, message: bytes, same: bytes, others: list[bytes]
) -> None:
    """A left-out message also leaves out lines that differ only in nonzero numbers."""
    memory = engine.memory()
    raw = HEAD % (1, 5) + message
    body = len(HEAD % (1, 5)) - len(b" E QnnDsp: ")
    memory.leave_out(raw, body, BY_LOGCAT, by_letters=False)

    def told(*lines: bytes) -> list[bytes]:
        log = b"\n".join(lines)
        return [log[place[0] : place[1]] for place in engine.lines(log, 0, len(log), memory)]

    assert told(raw, HEAD % (59, 12345) + same, HEAD % (2, 6) + same + b"\r") == []
    strange = [HEAD % (1, 5) + other for other in others] + [message, b"1" + raw, raw + b" "]
    assert told(*strange) == strange
    memory.clear()
    assert told(raw) == [raw]


def test_messages_are_told_with_their_number_and_process(engine: CompiledEngine) -> None:
    """A line that differs from a known message only in digits gets the message's latest number."""
    memory = engine.memory()
    message = b" E QnnDsp: qnn failed at 10 of 0x1F"
    assert memory.know(message, BY_LOGCAT, 3)
    head = b"03-17 16:13:01.123  %d  77"
    same = [message.replace(b"10", b"99"), message.replace(b"0x1F", b"0x9F")]
    other = [message.replace(b"0x", b"1x"), message.replace(b"1F", b"1f"), message + b"."]
    assert {digits_alike(text) for text in same} == {digits_alike(message)}
    lines = [head % number + text for number, text in enumerate((message, *same, *other), 123456)]
    log = b"\n".join(lines)
    told = [place[3:6] for place in engine.lines(log, 0, len(log), memory)]
    assert told == [(len(head % 123456), 3 if n < 3 else 0, 123456 + n) for n in range(6)]
    assert memory.know(message, BY_LOGCAT, 8)
    assert engine.lines(log, 0, len(log), memory)[0][4] == 8


def test_a_memory_that_is_full_says_so_and_begins_anew(engine: CompiledEngine) -> None:
    """A full memory says so and works again once cleared; long messages are not kept."""
    memory = engine.memory()
    assert not memory.know(b"x" * 1025, BY_LOGCAT, 1)
    assert not memory.know(b"", BY_LOGCAT, 1)
    assert not memory.full
    letters = [bytes([97 + n % 26, 97 + n // 26 % 26, 97 + n // 676]) for n in range(17_000)]
    kept = sum(memory.know(b"m" + text, BY_LOGCAT, 1 + n) for n, text in enumerate(letters))
    assert memory.full
    assert 8192 <= kept < 17_000
    memory.clear()
    assert not memory.full
    assert memory.know(b"again", BY_LOGCAT, 1)


def test_texts_that_are_too_short_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base with texts below the minimum length uses another engine."""
    monkeypatch.setattr(compiled_search, "_SHORTEST", 9)
    short = Knowledge(pack([Line("s", "a widget broke")], ()))
    with pytest.raises(ImportError, match="cannot search for all of the texts"):
        search.choose_engine(short, 0, "compiled")
    assert search.choose_engine(short, search.SMALL).name != "compiled"


def test_without_a_compiler_another_engine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler, without memfd_create or on macOS, another engine is chosen."""
    knowledge = built_in()

    def none(*_given: object) -> None:
        raise UsageError("no compiler")

    def refused(*_given: object) -> None:
        raise OSError("not permitted")

    for target, name, value in (
        (native_parts, "made_objects", none),
        (os, "memfd_create", refused),
        (sys, "platform", "darwin"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value, raising=False)
            compiled_search._load.cache_clear()
            assert search.choose_engine(knowledge, search.SMALL).name in (
                "hyperscan",
                "re2",
                "plain",
            )
    compiled_search._load.cache_clear()


@pytest.mark.parametrize("seed", range(30))
def test_split_messages_are_found_as_in_the_plain_way(seed: int) -> None:
    """Messages split anywhere are found as by the plain search."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    known = base(
        "the widget of the gadget broke down for {name} at (noon|midnight) in {t}, code {c:code}",
        "gadget is bust{*}reason unsupported thing",
    )
    messages = [
        b"The widget of the gadget broke down for someone at midnight in Some-Town, code 1002",
        b"the gadget is bust, we have been told, for the Reason Unsupported Thing",
        b"the gadget is bust and unsupported",
        b"nothing of interest, reason unsupported",
    ]
    heads = (b"", b"03-17 16:13:01.123  5  7 I Tag: ", b"  ")
    lines: list[bytes] = []
    for _ in range(200):
        message, head = draw.choice(messages), draw.choice(heads)
        cuts = sorted(draw.choices(range(len(message)), k=draw.randrange(4)))
        pieces = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
        lines += [head + piece for piece in pieces]
        lines += [draw.choice((b"some other line", b"", b"x" * 60))] * draw.randrange(2)
    data = b"\n".join(lines) + draw.choice((b"", b"\n"))
    hits = {}
    for name in ("compiled", "plain"):
        scanner = LogScanner(known, engine_named(known, name), io.BytesIO(data).readinto)
        hits[name] = [(hit.offset, hit.number, hit.found) for hit in scanner.hits()]
    assert hits["compiled"] == hits["plain"]
    assert hits["plain"]
