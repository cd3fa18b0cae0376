r"""Required texts of a regular expression: every match contains at least one of them.

    \bfail(?:s|ed)?\b             fail
    \bnot (?:found|installed)\b   found, installed
    [0-9]+ ?ms                    ms
    \\w+                           unknown

Searching a line for fixed texts is far cheaper than trying an expression at each byte. If no line
contains a required text, the expression need not even be compiled. Only simple syntax is analysed;
the texts of complex pieces count as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

# Texts of which each match contains at least one; None if no such texts are known.
Required: TypeAlias = "frozenset[str] | None"

_ZERO_WIDTH = frozenset("bBAZ")
_MARKS = frozenset("^$")
_CLASSES = frozenset("dDwWsS")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
_LOOKS = ("?=", "?!", "?<=", "?<!")
_MOST = 40  # texts; more are not worth searching for


def alternatives(pattern: str) -> list[str]:
    """Split an expression at each `|` that is outside groups."""
    found, start, depth, at = [], 0, 0, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            at = _class_end(pattern, at) - 1
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and not depth:
            found.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*found, pattern[start:]]


def required(pattern: str) -> Required:
    """Return texts of which each match of the pattern contains at least one; None if unknown."""
    every: frozenset[str] = frozenset()
    for one in alternatives(pattern):
        found = _best(_pieces(one))
        if found is None:
            return None
        every |= found
    return every if len(every) <= _MOST else None


def _best(pieces: Sequence[frozenset[str]]) -> Required:
    """Return the piece whose shortest text is longest; among equals, the one with fewest texts."""
    return max(
        pieces,
        key=lambda texts: (min(map(len, texts)), -len(texts), sorted(texts)),
        default=None,
    )


def _pieces(pattern: str) -> list[frozenset[str]]:
    """Return the required texts of each piece of an expression that has no alternatives."""
    pieces: list[frozenset[str]] = []
    run = ""
    at = 0

    def end_run() -> None:
        nonlocal run
        if run:
            pieces.append(frozenset((run,)))
        run = ""

    while at < len(pattern):
        text, texts, zero_width, stop = _item(pattern, at)
        optional, after = _quantifier(pattern, stop)
        if zero_width:
            at = after
            continue
        if text is None or after > stop:
            if text is not None and not optional:
                run += text
            end_run()
            if texts is not None and not optional:
                pieces.append(texts)
        else:
            run += text
        at = after
    end_run()
    return pieces


def _item(pattern: str, at: int) -> tuple[str | None, Required, bool, int]:
    """Return an item's letter or required texts, whether its width is zero, and its end."""
    letter = pattern[at]
    if letter == "(":
        stop = _group_end(pattern, at)
        inside = pattern[at + 1 : stop - 1]
        if inside.startswith(_LOOKS):
            return None, None, True, stop
        if inside.startswith("?:"):
            return None, required(inside[2:]), False, stop
        if inside.startswith("?P<"):
            return None, required(inside.partition(">")[2]), False, stop
        return None, None if inside.startswith("?") else required(inside), False, stop
    if letter == "[":
        return None, None, False, _class_end(pattern, at)
    if letter == ".":
        return None, None, False, at + 1
    if letter in _MARKS:
        return None, None, True, at + 1
    if letter != "\\":
        return letter, None, False, at + 1
    escaped = pattern[at + 1]
    if escaped in _ZERO_WIDTH:
        return None, None, True, at + 2
    if escaped == "x":
        return chr(int(pattern[at + 2 : at + 4], 16)), None, False, at + 4
    if escaped in _CONTROLS:
        return _CONTROLS[escaped], None, False, at + 2
    if escaped in _CLASSES or escaped.isalnum():
        return None, None, False, at + 2
    return escaped, None, False, at + 2


def _quantifier(pattern: str, at: int) -> tuple[bool, int]:
    """Return whether the item that ends at `at` is optional, and where its quantifier ends."""
    optional, stop = False, at
    letter = pattern[at : at + 1]
    if letter in ("?", "*", "+"):
        optional, stop = letter != "+", at + 1
    elif letter == "{" and (close := pattern.find("}", at)) > 0:
        least = pattern[at + 1 : close].partition(",")[0]
        optional, stop = not least.isdigit() or int(least) == 0, close + 1
    if stop > at and pattern[stop : stop + 1] in ("?", "+"):
        stop += 1
    return optional, stop


def _class_end(pattern: str, at: int) -> int:
    """Return the index after a character class such as `[^]a-z]` that begins at `at`."""
    at += 2 if pattern.startswith("[^", at) else 1
    at += pattern.startswith("]", at)
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _group_end(pattern: str, at: int) -> int:
    """Return the index after the group that begins at `at`."""
    depth = 0
    while True:
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            at = _class_end(pattern, at) - 1
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if not depth:
                return at + 1
        at += 1
