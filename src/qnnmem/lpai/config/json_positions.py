"""JSON text of a config file with the position of every key and value.

Python's own reader stores no positions and drops repeated keys. Users need the positions and all
keys. Comments and stray commas are skipped and recorded, so that one mistake does not hide others.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError
from qnnmem.text import quote

MAX_FILE = 1 << 20  # the documented examples have less than 1 KB
MAX_DEPTH = 64
_MAX_NUMBER = 40  # characters

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(
    r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"', re.ASCII
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_WORD = re.compile(r"[+-]?[A-Za-z0-9_.$][\w.$+-]*", re.ASCII)
_FOREIGN = {"True": "true", "False": "false", "None": "null", "nil": "null", "TRUE": "true"}


class JsonKind(Enum):
    """The type of a JSON value, as a phrase."""

    OBJECT = "an object"
    LIST = "a list"
    TEXT = "a string"
    WHOLE = "a whole number"
    NUMBER = "a number"
    FLAG = "true or false"
    NULL = "null"


class Position(Struct, frozen=True):
    """Line and column in a file, both counted from 1."""

    line: int
    column: int


class JsonNode(Struct, frozen=True):
    """A value in a JSON text."""

    kind: JsonKind
    at: Position
    value: str | int | float | bool | None = None
    members: tuple[JsonMember, ...] = ()
    items: tuple[JsonNode, ...] = ()

    def get(self, name: str) -> JsonMember | None:
        """Return the last member with this name, as most JSON readers do; None if there is none."""
        return next((m for m in reversed(self.members) if m.name == name), None)

    def find(self, path: str) -> JsonNode | None:
        """Return the value at a dotted path; None if a step is missing or not an object."""
        node: JsonNode | None = self
        for name in path.split("."):
            member = None if node is None else node.get(name)
            node = None if member is None else member.node
        return node


class JsonMember(Struct, frozen=True):
    """A key of an object and its value."""

    name: str
    at: Position
    node: JsonNode


class SyntaxIssue(Struct, frozen=True):
    """A syntax error that was skipped."""

    at: Position
    sentence: str
    cure: str


class Document(Struct, frozen=True):
    """The content of a config file."""

    path: Path
    root: JsonNode  # always an object
    issues: tuple[SyntaxIssue, ...]


def read_document(path: Path) -> Document:
    """Return the content of a config file; raise LoadError if it is not one JSON object."""
    content = read_bytes(path, MAX_FILE)
    if b"\0" in content:
        raise LoadError(path, "is not a config file: it contains NUL bytes, but JSON is UTF-8 text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise LoadError(
            path, f"is not UTF-8 text (byte {exc.start}); save it again as UTF-8"
        ) from exc
    reader = _Reader(path, text)
    return Document(path, reader.document(), tuple(reader.issues))


def read_strictly(path: Path) -> Document:
    """Return the content of a config file; raise LoadError also for comments and stray commas.

    The tools accept no comments either.
    """
    document = read_document(path)
    if document.issues:
        issue = document.issues[0]
        raise LoadError(path, f"line {issue.at.line}: {issue.sentence}; {issue.cure}")
    return document


@dataclass(slots=True)
class _Reader:
    """Parser of a config file's text."""

    path: Path
    text: str
    spot: int = 0
    issues: list[SyntaxIssue] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # offsets of line starts

    def __post_init__(self) -> None:
        self.starts = [0, *(m.end() for m in re.finditer("\n", self.text))]

    def place(self, spot: int) -> Position:
        line = bisect_right(self.starts, spot)
        return Position(line, spot - self.starts[line - 1] + 1)

    def fail(self, reason: str, spot: int | None = None) -> NoReturn:
        position = self.place(self.spot if spot is None else spot)
        raise LoadError(self.path, f"line {position.line}, column {position.column}: {reason}")

    def issue(self, offset: int, sentence: str, cure: str) -> None:
        if len(self.issues) < 100:  # enough to report
            self.issues.append(SyntaxIssue(self.place(offset), sentence, cure))

    def peek(self) -> str:
        """Skip space and comments; return the next character, or '' at the end of the text."""
        while True:
            self.spot = self._after(_SPACE)
            comment = _COMMENT.match(self.text, self.spot)
            if comment is None:
                return self.text[self.spot : self.spot + 1]
            self.issue(
                self.spot,
                "comments are not allowed in JSON",
                "remove the comment; the tools reject the file",
            )
            self.spot = comment.end()

    def _after(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.spot)
        return self.spot if match is None else match.end()

    def document(self) -> JsonNode:
        if not self.peek():
            self.fail("the file contains only white space")
        if self.peek() != "{":
            kind = {"[": "a list", '"': "a string"}.get(self.peek(), "this")
            self.fail(f"a config file is one JSON object in braces, not {kind}", 0)
        root = self.value(1)
        if self.peek():
            self.fail("text follows the end of the object; a brace might be closed too early")
        return root

    def value(self, depth: int) -> JsonNode:
        if depth > MAX_DEPTH:
            self.fail(f"the nesting is deeper than {MAX_DEPTH} levels")
        first = self.peek()
        position = self.place(self.spot)
        if first == "{":
            return JsonNode(JsonKind.OBJECT, position, members=self.members(depth))
        if first == "[":
            return JsonNode(JsonKind.LIST, position, items=self.items(depth))
        if first == '"':
            return JsonNode(JsonKind.TEXT, position, self.string())
        return self.scalar(position)

    def members(self, depth: int) -> tuple[JsonMember, ...]:
        members: list[JsonMember] = []
        opened = self.spot
        self.spot += 1
        while self.more("}", opened, bool(members)):
            spot = self.spot
            name = self.name()
            if self.peek() != ":":
                self.fail(self.ended(opened) or f"a colon is missing after {quote(name)}")
            self.spot += 1
            members.append(JsonMember(name, self.place(spot), self.value(depth + 1)))
        return tuple(members)

    def items(self, depth: int) -> tuple[JsonNode, ...]:
        items: list[JsonNode] = []
        opened = self.spot
        self.spot += 1
        while self.more("]", opened, bool(items)):
            items.append(self.value(depth + 1))
        return tuple(items)

    def more(self, closing: str, opened: int, started: bool) -> bool:
        """Skip a comma or the closing bracket; return whether another entry follows."""
        following = self.peek()
        if started and following == ",":
            comma = self.spot
            self.spot += 1
            following = self.peek()
            if following == closing:
                self.issue(
                    comma,
                    f"a comma before the closing {closing} is not allowed in JSON",
                    "remove the comma; the tools reject the file",
                )
            started = False
        if following == closing:
            self.spot += 1
            return False
        if following == "" or started:
            self.fail(self.ended(opened) or f"a comma or {closing} is missing here")
        return True

    def ended(self, opened: int) -> str:
        """Return an error message if the text ends while a bracket is open, otherwise ''."""
        if self.spot < len(self.text):
            return ""
        return (
            f"the file ends inside the object or list that began on line {self.place(opened).line}"
        )

    def name(self) -> str:
        if self.peek() == '"':
            return self.string()
        word = _WORD.match(self.text, self.spot)
        if word is not None:
            self.fail(f"the key {quote(word[0])} needs double quotes")
        return self.fail(self.unexpected("a key in double quotes"))

    def string(self) -> str:
        match = _STRING.match(self.text, self.spot)
        if match is None:
            self.fail("a string is not closed on its line or has an invalid escape")
        self.spot = match.end()
        return str(json.loads(match[0]))

    def scalar(self, position: Position) -> JsonNode:
        word = _WORD.match(self.text, self.spot)
        text = "" if word is None else word[0]
        if text in ("true", "false", "null"):
            self.spot += len(text)
            if text == "null":
                return JsonNode(JsonKind.NULL, position)
            return JsonNode(JsonKind.FLAG, position, text == "true")
        number = _NUMBER.fullmatch(text)
        if number is None:
            self.fail(_word_fault(text) if text else self.unexpected("a value"))
        if len(text) > _MAX_NUMBER:
            self.fail(f"a number with {len(text)} characters is too long")
        self.spot += len(text)
        if number[1] or number[2]:
            return JsonNode(JsonKind.NUMBER, position, float(text))
        return JsonNode(JsonKind.WHOLE, position, int(text))

    def unexpected(self, wanted: str) -> str:
        """Return an error message about the next character, which does not begin `wanted`."""
        character = self.text[self.spot : self.spot + 1]
        if character == "":
            return f"the file ends where {wanted} is expected"
        if character == "'":
            return "a string is in single quotes; JSON uses double quotes"
        if self.text.startswith("/*", self.spot):
            return "a comment is never closed"
        return f"{quote(character)} is found where {wanted} is expected"


def _word_fault(word: str) -> str:
    """Return an error message about a word that is not a JSON value."""
    if word in _FOREIGN:
        return f"{word} is written {_FOREIGN[word]} in JSON"
    if word.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        return f"{quote(word)} is not a JSON number"
    if word[0] in "+-." or word[0].isdigit():
        return f"{quote(word)} is not a valid JSON number"
    return f"{quote(word)} needs double quotes"
