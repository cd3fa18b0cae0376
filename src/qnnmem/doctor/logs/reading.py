"""Reading of one line: whether it reports a failure, which call failed, and with which code.

head      the time, process, tag and level are removed (`header`)
level     the level of the logger or of a relayed line; info and debug lines report no failure
places    folders, file URLs and source positions are not words of the message
negation  `no error`, `0 failed` and `checks passed` report no failure
recovery  an operation that succeeded on a retry, or is not needed, is no failure

The words to look for are rules in `kb/words.toml`. This module does not determine the cause of a
failure; templates and the cause model do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from qnnmem.doctor.known_codes import code_named, is_known
from qnnmem.doctor.logs import header, words
from qnnmem.doctor.logs.lpai_sizes import LpaiWords, lpai_words
from qnnmem.text import lazy_pattern

OURS, NAMES, FAILING = words.texts("ours"), words.texts("names"), words.texts("failing")

_ASKING = (  # words before a code
    rb"err(?:or|no)?(?:[ _]?code|[ _]?num(?:ber)?)?|code|status|rc|aee_?result"
    rb"|ret(?:urned|urns|urn|val)?|got"
    rb"|result|fail(?:ed|ure)?(?: with)?|with|reason|failed\.? error"
    rb"|\w{3,24}(?:create|execute|finali[sz]e|register)(?==)"
)
_CODE = lazy_pattern(
    rb"\b(?:" + _ASKING + rb")\b[ ]?(?:value|err(?:or)?|code|status|of|is|from [\w ]{1,24})?"
    rb"[ ]?(?:[:=(,\[]|->|was)?[ ]?[\[(]?(-?(?:0x[0-9a-f]{1,16}|[0-9]{1,10}))\b"
    rb"(?! ?(?:bytes?|[km]i?b|[munp]?s|sec\w*|tokens|samples|files|ops)\b)"
    rb"(?! (?:outstanding|references|buffers|threads|inputs|outputs|tensors|nodes|layers)\b)"
)
_LOOSE_CODE = lazy_pattern(rb"(?<![\w.:/-])(-?(?:0x[0-9a-f]{1,16}|[0-9]{3,10}))(?![\w.:/])")
_LAST_CODE = lazy_pattern(rb"(?<![\w.:/=,-])(-?(?:0x[0-9a-f]{1,16}|[0-9]{3,10}))[ .!)\]]*$")
_ONLY_CODE = lazy_pattern(rb"(?:: ?|^[ (\[]*)(-?(?:0x[0-9a-f]{1,16}|[0-9]{3,10}))[ .!)\]]*$")
# A call and what it returned: `QnnGraph_execute -> 1002`.
_RETURNED = lazy_pattern(rb"->[ ]?(-?(?:0x[0-9a-f]{1,16}|[0-9]{4,10}))\b(?![.:/])")
# A line that consists only of a code.
_ALONE = lazy_pattern(
    rb"[ (\[\"'<#-]*(?:(?:the |qnn )?(?:(?:"
    + _ASKING
    + rb")[ ]?(?:code|was|is)?[ ]?[:=(,\[#]?)[ ]?"
    rb"[\[(]?)?(-?(?:0x[0-9a-f]{1,16}|[0-9]{4,10})|qnn_[a-z_]{4,60})[ .!)\]\"'>]*$"
)
_SYMBOL = lazy_pattern(
    rb"\b(?:qnn_[a-z0-9_]{4,60}|aee_[a-z0-9]{3,40}|e(?:nomem|acces|perm|inval|io|"
    rb"busy|again|nodev|noent|fault|nospc|intr|timedout|pipe))\b"
)
# The source position of a print: a file, and the function in the notation of C++ compilers.
_PRINTS_FROM = lazy_pattern(
    rb"\[[vdiwef]:onnxruntime[^\]]*\]|(?<![\w./-])[\w./-]{1,200}\.(?:cc|cpp|cxx|c|h|hpp|py|java"
    rb"|kt)[:(]\d+(?: [^():]{0,80}(?:::[^():]{0,80}){1,12}\([^()]{0,160}\)(?: const)?)?"
)
_FOLDER = lazy_pattern(
    rb"\b[a-z]{2,8}://\S{1,400}|(?:[a-z]:)?(?:[\w.+@~,-]{0,80}[/\\]){2,40}|(?<=[\s\"'(=])/"
)
_SAYS_ERROR = lazy_pattern(rb"\berror[:\]]")
_HEADS = 48  # bytes of a message that may be the head of a relayed line
_SHARE = lazy_pattern(rb"(?<![0-9/.])([0-9]+)/([0-9]+)(?= (?:\w+ )?passed)")
_EMPTY = (b"", b"<e>")
# Android numbers the reasons why it ends a process; such a number is not an error code.
_EXIT_REASON = lazy_pattern(rb"\b(?:exit[ _-]?|sub[ _-]?)reason ?[:=]? ?\d+")

_ONE_DIGIT = bytes.maketrans(b"023456789", b"1" * 9)
_SHAPE = bytes.maketrans(b"23456789", b"1" * 8)
# A hexadecimal address without 0x, as in kernel logs: longer than a code, with letters and digits.
ADDRESS = lazy_pattern(rb"(?<![\w.])(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{9,16}(?![\w.])")
_NO_CODE = -1  # generic return value of failing calls, without information
_OUR_CODES = 1000  # minimum of QNN's own codes; smaller codes are generic
_PIECES, _AROUND = 32, 200  # examined parts of a long line, and bytes on both sides of each
_END = 64  # bytes at the end of a line that may contain a code
_REMEMBERED = 4096
_REPEATED = 1024  # bytes; longer messages rarely differ in their addresses alone


class FailingLine(msgspec.Struct, frozen=True):
    """Failure that a line reports: the stage of the failed call, its code, and facts about LPAI."""

    stage: str  # "" if the stage is unknown
    code: int | None
    lpai: LpaiWords | None = None  # topic and sizes, if it is about LPAI


class _Shape(msgspec.Struct, frozen=True):
    """Meaning of all lines that differ only in their nonzero numbers."""

    stage: str
    failing: bool  # False: the code must be a known code
    coded: bool  # True: it may contain a code


def read(text: bytes, alone: bool = False) -> FailingLine | None:
    """Return the failure that a line reports; None if it reports none.

    `alone` means that the line is from a short log about QNN, so it needs no QNN word.
    """
    shape, body = _shape_of(text, alone)
    if shape is None:
        return None
    body = _EXIT_REASON.sub(b" ", body)
    loose = _LOOSE_CODE if shape.failing else _LAST_CODE if shape.stage else _ONLY_CODE
    code = _code(body, loose) if shape.coded else None
    if not shape.failing and (code is None or not is_known(code)):
        return None
    lpai = lpai_words(text.lower()) if shape.failing else None
    if lpai and code in (lpai.needed, lpai.limit):
        code = None
    return FailingLine(shape.stage, code, lpai)


def may_fail(text: bytes) -> bool:
    """Return True if a line reports a failure, or might if its nonzero numbers were different."""
    return _shape_of(text, alone=False)[0] is not None


def is_calm(text: bytes) -> bool:
    """Return True for lines at info or debug level, which alone do not start an incident."""
    return _level_of(text) == "calm" and not words.rule("relayed").search(text.lower())


def is_warning(text: bytes) -> bool:
    """Return True for a line at warning level."""
    return _level_of(text) == "warned"


def _level_of(text: bytes) -> str:
    head = header.parse(text)
    low = text.lower()
    return _level(head.level, low[: head.body], low[head.body :])


def says_retried(text: bytes) -> bool:
    """Return True if a line reports a retry that succeeded, or a fallback other than to the CPU."""
    return words.rule("mended by a second try").search(_message(text))


def says_well(text: bytes) -> bool:
    """Return True if a line reports a success or a recovery."""
    body = _message(text)
    if _mended(body):
        return True
    negated = words.rule("negated").removed(body)
    good = words.rule("good").search(body) or negated != body
    if any(one != other for one, other in _SHARE.findall(body)):
        return False
    return bool(good) and not words.rule("failing").search(negated) and not _is_coded(body)


def ends_well(log: bytes) -> bool:
    """Return True if the last result that a log reports is a success."""
    for line in reversed(log.split(b"\n")):
        if line.strip() and says_well(line):
            return True
        if read(line, alone=True) is not None:
            return False
    return False


def names_only_call(text: bytes) -> bool:
    """Return True if a line names only a failed call or a code, and nothing about the cause."""
    body = _CODE.sub(b" failed ", _message(text))
    return words.rule("only call").search(b" ".join(body.split()))


def names_qnn(low: bytes) -> bool:
    """Return True if a lower-case text contains a QNN word, tag, library name or code."""
    return words.rule("qnn").search(low) or any(map(_is_coded, low.split(b"\n")))


def may_name_qnn(low: bytes) -> bool:
    """Return True if a lower-case text names QNN, or a chip that runs QNN and other programs."""
    return names_qnn(low) or words.rule("chip").search(low)


def failing_pieces(text: bytes) -> Iterator[bytes]:
    """Yield pieces of a long line: the head, with the text around a failure word and a QNN word."""
    low, body = text.lower(), header.parse(text).body
    if not _has_ours(low):
        return
    named, at, count = _has_ours(low[:body]), body, 0
    for first, last in words.rule("failing").spans(low):
        if first < at:
            continue
        if (count := count + 1) > _PIECES:
            return
        start, stop = max(first - _AROUND, body), last + _AROUND
        if named or _has_ours(low[start:stop]):
            yield text[:body] + text[start:stop]
        at = last + _AROUND // 2


def _has_digit(text: bytes) -> bool:
    return text.translate(None, b"0123456789") != text


def _has_ours(low: bytes) -> bool:
    return any(word in low for word in OURS)


def code_at_end(text: bytes) -> int | None:
    """Return the code at the end of a line; None if there is no known code."""
    end = text[max(header.parse(text).body, len(text) - _END) :]
    if not _has_digit(end):
        return None  # as most ends: no pattern need be compiled for them
    low = _PRINTS_FROM.sub(b" ", end.lower())
    for pattern in (_CODE, _LAST_CODE, _ONLY_CODE):
        for found in reversed(pattern.findall(low)):
            code = _number(found)
            if code != _NO_CODE and is_known(code):
                return code
    return None


def code_alone(text: bytes) -> int | None:
    """Return the code in a line that consists only of a code, else None."""
    body = text[header.parse(text).body :].lower()
    last = body.rstrip(b" .!)]\"'>").split()[-1:] if len(body) <= _END else []
    if not last or (b"qnn_" not in last[0] and not _has_digit(last[0])):
        return None  # most lines end in a word: the pattern need not be compiled for them
    found = _ALONE.match(body)
    if found and found[1].startswith(b"qnn"):
        return code_named(found[1].decode("ascii"))
    code = _number(found[1]) if found else 0
    return code if code and is_known(code) else None


def _is_coded(low: bytes) -> bool:
    """Return True if a line contains a QNN code in a position where codes are usual."""
    codes = map(_number, (*_CODE.findall(low), *_RETURNED.findall(low)))
    return any(abs(code) >= _OUR_CODES and is_known(code) for code in codes)


def _shape_of(text: bytes, alone: bool) -> tuple[_Shape | None, bytes]:
    """Return a line's meaning, independent of its numbers, and its message in lower case."""
    head = header.parse(text)
    low = text.lower()
    before, body = low[: head.body].translate(_ONE_DIGIT), low[head.body :]
    alike = ADDRESS.sub(_same_address, body) if len(body) <= _REPEATED else body
    return _shape(head.level, before, alike.translate(_SHAPE), alone), body


def _same_address(found: re.Match[bytes]) -> bytes:
    """Replace an address by a fixed address of the same length."""
    return b"a1".ljust(len(found[0]), b"1")


@lru_cache(maxsize=_REMEMBERED)
def _shape(level: str, before: bytes, body: bytes, alone: bool) -> _Shape | None:
    if not alone and not _is_ours(before + body):
        return None
    said = _plain(body)
    if body.strip() in _EMPTY or _mended(said):
        return None
    kind = _level(level, before, body)
    if kind == "calm" and not words.rule("relayed").search(before + body):
        return None
    bare = words.rule("negated").removed(said)
    failing = words.rule("failing").search(bare)
    if not failing and (kind in ("calm", "warned") or bare != said):
        return None
    if not failing and kind == "error":
        failing = not words.rule("good").search(said)  # programs report success at this level, too
    loose = (_LOOSE_CODE,) if failing else (_LAST_CODE,) if alone else ()
    coded = any(pattern.search(body) for pattern in (_SYMBOL, _CODE, *loose))
    if not failing and not coded:
        return None
    return _Shape(_stage(_PRINTS_FROM.sub(b" ", said)), failing, coded)


def _mended(body: bytes) -> bool:
    return any(one.search(body) for one in words.rules("mended"))


def _message(text: bytes) -> bytes:
    """Return the message of a line in lower case, without its head and source positions."""
    return _plain(text[header.parse(text).body :].lower())


def _plain(body: bytes) -> bytes:
    """Return a message without folders and without the source position of the print statement."""
    return _without_folders(_PRINTS_FROM.sub(b" ", body))


def _without_folders(low: bytes) -> bytes:
    return _FOLDER.sub(b" ", low)


def _is_ours(low: bytes) -> bool:
    """Return True if a QNN word occurs as a whole word, unlike `dsp` in `windspeed`."""
    named = (words.rule(name).search(low) for name in ("qnn", "chip", "shared"))
    return _has_ours(low) and any(named)


def _level(level: str, before: bytes, body: bytes) -> str:
    """Return the level of a line; if it relays another line, the level of that line counts."""
    start = before + body[:_HEADS]
    if b"<e>" in before + body or words.rule("marked as error").search(body[:80]):
        return "error"
    if level in ("D", "V") or words.rule("marked as calm").search(start):
        return "calm"
    if level != "I" and _SAYS_ERROR.search(body[:80]):
        return "error"
    if level == "I":
        return "calm"
    if level == "W" or words.rule("marked as warning").search(start):
        return "warned"
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
    # A QNN code that was converted to a signed number.
    return -value if value <= -1000 else value


def _stage(body: bytes) -> str:
    said = _SYMBOL.sub(b" ", body)  # the name of a code is not the name of a call
    found = (one.name for one in words.rules("stage ") if one.search(said))
    return next(found, "").removeprefix("stage ")
