"""Every key of one config file: known, in its place, given once, with an allowed value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from qnnmem.lpai.config.check import check_value
from qnnmem.lpai.config.json_positions import Document, JsonKind, JsonMember, JsonNode, Position
from qnnmem.lpai.config.schema import BY_PATH, FileKind, Key, file_of, keys_of
from qnnmem.results.lint import ConfigFinding, Severity
from qnnmem.text import nearest, quote

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
