"""The knowledge base in the form that is used to match logs.

Parsing Markdown and TOML takes longer than diagnosing a small log. Therefore the parsed data is
packed into plain lists and cached in the user's cache folder. The name of the cached file depends
on the state of the source files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qnnmem.cache import digest
from qnnmem.doctor import cache
from qnnmem.doctor.kb.entry import COUNTED, Entry, Line
from qnnmem.doctor.kb.files import KbFiles, read_files
from qnnmem.errors import UsageError
from qnnmem.wire import ready

if TYPE_CHECKING:
    from qnnmem.doctor.kb.fold import SecondReading
    from qnnmem.doctor.kb.matcher import Matcher

BUILT_IN = Path(__file__).parent / "entries"

_FORMAT = 17
_MAX_LINES = 2000  # lines of one folder; the built-in folder has a thousand


class PackedKnowledge(msgspec.Struct, frozen=True):
    """Knowledge base in the form that is stored in the cache and sent to workers.

    Lists that have one item per line template are in the order of the templates.
    """

    format: int
    key: str  # changes with every field below
    signs: list[str]
    calls: list[str]
    opens: list[bool]
    texts: list[str]
    regexes: list[str]
    reads: dict[str, int]  # templates without a text, which come last, by their reading
    plain: list[str]  # text of templates without holes, in lower case
    holes: list[tuple[tuple[str, str], ...]]
    folded: msgspec.Raw  # list of `FoldedTemplate` in JSON: most logs need none of them
    anchors: dict[str, list[int]]  # fixed texts, with the templates that contain them
    prefilters: list[str]
    numbered: list[int]  # templates with a digit in their prefilter text or an anchor
    keys: dict[str, list[int]]  # search texts, with the anchors to look for in the same line
    entries: tuple[Entry, ...]  # without the texts for people
    tested: list[str]  # signs whose numbers a condition compares
    by_sign: dict[str, list[int]]  # entries that a sign can decide
    whys: dict[str, str]  # root cause of each entry, in a sentence or two


class Knowledge:
    """All line templates and entries, with indexes for matching lines and judging incidents."""

    def __init__(self, packed: PackedKnowledge, notes: tuple[str, ...] = ()) -> None:
        self.packed = packed
        self.notes = notes  # about skipped files
        self.key = packed.key
        self.signs, self.calls, self.opens = packed.signs, packed.calls, packed.opens
        self.texts, self.holes, self.anchors = packed.texts, packed.holes, packed.anchors
        self.prefilters, self.keys = packed.prefilters, packed.keys
        self.numbered = packed.numbered
        self.entries, self.by_sign = packed.entries, packed.by_sign
        self.tested = frozenset(packed.tested)
        self.reads = packed.reads
        self.read = frozenset(
            number for name, number in packed.reads.items() if not name.startswith("known ")
        )
        # Templates for errors of unknown text. `names` templates are not included, because a line
        # of known text can also name a cause.
        self.strange = frozenset(
            number
            for name, number in packed.reads.items()
            if not name.startswith(("known ", "names "))
        )
        self.counted = frozenset(
            number for number, holes in enumerate(packed.holes) if holes and holes[0][1] in COUNTED
        )
        self.prefilter_bytes = [text.encode() for text in packed.prefilters]
        self.plain = [text.encode() for text in packed.plain]
        # If a line matches only a single word that opens no incident, the rest of the line is still
        # examined.
        self.words = frozenset(
            number
            for number, text in enumerate(self.plain)
            if text and b" " not in text and not self.opens[number]
        )
        self._matchers: dict[int, Matcher] = {}

    @cached_property
    def excused(self) -> frozenset[int]:
        """Templates of lines that healthy runs can print; codes in such lines are ignored."""
        signs = {
            sign
            for entry in self.entries
            if entry.cause == "benign_noise"
            for sign in (*entry.explains, *(one for when in entry.whens for one in when.signs))
        }
        return frozenset(line for line, sign in enumerate(self.signs) if sign in signs)

    @cached_property
    def own(self) -> frozenset[int]:
        """Templates of a team's entries: a matching line counts as a line about QNN."""
        signs = {sign for sign, by in self.by_sign.items() if any(self.entries[n].own for n in by)}
        return frozenset(line for line, sign in enumerate(self.signs) if sign in signs)

    @cached_property
    def hints(self) -> frozenset[int]:
        """Templates that only support other lines; alone, they show neither failure nor success."""
        whens = [when for entry in self.entries for when in entry.whens]
        beside = {
            sign
            for when in whens
            for group in (when.signs, *when.needs, *when.after)
            for sign in group
        }
        beside.difference_update(*(when.unless for when in whens))
        return frozenset(
            line
            for line, (sign, opens) in enumerate(zip(self.signs, self.opens, strict=True))
            if sign in beside and not opens and line not in self.excused
        )

    @cached_property
    def code_lines(self) -> dict[int, int]:
        """For each template of a failed call, the template of a code next to that call."""
        asked = {call: self.reads.get(f"known {call} code") for call in set(self.calls) if call}
        return {
            line: number
            for line, (call, opens) in enumerate(zip(self.calls, self.opens, strict=True))
            if opens and (number := asked.get(call)) is not None
        }

    @cached_property
    def undeciding(self) -> frozenset[int]:
        """Templates of failures that decide no cause; a line's other words might name the cause."""
        deciding = {
            sign
            for entry in self.entries
            for when in entry.whens
            for sign in when.signs
            if entry.verdict == "cause" and not (when.where or when.needs or when.after)
        }
        return frozenset(
            line
            for line, (sign, opens) in enumerate(zip(self.signs, self.opens, strict=True))
            if opens and sign not in deciding
        )

    @cached_property
    def bare_calls(self) -> frozenset[int]:
        """Templates that name a failed call but decide no cause."""
        return self.undeciding.intersection(self.code_lines)

    @cached_property
    def end_lines(self) -> frozenset[int]:
        """Templates of lines that end a chain of errors: a failed call, a code, or both."""
        codes = (
            number
            for name, number in self.reads.items()
            if name.endswith("code") or name.startswith("known ")
        )
        return self.bare_calls.union(codes)

    @cached_property
    def second_reading(self) -> SecondReading:
        """Matcher for lines that spell a message differently from its template."""
        from qnnmem.doctor.kb.fold import FoldedTemplate, SecondReading

        return SecondReading(
            msgspec.json.decode(self.packed.folded, type=ready(list[FoldedTemplate]))
        )

    def matcher(self, line: int) -> Matcher:
        """Return a line template in compiled form; it is compiled on first use."""
        found = self._matchers.get(line)
        if found is None:
            from qnnmem.doctor.kb.matcher import Matcher

            found = self._matchers[line] = Matcher(self.packed.regexes[line])
        return found


def built_in() -> Knowledge:
    """Return the built-in knowledge base, from the cache if the cache is current.

    The result is also cached in this process, which might read many logs.
    """
    return _built_in(BUILT_IN)


@functools.lru_cache(maxsize=1)
def _built_in(_: Path) -> Knowledge:
    return _with_own(())


def with_own(paths: Sequence[Path | str]) -> Knowledge:
    """Return the built-in knowledge base with a team's own entries, which take precedence."""
    return _with_own(paths) if paths else built_in()


def _with_own(paths: Sequence[Path | str]) -> Knowledge:
    own = [read_files(path) for path in paths]
    notes = tuple(note for folder in own for note in folder.notes)
    name = cache.name_of("kb", facts(own), ".json")
    kept = cache.load(name)
    if kept is not None:
        try:
            packed = unpack(kept)
            if packed.format == _FORMAT and packed.key == name:
                return Knowledge(packed, notes)
        except msgspec.DecodeError:
            pass  # another format: parse the files again
    packed = pack(*_together(own), name)
    cache.keep(name, msgspec.json.encode(packed))
    return Knowledge(packed, notes)


def unpack(data: bytes) -> PackedKnowledge:
    """Decode a packed knowledge base from its JSON."""
    return msgspec.json.decode(data, type=ready(PackedKnowledge))


def read_all(paths: Sequence[Path | str]) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Return the line templates, built-in ones first, and the entries, a team's own first."""
    return _together([read_files(path) for path in paths])


def read_folder(path: Path | str, own: bool = False) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Read a folder or file; return its line templates that belong to no entry, and its entries."""
    return _parsed(read_files(path), own)


def _together(own: Sequence[KbFiles]) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    lines, entries = read_folder(BUILT_IN)
    for folder in own:
        more_lines, more = _parsed(folder, own=True)
        lines, entries = (*lines, *more_lines), (*more, *entries)
    return lines, entries


def _parsed(folder: KbFiles, own: bool) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    from qnnmem.doctor.kb.read import read_file

    lines: list[Line] = []
    entries: list[Entry] = []
    for name, data in folder.files:
        more_lines, more = read_file(data, name, own)
        lines += more_lines
        entries += more
    count = len(lines) + sum(len(entry.lines) for entry in entries)
    if count > _MAX_LINES:
        raise UsageError(
            f"the knowledge base has {count:,} line templates; the limit is {_MAX_LINES:,}"
        )
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise UsageError(f"two entries have the id '{entry.id}'")
        seen.add(entry.id)
    return tuple(lines), tuple(entries)


def pack(lines: Sequence[Line], entries: Sequence[Entry], key: str = "") -> PackedKnowledge:
    """Pack lines and entries into plain lists; raise UsageError for an unknown sign."""
    from qnnmem.doctor.kb import prefilter
    from qnnmem.doctor.kb.fold import folded, with_rarest
    from qnnmem.doctor.kb.sections import root_cause
    from qnnmem.doctor.kb.template import parse

    every = [*lines, *(line for entry in entries for line in entry.lines)]
    every.sort(key=lambda line: bool(line.reads))
    templates = [parse(line.text) for line in every if not line.reads]
    known = {line.sign for line in every}
    anchors: dict[str, list[int]] = {}
    for number, template in enumerate(templates):
        for anchor in template.anchors:
            anchors.setdefault(anchor, []).append(number)
    chosen = prefilter.choose(templates)
    forms = [form for number, one in enumerate(templates) for form in folded(number, one.text)]
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
        key=key or digest([repr((lines, entries)).encode("utf-8", "replace")]).hex(),
        signs=[line.sign for line in every],
        calls=[line.call for line in every],
        opens=[line.opens for line in every],
        texts=[template.text for template in templates],
        regexes=[template.regex for template in templates],
        reads={line.reads: number for number, line in enumerate(every) if line.reads},
        plain=[template.plain for template in templates],
        holes=[
            *(template.holes for template in templates),
            *(_read_holes(line) for line in every if line.reads),
        ],
        folded=msgspec.Raw(msgspec.json.encode(with_rarest(forms))),
        anchors=anchors,
        prefilters=chosen,
        numbered=[
            number
            for number, (one, text) in enumerate(zip(templates, chosen, strict=True))
            if any(map(_has_digit, (text, *one.anchors)))
        ],
        keys=prefilter.keys(templates, chosen, list(anchors)),
        entries=tuple(_for_judging(entry) for entry in entries),
        tested=sorted(tested),
        by_sign=by_sign,
        whys={entry.id: why for entry in entries if (why := root_cause(entry))},
    )


def _has_digit(text: str) -> bool:
    return any(digit in text for digit in "0123456789")


def _read_holes(line: Line) -> tuple[tuple[str, str], ...]:
    if line.reads.endswith(" limit"):
        return (("needed", "bytes"), ("limit", "bytes"))
    if line.reads.endswith(" needed"):
        return (("needed", "bytes"),)
    return (("code", "code"),) if line.reads.endswith("code") else ()


def _check_signs(entry: Entry, known: set[str]) -> None:
    used = set(entry.explains)
    for when in entry.whens:
        used.update(when.signs, when.unless, *when.needs, *when.after)
        used.update(test.sign for test in when.where if test.sign)
    if missing := sorted(used - known):
        raise UsageError(f"{entry.id}: no line template has the sign '{missing[0]}'")


def _for_judging(entry: Entry) -> Entry:
    """Return an entry without the parts that only people read."""
    return msgspec.structs.replace(entry, lines=(), body="", sources=())


def facts(own: Sequence[KbFiles] = ()) -> Iterator[bytes]:
    """Yield the data of the cache key: contents of a team's files and states of the built-in files.

    For the built-in files, the state (names, sizes and times) is enough: they come with the
    package, and reading their content takes longer.
    """
    from qnnmem.version import __version__

    yield f"{__version__} {_FORMAT} {BUILT_IN}".encode("utf-8", "surrogateescape")
    yield repr(_state_of(BUILT_IN)).encode("utf-8", "surrogateescape")
    for folder in own:
        yield b"folder"
        for name, data in folder.files:
            yield name.encode("utf-8", "surrogateescape")
            yield data


def _state_of(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Return names, sizes, times and inodes of files; the ctime shows even a forged mtime."""
    try:
        with os.scandir(folder) as found:
            states = [(item.name, item.stat()) for item in found]
    except OSError as exc:
        raise UsageError(f"{folder}: {exc.strerror or exc}") from exc
    return sorted(
        (name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        for name, state in states
    )
