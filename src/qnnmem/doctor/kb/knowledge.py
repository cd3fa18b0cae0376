"""The knowledge base in the form in which logs are matched against it.

Reading Markdown and TOML takes longer than diagnosing a small log, so what is read is packed into
plain lists and kept in the user's cache folder under a name that changes with the files.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qnnmem.doctor import cache
from qnnmem.doctor.kb.entry import Entry, Line
from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from qnnmem.doctor.kb.matcher import Matcher

BUILT_IN = Path(__file__).parent / "entries"

_FORMAT = 11
_MAX_FILE = 1 << 20
_MAX_FILES = 2000


class PackedKnowledge(msgspec.Struct, frozen=True):
    """A knowledge base as it is kept in the cache and sent to workers.

    Lists with one item for each line template are in the order of the templates.
    """

    format: int
    key: int  # changes with everything below
    signs: list[str]
    calls: list[str]
    opens: list[bool]
    texts: list[str]
    regexes: list[str]
    also: dict[int, list[list[str]]]  # of loose lines: groups of words, one of each in the line
    plain: list[str]  # of templates that are nothing but text, that text in small letters
    holes: list[tuple[tuple[str, str], ...]]
    anchors: dict[str, list[int]]  # fixed texts, with the templates that hold them
    prefilters: list[str]
    keys: dict[str, list[int]]  # texts, with the anchors to look for where they stand
    entries: tuple[Entry, ...]  # without what only people read
    tested: list[str]  # signs whose numbers a condition compares
    by_sign: dict[str, list[int]]  # entries that a sign can decide


class Knowledge:
    """All lines and entries, indexed the way matching and judging need them."""

    def __init__(self, packed: PackedKnowledge) -> None:
        self.packed = packed
        self.key = packed.key
        self.signs, self.calls, self.opens = packed.signs, packed.calls, packed.opens
        self.texts, self.holes, self.anchors = packed.texts, packed.holes, packed.anchors
        self.prefilters, self.keys = packed.prefilters, packed.keys
        self.entries, self.by_sign = packed.entries, packed.by_sign
        self.tested = frozenset(packed.tested)
        groups: dict[str, list[bytes]] = {}  # one list for the same words: a line is asked once
        for group in chain.from_iterable(packed.also.values()):
            groups["|".join(group)] = [word.encode() for word in group]
        self.also = {
            line: [groups["|".join(group)] for group in rows] for line, rows in packed.also.items()
        }
        self.prefilter_bytes = [text.encode() for text in packed.prefilters]
        self.plain = [text.encode() for text in packed.plain]
        self._matchers: dict[int, Matcher] = {}

    def matcher(self, line: int) -> Matcher:
        """The template of a line ready for matching; made when first needed."""
        found = self._matchers.get(line)
        if found is None:
            from qnnmem.doctor.kb.matcher import Matcher

            found = self._matchers[line] = Matcher(self.packed.regexes[line])
        return found


def built_in() -> Knowledge:
    """The knowledge base that comes with the package, from the cache when that is current."""
    return with_own(())


def with_own(paths: Sequence[Path | str]) -> Knowledge:
    """The built-in knowledge base and a team's own entries, which speak first."""
    key = _key_of([BUILT_IN, *map(Path, paths)])
    name = f"kb-{key:08x}.json"
    kept = cache.load(name)
    if kept is not None:
        try:
            packed = unpack(kept)
            if packed.format == _FORMAT and packed.key == key:
                return Knowledge(packed)
        except msgspec.DecodeError:
            pass  # damaged: made anew
    packed = pack(*read_all(paths), key)
    cache.keep(name, msgspec.json.encode(packed))
    return Knowledge(packed)


def unpack(data: bytes) -> PackedKnowledge:
    """A packed knowledge base from its JSON."""
    return msgspec.json.decode(data, type=PackedKnowledge)


def read_all(paths: Sequence[Path | str]) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Common lines and entries of the built-in base and of a team's, the team's entries first."""
    lines, entries = read_folder(BUILT_IN)
    for path in paths:
        more_lines, more = read_folder(path, own=True)
        lines, entries = (*lines, *more_lines), (*more, *entries)
    return lines, entries


def read_folder(path: Path | str, own: bool = False) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Common lines and entries of a folder of Markdown files, or of one such file."""
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


def pack(lines: Sequence[Line], entries: Sequence[Entry], key: int) -> PackedKnowledge:
    """Everything as plain lists; refuses conditions about signs that no line gives."""
    from qnnmem.doctor.kb import prefilter
    from qnnmem.doctor.kb.template import parse

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
    return PackedKnowledge(
        format=_FORMAT,
        key=key or zlib.crc32(repr((lines, entries)).encode()),
        signs=[line.sign for line in every],
        calls=[line.call for line in every],
        opens=[line.opens for line in every],
        texts=[line.text for line in every],
        regexes=[template.regex for template in templates],
        also={
            number: [group.lower().split("|") for group in line.also]
            for number, line in enumerate(every)
            if line.also
        },
        plain=[template.plain for template in templates],
        holes=[template.holes for template in templates],
        anchors=anchors,
        prefilters=chosen,
        keys=prefilter.keys(templates, chosen, list(anchors)),
        entries=tuple(_for_judging(entry) for entry in entries),
        tested=sorted(tested),
        by_sign=by_sign,
    )


def _check_signs(entry: Entry, known: set[str]) -> None:
    used = set(entry.explains)
    for when in entry.whens:
        used.update(when.signs, when.unless, *when.needs, *when.after)
        used.update(test.sign for test in when.where if test.sign)
    if missing := sorted(used - known):
        raise UsageError(f"{entry.id}: no line gives the sign '{missing[0]}'")


def _for_judging(entry: Entry) -> Entry:
    """An entry without what only people read."""
    return msgspec.structs.replace(entry, lines=(), body="", sources=())


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


def _key_of(paths: Sequence[Path]) -> int:
    """A number that changes when a file does; names, sizes and times are enough for that."""
    from qnnmem.version import __version__

    rows: list[tuple[str, int, int]] = []
    for path in paths:
        try:
            rows += _states(path)
        except OSError as exc:
            raise UsageError(f"{path}: {exc.strerror or exc}") from exc
    return zlib.crc32(repr((__version__, _FORMAT, rows)).encode())


def _states(path: Path) -> list[tuple[str, int, int]]:
    if not path.is_dir():
        return [_state(str(path), path.stat())]
    with os.scandir(path) as found:
        return sorted(_state(item.path, item.stat()) for item in found)


def _state(path: str, state: os.stat_result) -> tuple[str, int, int]:
    return path, state.st_size, state.st_mtime_ns
