"""Layout of a report on a terminal: line breaks between words, and some colour.

Reports are plain text. The role of a line follows from its text, because all reports have the same
form: the verdict comes first, a table has a row of words above rows of numbers, a title ends with a
colon, an origin is `measured: ...`, a next step is `next: ...`. A wrong guess changes how a line
looks, not its text.

Lines are broken only on terminals, so that a search in piped output finds whole lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TextIO

import click

from qnnmem.text import printable

NARROW, WIDE = 40, 120  # columns; longer lines are hard to read, even in a wide window

# Fixed colours of the 256-colour palette, readable on white and on black; themes change the basic
# colours.
GOOD, BAD, UNSURE = "38;5;28", "38;5;196", "38;5;130"
BOLD, DIM = "1", "2"

_ORIGIN = "(?:limit |needed )?(?:measured|computed|documented|reported|emulated): "
_YES = r"fits\b(?! \d)|healthy:|fine:|good:|.*: all as expected$"
_PERHAPS = r"cannot tell\b|undecided:|total not known|not all could|\d+ warnings?\b|fits [1-9]"
_NO = (
    r"does not fit\b|fits 0 |no \S+ fits\b|\d+ (?:errors?|findings)\b|No (?:bill|binary|table):|"
    r"[\d,]+ (?:incidents?|problems?)\b|\w+ stage:|.*: \d+ failed$"
)
_VERDICTS = ((_YES, GOOD), (_PERHAPS, UNSURE), (_NO, BAD))
_WORDS = {"fits": GOOD, "does not fit": BAD, "cannot tell": UNSURE, "failed": BAD, "refused": BAD}
_WORDS |= {"error": BAD, "warning": UNSURE, "DIFFERENT": BAD, "FAILED": BAD}
_ANSWER = (
    r"(?<=  )(?:does not fit|fits|cannot tell|failed|refused|FAILED)(?=  )|"
    r"(?<=: )(?:error|warning)(?=: )"
)
_TAIL = rf"(?:^|(?<=  )){_ORIGIN}|^ *(?:note: |read \d)"
_INCIDENT = r"^incident [\d,]+(?: of [\d,]+)?: "
_PLACE = r"^ *(?:> )?\S+:\d+(?::\d+)?: "  # file name and line number
# Users paste the text from here to the end of the line, so it is never broken. Outside of next
# steps, an option distinguishes a command from a sentence about the program.
_COMMAND = r"(?:qnnmem|qnn-net-run|pip|pipx|uv|docker) .*$"
_NEXT = rf"^(next: .*?)({_COMMAND})"
_TITLE = r"^[A-Za-z][^.;:]{2,58}:$|^#{1,4} \S"
_GAP = r" {2,}(?=\S)"
_NUMBER = r"-?[\d.,]+(?: \w+)?$"
_LABEL = r"^ *(?:\d+\. |- |> |[a-z]+: )?"
# Text that must not be broken: a command, a short text in backticks, a word.
_QUOTED = r"[^\s`]*`(?:(?:qnnmem|pip|adb) [^`]*|[^`]{1,40})`[^\s`]*"
_ATOM = rf"{_QUOTED}|(?:(?<=\s)|^)(?=\S+ .* -){_COMMAND}|\S+"


def fitted(pieces: Iterable[str], stream: TextIO) -> Iterator[str]:
    """Yield text for a stream: unchanged for a pipe, wrapped and coloured for a terminal."""
    terminal = stream.isatty()
    if not is_prose():
        yield from (printable(piece, keep="\n") for piece in pieces) if terminal else pieces
        return
    colour = is_coloured(stream)
    if not (terminal or colour):
        yield from pieces
        return
    width = columns() if terminal else None
    is_first = True
    for text in _whole_lines(pieces):
        yield shown(printable(text, keep="\n"), width, colour=colour, is_first=is_first)
        is_first = False


def shown(text: str, width: int | None, *, colour: bool, is_first: bool = True) -> str:
    """Return a report, or a part of a report; unless `width` is None, break lines at this width."""
    lines = ["", *text.split("\n"), ""]
    result = []
    for number, line in enumerate(lines[1:-1], 1):
        broken = [line] if width is None else broken_line(line, width)
        if colour and is_first and number == 1:
            broken = _verdict(broken)
        elif colour:
            broken = _styled(broken, line, lines[number - 1], lines[number + 1])
        result += broken
    return "\n".join(result)


def sentence(line: str, stream: TextIO) -> str:
    """Return a sentence for a stream, wrapped if the stream is a terminal."""
    return "\n".join(broken_line(line, columns())) if stream.isatty() else line


def columns() -> int:
    """Return the width of output lines."""
    from shutil import get_terminal_size

    return min(WIDE, max(NARROW, get_terminal_size().columns))


def wish(choice: str = "auto") -> bool | None:
    """Return whether the user wants colour; None if it depends on the stream."""
    if choice != "auto":
        return choice == "always"
    environment = os.environ
    if environment.get("NO_COLOR"):
        return False
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        if environment.get(name, "0") not in ("", "0"):
            return True
    plain = environment.get("TERM") == "dumb" or environment.get("CLICOLOR") == "0"
    return False if plain else None


def is_coloured(stream: TextIO) -> bool:
    """Return True if output to a stream is coloured."""
    context = click.get_current_context(silent=True)
    wished = wish() if context is None else context.color
    return stream.isatty() if wished is None else wished


def is_prose() -> bool:
    """Return True if the result is text for people, which can be wrapped and coloured."""
    context = click.get_current_context(silent=True)
    if context is None:
        return True
    return not context.params.get("as_json") and context.params.get("form") in (None, "text")


def broken_line(line: str, width: int) -> list[str]:
    """Break a line between words into pieces of at most `width` columns."""
    if len(line) <= width:
        return [line]
    if match := re.match(_NEXT, line):
        return [*broken_line(match[1].rstrip(), width), f"  {match[2]}"]
    atoms = [match.span() for match in re.finditer(_ATOM, line)]
    hang = " " * _hang(line, width, max(end - start for start, end in atoms) if atoms else 0)
    pieces, piece, place = [], "", 0
    for start, end in atoms:
        gap, atom = line[place:start], line[start:end]
        place = end
        if piece.strip() and len(piece) + len(gap) + len(atom) > width:
            pieces.append(piece)
            piece = hang + atom
        else:
            piece += gap + atom
    return [*pieces, piece]


def _hang(line: str, width: int, longest: int) -> int:
    """Return the indent of continuation lines: that of the last column or of text after a label."""
    ends = [
        gap.end() for gap in re.finditer(_GAP, line) if gap.start() and gap.end() <= width * 3 // 5
    ]
    space = len(line) - len(line.lstrip())
    label = re.match(_LABEL, line)
    hang = ends[-1] if ends else label.end() if label else space
    if re.match(_PLACE, line):
        hang = space + 2
    return hang if hang + longest <= width else min(hang, space + 4)


def _styled(pieces: list[str], line: str, before: str, after: str) -> list[str]:
    """Return the pieces of one line, coloured by the role of the line."""
    first, *more = pieces
    if re.match(_INCIDENT, line):
        return _verdict(pieces)
    if re.match(_TITLE, line) or _is_head(line, before, after):
        return [_in(piece, BOLD) for piece in pieces]
    if match := re.match(_NEXT, line):
        command = match[2]
        return [piece.replace(command, _in(command, BOLD)) for piece in pieces]
    tail = re.search(_TAIL, line)
    if tail is None:
        return [re.sub(_ANSWER, _answer, piece) for piece in pieces]
    start = tail.start()
    rest = _in(first[start:], DIM)
    return [re.sub(_ANSWER, _answer, first[:start]) + rest, *(_in(piece, DIM) for piece in more)]


def _verdict(pieces: list[str]) -> list[str]:
    """Return the verdict in bold, with a colour for yes, no or undecided."""
    line = re.sub(_INCIDENT, "", pieces[0])
    colours = [f"{BOLD};{colour}" for pattern, colour in _VERDICTS if re.match(pattern, line)]
    return [_in(piece, colours[0] if colours else BOLD) for piece in pieces]


def _answer(match: re.Match[str]) -> str:
    return _in(match[0], _WORDS[match[0]])


def _is_head(line: str, before: str, after: str) -> bool:
    """Return True if a line is the header of a table."""
    above, cells, below = (re.split(_GAP, cell.strip()) for cell in (before, line, after))
    numbers = any(re.match(_NUMBER, cell) for cell in cells)
    return (
        len(above) < 3 <= len(cells)
        and not numbers
        and any(re.match(_NUMBER, cell) for cell in below)
    )


def _in(text: str, style: str) -> str:
    """Return text in a style, but with plain leading spaces."""
    words = text.lstrip(" ")
    return f"{text[: len(text) - len(words)]}\x1b[{style}m{words}\x1b[0m" if words else text


def _whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield whole lines from pieces, so that a long report appears while it is being made."""
    kept = ""
    for piece in pieces:
        kept += piece
        if kept.endswith("\n"):
            yield kept
            kept = ""
    if kept:
        yield kept
