"""Reading of short logs as a whole, and of the end of every log.

A person probably selected the few lines of a short log for the doctor. If any line is about QNN, a
line without a QNN word can report a failure, too. If no line is about QNN, the log has no failure.
More rules:

nothing about QNN       without a QNN word, tag, library or code, the log is not judged
chip words only         the cause model decides whether another program wrote the log
known failing line      in a log without QNN or chip words, the cause model decides this, too
success at the end      earlier failed attempts are not failures
no failing line         the cause model decides whether the log shows a failure

At the end of a long log, lines without a QNN word can report that a program died or that the kernel
killed it. These lines count if other lines near the end are about QNN.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header, words
from qnnmem.doctor.logs.header import is_chosen, lines_of, process_of
from qnnmem.doctor.logs.line import Hit, bare_line, read_failure
from qnnmem.doctor.logs.reading import (
    NAMES,
    OURS,
    is_calm,
    is_warning,
    may_name_qnn,
    names_qnn,
    read,
    says_retried,
    says_well,
)
from qnnmem.text import lazy_pattern

_NUMBER = lazy_pattern(rb"(?<![\w.])[0-9]{2,7}(?![\w.])")
# The TCM pool of LPAI serves 32 allocations; the next is fatal and prints nothing (LPAI memory
# page).
_TAKEN = lazy_pattern(rb"\ballocate size [0-9]+ from tcm pool")
_SERVED = 32
_STOPPED = b"lpai: terminated"
_HARDLY = 0.2  # probability of a failure below which a later success counts
_FEW_WORDS = 4  # words: in a shorter log, the model finds nothing
_FEW = 20  # lines: a shorter log need not show its outcome
_LAST = 3  # final lines without a head in which a program gives up


class ShortLog(msgspec.Struct, frozen=True):
    """Result of reading a short log as a whole."""

    hits: tuple[Hit, ...]
    ours: bool  # True: some line is about QNN
    unclear: bool = False  # True: it shows neither a failure nor a success


class EndWord(msgspec.Struct, frozen=True):
    """Line at the end of a log that reports how the run ended."""

    start: int  # offset of the line in the examined piece
    text: bytes
    pid: int | None
    said: bytes  # without the head, except the name of the author


def read_short(
    knowledge: Knowledge,
    log: bytes,
    known: Sequence[Hit],
    wrapped: Callable[[int, int, bytes], Iterable[bytes]],
) -> ShortLog:
    """Read a short log as a whole; `known` are the hits of lines that match templates."""
    if not _is_ours(knowledge, log, known):
        return ShortLog((), ours=False)
    lines = log.split(b"\n")
    if all_passed(log):
        return ShortLog((), ours=True)
    hits = [*known, *_failing_lines(knowledge, lines, known, wrapped)]
    if not any(hit.opens for hit in hits):
        # A log that was cut off shows no failure, whatever the model makes of its words.
        cut = _stops_midway(lines)
        more = None if cut else _by_model(knowledge, log, lines, {hit.number for hit in hits})
        if more is None:
            told = _tells_outcome(lines, {hit.number for hit in hits})
            unclear = not told or _failing_odds(log) >= 1 / 2
            return ShortLog(tuple(hits), ours=True, unclear=unclear)
        hits.append(more)
    elif _went_well(knowledge, log, lines, hits):
        return ShortLog((), ours=True)
    return ShortLog(tuple(sorted(hits, key=lambda hit: hit.offset)), ours=True)


def _is_ours(knowledge: Knowledge, log: bytes, known: Iterable[Hit]) -> bool:
    low = log.lower()
    if names_qnn(low) or any(knowledge.own.intersection(n for n, _ in hit.found) for hit in known):
        return True
    if not may_name_qnn(low) and not any(hit.opens for hit in known):
        return False
    from qnnmem.doctor.cause_model import guess, threshold

    return guess(_text(log)).outcomes["foreign"] < threshold("foreign")


def _failing_lines(
    knowledge: Knowledge,
    lines: Sequence[bytes],
    known: Sequence[Hit],
    wrapped: Callable[[int, int, bytes], Iterable[bytes]],
) -> Iterator[Hit]:
    """Yield failures in lines without a QNN word, if their process has a QNN word in other lines.

    In a log that is not short, such lines are about other work, so nothing is yielded.
    """
    if not is_chosen(b"\n".join(lines)):
        return
    hints = knowledge.hints
    ours = {None, *(hit.pid for hit in known)}
    ours.update(process_of(line)[0] for line in lines if may_name_qnn(line.lower()))
    seen = {hit.number for hit in known if any(one not in hints for one, _ in hit.found)}
    low = 0
    for number, line in enumerate(lines, 1):
        text = bare_line(line)
        if number not in seen and (process_of(text)[0] or None) in ours:
            pieces = partial(wrapped, low, low + len(line), text)
            if found := read_failure(knowledge, text, alone=True, wrapped=pieces):
                opens = any(knowledge.opens[index] for index, _ in found)
                yield Hit(low, number, *process_of(text), text, found, opens)
        low += len(line) + 1


def _by_model(
    knowledge: Knowledge, log: bytes, lines: Sequence[bytes], known: Container[int]
) -> Hit | None:
    """Return a hit for a failure that only the cause model detects; None if there is none."""
    from qnnmem.doctor.cause_model import threshold

    number = knowledge.reads.get("other")
    if number is None or _failing_odds(log) < threshold("failing"):
        return None
    low = 0
    for place, line in enumerate(lines, 1):
        text = bare_line(line)
        if text.strip() and place not in known and not is_calm(text) and not says_well(text):
            return Hit(low, place, *process_of(text), text, [(number, ())])
        low += len(line) + 1
    return None


def _failing_odds(log: bytes) -> float:
    """Return the cause model's probability that a log shows a failure; 0 for very short logs."""
    from qnnmem.doctor.cause_model import guess, words_of

    whole = _text(log)
    return guess(whole).outcomes["failing"] if len(words_of(whole)) >= _FEW_WORDS else 0.0


def _went_well(
    knowledge: Knowledge, log: bytes, lines: Sequence[bytes], hits: Iterable[Hit]
) -> bool:
    """Return True if a line after the last failure reports success, and the model agrees.

    After warnings only, or after a retry or fallback, it is enough that the model finds a failure
    less likely than not. After lines that no template matches literally, it is enough that the
    model finds a failure very unlikely.

    A success of another process, or far from the failure, might be about other work.
    """
    last = max((hit for hit in hits if hit.opens), key=lambda hit: hit.number)
    own = lines_of(log, last.pid)
    later = lines_of(b"\n".join(lines[last.number :]), last.pid).split(b"\n")
    good = [line for line in later if line.strip() and says_well(line)]
    if own.count(b"\n") > _FEW or not good:
        return False
    from qnnmem.doctor.cause_model import guess, threshold

    odds = guess(_text(own)).outcomes
    warned = all(is_warning(hit.text) for hit in hits if hit.opens)
    if (warned or any(map(says_retried, good[:-1]))) and odds["failing"] < 1 / 2:
        return True
    unknown = all(number in knowledge.read for hit in hits if hit.opens for number, _ in hit.found)
    if unknown and odds["failing"] < _HARDLY:
        return True
    return odds["healthy"] >= threshold("healthy")


def _tells_outcome(lines: Sequence[bytes], known: Container[int]) -> bool:
    """Return True if a log without failures shows how its run ended, or has many lines."""
    if _stops_midway(lines):
        return False
    said = [(place, line) for place, line in enumerate(lines, 1) if line.strip()]
    return len(said) > _FEW or any(place in known or says_well(line) for place, line in said)


def _stops_midway(lines: Sequence[bytes]) -> bool:
    """Return True if the log ends between the start of an operation and its result."""
    for line in reversed(lines):
        low = line.lower()
        if words.rule("begun").search(low):
            return True
        if words.rule("over").search(low):
            return False
    return False


def all_passed(log: bytes) -> bool:
    """Return True if one of the last two lines reports that all tests or runs passed."""
    lines = [line for _, line in _lines(log)][-2:]
    passed = [bool(words.rule("passed").search(line.lower())) for line in lines]
    if any(passed[-1:]):
        return True
    return any(passed) and says_well(lines[-1]) and read(lines[-1], alone=True) is None


def end_words(tail: bytes) -> Iterator[EndWord]:
    """Yield final lines that report the death of a process, if the log's end is about QNN."""
    if not any(name in tail.lower() for name in NAMES):
        return
    lines = _lines(tail)
    ours: set[int] = set()
    for place, (start, text) in enumerate(lines):
        low = text.lower()
        head = header.parse(text)
        if any(word in low for word in OURS):  # such lines are read at their own position
            ours.update(() if head.pid is None else (head.pid,))
            continue
        if head.style == "plain":
            late = place >= len(lines) - _LAST and read(text, alone=True) is not None
            if late or words.rule("died").search(low):
                yield EndWord(start, text, None, text)
        elif ours and words.rule("killed").search(low):
            killed = ours.intersection(map(int, _NUMBER.findall(low[head.body :])))
            if killed:
                tag = (head.tag or "").encode()
                yield EndWord(start, text, min(killed), tag + b": " + text[head.body :])
    yield from at_the_limit(tail)


def at_the_limit(tail: bytes) -> Iterator[EndWord]:
    """Yield the last line if it uses the last allocation that the TCM pool allows."""
    lines = _lines(tail)
    if not lines or not _TAKEN.search(lines[-1][1].lower()):
        return
    if sum(bool(_TAKEN.search(text.lower())) for _, text in lines) == _SERVED:
        start, text = lines[-1]
        yield EndWord(start, text, None, _STOPPED)


def _lines(tail: bytes) -> list[tuple[int, bytes]]:
    """Return the start and the text of each non-empty line."""
    found, at = [], 0
    for line in tail.split(b"\n"):
        if line.strip():
            found.append((at, line.rstrip(b"\r")))
        at += len(line) + 1
    return found


def _text(log: bytes) -> str:
    return log.decode("utf-8", "replace")
