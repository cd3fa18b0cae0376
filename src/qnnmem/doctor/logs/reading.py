"""What a line says of a failure, in whatever words: whether it is one, which call, which code.

A line is looked at when it holds a word of ours (QNN, HTP, the DSP and who talks to them) and a
word of failure; engines find such lines by these texts alone. Then it is read:

    level     of the logger, or of the program whose line the logger relays
    words     that something failed; `0 errors` and `error 0` say the opposite
    code      decimal, hexadecimal, negative or by name, through the one table of numbers
    stage     of the call that is named, or of the things that are
    cause     where the words name one (`topics`), or that it is none of memory (`other_words`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache, lru_cache

import msgspec

from qnnmem.doctor.known_codes import code_named, is_known
from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.failing_words import (
    BAD,
    HINTS,
    MENDED,
    NEEDED,
    NONE,
    PLAIN,
    UNWELL,
    WELL,
    WITHOUT,
)
from qnnmem.doctor.logs.glossary import bytes_in_english
from qnnmem.doctor.logs.lpai_words import LpaiWords, lpai_words
from qnnmem.doctor.logs.memory_words import speaks_of_shortage
from qnnmem.doctor.logs.other_words import (
    OPEN,
    OTHER,
    UNNAMED,
    is_telling,
    mentions_memory,
    speaks_of_other,
)
from qnnmem.doctor.logs.strangers import speaks_of_networks
from qnnmem.doctor.logs.topics import named_cause

# Texts of which a line holds one of each, in small letters.
OURS = (
    *(b"qnn", b"htp", b"hexagon", b"ggml-hex", b"genie", b"dsp", b"fastrpc", b"rpcmem"),
    *(b"remote_handle", b"lpai", b"enpu", b"eai_", b"snpe", b"executorch", b"vtcm", b"skel"),
    *(b"dma-heap", b"dma_heap", b"dmabuf", b"smmu", b"aee_", b"hvx", b"tcm", b"litert"),
    *(b"<e>", b"from binary", b"context binary", b"graph finali", b"graph prepar"),
    *(b"graph execut", b"mem register", b"memregister", b"0x3ea", b"context create", b" ion"),
)
# Texts of which a log holds one if it has anything to do with QNN.
NAMES = (
    *(b"qnn", b"htp", b"hexagon", b"genie", b"fastrpc", b"rpcmem", b"lpai", b"enpu", b"snpe"),
    *(b"vtcm", b"adsp", b"cdsp", b"dsprpc", b"remote_handle", b"eaix", b"qualcomm", b"qcom"),
)
FAILING = (
    *(b"fail", b"error", b" err", b"unable", b"cannot", b"can't", b"could not", b"couldn't"),
    *(b"abort", b"fatal", b"crash", b"exception", b"refus", b"denied", b"timed out", b"timeout"),
    *(b"invalid", b"not found", b"no such", b"missing", b"support", b"out of", b"no memory"),
    *(b"enomem", b"nomemory", b"insufficient", b"not enough", b"exceed", b"too ", b"corrupt"),
    *(b"mismatch", b"returned", b" ret", b"rc=", b"status", b"kill", b"terminat", b"<e>", b" e "),
    *(b"e/qnn", b"e/dsp", b"e/adsp", b"e/cdsp", b"e/snpe", b"e/genie", b"fault", b"panic"),
    *(b"illegal", b"reject", b"overflow", b"incompat", b"unexpected", b"wrong", b"mem_alloc"),
    *(
        b"1002",
        b"0x3ea",
        b"died",
        b"dead",
        b"lost",
        b"qnn: ",
        b"aeeresult",
        b"er than",
        b"bad_alloc",
        b"avc:",
        b"aligned",
    ),
)

_ASKING = (  # a number behind these is a code
    rb"err(?:or|no)?(?:[ _]?code|[ _]?num(?:ber)?)?|code|status|rc|aee_?result"
    rb"|ret(?:urned|urns|urn|val)?|got"
    rb"|result|fail(?:ed|ure)?(?: with)?|with|reason|failed\.? error"
    rb"|\w{3,24}(?:create|execute|finali[sz]e|register)(?==)"
)
_CODE = re.compile(
    rb"\b(?:" + _ASKING + rb")\b[ ]?(?:value|err(?:or)?|code|status|of|is|from [\w ]{1,24})?"
    rb"[ ]?(?:[:=(,\[]|->|was)?[ ]?[\[(]?(-?(?:0x[0-9a-f]{1,16}|[0-9]{1,10}))\b"
    rb"(?! (?:outstanding|references|buffers|threads|inputs|outputs|tensors|nodes|layers)\b)"
)
_LOOSE_CODE = re.compile(rb"(?<![\w.:/-])(-?(?:0x[0-9a-f]{1,16}|[0-9]{3,10}))(?![\w.:/])")
_LAST_CODE = re.compile(rb"(?<![\w.:/=,-])(-?(?:0x[0-9a-f]{1,16}|[0-9]{3,10}))[ .!)\]]*$")
_ONLY_CODE = re.compile(rb"(?:: ?|^[ (\[]*)(-?(?:0x[0-9a-f]{1,16}|[0-9]{3,10}))[ .!)\]]*$")
# A line that is nothing but a code.
_ALONE = re.compile(
    rb"[ (\[\"'<-]*(?:(?:the |qnn )?(?:(?:" + _ASKING + rb")[ ]?(?:code|was|is)?[ ]?[:=(,\[#]?)[ ]?"
    rb"[\[(]?)?(-?(?:0x[0-9a-f]{1,16}|[0-9]{4,10}))[ .!)\]\"'>]*$"
)
_PIECES, _AROUND = 32, 200  # of a long line that are looked at, and bytes on both sides
_END = 64  # bytes of a line in which a code at its end stands
_NEVER = re.compile(rb"(?!)")
_SYMBOL = re.compile(
    rb"\b(?:qnn_[a-z0-9_]{4,60}|aee_[a-z0-9]{3,40}|e(?:nomem|acces|perm|inval|io|"
    rb"busy|again|nodev|noent|fault|nospc|intr|timedout|pipe))\b"
)

_CALLS = (
    ("execute", rb"graph_?execute|graph_?executeasync"),
    ("memreg", rb"qnn_?mem_|memregister|mem_?register|memderegister"),
    ("context", rb"qnn_?context|createfrombinary"),
    ("graph", rb"qnn_?graph|addnode|tensor_create"),
    ("init", rb"qnn_?(?:device|backend|interface|log|property|getinterface)"),
)
_THINGS = (
    ("execute", rb"execut(?:e|ion|ing)\b|infer|forward\b|invoke|query\b"),
    ("memreg", rb"mem(?:ory)?[ _-]?(?:de)?regist|memhandle|mem[ _]?handle|rpcmem|mmap|\bmap"),
    ("graph", rb"finali[sz]|compos|compil|prepar|\bserializ|add ?node|op ?config"),
    (
        "context",
        rb"context|binary|deseriali|\bblob|\bshards?\b|load\w* (?:[\w.-]+ ){0,3}model"
        rb"|\b(?:second|other|next|both|larger) models?\b|\bon-?device load\b",
    ),
    ("graph", rb"graph|\bnode\b|\bop\b|operator|tensor"),
    ("init", rb"backend|device|transport|session|skel|load|interface|provider|open|dialog|init"),
    ("memreg", rb"alloc|buffer|regist|heap"),
)
# Where a program prints from: a file, and the function as compilers of C++ write it.
_PLACE = re.compile(
    rb"\[[vdiwef]:onnxruntime[^\]]*\]|(?<![\w./-])[\w./-]{1,200}\.(?:cc|cpp|cxx|c|h|hpp|py|java"
    rb"|kt)[:(]\d+(?: [^():]{0,80}(?:::[^():]{0,80}){1,12}\([^()]{0,160}\)(?: const)?)?"
)
_RELAYED_ERROR = rb"<e>|\[ ?err(?:or)? ?\]|level=error|\[e:| - error - "
_ERROR = {
    # What is told for those who look for faults tells `error: 0x4b` of much that is none.
    True: re.compile(_RELAYED_ERROR),
    False: re.compile(_RELAYED_ERROR + rb"|\berror[:\]]"),
}
_CALM = re.compile(
    rb"<[vdiw]>|\[ ?(?:info|debug|verbose|trace|warn(?:ing)?) ?\]|\[[vdiw]:"
    rb"| - (?:info|debug|warning) - |^(?:verbose|debug|info|warning): ?(?:\[|[\w.]{1,40}:)"
)
# The same without warnings: what is told so is no failure unless it says that it is.
_QUIET = re.compile(
    rb"<[vdi]>|\[ ?(?:info|debug|verbose|trace) ?\]|\[[vdi]:| - (?:info|debug) - "
    rb"|^(?:verbose|debug|info): ?(?:\[|[\w.]{1,40}:)"
)
_WARNED = b"<w>"  # by the library: what it does without, unless it says that something failed
_PLAIN_DSP = re.compile(rb"(?<![a-z])[acsm]?dsp(?![a-z]{3})|dspqueue|dsprpc|dsptransport|fastrpc")
_URI = re.compile(rb"\b[a-z]{2,8}://\S+")  # its parts say nothing of how things went
_RELAYED = re.compile(rb"\b[acsm]dsp\d?:\[|<[we]>")
_HEADS = 48  # of a message: a logger may relay what another has already given a head
_WEAK = (b"dsp", b"tcm", b"skel", b"htp", b" ion")


_ONE_DIGIT = bytes.maketrans(b"023456789", b"1" * 9)
_SHAPE = bytes.maketrans(b"23456789", b"1" * 8)
_NO_CODE = -1  # what calls return for whatever went wrong; beside one that failed it says nothing
_SHORT_CODES = (1002, 8003, -12, 12, 0x80000402)  # of memory, mostly: words beside them weigh less
_OUR_CODES = 1000  # from here on; smaller ones are of everybody
_REMEMBERED = 4096
SHORT = "mem_unknown"  # of the causes: memory, and which is open
_TOLD = ("", "init", "execute")  # stages at which a shortage of memory is told as one
_NAMING = 600  # bytes in which a line names a cause


class Chosen(Enum):
    """Whether somebody picked the lines, so that they need no word of ours to be about QNN."""

    NOT = 0
    TOGETHER = 1  # they are part of a short log
    EACH = 2  # they are one message: also what is said calmly in it counts
    ASSUMED = (
        3  # the same, and something failed: what the words name is believed without one for it
    )
    BESIDE = 4  # others speak there, on the same device: what is about networks counts, and that
    # memory is short
    FOREIGN = 5  # a tool speaks that is not ours: what is about networks counts
    UNKNOWN = 6  # no word is one of ours: what names a cause counts, and a code of ours


_STRANGERS = (Chosen.BESIDE, Chosen.FOREIGN)


class FailingLine(msgspec.Struct, frozen=True):
    """A line that tells of a failure: the stage of the call it names, the code, the cause."""

    stage: str  # "" when nothing in it tells
    code: int | None
    cause: str = ""
    lpai: LpaiWords | None = None  # what it says of LPAI, if it is about that


class _Shape(msgspec.Struct, frozen=True):
    """What a line tells whatever its numbers are, but for whether they are zero."""

    stage: str
    cause: str
    failing: bool  # else its code must be one that is known
    coded: bool  # whether it may hold a code


def read(text: bytes, chosen: Chosen = Chosen.NOT) -> FailingLine | None:
    """What a line tells of a failure; None when it tells of none."""
    shape, body = _shape_of(text, chosen)
    if shape is None:
        return None
    loose = _LOOSE_CODE if shape.failing else _LAST_CODE if shape.stage else _ONLY_CODE
    code = _code(body, loose) if shape.coded else None
    if not shape.failing and (code is None or not is_known(code)):
        return None
    ours = code is not None and abs(code) >= _OUR_CODES and is_known(code)
    if chosen is Chosen.UNKNOWN and not ours and shape.cause in UNNAMED:
        return None
    cause = "" if shape.cause in (OTHER, OPEN) and code in _SHORT_CODES else shape.cause
    lpai = lpai_words(text.lower()) if shape.failing else None
    if lpai and code in (lpai.needed, lpai.limit):
        code = None
    return FailingLine(shape.stage, code, cause, lpai)


def may_fail(text: bytes) -> bool:
    """Whether a line tells of a failure, or does so with other numbers than its own but zero."""
    return _shape_of(text, Chosen.NOT)[0] is not None


def _shape_of(text: bytes, chosen: Chosen) -> tuple[_Shape | None, bytes]:
    """What a line tells whatever its numbers are, and its message in small letters."""
    head = header.parse(text)
    low = text.lower()
    before, body = low[: head.body].translate(_ONE_DIGIT), low[head.body :]
    if chosen is not Chosen.NOT or not body.isascii():
        body = bytes_in_english(body)
    # Of a message also numbers tell: two versions, a size and a limit.
    shape = body if chosen in (Chosen.EACH, Chosen.ASSUMED) else body.translate(_SHAPE)
    return _shape(head.level, before, shape, chosen), body


def says_well(text: bytes) -> bool:
    """Whether a line that tells of no failure says, or is meant to say, that all is well."""
    head = header.parse(text)
    body = _URI.sub(b" ", bytes_in_english(text[head.body :].lower()))
    if NONE.search(body) or MENDED.search(body):
        return True
    return bool(WELL.search(body)) and not UNWELL.search(body)


def failing_pieces(text: bytes) -> Iterator[bytes]:
    """Of a long line its head and what is around words of failure: far apart they say nothing."""
    low, body = text.lower(), header.parse(text).body
    at = body
    for _ in range(_PIECES):
        found = BAD.search(low, at)
        if found is None:
            return
        start = max(found.start() - _AROUND, body)
        yield text[:body] + text[start : found.end() + _AROUND]
        at = found.end() + _AROUND // 2


def code_at_end(text: bytes) -> int | None:
    """The code that a line ends with; None when it ends with nothing that is known as one."""
    low = _PLACE.sub(b" ", text[-_END:].lower())
    for pattern in (_CODE, _LAST_CODE, _ONLY_CODE):
        for found in reversed(pattern.findall(low)):
            code = _number(found)
            if code != _NO_CODE and is_known(code):
                return code
    return None


def code_alone(text: bytes) -> int | None:
    """The code that is all that a line says."""
    body = text[header.parse(text).body :].lower()
    found = _ALONE.match(body) if len(body) <= _END else None
    code = _number(found[1]) if found else 0
    return code if code and is_known(code) else None


@lru_cache(maxsize=_REMEMBERED)
def _shape(level: str, before: bytes, body: bytes, chosen: Chosen) -> _Shape | None:
    if chosen is Chosen.NOT and not _is_ours(before + body):
        return None
    ours = chosen not in _STRANGERS or speaks_of_networks(before + body)
    if chosen is Chosen.FOREIGN and not ours:
        return None
    if body.strip() in (b"", b"<e>") or MENDED.search(body) or _is_done_without(body):
        return None
    kind = _level(level, before, body)
    alone = chosen in (Chosen.EACH, Chosen.ASSUMED)
    if kind == "calm" and level != "W" and not alone:
        return None
    bare = NONE.sub(b" ", body)
    failing = bool(PLAIN.search(bare) or BAD.search(bare))
    quiet = kind == "calm" and (
        level in ("V", "D", "I") or bool(_QUIET.search(before + body[:_HEADS]))
    )
    heard = not quiet or bool(_RELAYED.search(body))  # what a DSP says comes through a quiet line
    failing = failing or (alone and heard and bool(HINTS.search(bare)))
    if chosen is Chosen.ASSUMED and not failing:
        well = WELL.search(bare) and not UNWELL.search(bare)
        failing = _names_anyhow(bare, calm=kind == "calm" or bool(well))
    if kind == "calm" and not alone:
        warned = failing and _cause(body, alone=False).startswith("mem_")
        if not warned:
            return None
    if bare != body and not failing:
        return None
    if not failing and kind == "error":
        failing = not WELL.search(body)  # programs tell good news at this level, too
    # Numbers are everywhere: without a word of failure only one at the end of a message is a code.
    loose = _LOOSE_CODE if failing else _LAST_CODE if alone else _NEVER
    loose = _NEVER if chosen in _STRANGERS else loose
    coded = any(pattern.search(body) for pattern in (_SYMBOL, _CODE, loose))
    if not failing and not coded:
        return None
    words = _PLACE.sub(b" ", body)  # the name of a file that prints says nothing of what failed
    stage = _stage(words)
    cause = _cause(bare, alone) if failing else ""
    if failing and not cause and stage in _TOLD:
        text = words[:_NAMING].decode("utf-8", "replace")
        telling = not mentions_memory(text) if stage == "init" else not coded and is_telling(text)
        cause = OPEN if telling else ""
    named = cause not in UNNAMED
    if _WARNED in before + body[:_HEADS] and not (named or coded or PLAIN.search(bare)):
        return None
    if chosen is Chosen.BESIDE and not (
        cause.startswith("mem_") or (ours and (coded or cause not in ("", OPEN)))
    ):
        return None
    return _Shape(stage, cause, failing, coded)


def _is_done_without(body: bytes) -> bool:
    """Whether a line says that what is missing or not known there is not needed."""
    if not WITHOUT.search(body) or NEEDED.search(body):
        return False
    return _cause(body, alone=False) in ("", OTHER)


def _names_anyhow(bare: bytes, calm: bool) -> bool:
    """Whether a line without a word of failure names one; a calm one only that memory is short."""
    cause = _cause(bare, alone=True)
    return cause.startswith("mem_") or bool(cause and not calm)


def _cause(body: bytes, alone: bool) -> str:
    text = _PLACE.sub(b" ", body)[:_NAMING].decode("utf-8", "replace")
    if cause := named_cause(text):
        return cause
    if speaks_of_shortage(text):
        return SHORT
    return OTHER if speaks_of_other(text, alone) else ""


def _is_ours(low: bytes) -> bool:
    """Whether a word of ours is one: `dsp` is in `windspeed`, too."""
    found = [word for word in OURS if word in low]
    if any(word not in _WEAK for word in found):
        return True
    return bool(found) and bool(
        _PLAIN_DSP.search(low)
        or re.search(rb"(?<![a-z])(?:v?tcm|htp|skel(?!eton)|ion(?![a-z]))", low)
    )


def _level(level: str, before: bytes, body: bytes) -> str:
    """What is relayed counts more than the level at which it is relayed."""
    if b"<e>" in before + body or _ERROR[level in ("V", "D")].search(body[:80]):
        return "error"
    if level == "D":
        return "calm"
    if _CALM.search(before + body[:_HEADS]) or level in ("V", "I", "W"):
        if b"error" in body and re.search(rb"\berror\b", NONE.sub(b" ", body)):
            return ""
        return "calm"
    return "error" if level in ("E", "F", "A") else ""


def _code(body: bytes, loose: re.Pattern[bytes]) -> int | None:
    for symbol in _SYMBOL.findall(body):
        if code := code_named(symbol.decode("ascii")):
            return code
    for found in reversed(_CODE.findall(body)):
        if (code := _number(found)) != 0:
            return code
    for found in loose.findall(body):
        if is_known(code := _number(found)):
            return code
    return None


def _number(text: bytes) -> int:
    value = int(text, 0) if b"x" in text else int(text)
    if value > 0xFFFF_FFFF:
        from qnnmem.qnn.codes import code_of

        return code_of(value)
    # A code of QNN that went through a signed number on the way.
    return -value if value <= -1000 else value


def _stage(body: bytes) -> str:
    words = _SYMBOL.sub(b" ", body)  # the name of a code is not that of a call
    for stage, pattern in _stages():
        if pattern.search(words):
            return stage
    return ""


@cache
def _stages() -> tuple[tuple[str, re.Pattern[bytes]], ...]:
    return tuple((stage, re.compile(pattern)) for stage, pattern in (*_CALLS, *_THINGS))
