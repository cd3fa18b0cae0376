"""Checks of knowledge base entries.

form       files are valid; signs, causes, headings and the entries named in `over` exist
own words  an entry's typical logs match that entry
real logs  every built-in entry matches a stored log, unless it has `documented = true`
silence    no stored log of a healthy run becomes an incident
answers    each stored failure matches its expected entry
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from qnnmem.doctor.judge import Judgement, SeenTemplate, judge
from qnnmem.doctor.kb.entry import OPEN_CAUSES, Entry
from qnnmem.doctor.kb.files import read_files
from qnnmem.doctor.kb.knowledge import Knowledge, pack, read_all
from qnnmem.doctor.kb.sections import own_lines, typical_lines
from qnnmem.doctor.kb.stored import cases, healthy
from qnnmem.doctor.logs.line import Found, bare_line, match, read_failure
from qnnmem.errors import UsageError
from qnnmem.results.kb import EntryFinding, KbCheckResult

# An anchor that occurs in more than 1 of 50 healthy lines makes the search of large logs slow.
_RARE = 50


def check(own: Sequence[Path] = ()) -> KbCheckResult:
    """Check the built-in entries, or only a team's entries if `own` names their files."""
    lines, entries = read_all(own)
    knowledge = Knowledge(pack(lines, entries))
    asked = [entry for entry in entries if entry.own] if own else list(entries)
    findings = [
        *_names(asked, entries),
        *(one for entry in asked for one in _own_words(entry, knowledge)),
        *_silence(knowledge, {entry.id for entry in asked}),
        *([] if own else _answers(knowledge)),
        *([] if own else _real_logs(asked, spoken(knowledge))),
    ]
    return KbCheckResult(
        passes=not findings,
        entries=len(asked),
        templates=sum(len(entry.lines) for entry in asked),
        cases=len(cases()),
        healthy=len(healthy()),
        documented=sum(entry.documented for entry in asked),
        findings=tuple(findings),
        notes=(*_left_out(own), *_unseen_signs(asked, knowledge), *_common_anchors(asked)),
    )


def see(knowledge: Knowledge, lines: Iterable[str]) -> list[SeenTemplate]:
    """Return the templates that lines of one incident match, in order of first occurrence."""
    seen: dict[int, SeenTemplate] = {}
    read = _reader(knowledge)
    for line in lines:
        for number, values in read(line):
            before = seen.get(number)
            if before is None:
                seen[number] = SeenTemplate(number, 1, values)
            else:
                seen[number] = SeenTemplate(number, before.times + 1, before.values)
    return list(seen.values())


@functools.lru_cache(maxsize=1)
def _reader(knowledge: Knowledge) -> Callable[[str], Sequence[Found]]:
    """Return a memoized function that finds the templates that match a line."""
    anchors = [(anchor.encode(), ns) for anchor, ns in knowledge.anchors.items()]
    keys = [(key.encode(), [anchors[n] for n in ns]) for key, ns in knowledge.keys.items()]

    @functools.cache
    def read(line: str) -> Sequence[Found]:
        text = bare_line(line.encode("utf-8", "surrogateescape"))
        low = text.lower()
        there = (behind for key, behind in keys if key in low)
        numbers = {n for behind in there for anchor, ns in behind if anchor in low for n in ns}
        found = match(knowledge, text, sorted(numbers))
        if all(number in knowledge.words for number, _ in found):
            found += read_failure(knowledge, text)
        return tuple(found)

    return read


def judged(knowledge: Knowledge, lines: Iterable[str]) -> Judgement | None:
    """Return the judgement of lines; None if no line matches a template."""
    seen = see(knowledge, lines)
    return judge(knowledge, seen) if seen else None


def _left_out(own: Iterable[Path]) -> Iterator[EntryFinding]:
    for path in own:
        yield from (EntryFinding(str(path), note) for note in read_files(path).notes)


def _names(asked: Iterable[Entry], entries: Iterable[Entry]) -> Iterator[EntryFinding]:
    known = {entry.id for entry in entries}
    for entry in asked:
        for name in entry.over:
            if name not in known:
                yield EntryFinding(entry.id, f"`over` names '{name}', which is not an entry")
        open_ended = entry.verdict != "cause" and not entry.typical and not entry.own
        if open_ended and not entry.collect:
            yield EntryFinding(
                entry.id,
                ("the entry does not decide the cause, so `collect` must list what to collect"),
            )
        if entry.cause != "benign_noise" and not entry.remedies and entry.verdict == "cause":
            yield EntryFinding(entry.id, "the entry names a cause but no remedy")


def _own_words(entry: Entry, knowledge: Knowledge) -> Iterator[EntryFinding]:
    lines = typical_lines(entry)
    if not lines:
        yield EntryFinding(entry.id, "the section Typical Logs contains no line")
        return
    if _is_named_by_model(entry):
        named = _cause_by_model(lines, entry)
        if named != entry.cause:
            yield EntryFinding(
                entry.id, f"for the entry's Typical Logs, the cause model chooses {named} instead"
            )
        return
    found = judged(knowledge, own_lines(entry) or lines)
    if not _speaks(entry.id, found):
        other = found.entry if found is not None else None
        match = "no entry" if other is None else f"{other.id} instead"
        yield EntryFinding(entry.id, f"the entry's Typical Logs match {match}")


def _is_named_by_model(entry: Entry) -> bool:
    """Return True if the entry has no template, so that only the cause model can select it."""
    return bool(entry.lines) and all(line.reads.startswith("names ") for line in entry.lines)


def _cause_by_model(lines: Sequence[str], entry: Entry) -> str:
    """Return the cause that the model names; `mem_unknown` or `unknown` if the entry names none."""
    from qnnmem.doctor.cause_model import guess

    made = guess("\n".join(lines))
    if entry.cause in OPEN_CAUSES:
        return "mem_unknown" if made.memory > 1 / 2 else "unknown"
    return made.cause


def _unseen_signs(asked: Iterable[Entry], knowledge: Knowledge) -> Iterator[EntryFinding]:
    """Yield a finding for each sign that is in no typical line of its entry and no stored log."""
    stored = [line for case in cases() for line in case.lines]
    stored += [line for run in healthy() for line in run.lines]
    known = {knowledge.signs[one.template] for one in see(knowledge, stored)}
    for entry in asked:
        lines = (*typical_lines(entry), *own_lines(entry))
        shown = {knowledge.signs[one.template] for one in see(knowledge, lines)}
        templates = [line for line in entry.lines if not line.reads.startswith("names ")]
        for sign in dict.fromkeys(line.sign for line in templates):
            if sign not in shown | known:
                yield EntryFinding(entry.id, f"no typical or stored line matches the sign '{sign}'")


def _speaks(name: str, found: Judgement | None) -> bool:
    if found is None:
        return False
    return name in found.noise or (found.entry is not None and found.entry.id == name)


def spoken(knowledge: Knowledge) -> dict[str, str]:
    """Return, for each entry that matches a stored log, the name of the first such log."""
    heard: dict[str, str] = {}
    logs: Sequence[tuple[str, Sequence[str]]] = [
        *((case.id, case.lines) for case in cases()),
        *((run.id, run.lines) for run in healthy()),
    ]
    for name, lines in logs:
        found = judged(knowledge, lines)
        if found is not None:
            for entry in (*found.noise, *([found.entry.id] if found.entry else [])):
                heard.setdefault(entry, name)
    return heard


def _real_logs(asked: Iterable[Entry], heard: dict[str, str]) -> Iterator[EntryFinding]:
    for entry in asked:
        if entry.documented and entry.id in heard:
            yield EntryFinding(
                entry.id,
                f"the entry matches stored log {heard[entry.id]}, so it must not be `documented`",
            )
        elif not entry.documented and entry.id not in heard:
            yield EntryFinding(
                entry.id, "the entry matches no stored log, so it must be `documented`"
            )
        if entry.documented and not entry.sources:
            yield EntryFinding(entry.id, "a `documented` entry must name a source")


def _silence(knowledge: Knowledge, asked: set[str]) -> Iterator[EntryFinding]:
    for run in healthy():
        found = judged(knowledge, run.lines)
        if found is None or found.healthy:
            continue
        name = found.entry.id if found.entry else "(no entry)"
        if name in asked or found.entry is None:
            yield EntryFinding(name, f"the entry reports an incident in the healthy log {run.id}")


def _answers(knowledge: Knowledge) -> Iterator[EntryFinding]:
    for case in cases():
        if case.entry is not None and not _speaks(case.entry, judged(knowledge, case.lines)):
            yield EntryFinding(case.entry, f"the entry does not match the stored failure {case.id}")


def _common_anchors(asked: Iterable[Entry]) -> Iterator[EntryFinding]:
    from qnnmem.doctor.kb.template import parse

    lines = [line.lower() for run in healthy() for line in run.lines]
    for entry in asked:
        if entry.cause == "benign_noise":
            continue
        for text in dict.fromkeys(line.text for line in entry.lines if line.text):
            for anchor in parse(text).anchors:
                hits = sum(anchor in line for line in lines)
                if hits * _RARE > len(lines):
                    yield EntryFinding(
                        entry.id,
                        f"'{anchor}' is in {hits} of {len(lines)} healthy lines, which slows the "
                        "search of large logs",
                    )


_SKELETON = """+++
id = "{id}"
title = "{title}"
cause = "unknown"
stage = "init"
verdict = "undecided"
confidence = "low"
candidates = [["unknown", 0.5]]
remedies = []
collect = ["what to ask for when this is seen"]
sources = ["where this was seen"]

[[line]]
sign = "{id}-sign"
text = "{line} {{code:code}}"

[[when]]
sign = ["{id}-sign"]
+++

## Typical Logs

```text
{line} 1234
```

## Root Cause

Why it happens, in a few sentences.

## Solutions

- What to do first.
"""


def skeleton(name: str) -> str:
    """Return the text of a new entry with placeholders; it passes the check unchanged."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise UsageError(f"'{name[:60]}' is not a name of lower-case letters, digits and dashes")
    words = name.replace("-", " ")
    return _SKELETON.format(
        id=name, title=words.capitalize(), line=f"replace this: {words} failed,"
    )
