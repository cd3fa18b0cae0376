"""The doctor's work is linear in the size of a log: counted, not timed."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

import pytest
from seeds import share

from qnnmem.doctor.kb import matcher
from qnnmem.doctor.kb.knowledge import Knowledge, built_in
from qnnmem.doctor.kb.stored import cases
from qnnmem.doctor.logs import line, scanner
from qnnmem.doctor.logs.attribution import Attribution
from qnnmem.doctor.logs.line import Hit
from qnnmem.doctor.logs.scanner import LogScanner
from qnnmem.doctor.logs.search import choose_engine
from qnnmem.doctor.logs.session import REACH, SessionGrouper
from qnnmem.doctor.logs.shapes import LineShapes
from qnnmem.doctor.spool import Spool
from qnnmem.results.incident import Incident

ISSUE = "Failed to create context from binary. Error: Code "
HEAD = "03-17 16:13:00.123     5     7 E QnnDsp: "
SMALL, FACTOR = 16 << 10, 4
GROUP = 30


engine_for = cache(choose_engine)


class Work:
    """Counts bytes compared with templates and placements of template parts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done = 0
        match, place = line.match, matcher._Part.place

        def counted(known: Knowledge, text: bytes, templates: Any) -> Any:
            asked = list(templates)
            self.done += len(text) * len(asked)
            return match(known, text, asked)

        def placed(part: matcher._Part, low: bytes, at: int, need: int = 0) -> Any:
            self.done += 1
            return place(part, low, at, need)

        patch.setattr(scanner, "match", counted)
        patch.setattr(matcher._Part, "place", placed)

    def of(self, knowledge: Knowledge, log: bytes) -> int:
        """Return the work of reading a log."""
        self.done = 0
        engine = engine_for(knowledge, 0, "plain")
        for _ in LogScanner(knowledge, engine, BytesIO(log).readinto, size=len(log)).hits():
            pass
        return self.done


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    """Return the built-in knowledge base."""
    return built_in()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Start counting work."""
    return Work(monkeypatch)


def half(text: str) -> str:
    """Return a message up to its last hole, or without its end."""
    cut = text.rfind("{")
    bare = re.sub(r"\{[^{}]*\}", "12", (text[:cut] if cut > 0 else text[:-2]).replace("\\", ""))
    return re.sub(r"\(([^()|]*)\|[^()]*\)", r"\1", bare)


def shapes(texts: list[str]) -> Iterator[str]:
    """Yield repeated text as one line, as lines, and as lines that may continue."""
    yield " ".join(texts)
    yield "".join(text + "\n" for text in texts)
    yield "".join(f"{HEAD}{'p' * 64}{text}\n" for text in texts)


def grown(piece: str, size: int) -> bytes:
    """Return a log of this size that repeats a piece."""
    raw = piece.encode()
    return (raw * (size // len(raw) + 1))[:size]


def test_work_grows_with_the_log_for_every_template(knowledge: Knowledge, work: Work) -> None:
    """For repeated partial messages, a log four times as long takes four times the work."""
    halves = [half(text) for text in knowledge.texts]
    groups = [halves[k : k + GROUP] for k in range(0, len(halves), GROUP)]
    for number, group in share(list(enumerate([[ISSUE], *groups])), 4):
        piece = list(shapes(group))[number % 3]
        small = work.of(knowledge, grown(piece, SMALL))
        large = work.of(knowledge, grown(piece, SMALL * FACTOR))
        # An inner block of a long line has two neighbours, but the first block has one.
        assert large <= max(small, SMALL * GROUP) * FACTOR * 1.2, piece[:200]


@pytest.mark.parametrize("shape", range(3))
def test_a_byte_is_looked_at_a_few_times_for_a_template(
    knowledge: Knowledge, work: Work, shape: int
) -> None:
    """Each byte is compared at most six times per candidate template."""
    log = grown(list(shapes([ISSUE]))[shape], 100_000)
    holding = sum(anchor in ISSUE.lower() for anchor in knowledge.anchors)
    assert work.of(knowledge, log) <= 6 * len(log) * (holding + 5)


def test_lines_around_the_length_of_a_long_one(knowledge: Knowledge, work: Work) -> None:
    """Lines just below and above the length limit differ in cost by at most a factor of four."""
    halves = " ".join(half(text) for text in knowledge.texts)
    costs = [
        work.of(knowledge, (halves[: length - 1] + "\n").encode() * 12) / length
        for length in (4095, 4096, 4097, 4098)
    ]
    assert max(costs) <= 4 * min(costs)


def shuffled(size: int, seed: int = 0) -> bytes:
    """Return a log of unlike lines, made of shuffled words of stored failures."""
    chance = random.Random(seed)  # noqa: S311
    lines = [line.split() for case in cases() for line in case.lines]
    words = sorted({word for line in lines for word in line})
    failing = [line for line in lines if re.search("fail|error|unable|could not", " ".join(line))]
    out, length = [], 0
    while length < size:
        row = [*chance.choice(failing), *chance.choices(words, k=chance.randrange(3, 12))]
        chance.shuffle(row)
        out.append(" ".join(row)[:400].encode())
        length += len(out[-1]) + 1
    return b"\n".join(out) + b"\n"


def test_a_log_of_unlike_failures_is_read_in_part(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some unlike failure lines are read, with a note; a known message is still found."""
    read = []

    def noted(_knowledge: Knowledge, text: bytes, **_: object) -> list[object]:
        read.append(text)
        return []

    monkeypatch.setattr(scanner, "read_failure", noted)
    known = b"E/QnnDsp: Failed to create context from binary. Error: Code 1002\n"
    log = shuffled(400_000) + known
    made = LogScanner(knowledge, engine_for(knowledge, 0), BytesIO(log).readinto, size=len(log))
    found = list(made.hits())
    assert 20 < len(read) < 100 + len(log) // 8192 + 20
    [note] = made.budget.notes
    assert re.match(r"1,[0-9]{3} lines with failure words skipped: after 14[0-9] ", note)
    assert found[-1].text == known.rstrip()


def test_a_repeated_failure_does_not_use_up_the_budget(knowledge: Knowledge) -> None:
    """Lines that differ only in numbers are read once and do not use up the budget."""
    log = b"".join(b"QNN model %d failed to load, error %d\n" % (n, n) for n in range(3000))
    made = LogScanner(knowledge, engine_for(knowledge, 0), BytesIO(log).readinto, size=len(log))
    assert sum(hit.opens for hit in made.hits()) == 3000
    assert made.budget.notes == ()


def test_a_log_of_unlike_failures_spoils_no_other_log(knowledge: Knowledge) -> None:
    """A line that was skipped in one log is read in the next."""
    engine = engine_for(knowledge, 0)
    shapes = LineShapes(knowledge, engine)
    last = b"QNN backend quux refused: cannot open the frobnicator\n"
    log = shuffled(100_000, seed=1) + last

    def opening(text: bytes) -> list[Hit]:
        made = LogScanner(knowledge, engine, BytesIO(text).readinto, size=len(text), shapes=shapes)
        return [hit for hit in made.hits() if hit.text == last.rstrip()]

    assert opening(log) == []
    assert opening(last) != []


def test_a_byte_of_any_log_costs_little(knowledge: Knowledge) -> None:
    """A log takes at most 5 microseconds per byte plus 3 seconds."""
    log = shuffled(1_000_000, seed=2)
    engine = engine_for(knowledge, len(log))
    begun = time.process_time()
    made = LogScanner(knowledge, engine, BytesIO(log).readinto, size=len(log))
    assert sum(1 for _ in made.hits_of_log())
    assert time.process_time() - begun < 3 + 5e-6 * len(log)


def hits(count: int, step: int, pids: Any) -> Iterator[Hit]:
    """Yield hits of one template at this distance."""
    for n in range(count):
        yield Hit(n * step, n + 1, pids(n), 100.0, b"text", [(0, ())])


@pytest.mark.parametrize(
    "pids",
    [
        pytest.param(lambda n: n + 1, id="every line another process"),
        pytest.param(lambda n: None if n % 9 == 0 else n + 10, id="and one that has none"),
        pytest.param(lambda n: (5, n + 10, n + 10)[n % 3] if n else None, id="and one that stays"),
        pytest.param(lambda n: 5 if n % 450 else None, id="one, and kernel lines far apart"),
    ],
)
def test_what_is_held_back_does_not_grow_with_the_log(pids: Any) -> None:
    """Sessions are released once a window of the log has passed."""
    step, most, handed = 400, 0, 0
    count = 8 * REACH // step
    sessions, attribution = SessionGrouper(), Attribution()
    for hit in hits(count, step, pids):
        sessions.add(hit, hit.offset, 0, 0)
        if over := sessions.closed(hit.offset):
            handed += len(list(attribution.put(over, sessions.open)))
            held = len(attribution._named) + len(attribution._nameless) + len(attribution._owed)
            most = max(most, held + len(list(sessions.open)))
    assert most <= 3 * REACH // step
    handed += len(list(attribution.put(sessions.finish(), ())))
    assert handed <= count


def incident(number: int) -> Incident:
    """Return an incident with this line number."""
    fixed: dict[str, Any] = dict.fromkeys(
        ("stage", "cause", "cause_meaning", "confidence", "verdict", "title", "file", "last_file"),
        "x",
    )
    return Incident(
        **fixed,
        is_memory=True,
        entry=None,
        remedies=(),
        collect_next=(),
        candidates=(),
        first_line=number,
        last_line=number,
        process=None,
        producer=None,
        count=1,
        evidence=(),
        quantities={},
        shortage_bytes=None,
    )


@pytest.mark.parametrize("count", [10, 256, 257, 900])
def test_incidents_come_out_in_order_however_they_went_in(count: int) -> None:
    """Incidents come out sorted by log and place, from memory and from the file."""
    places = [(stream, offset) for stream in range(3) for offset in range(count // 3 + 1)]
    places += places[:5]
    order = list(range(len(places)))
    for mixed in (order[::-1], random.Random(3).sample(order, len(order)), order):  # noqa: S311
        spool = Spool()
        for number in mixed:
            spool.put(*places[number], incident(number))
        expected = sorted(mixed, key=lambda number: places[number])
        assert len(spool) == len(places)
        for _ in range(2):
            assert [one.first_line for one in spool.incidents()] == expected
        spool.close()
