"""What lines without a word of ours say: how a log ends, and what came before a failure.

A program died, was killed, or gave up.

A shell, the kernel and a runtime say so without a word of ours. It counts when the end of the log
is about QNN: in lines without a head, which are the program's own; or where a process is killed by
the number that lines of QNN bear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.failing_words import BEGUN, OVER
from qnnmem.doctor.logs.hit import Hit
from qnnmem.doctor.logs.line import Found, bare_line, named, read_failure, told
from qnnmem.doctor.logs.other_words import OPEN, OTHER, UNNAMED
from qnnmem.doctor.logs.reading import NAMES, OURS, Chosen, read, says_well
from qnnmem.doctor.logs.strangers import (
    are_foreign,
    are_headed,
    are_unknown,
    hold_our_words,
    name_us,
    speaks_for_another,
    speaks_of_networks,
)

_DIED = re.compile(
    rb"\bsegmentation fault|\bbus error\b|\billegal instruction|\bcore dumped|\bfatal signal [0-9]"
    rb"|^(?:.{0,80}: (?:line )?[0-9]+ )?(?:killed|aborted|terminated)\b[ .!]*(?:\(|$|[^ ]+$)"
    rb"|\b(?:exit(?:ed)?|returned)(?: with)?(?: code| status)? (?:13[0-9]|-?11|-?9|-?6)\b"
    rb"|terminate called|unhandled exception|\bout of memory: kill|\boom[-_ ]?kill"
)
_KILLED = re.compile(rb"\b(?:kill(?:ed|ing)?|died|fatal signal|lowmemorykiller|lmkd?)\b")
_NUMBER = re.compile(rb"(?<![\w.])[0-9]{2,7}(?![\w.])")
# The TCM pool of LPAI serves 32 allocations; the next is fatal and prints nothing (LPAI memory
# page).
_TAKEN = re.compile(rb"\ballocate size [0-9]+ from tcm pool")
_SERVED = 32
_STOPPED = b"lpai: terminated"
_ALL_PASSED = re.compile(
    rb"\ball (?:[0-9]+ )?(?:\w+ ){0,2}(?:passed|succeeded)\b|\btest result: ok\b"
    rb"|\b[1-9][0-9]* passed[,;]? (?:and )?0 failed\b|^=* ?[1-9][0-9]* passed in [0-9.]+ ?s"
    rb"|(?<![0-9/])([1-9][0-9]*)/\1 (?:tests? )?passed\b|^\s*unit test\b[^:]*: *passed\b"
)
_MESSAGE = 3  # so few lines are one message that somebody copied
_FEW = 20  # lines of a log that need not tell how things went
_LAST = 3  # lines without a head in which a program says that it gave up


class LastWord(msgspec.Struct, frozen=True):
    """A line at the end of a log that says how it ended."""

    start: int  # of the line, in the piece that was looked at
    text: bytes
    pid: int | None
    said: bytes  # without the head, but for the name of who says it


def last_words(tail: bytes) -> Iterator[LastWord]:
    """The lines of the end of a log that tell of a death; none where nothing there is of QNN."""
    if not any(name in tail.lower() for name in NAMES):
        return
    lines = _lines(tail)
    ours: set[int] = set()
    for place, (start, text) in enumerate(lines):
        low = text.lower()
        head = header.parse(text)
        if any(word in low for word in OURS):  # such lines are read where they stand
            ours.update(() if head.pid is None else (head.pid,))
            continue
        if head.style == "plain":
            late = place >= len(lines) - _LAST and read(text, Chosen.TOGETHER) is not None
            if late or _DIED.search(low):
                yield LastWord(start, text, None, text)
        elif ours and _KILLED.search(low):
            killed = ours.intersection(map(int, _NUMBER.findall(low[head.body :])))
            if killed:
                tag = (head.tag or "").encode()
                yield LastWord(start, text, min(killed), tag + b": " + text[head.body :])
    yield from at_the_limit(tail)


def named_before(
    knowledge: Knowledge, log: bytes, first: int, seen: Container[int]
) -> Iterator[tuple[int, int, bytes, list[Found]]]:
    """Lines of a short log before the first that failed which say, without a word of ours, of what.

    What comes after that one follows from it: a trace, a crash. Each has its place and number.
    """
    low = 0
    for number, line in enumerate(log.split(b"\n")[: first - 1], 1):
        text = bare_line(line)
        failure = None if number in seen else read(text, Chosen.TOGETHER)
        if failure and (found := named(knowledge, failure)):
            yield low, number, text, found
        low += len(line) + 1


def known(knowledge: Knowledge, found: Iterable[Hit]) -> set[int]:
    """Numbers of lines of which more is known than what they would bear out beside others."""
    hints = knowledge.hints
    return {hit.number for hit in found if any(one not in hints for one, _ in hit.found)}


def is_message(log: bytes) -> bool:
    """Whether a short log is one message that somebody copied."""
    return chosen(log.split(b"\n")) is Chosen.EACH


def with_numbers(knowledge: Knowledge, hit: Hit, pieces: Callable[[], Iterable[bytes]]) -> Hit:
    """A line of a message of which only words are known, with the cause that its numbers name.

    In a log all digits are alike; of a message also two versions or sizes tell.
    """
    reads = knowledge.reads
    named = {reads[name] for name in reads if name.startswith("names ")}
    causes = named - {reads.get(f"names {open_}") for open_ in (OPEN, OTHER)}
    numbers = {number for number, _ in hit.found}
    plain = {*reads.values(), *knowledge.words, *knowledge.undeciding}
    if not numbers <= plain or numbers & causes:
        return hit
    more = [
        one for one in read_failure(knowledge, hit.text, Chosen.EACH, pieces) if one[0] in causes
    ]
    found = [one for one in hit.found if one[0] not in named]
    return msgspec.structs.replace(hit, found=sorted([*found, *more])) if more else hit


def chosen(lines: Sequence[bytes]) -> Chosen:
    """How the lines of a short log are read.

    Most say nothing of who wrote them: then they are about what the doctor knows. Where a tool or
    a device says who speaks, and nobody there is of ours, what fails is a word between strangers.
    """
    said = [line for line in lines if line.strip()]
    read_as = Chosen.EACH if 0 < len(said) <= _MESSAGE else Chosen.TOGETHER
    low = b"\n".join(said).lower()
    if not said or any(name in low for name in NAMES) or name_us(said):
        return read_as
    if are_headed(said):
        about = speaks_of_networks(low) or speaks_for_another(low)
        return read_as if about and read_as is Chosen.EACH else Chosen.BESIDE
    if are_foreign(said):
        return Chosen.FOREIGN
    # A system tells of the death of whatever program it runs.
    return Chosen.UNKNOWN if are_unknown(said) and not speaks_for_another(low) else read_as


def counts(text: bytes, ours: bool) -> bool:
    """Whether a line may tell of a failure of ours: in a log without our words only a plain one."""
    return ours or read(text, Chosen.TOGETHER) is not None


def tells_outcome(lines: Sequence[bytes], message: bool, seen: Container[int]) -> bool:
    """Whether lines of which none says that something failed say that all went well.

    Each of a message has to; of a few lines that somebody chose, one, or one is known to be of a
    good run.
    """
    if _stops_midway(lines):
        return False
    if message:
        left = [line for at, line in enumerate(lines, 1) if line.strip() and at not in seen]
        return all(map(says_well, left))
    known = any(at in seen for at in range(1, len(lines) + 1))
    return known or len(lines) > _FEW or any(map(says_well, lines))


def _stops_midway(lines: Sequence[bytes]) -> bool:
    """Whether the last news is of work that was begun, and no line behind it says how it ended."""
    for line in reversed(lines):
        low = line.lower()
        if BEGUN.search(low):
            return True
        if OVER.search(low):
            return False
    return False


def named_anyhow(
    knowledge: Knowledge, lines: Sequence[bytes], message: bool, seen: Container[int]
) -> Iterator[tuple[int, int, bytes, list[Found]]]:
    """Lines that name a cause or a side, where none says that something failed.

    Of more lines than a message has, those that say that memory is short: good runs say much of
    what they do without, but not that. Beside good news a line has to name a cause.
    """
    low = 0
    if chosen(lines) in (Chosen.BESIDE, Chosen.FOREIGN, Chosen.UNKNOWN):
        return
    well = any(map(says_well, lines))
    ours = hold_our_words(lines)
    for number, line in enumerate(lines, 1):
        text = bare_line(line)
        failure = None if number in seen or not counts(text, ours) else read(text, Chosen.ASSUMED)
        sided = message and not (well and failure and failure.cause in UNNAMED)
        if failure and (sided or failure.cause.startswith("mem_")):
            yield low, number, text, told(knowledge, failure)
        low += len(line) + 1


def ends_well(log: bytes) -> bool:
    """Whether a log ends with the news that all tests or runs passed, or with good news behind."""
    lines = [line for _, line in _lines(log)][-2:]
    passed = [bool(_ALL_PASSED.search(line.lower())) for line in lines]
    if any(passed[-1:]):
        return True
    return any(passed) and says_well(lines[-1]) and read(lines[-1], Chosen.TOGETHER) is None


def at_the_limit(tail: bytes) -> Iterator[LastWord]:
    """The last line of a log, where it is the last allocation that the TCM pool serves."""
    lines = _lines(tail)
    if not lines or not _TAKEN.search(lines[-1][1].lower()):
        return
    if sum(bool(_TAKEN.search(text.lower())) for _, text in lines) == _SERVED:
        start, text = lines[-1]
        yield LastWord(start, text, None, _STOPPED)


def _lines(tail: bytes) -> list[tuple[int, bytes]]:
    """Lines that are not empty, and where each begins."""
    found, at = [], 0
    for line in tail.split(b"\n"):
        if line.strip():
            found.append((at, line.rstrip(b"\r")))
        at += len(line) + 1
    return found
