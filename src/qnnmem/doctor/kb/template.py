"""Line templates: what a message looks like, with its numbers named and typed.

A template is the message as people know it, with holes:

    graph requires estimated allocation of {needed:KB} KB, limit is {limit:KB} KB
    Fail(|ed) to create context from binary with err {code:code}

`{}` is one word that does not matter, `{*}` any text; `{name}` is a word, `{name:text}` any text,
`{name:int}` a number, `{name:code}` an error code, `{name:bytes}`, `{name:KB}`, `{name:MB}` and
`{name:GB}` sizes, which are always handed out in bytes. `(a|b)` is either. Letters match in both
cases; blanks beside a hole may be missing. Templates are matched anywhere in a line.

Templates are not regular expressions on purpose: they can neither run for ever nor grow without
bound, whoever wrote them.
"""

from __future__ import annotations

import re

import msgspec

from qnnmem.errors import UsageError

_MAX_LENGTH = 400
_MAX_HOLES = 12
_MAX_FREE = 3  # holes for any text: each multiplies what a hostile line can cost
_MIN_ANCHOR = 6
_GOOD_ANCHOR = 16  # long enough to be rare

_PIECE = re.compile(r"\{([^{}]*)\}|\(([^()]*)\)|\\(.)|([^{}()\\]+)|(.)", re.DOTALL)
_HOLE = re.compile(r"([a-z][a-z0-9_]{0,30})?(?::([A-Za-z]+))?")
_NUMBER = r"-?(?:0x[0-9a-f]{1,16}|[0-9]{1,20})"
_BYTES = r"-?(?:0x[0-9a-f]{1,16}|[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,20})"
_DECIMAL = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"

_SHAPES = {
    "word": r"[^\s]{1,200}?",
    "text": r".{0,120}?",
    "int": _NUMBER,
    "code": _NUMBER,
    "bytes": _BYTES,
    "KB": _DECIMAL,
    "MB": _DECIMAL,
    "GB": _DECIMAL,
}


class Template(msgspec.Struct, frozen=True):
    """A template ready for matching."""

    text: str
    regex: str  # of bytes written as ASCII, to be compiled with IGNORECASE
    plain: str  # without holes and choices: the text in small letters, else empty
    anchors: tuple[str, ...]  # lower-case texts of which a matching line holds all
    runs: tuple[str, ...]  # all its fixed texts in small letters
    holes: tuple[tuple[str, str], ...]  # name and type, in the order of the groups


def parse(text: str) -> Template:
    """A template from its text; what is not a template is refused in one sentence."""
    if not text.strip() or len(text) > _MAX_LENGTH:
        raise UsageError(f"a line template has 1 to {_MAX_LENGTH} characters: {_shown(text)}")
    regex: list[str] = []
    runs: list[str] = [""]
    holes: list[tuple[str, str]] = []
    for hole, choice, escaped, plain, stray in _PIECE.findall(text):
        if stray:
            raise UsageError(f"'{stray}' stands alone in the line template {_shown(text)}")
        if plain or escaped:
            _add_plain(plain or escaped, regex, runs)
        elif choice:
            regex.append("(?:" + "|".join(map(_literal, choice.split("|"))) + ")")
            runs.append("")
        else:
            regex.append(_add_hole(hole, holes, text))
            runs.append("")
    if len({name for name, _ in holes}) != len(holes):
        raise UsageError(f"two holes of one name in the line template {_shown(text)}")
    if text.count("{") > _MAX_HOLES or "".join(regex).count(_SHAPES["text"]) > _MAX_FREE:
        raise UsageError(
            f"at most {_MAX_HOLES} holes, {_MAX_FREE} of them for any text, in {_shown(text)}"
        )
    anchors = _anchors(runs)
    if not anchors:
        raise UsageError(f"no fixed text of {_MIN_ANCHOR} characters in {_shown(text)}")
    plain = runs[0].lower() if len(runs) == 1 else ""
    fixed = tuple(run.lower() for run in runs if run)
    return Template(text, _loose("".join(regex)), plain, anchors, fixed, tuple(holes))


def literal(line: str) -> str:
    """The template that matches this text and nothing else."""
    return re.sub(r"([{}()\\])", r"\\\1", line)


def _add_plain(plain: str, regex: list[str], runs: list[str]) -> None:
    regex.append(_literal(plain))
    runs[-1] += plain


def _literal(plain: str) -> str:
    """Matches UTF-8 text byte by byte; escapes whatever means something to the engine."""
    return "".join(re.escape(chr(b)) if b < 128 else f"\\x{b:02x}" for b in plain.encode("utf-8"))


def _add_hole(hole: str, holes: list[tuple[str, str]], text: str) -> str:
    if hole == "*":
        return _SHAPES["text"]
    match = _HOLE.fullmatch(hole)
    if match is None or (match[2] and match[2] not in _SHAPES):
        raise UsageError(f"'{{{hole[:40]}}}' is not a hole of a line template, in {_shown(text)}")
    name, kind = match[1], match[2] or "word"
    if name is None:
        return _SHAPES[kind] if kind != "word" else r"[^\s]{0,200}?"
    holes.append((name, kind))
    return f"({_SHAPES[kind]})"


def _loose(regex: str) -> str:
    """Blanks beside a hole may be missing or many; a last lazy hole takes what it can."""
    regex = re.sub(r"(?:\\ )+(?=\(|\[\^|\.\{|-\?)", r"[ \\t]*", regex)
    regex = re.sub(r"(?<=[)}?])(?:\\ )+", r"[ \\t]*", regex)
    return re.sub(r"(\{[01],[0-9]+\})\?(\)?)$", r"\1\2", regex)


def _anchors(runs: list[str]) -> tuple[str, ...]:
    """The two longest fixed texts: a line cut in two usually leaves one of them whole."""
    plain = [run.strip().lower() for run in runs]
    plain = sorted((run for run in plain if len(run) >= _MIN_ANCHOR), key=len, reverse=True)
    first = [run[:64] for run in plain[:1]]
    second = [
        run[:64] for run in plain[1:2] if len(run) >= _GOOD_ANCHOR and run[:64] not in first[0]
    ]
    return tuple(first + second)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
