"""Reading of a short log as a whole, and of the end of any log.

A person selected the few lines of a short log for the doctor. If some line is about QNN, each line
may report a failure without a QNN word; otherwise no line does:

nothing of QNN          no word, no tag, no library, no code: the log is not judged
words shared with others    the cause model decides whether it is a log of another program
success at its end      earlier failed attempts are not failures
no failing line         the cause model decides whether the log shows a failure

At the end of a long log, a program may die, or the kernel may kill it, in lines without a QNN word.
These lines count if the lines near the end are about QNN.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header, words
from qnnmem.doctor.logs.header import is_chosen, lines_of, process_of
from qnnmem.doctor.logs.hit import Hit
from qnnmem.doctor.logs.line import bare_line, read_failure
from qnnmem.doctor.logs.reading import (
    NAMES,
    OURS,
    is_calm,
    is_warning,
    names_qnn,
    read,
    says_retried,
    says_well,
    shares_words,
)
from qnnmem.text import lazy_pattern

_NUMBER = lazy_pattern(rb"(?<![\w.])[0-9]{2,7}(?![\w.])")
# The TCM pool of LPAI serves 32 allocations; the next is fatal and prints nothing (LPAI memory
# page).
_TAKEN = lazy_pattern(rb"\ballocate size [0-9]+ from tcm pool")
_SERVED = 32
_STOPPED = b"lpai: terminated"
_FEW_WORDS = 4  # words: in a shorter log, the model finds nothing
_FEW = 20  # lines: a shorter log need not show its outcome
_LAST = 3  # final lines without a head in which a program gives up


class ShortLog(msgspec.Struct, frozen=True):
    """Short log that was read as a whole."""

    hits: tuple[Hit, ...]
    ours: bool  # True: some line is about QNN
    unclear: bool = False  # True: it shows neither a failure nor a success


class EndWord(msgspec.Struct, frozen=True):
    """Line at the end of a log that reports how it ended."""

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
    """Return the reading of a short log; `known` are lines that match already."""
    if not _is_ours(knowledge, log, known):
        return ShortLog((), ours=False)
    lines = log.split(b"\n")
    if ends_well(log):
        return ShortLog((), ours=True)
    hits = [*known, *_failing_lines(knowledge, lines, known, wrapped)]
    if not any(hit.opens for hit in hits):
        more = _by_model(knowledge, log, lines, {hit.number for hit in hits})
        if more is None:
            told = _tells_outcome(lines, {hit.number for hit in hits})
            unclear = not told or _failing_odds(log) >= 1 / 2
            return ShortLog(tuple(hits), ours=True, unclear=unclear)
        hits.append(more)
    elif _went_well(log, lines, hits):
        return ShortLog((), ours=True)
    return ShortLog(tuple(sorted(hits, key=lambda hit: hit.offset)), ours=True)


def _is_ours(knowledge: Knowledge, log: bytes, known: Iterable[Hit]) -> bool:
    low = log.lower()
    if names_qnn(low) or any(knowledge.own.intersection(n for n, _ in hit.found) for hit in known):
        return True
    if not shares_words(low) and not any(hit.opens for hit in known):
        return False
    from qnnmem.doctor.cause_model import guess, threshold

    return guess(_text(log)).outcomes["foreign"] < threshold("foreign")


def _failing_lines(
    knowledge: Knowledge,
    lines: Sequence[bytes],
    known: Sequence[Hit],
    wrapped: Callable[[int, int, bytes], Iterable[bytes]],
) -> Iterator[Hit]:
    """Yield lines that report a failure without a QNN word, of processes that print one elsewhere.

    In a longer log such lines belong to other work.
    """
    if not is_chosen(b"\n".join(lines)):
        return
    hints = knowledge.hints
    ours = {None, *(hit.pid for hit in known)}
    ours.update(process_of(line)[0] for line in lines if names_qnn(line.lower()))
    seen = {hit.number for hit in known if any(one not in hints for one, _ in hit.found)}
    low = 0
    for number, line in enumerate(lines, 1):
        text = bare_line(line)
        if number not in seen and process_of(text)[0] in ours:
            pieces = partial(wrapped, low, low + len(line), text)
            if found := read_failure(knowledge, text, alone=True, wrapped=pieces):
                opens = any(knowledge.opens[index] for index, _ in found)
                yield Hit(low, number, *process_of(text), text, found, opens)
        low += len(line) + 1


def _by_model(
    knowledge: Knowledge, log: bytes, lines: Sequence[bytes], known: Container[int]
) -> Hit | None:
    """Return a line to represent a failure that only the cause model detects; else None."""
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
    """Return how likely the cause model holds a log for one of a failure; 0 for a few words."""
    from qnnmem.doctor.cause_model import guess, words_of

    whole = _text(log)
    return guess(whole).outcomes["failing"] if len(words_of(whole)) >= _FEW_WORDS else 0.0


def _went_well(log: bytes, lines: Sequence[bytes], hits: Iterable[Hit]) -> bool:
    """Return True if later lines report success and the model also sees a good run.

    For a warning, or a failure followed by a retry or fallback, the model need only not object.

    A success of another process, or far after the failure, may belong to other work.
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
    return odds["healthy"] >= threshold("healthy")


def _tells_outcome(lines: Sequence[bytes], known: Container[int]) -> bool:
    """Return True if lines without a failure show that the run succeeded."""
    if _stops_midway(lines):
        return False
    said = [(place, line) for place, line in enumerate(lines, 1) if line.strip()]
    return len(said) > _FEW or any(place in known or says_well(line) for place, line in said)


def _stops_midway(lines: Sequence[bytes]) -> bool:
    """Return True if the log ends after the start of an operation and before its result."""
    for line in reversed(lines):
        low = line.lower()
        if words.rule("begun").search(low):
            return True
        if words.rule("over").search(low):
            return False
    return False


def ends_well(log: bytes) -> bool:
    """Return True if one of the last two lines reports that all tests or runs passed."""
    lines = [line for _, line in _lines(log)][-2:]
    passed = [bool(words.rule("passed").search(line.lower())) for line in lines]
    if any(passed[-1:]):
        return True
    return any(passed) and says_well(lines[-1]) and read(lines[-1], alone=True) is None


def end_words(tail: bytes) -> Iterator[EndWord]:
    """Yield final lines that report the death of a process; none if the end is not about QNN."""
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
    """Yield the last line if it is the last allocation that the TCM pool can serve."""
    lines = _lines(tail)
    if not lines or not _TAKEN.search(lines[-1][1].lower()):
        return
    if sum(bool(_TAKEN.search(text.lower())) for _, text in lines) == _SERVED:
        start, text = lines[-1]
        yield EndWord(start, text, None, _STOPPED)


def _lines(tail: bytes) -> list[tuple[int, bytes]]:
    """Return the non-empty lines, each with its start."""
    found, at = [], 0
    for line in tail.split(b"\n"):
        if line.strip():
            found.append((at, line.rstrip(b"\r")))
        at += len(line) + 1
    return found


def _text(log: bytes) -> str:
    return log.decode("utf-8", "replace")
