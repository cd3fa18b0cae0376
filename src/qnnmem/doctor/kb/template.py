"""Line templates: patterns of messages, with named and typed numbers.

A template is the message text with holes, called placeholders in the documentation:

    graph requires estimated allocation of {needed:KB} KB, limit is {limit:KB} KB
    Fail(|ed) to create context from binary with err {code:code}

`{}` is an irrelevant word, `{*}` any text; `{name}` is a word, `{name:text}` any text, `{name:int}`
a number, `{name:code}` an error code. `{name:bytes}`, `{name:KB}`, `{name:MB}` and `{name:GB}` are
sizes, which are always returned in bytes. `{name:level}` states how many bytes of a pool are in use
after this line, and `{name:added}` how many bytes the line adds to them; the lines before a failure
are summed. `(a|b)` is a choice. Case is ignored; blanks next to a hole are optional. Templates
match anywhere in a line.

Templates are deliberately not regular expressions: whatever their author writes, matching takes
bounded time and memory. The text of each hole is chosen once, without backtracking:

    hole for a word or for any text   the shortest text before the next fixed text
    number or choice                  the first form that the next piece can follow
    blanks next to a hole or choice   all blanks, at most 40

Matching a line therefore takes time proportional to its length times the template's length (see
`matcher`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from qnnmem.doctor.kb.entry import COUNTED
from qnnmem.doctor.kb.matcher import ANY_WORD, BLANKS, BYTES, DECIMAL, NUMBER, TEXT, WORD
from qnnmem.errors import UsageError
from qnnmem.text import lazy_pattern

_MAX_LENGTH = 400
_MAX_HOLES = 12
_MAX_FREE = 3  # holes for any text
_BLANK = (" ", "\t")
_OF_NUMBERS = "0123456789abcdefx,.-"
_MIN_ANCHOR = 6
_GOOD_ANCHOR = 16  # characters that make an anchor rare enough
_KEPT = 4096  # templates: a base is parsed on reading, and again for packing and checking

_PIECE = lazy_pattern(r"\{([^{}]*)\}|\(([^()]*)\)|\\(.)|([^{}()\\]+)|(.)", re.DOTALL)
_HOLE = lazy_pattern(r"([a-z][a-z0-9_]{0,30})?(?::([A-Za-z]+))?")

_SHAPES = {
    "word": WORD,
    "text": TEXT,
    "int": NUMBER,
    "code": NUMBER,
    "bytes": BYTES,
    "level": BYTES,
    "added": BYTES,
    "KB": DECIMAL,
    "MB": DECIMAL,
    "GB": DECIMAL,
}


class Template(msgspec.Struct, frozen=True):
    """Template after parsing: its regex, its fixed texts and its holes."""

    text: str
    regex: str  # for bytes written as ASCII, in lower case; input of `matcher`
    plain: str  # the text in lower case if there are no holes or choices, else empty
    anchors: tuple[str, ...]  # lower-case texts, all of which occur in a matching line
    runs: tuple[str, ...]  # all its fixed texts in lower case
    holes: tuple[tuple[str, str], ...]  # name and type, in the order of the groups


class _Piece(NamedTuple):
    """Piece of a template: a fixed text, a choice between texts, or a hole."""

    sort: Literal["text", "choice", "hole"]
    text: str  # for a hole: the regex of its text
    named: bool = False


@functools.lru_cache(maxsize=_KEPT)
def parse(text: str) -> Template:
    """Parse a template; raise UsageError with a one-sentence explanation if it is malformed."""
    if not text.strip() or len(text) > _MAX_LENGTH:
        raise UsageError(f"a line template must have 1 to {_MAX_LENGTH} characters: {_shown(text)}")
    holes: list[tuple[str, str]] = []
    pieces = _pieces(text, holes)
    if len({name for name, _ in holes}) != len(holes):
        raise UsageError(f"two placeholders have the same name in the line template {_shown(text)}")
    if any(kind in COUNTED for _, kind in holes[1:]):
        raise UsageError(
            "only the first placeholder of a line template can have the type `level` or "
            f"`added`: {_shown(text)}"
        )
    free = sum(piece.sort == "hole" and piece.text == TEXT for piece in pieces)
    if text.count("{") > _MAX_HOLES or free > _MAX_FREE:
        raise UsageError(
            f"a line template can have at most {_MAX_HOLES} placeholders, of which at most "
            f"{_MAX_FREE} match any text: {_shown(text)}"
        )
    runs = [piece.text for piece in pieces if piece.sort == "text"]
    anchors = _anchors(runs)
    if not anchors:
        raise UsageError(
            f"no fixed text of at least {_MIN_ANCHOR} characters in the line template "
            f"{_shown(text)}"
        )
    plain = runs[0] if len(pieces) == 1 else ""
    return Template(text, _regex(pieces), plain, anchors, tuple(runs), tuple(holes))


def _pieces(text: str, holes: list[tuple[str, str]]) -> list[_Piece]:
    """Split a template into lower-case pieces; add its named holes to `holes`."""
    pieces: list[_Piece] = []
    for hole, choice, escaped, plain, stray in _PIECE.findall(text):
        if stray:
            raise UsageError(
                f"'{stray}' has no matching bracket in the line template {_shown(text)}"
            )
        if fixed := _small(plain or escaped):
            if pieces and pieces[-1].sort == "text":
                fixed = pieces.pop().text + fixed
            pieces.append(_Piece("text", fixed))
        elif choice:
            pieces.append(_Piece("choice", _small(choice)))
        else:
            pieces.append(_hole(hole, holes, text))
    return pieces


def _small(text: str) -> str:
    """Return a text with its ASCII letters in lower case; log lines are treated the same way."""
    return text.encode("utf-8").lower().decode("utf-8")


def literal(line: str) -> str:
    """Return a template that matches exactly this text."""
    return re.sub(r"([{}()\\])", r"\\\1", line)


def _literal(plain: str) -> str:
    """Return a regex for the UTF-8 bytes of a text, with special characters escaped."""
    return "".join(re.escape(chr(b)) if b < 128 else f"\\x{b:02x}" for b in plain.encode("utf-8"))


def _hole(hole: str, holes: list[tuple[str, str]], text: str) -> _Piece:
    if hole == "*":
        return _Piece("hole", TEXT)
    match = _HOLE.fullmatch(hole)
    if match is None or (match[2] and match[2] not in _SHAPES):
        raise UsageError(
            f"'{{{hole[:40]}}}' is not a valid placeholder in the line template {_shown(text)}"
        )
    name, kind = match[1], match[2] or "word"
    if name is None:
        return _Piece("hole", ANY_WORD if kind == "word" else _SHAPES[kind])
    holes.append((name, kind))
    return _Piece("hole", _SHAPES[kind], named=True)


def _regex(pieces: Sequence[_Piece]) -> str:
    """Return the regex of all pieces; a piece does not backtrack once the next piece fits."""
    bare = [_bare(pieces, index) for index in range(len(pieces))]
    out = []
    for index, (piece, regex) in enumerate(zip(pieces, bare, strict=True)):
        if piece.sort == "hole" and piece.text in (ANY_WORD, WORD, TEXT):
            regex += "" if index == len(pieces) - 1 else "?"
        elif piece.sort != "text":
            regex = _settled(piece, regex, pieces[index + 1 :], bare[index + 1 :])
        out.append(f"({regex})" if piece.named else regex)
    return "".join(out)


def _settled(piece: _Piece, regex: str, after: Sequence[_Piece], bare: Sequence[str]) -> str:
    """Return a regex for a number or choice: its first form after which the next piece fits."""
    if not after:
        return regex
    if piece.sort == "hole" and after[0].sort == "text":
        first = after[0].text.lstrip(" \t")[:1]
        if first and first not in _OF_NUMBERS:  # no shorter form can match further
            return regex
    ahead = bare[0] if bare[0] != BLANKS else "".join(bare[:2])
    return f"(?>{regex}(?={ahead}))"


def _bare(pieces: Sequence[_Piece], index: int) -> str:
    """Return the regex of one piece, in which blanks next to a hole or choice are optional."""
    sort, text, _ = pieces[index]
    if sort == "hole":
        return text
    before = pieces[index - 1].text[-1:] if index else ""
    if sort == "choice":
        beside = before in _BLANK and pieces[index - 1].sort == "text"
        choices = [one.lstrip(" \t") if beside else one for one in text.split("|")]
        return "(?:" + "|".join(map(_literal, choices)) + ")"
    first = len(text) - len(text.lstrip(" \t")) if index else 0
    last = len(text.rstrip(" \t")) if index < len(pieces) - 1 else len(text)
    if first >= last:
        return BLANKS
    return (
        (BLANKS if first else "")
        + _literal(text[first:last])
        + (BLANKS if last < len(text) else "")
    )


def _anchors(runs: list[str]) -> tuple[str, ...]:
    """Return the two longest fixed texts; if a line is split, one of them is usually intact."""
    plain = [run.strip() for run in runs]
    plain = sorted((run for run in plain if len(run) >= _MIN_ANCHOR), key=len, reverse=True)
    first = [run[:64] for run in plain[:1]]
    second = [
        run[:64] for run in plain[1:2] if len(run) >= _GOOD_ANCHOR and run[:64] not in first[0]
    ]
    return tuple(first + second)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
