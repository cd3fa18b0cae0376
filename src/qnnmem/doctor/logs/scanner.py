"""Search for the known lines of a log through a buffer of fixed size.

    [ look back | region: whole lines, scanned once | look ahead ]

A line belongs to the range that contains its first byte, and its matches depend only on the line
and on `LOOK` bytes around it. Therefore neither the size of the buffer nor the division of a file
into ranges affects the result.

The cost is linear in the size of a log, whatever its content. A short line is matched once against
each template whose anchor it contains, and once more together with the lines that might continue
it. A long line is split into blocks. Each block is matched once, together with the blocks on both
sides, against each template whose anchor ends in the block. For one template, a byte is therefore
examined at most six times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.failure_texts import is_about_us
from qnnmem.doctor.logs.header import process_of
from qnnmem.doctor.logs.line import (
    Hit,
    Values,
    bare_line,
    code_below,
    match,
    place,
    read_failure,
    said_beside,
    told,
)
from qnnmem.doctor.logs.line_memory import PlaceOfLine
from qnnmem.doctor.logs.pieces import (
    LOOK,
    SHORT,
    are_strangers,
    forward,
    glue,
    goes_on,
    line_before,
    line_below,
    wholes,
)
from qnnmem.doctor.logs.reading import failing_pieces, is_calm, may_name_qnn, read
from qnnmem.doctor.logs.repeats import KeptMessage, process_in
from qnnmem.doctor.logs.search import SearchEngine
from qnnmem.doctor.logs.shapes import LineShape, LineShapes, ReadingBudget
from qnnmem.doctor.logs.short_log import EndWord, at_the_limit, end_words, read_short

SHORT_LOG = LOOK  # bytes; a log this short is a selection of lines
REGION = 256 << 10  # larger is no faster, and the hits of a region are held in memory
_NEWLINE = 10
_OVERLAP = 256  # no anchor is longer, so none is lost at a cut of a long line
_SHOWN = 200  # bytes before a match in a long line; twice as many after its start
_BEFORE = 2  # earlier lines shown before a failing line
_READ = -1  # marker among template numbers: the start of a long line was read


class LogScanner:
    """Scanner for a range of a log; `lines`, `bytes` and `ours` describe the scanned range."""

    def __init__(
        self,
        knowledge: Knowledge,
        engine: SearchEngine,
        readinto: Callable[[memoryview], int],
        start: int = 0,
        end: int | None = None,
        region: int = REGION,
        size: int | None = None,
        shapes: LineShapes | None = None,
    ) -> None:
        self.lines = self.bytes = 0
        self.ours = False  # True: some line is about QNN
        self.unclear = False  # True: it is short and shows neither failure nor success
        self.short = b""  # the whole log, if it is short
        self._head = b""  # start of the log
        self._knowledge, self._engine, self._readinto = knowledge, engine, readinto
        self._prefilters = knowledge.prefilter_bytes
        self._shapes = shapes or LineShapes(knowledge, engine)
        if size is not None:
            region = min(region, size + 1)  # no larger buffer than the log can fill
        self._buffer = bytearray(region + 3 * LOOK)
        self._view = memoryview(self._buffer)
        self._start, self._end, self._ended = start, end, False
        self.budget = ReadingBudget()
        self._skipped = start == 0  # True: the first line of the range was found
        self._first = 0  # its offset
        self._base = max(0, start - LOOK)  # offset of the buffer's first byte
        self._fill = self._at = 0  # bytes in the buffer; start of the next region
        self._line = 0  # offset of the line in which the next region starts
        self._done: set[int] = set()  # templates seen in the current long line
        self._long_head: tuple[int | None, float | None] | None = None
        self._counted = 0  # index up to which lines are counted

    def hits(self) -> Iterator[Hit]:
        """Yield a hit for every line with a match, in order."""
        for found in self._regions():
            yield from found

    def _regions(self) -> Iterator[list[Hit]]:
        """Yield the hits of each region; the buffer holds a region until the next is requested."""
        ended = False
        while not ended:
            ended = self._ended = not self._read()
            if not self._start and not self._base and len(self._head) < LOOK:
                self._head = bytes(self._view[: min(self._fill, LOOK)])
            if not self._skipped and not self._skip(ended):
                continue
            stop, ended = self._region(ended)
            if stop > self._at:
                found = self._scan(stop)
                self.ours = self.ours or any(map(self._is_ours, found))
                yield found
                self._advance(stop)
        self.bytes = self._base + self._at - self._first

    @property
    def looks_like(self) -> str:
        """Apparent format of a log without QNN words; empty except in the first range."""
        return "" if self.ours or not self._head else header.look(self._head)

    def hits_of_log(self) -> Iterator[Hit]:
        """Yield all hits, including those that need a short log's whole text or a log's end."""
        waiting: list[Hit] = []
        for found in self._regions():
            waiting += found
            long = not self._ended or self._fill > SHORT_LOG
            if found and (long or any(hit.offset >= SHORT_LOG for hit in found)):
                yield from waiting
                waiting.clear()
        log = self._whole()
        if log is None:
            yield from sorted(waiting, key=lambda hit: hit.offset)
            yield from self._end_words(end_words)
            return
        self.short = log
        read_ = read_short(self._knowledge, log, waiting, self._wrapped)
        self.ours, self.unclear = read_.ours, read_.unclear
        yield from read_.hits
        yield from self._end_words(at_the_limit)

    def _is_ours(self, hit: Hit) -> bool:
        own = self._knowledge.own
        return any(index in own for index, _ in hit.found) or may_name_qnn(hit.text.lower())

    def _whole(self) -> bytes | None:
        """Return the log if it is short and was read completely, else None."""
        cut = self._start or self._base or self._end is not None or not self._ended
        return None if cut or self._fill > SHORT_LOG else bytes(self._view[: self._fill])

    def _end_words(self, words: Callable[[bytes], Iterator[EndWord]]) -> Iterator[Hit]:
        """Yield hits for lines at a log's end that report a process's death without naming QNN."""
        size = self._base + self._fill
        last = self._ended and self._at == self._fill and (self._end is None or size <= self._end)
        if not last:
            return
        low = max(self._fill - LOOK, 0)
        if self._base + low:  # not in the middle of a line
            low = self._buffer.find(b"\n", low, self._fill) + 1 or self._fill
        every = range(len(self._knowledge.plain))
        for word in words(bytes(self._view[low : self._fill])):
            text = bare_line(word.text)
            if self._opens(match(self._knowledge, text, every)):
                continue  # already found
            if found := read_failure(self._knowledge, bare_line(word.said), alone=True):
                at, (pid, time) = low + word.start, process_of(text)
                number = self.lines + 1 - self._buffer.count(b"\n", at, self._fill)
                pid = pid if word.pid is None else word.pid
                yield Hit(self._base + at, number, pid, time, text, found, self._opens(found))

    def _read(self) -> bool:
        """Fill the buffer; return True if it is full, False if the log ended."""
        while self._fill < len(self._buffer):
            got = self._readinto(self._view[self._fill :])
            if not got:
                return False
            self._fill += got
        return True

    def _skip(self, ended: bool) -> bool:
        """Go to the first line that starts in the range; return False if that needs more bytes."""
        at = max(self._start - 1 - self._base, 0)
        found = self._buffer.find(b"\n", at, self._fill) + 1
        if not found and not ended:
            self._drop(self._fill - LOOK)
            return False
        self._at = self._counted = found or self._fill
        self._line = self._first = self._base + self._at
        self._skipped = True
        self._drop(self._at - LOOK)  # otherwise a long line before the range would leave no room
        return True

    def _region(self, ended: bool) -> tuple[int, bool]:
        """Return where the next region ends, and whether it is the last region."""
        limit = self._fill if ended else max(self._fill - LOOK, self._at)
        if self._end is not None and self._base + limit >= self._end:
            # The last line of the range contains the byte before the range's end.
            stop = self._buffer.find(b"\n", max(self._end - 1 - self._base, self._at), limit) + 1
            if self._line >= self._end:
                return self._at, True
            if stop:
                return stop, True
        if ended:
            return limit, True
        stop = self._buffer.rfind(b"\n", self._at, limit) + 1
        if not stop and self._base + limit - self._line > LOOK:
            line = self._line - self._base  # a long line: scanned in blocks
            stop = limit - (limit - line) % SHORT
        return (stop or self._at), False

    def _scan(self, stop: int) -> list[Hit]:
        buffer = self._buffer
        out: list[Hit] = []
        at = self._at
        middle = self._base + at != self._line
        if middle or (stop != self._fill and buffer[stop - 1] != _NEWLINE):
            at = buffer.find(b"\n", at, stop) + 1 or stop
            begin = max(self._at - _OVERLAP, 0) if middle else self._at
            self._long(self._line - self._base, begin, at, out)
            self.ours = self.ours or self._engine.has_name(buffer, begin, at)
        self._shapes.repeats.begin()
        if at < stop:
            self._lines(at, stop, out)
        return out

    def _lines(self, at: int, stop: int, out: list[Hit]) -> None:
        """Add the hits of complete lines to `out`."""
        view, base, first = self._view, self._base, self._number(at)
        repeats, shape_of = self._shapes.repeats, self._shapes.of
        places = self._engine.lines(self._buffer, at, stop, self._shapes.memory, self._fill)
        if not self.ours:
            named = self._engine.named
            self.ours = self._engine.has_name(self._buffer, at, stop) if named is None else named
        for line in places:
            low, high, lines, body, known, pid, style, alone = line
            if high - low > SHORT:
                self._done, self._long_head = set(), None
                self._long(low, low, high, out)
                continue
            raw = bytes(view[low:high])
            if not known and style and repeats.fresh:
                known = repeats.lately(raw, body, style)
            number = first + lines if lines >= 0 else 0
            if known:
                repeat, text = repeats.numbered(known), raw.rstrip(b"\r\n")
                found, matched = repeat.of(raw[body:]), []
                if repeat.asks_code:
                    matched = [*found]
                    found += said_beside(self._knowledge, found, text, failing=False)
                process = process_in(raw, body, style, pid)
                hit = Hit(
                    base + low, number or self._number(low), *process, text, found, repeat.opens
                )
                self._put(hit, matched, high, out)
            elif alone and (answer := repeats.answer(raw, body, style)):
                if answer.found:
                    process = process_in(raw, body, style, pid)
                    text = raw.rstrip(b"\r\n")
                    hit = Hit(base + low, number, *process, text, answer.found, answer.opens)
                    self._put(hit, answer.matched, high, out)
            else:
                unread = self.budget.unread
                shape = shape_of(raw, body, style, self.budget, base + low)
                found_in = self._short(line, raw, shape, out) if shape else None
                if found_in and alone and self.budget.unread == unread:
                    repeats.keep(raw, line, found_in)

    def _put(
        self, hit: Hit, matched: Sequence[tuple[int, Values]], high: int, out: list[Hit]
    ) -> None:
        """Add a hit to `out`, and another if the next line is only the code of the failed call."""
        out.append(hit)
        below = line_below(self._buffer, self._fill, high) if matched else b""
        if below and (code := code_below(self._knowledge, matched, below)):
            offset, number = self._base + high + 1, hit.number + 1
            out.append(Hit(offset, number, hit.pid, hit.time, below, code, hit.opens))

    def _long(self, low: int, begin: int, stop: int, out: list[Hit]) -> None:
        """Add the hits of a long line to `out`, block by block, and the failure at its start."""
        if low >= 0 and _READ not in self._done:
            self._long_failure(low, out)
        templates = self._shapes.templates
        wanted: dict[int, None] = {}
        high = -1
        for end, anchor in self._engine.scan(self._buffer, begin, stop):
            if end <= self._at:
                continue  # seen before the cut
            if end > high:
                if wanted:
                    self._block(low, high, wanted, out)
                    wanted = {}
                block = end + (low - end) % SHORT
                high = self._buffer.find(b"\n", end, block)
                high = block if high < 0 else high
            for index in templates[anchor]:
                wanted[index] = None
        if wanted:
            self._block(low, high, wanted, out)

    def _short(
        self, line: PlaceOfLine, raw: bytes, shape: LineShape, out: list[Hit]
    ) -> KeptMessage | None:
        """Add the hit of a line to `out`; return its matches, to be reused for the same message."""
        low, high, *_ = line
        whole: Sequence[int] = shape.whole
        failing = shape.reads
        if shape.unsure or shape.numbered:
            small = raw.lower()
            whole = (*whole, *(i for i in shape.unsure if self._shapes.holds(small, i)))
            failing = shape.tells(small)
        passed = (*whole, *shape.part)
        if not passed and not failing:
            return None
        text = bare_line(raw)
        found: list[tuple[int, Values]]
        if shape.plain:
            found = [(index, ()) for index in whole]
        else:
            found = match(self._knowledge, text, whole)
        if found and not shape.unsure:
            self._shapes.repeats.note(text, line, whole, found)
        if passed and not found:  # a line that matches by itself is not part of another message
            first, found = self._across(low, high, text, passed)
            if first is not None:
                out.append(first)
                failing = False
        if failing and all(index in self._knowledge.words for index, _ in found):
            found += read_failure(
                self._knowledge, text, wrapped=lambda: self._wrapped(low, high, text)
            )
        found.sort()
        opens, matched = self._opens(found) and not is_calm(text), [*found]
        if opens:
            found += said_beside(self._knowledge, found, text, failing)
        else:
            matched.clear()
        if found:
            process = process_of(text)
            hit = Hit(self._base + low, self._number(low), *process, text, found, opens)
            self._put(hit, matched, high, out)
        return KeptMessage(passed, found, matched, opens)

    def _across(
        self, low: int, high: int, text: bytes, missing: Sequence[int]
    ) -> tuple[Hit | None, list[tuple[int, Values]]]:
        """Return the hit that starts in the previous line, if any, and this line's matches."""
        onward = forward(self._buffer, self._fill, text, high)
        found = match(self._knowledge, onward, missing) if onward else []
        back = line_before(self._buffer, self._base, low)
        if back is None:
            return None, found
        start, before = back
        if are_strangers(before, text):
            return None, found
        head, other = header.parse(text), header.parse(before)
        if not goes_on(other, before, head):
            return None, found
        # A template with an anchor in the previous line was already matched from that line.
        raw = bytes(self._view[start : low - 1]).lower()
        done = {index for index, _ in found}
        left = [i for i in missing if i not in done and not self._shapes.holds(raw, i)]
        whole = match(self._knowledge, before + glue(head) + text[head.body :], left)
        if not whole:
            return None, found
        whole.sort()
        number = self._number(low) - 1
        opens = self._opens(whole) and not is_calm(before)
        return Hit(self._base + start, number, other.pid, other.time, before, whole, opens), found

    def _wrapped(self, low: int, high: int, text: bytes) -> Iterator[bytes]:
        """Yield possible whole messages: the line with later lines, then with earlier lines."""
        head = header.parse(text)
        before: list[bytes] = []
        at = low
        while (
            len(before) < _BEFORE
            and head.style == "plain"
            and (back := line_before(self._buffer, self._base, at))
        ):
            at = back[0]
            before.insert(0, back[1])
        return wholes(before, text, forward(self._buffer, self._fill, text, high))

    def _block(self, low: int, high: int, wanted: dict[int, None], out: list[Hit]) -> None:
        """Add the matches in a block of a long line to `out`; each template counts only once."""
        left = [index for index in wanted if index not in self._done]
        if not left:
            return
        block = high + (low - high) % SHORT  # its end if the line did not end earlier
        start = max(low, block - 2 * SHORT, 0)
        far = min(block + SHORT, self._fill)
        stop = self._buffer.find(b"\n", high, far)
        stop = far if stop < 0 else stop
        raw = bytes(self._view[start:stop])
        text = bare_line(raw)
        low_case, prefilters = raw.lower(), self._prefilters
        # Some engines do not report templates whose prefilter text is missing, so drop them for
        # all.
        passed = [index for index in left if index >= 0 and prefilters[index] in low_case]
        found = match(self._knowledge, text, passed)
        if not found:
            return
        if self._long_head is None:
            self._long_head = process_of(bytes(self._view[max(low, 0) : max(low, 0) + 512]))
        self._done.update(index for index, _ in found)
        number = self._number(max(low, 0))
        small = text.lower()
        places: dict[int, list[tuple[int, Values]]] = {}
        for one in found:
            places.setdefault(place(self._knowledge, one[0], text, small), []).append(one)
        for at, here in sorted(places.items()):
            shown = text[max(at - _SHOWN, 0) : at + 2 * _SHOWN]
            opens = self._opens(here)
            out.append(Hit(self._base + low, number, *self._long_head, shown, here, opens))

    def _long_failure(self, low: int, out: list[Hit]) -> None:
        """Add the failure at the start of a long line to `out`, if its words are close together."""
        self._done.add(_READ)
        stop = self._buffer.find(b"\n", low, min(low + LOOK, self._fill))
        # At the end of a region, the rest of a line may not be in the buffer.
        text = bare_line(bytes(self._view[low : stop if stop >= 0 else low + SHORT]))
        if not is_about_us(text.lower()):
            return
        # Templates are matched to a long line block by block; this code only looks for failure
        # words.
        for piece in failing_pieces(text):
            failure = read(piece)
            if failure and (found := told(self._knowledge, failure)):
                pid, time = process_of(bytes(self._view[low : low + 512]))
                number, opens = self._number(low), self._opens(found)
                out.append(Hit(self._base + low, number, pid, time, piece, found, opens))
                return

    def _opens(self, found: list[tuple[int, Values]]) -> bool:
        opens = self._knowledge.opens
        for index, _ in found:  # noqa: SIM110 - runs for every hit: `any` takes three times as long
            if opens[index]:
                return True
        return False

    def _number(self, index: int) -> int:
        """Return the number of the line that starts at an index in the buffer."""
        if index > self._counted:
            self.lines += self._engine.newlines(self._buffer, self._counted, index)
            self._counted = index
        return self.lines + 1

    def _advance(self, stop: int) -> None:
        self._number(stop)
        last = self._buffer.rfind(b"\n", self._at, stop) + 1
        if last:
            self._line = self._base + last
            self._done, self._long_head = set(), None
        if last < stop and self._base + stop - self._line > LOOK and self._long_head is None:
            start = self._line - self._base
            if start >= 0:
                self._long_head = process_of(bytes(self._view[start : start + 512]))
        self._at = stop
        self._drop(stop - LOOK)

    def _drop(self, index: int) -> None:
        """Discard the bytes of the buffer before an index."""
        if index <= 0:
            return
        left = self._fill - index
        self._view[:left] = self._view[index : self._fill]
        self._base, self._fill = self._base + index, left
        self._at, self._counted = self._at - index, self._counted - index
