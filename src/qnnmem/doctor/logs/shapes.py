"""Shapes of lines: lines that differ only in their numbers are examined only once.

Logs repeat the same lines. The shape of a line is the line without the time and process in its
head. In the shape, 1 replaces every number except zero, which might mean success. A line's shape
determines the words in the line, and which templates the line can match. Only templates whose fixed
texts contain numbers must be compared with every line.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.failure_texts import FAILING_TEXTS, is_failing
from qnnmem.doctor.logs.line import bare_line
from qnnmem.doctor.logs.line_memory import BY_TOOL, NO_HEAD, without_digits
from qnnmem.doctor.logs.reading import ADDRESS, OURS, may_fail
from qnnmem.doctor.logs.repeats import RepeatedLines
from qnnmem.doctor.logs.search import SMALL, SearchEngine, choose_engine
from qnnmem.text import counted, lazy_pattern

_STAMP = (
    rb"(?:20[0-9]{2}-)?[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}[.,][0-9]{1,9}"
    rb"(?:[ \t]+[0-9]{1,9}[ \t]+[0-9]{1,9}(?= [VDIWEFA] )()|())"
)
_KERNEL = rb"(?:<[0-9]{1,3}>)?\[[ \t]*[0-9]{1,9}\.[0-9]{6}\]()"
_HEAD = lazy_pattern(_STAMP + b"|" + _KERNEL)
# Matches fixed texts that may begin inside such a head.
_OF_HEAD = lazy_pattern(rb"[0-9\s.:,t\-\[\]<>]*[0-9\]]")

_ONES = bytes.maketrans(b"23456789", b"1" * 8)
_HEX = lazy_pattern(rb"0[xX](?=[0-9a-fA-F]*[1-9a-fA-F])[0-9a-fA-F]+")
_RUN = lazy_pattern(rb"0x[01]*|[01]+")
_MOST = 8192  # remembered shapes
_LONGEST = 1024  # bytes of a remembered line
# This many shapes of a log may be read for failures, and one more for every so many bytes.
_FIRST_READ, _BYTES_FOR_READ = 100, 8192


class LineShape(msgspec.Struct, frozen=True, gc=False):
    """Templates that lines of one shape can match."""

    whole: tuple[int, ...]  # templates with all anchors and the prefilter text in it
    part: tuple[int, ...]  # templates with one of two anchors: perhaps a piece of their message
    unsure: tuple[int, ...]  # templates for which that depends on the numbers
    plain: bool  # True: `whole` templates are plain texts, which match for certain
    reads: bool  # True: its words may report a failure
    numbered: bool  # True: only a number in it may be a failure word

    def tells(self, low: bytes) -> bool:
        """Return True if a lower-case line of this shape has words that might report a failure."""
        return self.reads and (not self.numbered or is_failing(low))


_DULL = LineShape((), (), (), False, False, False)
_FOREIGN = LineShape((), (), (), False, False, True)  # the same, recognised by its letters alone


class ReadingBudget:
    """Limit on how many shapes of a log are read for failures; each reading takes about 10 ms.

    Logs of programs have a few dozen shapes. In a log of shuffled words, each line has a new shape.
    """

    def __init__(self) -> None:
        self._read = self.unread = 0

    def may_read(self, offset: int) -> bool:
        """Count a new shape, first seen at `offset`, and return whether it may be read."""
        if self._read < _FIRST_READ + offset // _BYTES_FOR_READ:
            self._read += 1
            return True
        self.unread += 1
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Note about lines that were skipped, if any."""
        if not self.unread:
            return ()
        lines = counted(self.unread, "line")
        return (
            f"{lines} with failure words skipped: after {self._read:,} different lines of this "
            "kind, only known messages are searched for",
        )


class LineShapes:
    """Shapes of log lines, as seen by one engine."""

    def __init__(self, knowledge: Knowledge, engine: SearchEngine) -> None:
        self._knowledge, self.engine = knowledge, engine
        self.templates = [knowledge.anchors[anchor.decode()] for anchor in engine.anchors]
        self._known: tuple[dict[bytes, LineShape], ...] = tuple({} for _ in range(BY_TOOL + 1))
        self._anchors: dict[int, list[bytes]] = {}  # anchors of each template
        for anchor, templates in zip(engine.anchors, self.templates, strict=True):
            for index in templates:
                self._anchors.setdefault(index, []).append(anchor)
        self._numbered = _NumberedTemplates(knowledge, self._anchors)
        self.memory = engine.memory()
        self.repeats = RepeatedLines(knowledge, self.memory)
        self._words = [_alike(word) for word in FAILING_TEXTS if _has_digit(word)]

    def of(
        self,
        raw: bytes,
        body: int = 0,
        style: int = NO_HEAD,
        budget: ReadingBudget | None = None,
        offset: int = 0,
    ) -> LineShape | None:
        """Return the templates that a line can match; None if the line is irrelevant.

        `body` is the end of the line's head and `style` the style of the head. `budget` belongs to
        the log, and `offset` is the line's position in the log.
        """
        told = body, style
        if not body and (head := _HEAD.match(raw)):
            body, style = head.end(), head.lastindex or NO_HEAD
        known = self._known[style]
        key = _shape(raw[body:])
        shape = known.get(key)
        if shape is None:
            budget = budget or ReadingBudget()
            unread = budget.unread
            shape = self._look(raw[:body], key, budget, offset)
            if budget.unread > unread:
                return shape  # depends on this log, so it is not remembered
            if len(key) <= _LONGEST:
                if len(known) >= _MOST:
                    known.clear()
                known[key] = shape
        if shape is not _FOREIGN and shape is not _DULL:
            return shape
        if style == told[1]:
            self.memory.leave_out(raw, *told, shape is _FOREIGN)
        return None

    @cached_property
    def _ours(self) -> tuple[bytes, ...]:
        """QNN words, at least one of which occurs in every line about QNN."""
        return _shortest(OURS)

    @cached_property
    def _letters(self) -> tuple[bytes, ...]:
        """Texts without digits; every line about QNN, without its digits, contains one of them."""
        return _shortest(map(without_digits, (*OURS, *filter(_has_digit, self.engine.anchors))))

    def _is_foreign(self, low: bytes) -> bool:
        """Return True if a line cannot be about QNN, whatever its digits are."""
        bare = without_digits(low)
        if b"0x" in low or any(text in bare for text in self._letters):
            return False  # hexadecimal addresses contain letters, which differ
        return not self.engine.scan(bare, 0, len(bare))

    def holds(self, low: bytes, template: int) -> bool:
        """Return True if a lower-case line contains the template's prefilter text and an anchor."""
        if self._knowledge.prefilter_bytes[template] not in low:
            return False
        return any(anchor in low for anchor in self._anchors[template])

    def _look(self, head: bytes, key: bytes, budget: ReadingBudget, offset: int) -> LineShape:
        small = key.lower()
        low = head.lower() + small
        prefilters, numbered = self._knowledge.prefilter_bytes, self._numbered
        anchors = {anchor for _, anchor in self.engine.scan(low, 0, len(low))}
        found = Counter(template for anchor in anchors for template in self.templates[anchor])
        sure = [i for i in sorted(found) if i not in numbered and prefilters[i] in low]
        whole = tuple(i for i in sure if found[i] == len(self._anchors[i]))
        part = tuple(i for i in sure if found[i] != len(self._anchors[i]))
        alike = _alike(small)
        unsure = numbered.in_line(alike)
        if not sure and not unsure and not any(word in low for word in self._ours):
            return _FOREIGN if self.memory.by_letters and self._is_foreign(low) else _DULL
        certain = is_failing(small)
        maybe = not certain and any(word in alike for word in self._words)
        reads = (certain or maybe) and budget.may_read(offset)
        if reads and not whole:
            # 1 becomes 111, because only a number of at least three digits may be a code.
            reads = may_fail(bare_line(head + key.replace(b"1", b"111")))
        if not sure and not unsure and not reads:
            return _DULL
        plain = all(text and text in small for text in (self._knowledge.plain[i] for i in whole))
        plain = plain and not unsure and b"\x1b" not in small and b"\0" not in small
        return LineShape(whole, part, unsure, plain, reads, maybe)


class KeptShapes:
    """Engines for a knowledge base with the line shapes seen so far; each is made on first use."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self._made: dict[tuple[str | None, bool], LineShapes] = {}

    def of(self, size: int | None, asked: str | None = None) -> LineShapes:
        """Return the shapes for a log of `size` bytes (None if unknown), with their engine.

        `asked` is the name of an engine; for None, the best available engine is chosen.
        """
        is_small = size is not None and size < SMALL
        made = self._made.get((asked, is_small))
        if made is None:
            engine = choose_engine(self.knowledge, 0 if is_small else SMALL, asked)
            made = self._made[asked, is_small] = LineShapes(self.knowledge, engine)
        return made


class _Last(threading.local):
    """Last shapes of each thread: threads cannot share engines, which have scratch memory."""

    kept: KeptShapes | None = None


_LAST = _Last()


def kept_shapes(knowledge: Knowledge) -> KeptShapes:
    """Return this thread's shapes for a knowledge base; shapes of another base are dropped.

    Making an engine takes longer than reading a small log.
    """
    kept = _LAST.kept
    if kept is None or kept.knowledge is not knowledge:
        kept = _LAST.kept = KeptShapes(knowledge)
    return kept


class _NumberedTemplates:
    """Templates whose prefilter text or anchors contain digits."""

    def __init__(self, knowledge: Knowledge, anchors: Mapping[int, Sequence[bytes]]) -> None:
        self._of_head: list[int] = []  # templates that may begin in the head of a line
        self._by_anchor: dict[bytes, list[tuple[int, bytes]]] = {}  # with their prefilter texts
        prefilters = knowledge.prefilter_bytes
        alike = cache(_alike)
        for index in knowledge.numbered:
            own = anchors[index]
            if any(map(_OF_HEAD.match, (prefilters[index], *own))):
                self._of_head.append(index)
                continue
            for anchor in own:
                rest = index, alike(prefilters[index])
                self._by_anchor.setdefault(alike(anchor), []).append(rest)
        self._every = {
            *self._of_head,
            *(index for many in self._by_anchor.values() for index, _ in many),
        }

    def __contains__(self, index: int) -> bool:
        return index in self._every

    def in_line(self, alike: bytes) -> tuple[int, ...]:
        """Return the templates that lines of this form can match, depending on their digits."""
        found = {*self._of_head}
        for anchor in [one for one in self._by_anchor if one in alike]:
            found.update(index for index, text in self._by_anchor[anchor] if text in alike)
        return tuple(sorted(found))


def _shape(text: bytes) -> bytes:
    """Return a text with 1 for each nonzero number; a long number can keep a few digits."""
    if len(text) <= _LONGEST:  # the shape of a longer line is not remembered
        text = ADDRESS.sub(b"a1", text)
    ones = text.translate(_ONES).replace(b"10", b"1").replace(b"10", b"1")
    ones = ones.replace(b"1111", b"1").replace(b"11", b"1").replace(b"11", b"1")
    return _HEX.sub(b"0x1", ones) if b"0x" in ones else ones


def _alike(text: bytes) -> bytes:
    """Return the text with each number replaced by the digit 1."""
    return _RUN.sub(b"1", _shape(text))


def _shortest(texts: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the texts that contain none of the other texts."""
    found: list[bytes] = []
    for text in sorted({*texts}, key=lambda one: (len(one), one)):
        if not any(one in text for one in found):
            found.append(text)
    return tuple(found)


def _has_digit(text: bytes) -> bool:
    return len(without_digits(text)) < len(text)
