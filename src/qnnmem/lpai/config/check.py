"""Checks of one config file: every key known, in its place, given once, with an allowed value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from qnnmem.lpai.config.json_positions import Document, JsonKind, JsonMember, JsonNode, Position
from qnnmem.lpai.config.schema import (
    BY_PATH,
    HTP_SECTIONS,
    KEYS,
    MEM_TYPE,
    FileKind,
    Key,
    file_of,
    keys_of,
)
from qnnmem.results.lint import ConfigFinding, Severity
from qnnmem.text import nearest, quote

# What the LPAI extension says about a bad mem_type: first its parser, then its allocator.
MEM_TYPE_MESSAGES = ("Invalid memory type", "Memory type only supports DDR & TCM")


@dataclass(frozen=True, slots=True)
class ValueFault:
    """Why a value cannot stand where it stands."""

    check: str
    sentence: str
    cure: str


def check_value(key: Key, node: JsonNode) -> ValueFault | None:
    """Says what is wrong with a value; None when it is allowed."""
    fault = _type_fault(key, node) or _value_fault(key, node)
    if fault is None or key.path != MEM_TYPE:
        return fault
    parser, allocator = MEM_TYPE_MESSAGES
    outcome = f'the run logs "{parser}", then "{allocator}", and initialisation fails'
    return ValueFault(fault.check, f"{fault.sentence}; {outcome}", fault.cure)


def _type_fault(key: Key, node: JsonNode) -> ValueFault | None:
    number_fits = key.kind is JsonKind.NUMBER and node.kind is JsonKind.WHOLE
    if node.kind is key.kind or number_fits:
        return None
    shown = show(node)
    return ValueFault("wrong-type", f"{shown} is not {key.kind.value}", _type_cure(key, node))


def _type_cure(key: Key, node: JsonNode) -> str:
    if isinstance(node.value, str) and _unquoted(key, node.value):
        return f"write {node.value} without quotes"
    if key.kind is JsonKind.FLAG and node.kind is JsonKind.WHOLE and node.value in (0, 1):
        return f"write {'true' if node.value else 'false'}"
    if key.values:
        return f"write one of {_listed(key.values)}"
    default = "" if key.default is None else f", e.g. {_json(key.default)}"
    return f"write {key.kind.value}{default}"


def _unquoted(key: Key, text: str) -> bool:
    if key.kind is JsonKind.FLAG:
        return text in ("true", "false")
    return key.kind is JsonKind.WHOLE and text.isascii() and text.isdigit() and len(text) <= 10


def _value_fault(key: Key, node: JsonNode) -> ValueFault | None:
    if key.kind is JsonKind.LIST:
        return _item_fault(key, node)
    if key.values and node.value not in key.values:
        return ValueFault(
            "bad-value", f"{show(node)} is not a value of this key", _value_cure(key, node)
        )
    if key.kind is JsonKind.TEXT and not node.value:
        return ValueFault("bad-value", "the text is empty", "fill it in or remove the key")
    if isinstance(node.value, float | int) and node.value < 0:
        return ValueFault("bad-value", f"{show(node)} is below 0", "write 0 or more")
    if key.kind is JsonKind.WHOLE and isinstance(node.value, int) and node.value > key.high:
        return ValueFault("bad-value", f"{show(node)} is too large", f"write at most {key.high}")
    return None


def _value_cure(key: Key, node: JsonNode) -> str:
    near = nearest(str(node.value), key.values)
    wish = f"write {_json(near)}, or " if near else "write "
    others = [value for value in key.values if value != near]
    return f"{wish}{'' if near else 'one of '}{_listed(others)}"


def _item_fault(key: Key, node: JsonNode) -> ValueFault | None:
    for number, item in enumerate(node.items):
        if key.item is not None and item.kind is not key.item:
            sentence = f"entry {number} is {show(item)}, not {key.item.value}"
            return ValueFault("wrong-type", sentence, f"write {key.item.value} for each entry")
    return None


def show(node: JsonNode) -> str:
    """A value for a sentence, short and escaped."""
    if node.kind is JsonKind.FLAG:
        return "true" if node.value else "false"
    if node.kind is JsonKind.NUMBER:
        return f"{node.value:g}"
    return node.kind.value if node.value is None else quote(node.value)


def _listed(values: tuple[str, ...] | list[str]) -> str:
    return " or ".join(_json(value) for value in values)


def _json(value: object) -> str:
    import json

    return json.dumps(value)


def setting(root: JsonNode, path: str) -> str | int | float | bool | None:
    """The value a run would use: the file's, the default if absent, None if it is not allowed."""
    key, node = BY_PATH[path], root.find(path)
    if node is None:
        return key.default
    return node.value if check_value(key, node) is None else None


def classify(root: JsonNode) -> FileKind:
    """Tells from the outermost keys what a file is."""
    names = [member.name for member in root.members[:1000]]
    scores = {kind: sum(_likeness(name, kind) for name in names) for kind in KEYS}
    best = max(scores, key=lambda kind: scores[kind])
    if scores[best]:
        return best
    return FileKind.HTP if any(name in HTP_SECTIONS for name in names) else FileKind.UNKNOWN


def _likeness(name: str, kind: FileKind) -> int:
    sections = keys_of("", kind)
    if name in sections:
        return 4  # worth more than any misplaced or misspelt key
    if any(key.name == name for key in KEYS[kind]):
        return 1
    return int(name not in HTP_SECTIONS and nearest(name, list(sections)) is not None)


def is_htp_library(name: str) -> bool:
    """Whether a library's name says that it is the HTP's extension."""
    return "htp" in name.lower().replace("\\", "/").rpartition("/")[2]


# A hostile file may hold 100,000 unknown keys; more than this is of no use to a reader.
MAX_FINDINGS = 100
_PLAIN = re.compile(r"\w{1,60}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Finder:
    """Makes findings about one file."""

    file: str
    kind: FileKind

    def error(
        self, at: Position | None, key: str, check: str, text: str, cure: str
    ) -> ConfigFinding:
        """Something that makes a run fail or a setting have no effect."""
        return self._make(Severity.ERROR, at, key, check, text, cure)

    def warning(
        self, at: Position | None, key: str, check: str, text: str, cure: str
    ) -> ConfigFinding:
        """Something that is probably not what was meant."""
        return self._make(Severity.WARNING, at, key, check, text, cure)

    def note(
        self, at: Position | None, key: str, check: str, text: str, cure: str
    ) -> ConfigFinding:
        """Something that cannot be checked here."""
        return self._make(Severity.NOTE, at, key, check, text, cure)

    def _make(
        self, severity: Severity, at: Position | None, key: str, check: str, text: str, cure: str
    ) -> ConfigFinding:
        line, column = (None, None) if at is None else (at.line, at.column)
        return ConfigFinding(self.file, line, column, severity, key, check, text, cure)


def check_keys(document: Document, find: Finder) -> list[ConfigFinding]:
    """Findings about the text and every key, at most a hundred."""
    found = [
        find.error(issue.at, "", "not-json", issue.sentence, issue.cure)
        for issue in islice(document.issues, MAX_FINDINGS)
    ]
    if find.kind in (FileKind.TOOL, FileKind.LPAI):
        found += islice(_section(document.root, "", "", find), MAX_FINDINGS + 1 - len(found))
    if len(found) > MAX_FINDINGS:
        text = f"there are more than {MAX_FINDINGS} findings, the rest is not shown"
        found[MAX_FINDINGS:] = [find.error(None, "", "too-many", text, "fix these first")]
    return found


def _section(node: JsonNode, section: str, shown: str, find: Finder) -> Iterator[ConfigFinding]:
    """Walks over one object; `section` is its path in the tables, `shown` the one for people."""
    known = keys_of(section, find.kind)
    first: dict[str, Position] = {}
    for member in node.members:
        path = join(shown, member.name)
        if member.name in first:
            text = f"given again, first on line {first[member.name].line}"
            yield find.error(member.at, path, "duplicate-key", text, "keep one of them")
        first.setdefault(member.name, member.at)
        if member.name in known:
            yield from _value(known[member.name], member.node, path, find)
        else:
            yield _unknown_key(member, known, path, find)


def _value(key: Key, node: JsonNode, shown: str, find: Finder) -> Iterator[ConfigFinding]:
    fault = check_value(key, node)
    if fault is not None:
        yield find.error(node.at, shown, fault.check, fault.sentence, fault.cure)
    if node.kind is not key.kind or key.open:
        return
    if node.kind is JsonKind.OBJECT:
        yield from _section(node, key.path, shown, find)
    for number, item in enumerate(node.items):
        if item.kind is JsonKind.OBJECT:
            yield from _section(item, f"{key.path}[]", f"{shown}[{number}]", find)


def _unknown_key(
    member: JsonMember, known: dict[str, Key], path: str, find: Finder
) -> ConfigFinding:
    """A key that does not belong here: known elsewhere, misspelt, or simply unknown."""
    home = next((key for key in BY_PATH.values() if key.name == member.name), None)
    if home is not None:
        where = home.section or "the outermost object"
        other = "" if file_of(home) is find.kind else f" of the {file_of(home).value}"
        text = f"{member.name} belongs in {where}{other}; here it has no effect"
        return find.error(member.at, path, "misplaced-key", text, f"move it to {where}{other}")
    text = "not a known key; the tools silently drop such keys"
    near = nearest(member.name, list(known))
    if near is not None:
        return find.warning(member.at, path, "unknown-key", text, f"did you mean {near}?")
    return find.warning(member.at, path, "unknown-key", text, _far_cure(member.name, known))


def _far_cure(name: str, known: dict[str, Key]) -> str:
    """Looks for a similar key in all sections before listing those of this one."""
    by_name = {key.name: key for key in BY_PATH.values()}
    near = nearest(name, list(by_name))
    if near is not None:
        return f"did you mean {by_name[near].path}?"
    return f"remove it, or use one of {', '.join(known)}"


def join(section: str, name: str) -> str:
    """The dotted path of a key, safe to show whatever the file calls it."""
    shown = name if _PLAIN.fullmatch(name) else quote(name)
    return f"{section}.{shown}" if section else shown
