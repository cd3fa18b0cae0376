"""Lines of one shape are analysed once, as only the shape decides what they may contain."""

from __future__ import annotations

import random
from functools import cache
from io import BytesIO

import pytest
from search_engines import engine_named

from qnnmem.doctor.kb.entry import Line
from qnnmem.doctor.kb.knowledge import Knowledge, built_in, pack
from qnnmem.doctor.kb.stored import cases, healthy
from qnnmem.doctor.logs import shapes
from qnnmem.doctor.logs.line import Hit
from qnnmem.doctor.logs.reading import may_fail, read
from qnnmem.doctor.logs.scanner import LogScanner
from qnnmem.doctor.logs.search import ENGINES, choose_engine
from qnnmem.doctor.logs.shapes import LineShapes

HEAD = b"03-17 16:13:%02d.%03d %5d %5d E QnnDsp: "


engine_for = cache(engine_named)


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    """Return the built-in knowledge base."""
    return built_in()


def hits_of(knowledge: Knowledge, log: bytes, engine: str, known: LineShapes | None) -> list[Hit]:
    """Return every hit of a log."""
    chosen = engine_for(knowledge, engine)
    return list(LogScanner(knowledge, chosen, BytesIO(log).readinto, shapes=known).hits())


def renumbered(line: str, draw: random.Random) -> str:
    """Return a line with some digits changed."""
    return "".join(
        str(draw.randrange(10)) if one.isdigit() and draw.random() < 0.5 else one for one in line
    )


def test_texts_that_hold_another_are_not_asked_for() -> None:
    """Texts that contain a shorter text of the list are dropped."""
    assert shapes._shortest((b"vtcm", b"tcm", b"cdsp", b"dsp", b"dsp", b"qnn")) == (
        *(b"dsp", b"qnn", b"tcm"),
    )


def test_devices_of_others_that_are_busy_are_asked_about_once(knowledge: Knowledge) -> None:
    """A busy device of another vendor selects no template; a busy NPU, HTP or DSP does."""
    engine = choose_engine(knowledge, 0, "plain")
    known = LineShapes(knowledge, engine)
    assert known.of(b"E audio_hw: stream 3 not opened: device busy, next try in 40 ms") is None
    for name in (b"NPU", b"HTP", b"DSP"):
        assert hits_of(knowledge, b"error: %s device busy\n" % name, "plain", None)


def test_what_was_seen_before_changes_nothing(knowledge: Knowledge) -> None:
    """A line gives the same hits after other lines of its shape as alone."""
    draw = random.Random(5)  # noqa: S311 - reproducible, not secret
    stored = [line for case in cases() for line in case.lines]
    stored += [line for good in healthy() for line in good.lines]
    engine = choose_engine(knowledge, 0, "plain")
    known = LineShapes(knowledge, engine)
    for line in draw.sample(stored, 150):
        for text in (line, *(renumbered(line, draw) for _ in range(3))):
            log = text.replace("\n", " ").encode() + b"\n"
            if draw.random() < 0.5:
                log = HEAD % (draw.randrange(60), draw.randrange(1000), 5, 7) + log
            assert hits_of(knowledge, log, "plain", known) == hits_of(knowledge, log, "plain", None)


def test_numbers_share_a_shape_but_zero_is_its_own() -> None:
    """Lines that differ in numbers share a shape, but zero has its own."""
    assert shapes._shape(b"needs 1203040 of 7") == shapes._shape(b"needs 55 of 900")
    assert shapes._shape(b"at 0x7f00a0") == shapes._shape(b"at 0x12bc")
    assert shapes._shape(b"5 errors") != shapes._shape(b"0 errors")
    assert shapes._shape(b"err 0x0") != shapes._shape(b"err 0x10")


def test_a_shape_is_looked_at_once(knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand lines of one shape are analysed fewer than ten times."""
    looks = 0

    def counted(text: bytes) -> bool:
        nonlocal looks
        looks += 1
        return may_fail(text)

    monkeypatch.setattr(shapes, "may_fail", counted)
    log = b"".join(
        HEAD % (n % 60, n % 1000, n % 9999, n) + b"qnn widget %d broke: failed at 0x%x\n" % (n, n)
        for n in range(1, 1001)
    )
    assert len(hits_of(knowledge, log, "plain", None)) == 1000
    assert looks < 10


def test_no_built_in_template_may_begin_in_the_head_of_a_line(knowledge: Knowledge) -> None:
    """No built-in template may match in a line head, as every line would then be matched again."""
    made = LineShapes(knowledge, engine_named(knowledge, "plain"))
    assert [knowledge.texts[index] for index in made._numbered._of_head] == []


def test_numbers_in_a_template_are_asked_for_in_every_line() -> None:
    """A template with a number in its text matches only lines with that number."""
    lines = [
        Line("a", "widget broke with code 1008 here"),
        Line("b", "16:13:07.001     5     7 E QnnDsp: the gadget"),
    ]
    knowledge = Knowledge(pack(lines, ()))
    for engine in ENGINES:
        log = b"".join(
            HEAD % (n, 1, 5, 7) + text % n
            for n in (6, 7, 8)
            for text in (b"widget broke with code 100%d here\n", b"the gadget %d\n")
        )
        found = [(hit.number, hit.found[0][0]) for hit in hits_of(knowledge, log, engine, None)]
        assert found == [(4, 1), (5, 0)]


def test_engines_find_the_same_in_lines_of_all_kinds(knowledge: Knowledge) -> None:
    """All engines give the same hits in lines of every kind."""
    texts = (
        *(b"fault in qnn", b"qnn default 5", b"QNN retry 3", b"qnn ret -1", b"E/Foo(1): qnn ret_x"),
        *(
            b"efault htp",
            b"E QnnDsp: Default",
            b"dsp returned 1002",
            b"<E> x",
            b"qnn: no such thing",
        ),
    )
    log = b"\n".join(texts)
    found = {}
    for engine in ENGINES:
        found[engine] = hits_of(knowledge, log, engine, None)
    assert len({repr(hits) for hits in found.values()}) == 1


def test_a_line_that_may_fail_is_one_that_is_read() -> None:
    """A line that may fail with any numbers is read; a line with `0 errors` is not."""
    assert may_fail(b"QNN graph finalize failed with 7")
    assert not may_fail(b"QNN: 0 errors")
    assert read(b"QNN: 0 errors") is None
