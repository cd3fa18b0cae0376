"""The knowledge base in the form in which logs are matched against it.

Reading Markdown and TOML takes longer than diagnosing a small log, so what is read is packed into
plain lists and kept in the user's cache folder under a name that changes with the files.
"""

from __future__ import annotations

import json
import os
import re
import zlib

from qnnmem.doctor import cache
from qnnmem.doctor.kb.entry import Condition, Entry, Line, When
from qnnmem.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

BUILT_IN = os.path.join(os.path.dirname(__file__), "entries")  # noqa: PTH118, PTH120

_FORMAT = 7
_MAX_FILE = 1 << 20
_MAX_FILES = 2000


class Knowledge:
    """All lines and entries, indexed the way matching and judging need them."""

    def __init__(self, packed: dict[str, Any]) -> None:
        self.packed = packed  # all of it as plain lists, for workers elsewhere
        self.signs: list[str] = packed["signs"]  # of each line template, by its number
        self.calls: list[str] = packed["calls"]
        self.opens: list[bool] = packed["opens"]
        self.texts: list[str] = packed["texts"]
        self.holes: list[list[list[str]]] = packed["holes"]
        self.anchors: dict[str, list[int]] = packed["anchors"]
        # Of loose lines: groups of words of which one must stand in the line.
        self.also = {
            int(line): [[word.encode() for word in group] for group in groups]
            for line, groups in packed["also"].items()
        }
        self.gates: list[str] = packed["gates"]  # of each line template
        self.gate = [gate.encode() for gate in self.gates]
        self.keys: dict[str, list[int]] = packed["keys"]  # texts, with the anchors to look for
        self._entries: list[str] = packed["entries"]  # each as JSON: few are ever needed
        self.tested: frozenset[str] = frozenset(packed["tested"])
        self.by_sign: dict[str, list[int]] = packed["by_sign"]  # entries that a sign can decide
        self._regexes: list[str] = packed["regexes"]
        # Of templates that are nothing but text, that text in small letters; else empty.
        self.plain = [text.encode() for text in packed["plain"]]
        self._compiled: dict[int, re.Pattern[bytes]] = {}
        self._made: dict[int, Entry] = {}
        self.key: int = packed["key"]  # changes with everything above

    def pattern(self, line: int) -> re.Pattern[bytes]:
        """The compiled template of a line; compiled when first needed."""
        found = self._compiled.get(line)
        if found is None:
            regex = self._regexes[line].encode("ascii")
            found = self._compiled[line] = re.compile(regex, re.IGNORECASE)
        return found

    def entry(self, index: int) -> Entry:
        """One entry, without its body."""
        found = self._made.get(index)
        if found is None:
            found = self._made[index] = _unpack(json.loads(self._entries[index]))
        return found

    def __len__(self) -> int:
        return len(self._entries)


def built_in() -> Knowledge:
    """The knowledge base that comes with the package, from the cache when that is current."""
    return with_own(())


def with_own(paths: Sequence[Path | str]) -> Knowledge:
    """The built-in knowledge base and a team's own entries, which speak first."""
    key = _key_of([BUILT_IN, *map(str, paths)])
    name = f"kb-{key:08x}.json"
    try:
        packed = json.loads(cache.load(name) or b"{}")
        if packed["format"] == _FORMAT and packed["key"] == key:
            return Knowledge(packed)
    except (ValueError, KeyError, TypeError):
        pass  # not there yet, or damaged: made anew
    packed = pack(*read_all(paths), key)
    cache.keep(name, json.dumps(packed, separators=(",", ":")).encode())
    return Knowledge(packed)


def read_all(paths: Sequence[Path | str]) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Common lines and entries of the built-in base and of a team's, the team's entries first."""
    lines, entries = read_folder(BUILT_IN)
    for path in paths:
        more_lines, more = read_folder(path, own=True)
        lines, entries = (*lines, *more_lines), (*more, *entries)
    return lines, entries


def read_folder(path: Path | str, own: bool = False) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Common lines and entries of a folder of Markdown files, or of one such file."""
    from pathlib import Path

    from qnnmem.doctor.kb.read import read_entries, read_lines

    lines: tuple[Line, ...] = ()
    entries: list[Entry] = []
    for file in _files(Path(path)):
        text = _read(file)
        if file.suffix == ".toml":
            lines += read_lines(text, file.name)
        else:
            entries += read_entries(text, file.name, own)
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise UsageError(f"two entries are called '{entry.id}'")
        seen.add(entry.id)
    return lines, tuple(entries)


def pack(lines: Sequence[Line], entries: Sequence[Entry], key: int) -> dict[str, Any]:
    """Everything as plain lists; refuses conditions about signs that no line gives."""
    from qnnmem.doctor.kb.template import parse
    from qnnmem.doctor.logs import prefilter

    every = [*lines, *(line for entry in entries for line in entry.lines)]
    templates = [parse(line.text) for line in every]
    known = {line.sign for line in every}
    anchors: dict[str, list[int]] = {}
    for number, template in enumerate(templates):
        for anchor in template.anchors:
            anchors.setdefault(anchor, []).append(number)
    chosen = prefilter.choose(templates)
    by_sign: dict[str, list[int]] = {}
    tested: set[str] = set()
    for number, entry in enumerate(entries):
        _check_signs(entry, known)
        for when in entry.whens:
            for sign in when.signs:
                if number not in by_sign.setdefault(sign, []):
                    by_sign[sign].append(number)
                tested.update(test.sign or sign for test in when.where)
    return {
        "format": _FORMAT,
        "key": key or zlib.crc32(repr((lines, entries)).encode()),
        "signs": [line.sign for line in every],
        "calls": [line.call for line in every],
        "opens": [line.opens for line in every],
        "texts": [line.text for line in every],
        "regexes": [template.regex for template in templates],
        "also": {
            str(number): [group.lower().split("|") for group in line.also]
            for number, line in enumerate(every)
            if line.also
        },
        "plain": [template.plain for template in templates],
        "holes": [[list(hole) for hole in template.holes] for template in templates],
        "anchors": anchors,
        "gates": chosen,
        "keys": prefilter.keys(templates, chosen, list(anchors)),
        "entries": [json.dumps(_plain(entry)) for entry in entries],
        "tested": sorted(tested),
        "by_sign": by_sign,
    }


def _check_signs(entry: Entry, known: set[str]) -> None:
    used = set(entry.explains)
    for when in entry.whens:
        used.update(when.signs, when.unless, *when.needs, *when.after)
        used.update(test.sign for test in when.where if test.sign)
    if missing := sorted(used - known):
        raise UsageError(f"{entry.id}: no line gives the sign '{missing[0]}'")


def _plain(entry: Entry) -> list[Any]:
    """An entry without what only people read."""
    return list(entry._replace(lines=(), body="", sources=()))


def _unpack(row: Sequence[Any]) -> Entry:
    entry = Entry(*row)
    return entry._replace(
        whens=tuple(_unpack_when(when) for when in entry.whens),
        lines=(),
        sources=(),
        over=tuple(entry.over),
        explains=tuple(entry.explains),
        remedies=tuple(entry.remedies),
        collect=tuple(entry.collect),
        candidates=tuple((cause, score) for cause, score in entry.candidates),
    )


def _unpack_when(row: Sequence[Any]) -> When:
    signs, where, needs, after, unless = row
    return When(
        tuple(signs),
        tuple(Condition(sign, name, op, tuple(values)) for sign, name, op, values in where),
        tuple(map(tuple, needs)),
        tuple(map(tuple, after)),
        tuple(unless),
    )


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder of the knowledge base")
    if path.is_file():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix in (".md", ".toml") and p.is_file())
    if not found or len(found) > _MAX_FILES:
        raise UsageError(f"{path}: a knowledge base has 1 to {_MAX_FILES} Markdown files")
    return found


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_FILE:
            raise UsageError(f"{file.name}: larger than {_MAX_FILE:,} bytes")
        return file.read_text("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError(f"{file.name}: not UTF-8 text") from exc
    except OSError as exc:
        raise UsageError(f"{file.name}: {exc.strerror or exc}") from exc


def _key_of(paths: Sequence[str]) -> int:
    """A number that changes when a file does; names, sizes and times are enough for that."""
    from qnnmem.version import __version__

    rows: list[tuple[str, int, int]] = []
    for path in paths:
        try:
            if os.path.isdir(path):  # noqa: PTH112 - pathlib is slow to import
                with os.scandir(path) as found:
                    rows += sorted(_state(item.path, item.stat()) for item in found)
            else:
                rows.append(_state(path, os.stat(path)))  # noqa: PTH116 - as above
        except OSError as exc:
            raise UsageError(f"{path}: {exc.strerror or exc}") from exc
    return zlib.crc32(repr((__version__, _FORMAT, rows)).encode())


def _state(path: str, state: os.stat_result) -> tuple[str, int, int]:
    return path, state.st_size, state.st_mtime_ns
