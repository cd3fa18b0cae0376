"""Measures how the doctor does on logs that its knowledge base was not written from.

    python tools/generalise.py            some minutes, writes the page about unseen logs
    python tools/generalise.py --quick    without the noise, nothing written

Leave one source out: for each source of stored logs, every line template that matches lines of that
source only is taken away, and the source's own logs are diagnosed with what is left.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qnnmem.doctor.kb.entry import is_memory
from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, pack, read_folder
from qnnmem.doctor.logs.line import bare_line, match
from qnnmem.results.incident import Incident

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # where logs are graded

import foreign_logs  # noqa: E402
import fresh_logs  # noqa: E402
import robust_logs  # noqa: E402
from doctor_cases import (  # noqa: E402
    CLASSES,
    GRADES,
    LOGS,
    Case,
    embedded,
    grade,
    incidents,
    origin,
    plainly,
    read_cases,
)

PAGE = ROOT / "docs" / "reference" / "benchmarks" / "unseen-logs.md"
CUT = 8
NOISE_LINES = 50_000

_CLASS_WORDS = {
    "cause": "the log names the cause",
    "memory_only": "the log tells only whether memory is short",
    "no": "the log does not decide",
    "healthy": "nothing failed",
}

Form = Callable[[Case], bytes]
FAST: dict[str, Form] = {
    "whole": plainly,
    f"last {CUT} lines": lambda case: plainly(case.last(CUT)),
}
SLOW: dict[str, Form] = {
    f"in {NOISE_LINES:,} lines of noise": lambda case: embedded(case, "logcat", NOISE_LINES),
}


class Result(NamedTuple):
    """How one case went in one form."""

    case: Case
    form: str
    left_out: bool
    grade: str
    entries: tuple[str, ...]
    said: tuple[tuple[str, str, bool], ...] = ()  # confidence, verdict, whether it is right


class Base:
    """The built-in knowledge base, whole or without what one source alone supports."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._packed = pack(*read_folder(BUILT_IN))
        self.whole = Knowledge(self._packed)
        self.supporters = self._supporters(cases)

    def without(self, source: str) -> Knowledge:
        """The knowledge base as if this source had never been read."""
        gone = {line for line, sources in self.supporters.items() if sources == {source}}
        anchors = {
            anchor: [line for line in lines if line not in gone]
            for anchor, lines in self._packed.anchors.items()
        }
        # A template that no anchor leads to is never looked at, so its sign is never seen.
        key = f"{zlib.crc32(source.encode()):08x}"
        folded = [one for one in self._packed.folded if one.number not in gone]
        left = msgspec.structs.replace(self._packed, anchors=anchors, folded=folded, key=key)
        return Knowledge(left)

    def dropped(self, source: str) -> int:
        """How many templates only this source supports."""
        return sum(sources == {source} for sources in self.supporters.values())

    def _supporters(self, cases: Iterable[Case]) -> dict[int, set[str]]:
        prefilters = self.whole.prefilter_bytes
        found: dict[int, set[str]] = {}
        for case in cases:
            # Messages that are split over lines count for the template as well.
            texts = [*case.lines, *map("".join, zip(case.lines, case.lines[1:], strict=False))]
            for text in texts:
                bare = bare_line(text.encode("utf-8", "replace"))
                low = bare.lower()
                near = [line for line, prefilter in enumerate(prefilters) if prefilter in low]
                for line, _ in match(self.whole, bare, near):
                    found.setdefault(line, set()).add(case.source)
        return found


def results(
    cases: Sequence[Case], base: Base, forms: dict[str, Form], left_out: bool
) -> Iterator[Result]:
    """Every case in every form."""
    for source in sorted({case.source for case in cases}):
        knowledge = base.without(source) if left_out else base.whole
        for case in (one for one in cases if one.source == source):
            for name, form in forms.items():
                found = incidents(form(case), knowledge)
                entries = tuple(str(one.entry) for one in found)
                said = tuple(_said(case, one) for one in found if one.verdict != "undecided")
                yield Result(case, name, left_out, grade(case, found), entries, said)


def _said(case: Case, one: Incident) -> tuple[str, str, bool]:
    """One answer: a cause is right as labelled, a side where the label is on it."""
    right = one.is_memory is case.is_memory and case.decidable != "healthy"
    if one.verdict == "cause":
        right = right and one.cause in {case.cause, *case.accept}
    return one.confidence, one.verdict, right


def calibration(found: Sequence[Result], fresh: Sequence[fresh_logs.Answer]) -> Iterator[str]:
    """Of the answers of each confidence, how many were right."""
    asked = [one for one in found if one.left_out and one.form == "whole"]
    groups = (
        ("reported, source left out", [s for r in asked if not r.case.ours for s in r.said]),
        ("our own runs, source left out", [s for r in asked if r.case.ours for s in r.said]),
        ("gathered later, looked at", [s for a in fresh if not a.log.frozen for s in a.said]),
        ("gathered later, frozen", [s for a in fresh if a.log.frozen for s in a.said]),
    )
    yield "| logs | confidence | causes: right | wrong | sides: right | wrong | right of all |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for name, said in groups:
        for confidence in ("high", "medium", "low"):
            counts = Counter(
                (verdict, right) for sure, verdict, right in said if sure == confidence
            )
            right = counts["cause", True] + counts["memory", True]
            share = f"{right / counts.total():.0%}" if counts else "-"
            cells = [counts[v, r] for v in ("cause", "memory") for r in (True, False)]
            yield f"| {name} | {confidence} | {' | '.join(map(str, cells))} | {share} |"
    yield ""


class Counts(NamedTuple):
    """What was told of logs whose source was left out."""

    causes: Counter[str]  # of logs that name one: right, wrong, not named
    sides: Counter[str]  # of those and of logs that tell a side
    sure: Counter[bool]  # answers of high or medium confidence: whether right
    high: Counter[bool]  # those of high confidence alone
    passed_over: int


def over_all(cases: Sequence[Case]) -> dict[bool, Counts]:
    """Stored logs and those gathered later, each without what its source alone supports."""
    every = (*cases, *map(as_case, fresh_logs.read_rows()))
    base = Base(every)
    counted = {
        ours: Counts(Counter(), Counter(), Counter(), Counter(), 0) for ours in (False, True)
    }
    for source in sorted({case.source for case in every}):
        knowledge = base.without(source)
        for case in (one for one in every if one.source == source):
            found = incidents(plainly(case), knowledge)
            counted[case.ours] = _count(counted[case.ours], case, found)
    return counted


def as_case(row: dict[str, Any]) -> Case:
    """A log gathered later as a stored one."""
    lines = tuple(part for line in row["lines"] for part in line.splitlines())
    where, accept, memory = origin(row["source"]), tuple(row["accept"]), row["is_memory"]
    labels = (row["decidable"], row["stage"], row["cause"])
    return Case(row["id"], where, *labels, memory, lines, accept=accept)


def _count(counts: Counts, case: Case, found: Sequence[Incident]) -> Counts:
    causes = {case.cause, *case.accept}
    open_side = "unknown" in causes or len(set(map(is_memory, causes))) > 1
    told = [one for one in found if one.verdict != "undecided"]
    named = {one.cause for one in told if one.verdict == "cause"}
    if case.decidable == "cause":
        counts.causes["not named" if not named else "wrong" if named - causes else "right"] += 1
    if case.decidable in ("cause", "memory_only"):
        same = open_side or all(one.is_memory is case.is_memory for one in told)
        counts.sides["not told" if not told else "right" if same else "wrong"] += 1
    for one in told:
        right = one.cause in causes
        if one.verdict != "cause":
            right = open_side or one.is_memory is case.is_memory
        right = right and case.decidable != "healthy"
        counts.sure[right] += one.confidence != "low"
        counts.high[right] += one.confidence == "high"
    missed = not found and case.decidable != "healthy"
    return counts._replace(passed_over=counts.passed_over + missed)


def share_table(counted: dict[bool, Counts]) -> Iterator[str]:
    """The same as shares, for reports, our own runs and both."""
    first, second = counted[False], counted[True]
    both = Counts(
        first.causes + second.causes,
        first.sides + second.sides,
        first.sure + second.sure,
        first.high + second.high,
        first.passed_over + second.passed_over,
    )
    yield "| logs | causes right | wrong | sides right | wrong | sure and wrong | high and right |"
    yield "|---" + "|--:" * 6 + "|"
    for name, one in (
        ("reported", counted[False]),
        ("our own runs", counted[True]),
        ("both", both),
    ):
        cells = (
            _share(one.causes["right"], one.causes.total()),
            str(one.causes["wrong"]),
            _share(one.sides["right"], one.sides.total()),
            str(one.sides["wrong"]),
            _share(one.sure[False], one.sure.total()),
            _share(one.high[True], one.high.total()),
        )
        yield f"| {name} | {' | '.join(cells)} |"
    yield f"\n{both.passed_over} failing logs are passed over.\n"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "-"


def tables(found: Sequence[Result], forms: Iterable[str]) -> Iterator[str]:
    """Counts by form and class, with the whole knowledge base and without the source."""
    for form in forms:
        yield f"### {form[0].upper()}{form[1:]}\n"
        yield (
            "| log | logs | whole base: "
            + " | ".join(GRADES)
            + " | source left out: "
            + " | ".join(GRADES)
            + " |"
        )
        yield "|---" + "|--:" * (1 + 2 * len(GRADES)) + "|"
        for ours, kind in product((False, True), CLASSES):
            rows = [one for one in found if one.form == form and _row_of(one.case) == (ours, kind)]
            counts = [Counter(r.grade for r in rows if r.left_out is out) for out in (False, True)]
            numbers = [str(count[name]) for count in counts for name in GRADES]
            who = "our own runs" if ours else "reported"
            cells = (f"{who}: {_CLASS_WORDS[kind]}", str(counts[0].total()), *numbers)
            yield "| " + " | ".join(cells) + " |"
        yield ""


def _row_of(case: Case) -> tuple[bool, str]:
    return case.ours, case.decidable


def page(
    cases: Sequence[Case],
    base: Base,
    found: Sequence[Result],
    fresh: Sequence[fresh_logs.Answer],
    robust: Sequence[str] = (),
    messages: Sequence[str] = (),
    everything: Sequence[str] = (),
) -> Iterator[str]:
    """The page: method, numbers, limits."""
    sources = sorted({case.source for case in cases})
    supported = len(base.supporters)
    dropped = [base.dropped(source) for source in sources]
    yield "# How well the doctor does on logs it has not seen\n"
    yield (
        "Written by `python tools/generalise.py`. The knowledge base was written while looking at "
        "the stored logs, so being right on them says little. What is measured here is closer to a "
        "new log: **leave one source out**.\n"
    )
    yield "## Method\n"
    yield (
        f"There are {len(cases)} stored logs from {len(sources)} sources. A source is a repository "
        "(all its threads together), a set of notes, the HTP library (all failures that we "
        "provoked) or our LPAI runtime. For each source:\n\n"
        "1. Every line template of the knowledge base that matches lines of this source and of no "
        "other stored log is taken away. Templates that another source supports stay; so do those "
        "that no stored log supports, which were written from documentation or from the "
        "library's own texts.\n"
        "2. The source's logs are diagnosed with what is left: whole, cut to their last "
        f"{CUT} lines, and laid into {NOISE_LINES:,} lines of generated logcat noise.\n"
        "3. Each answer is graded. *Right*: cause and stage as labelled; where the log tells only "
        "whether memory is short, that; where it does not decide, no verdict; for a healthy log, "
        "no incident. *Undecided*: an incident without a verdict, or with less than the log "
        "allows. *Silent*: no incident at all. *Wrong*: any incident with a false verdict, also a "
        "right cause with a false stage, also a verdict where the log does not decide.\n"
    )
    yield (
        f"Of {len(base.whole.plain)} templates {supported} match a stored log, and {sum(dropped)} "
        f"of these match one source only: they are what leaving out takes away, {max(dropped)} for "
        "the richest source.\n"
    )
    yield "## Numbers\n"
    yield from tables(found, dict.fromkeys(one.form for one in found))
    yield from _failures(found)
    yield "## What a confidence is worth\n"
    yield (
        "Each answer of whole logs by the confidence it is given with: a cause is right as "
        "labelled, a side (memory or not) where the label lies on it. A cause is named with high "
        "or medium confidence only by a line that names it; codes, failed mappings and refused "
        "libraries give a side, or a cause with low confidence.\n"
    )
    yield from calibration(found, fresh)
    yield "## All logs, their source left out\n"
    yield (
        "Stored logs and those gathered later (below) together, whole: what one source alone "
        "supports is taken away for that source. Any accepted cause is right. An answer is *sure* "
        "with high or medium confidence.\n"
    )
    yield from everything
    yield "## Logs made by rule\n"
    yield (
        "Drawn from a seed: stored failures varied as people and "
        "loggers vary them (marks, case, heads, paths, wrapped lines, the base of codes), one-line "
        "messages composed of calls, codes and words, good runs and their variations.\n"
    )
    yield from robust
    yield ""
    yield from fresh_logs.about(fresh)
    yield from fresh_logs.tables(fresh)
    yield from messages
    yield "## Limits\n"
    yield (
        "- Taking templates away is automatic; what cannot be taken away is what the author "
        "learned: a condition, a number, the choice of entries and the wording of a template that "
        "two sources share. The numbers are therefore kinder than a truly new log is.\n"
        "- They are also harsher: an author who had not seen a source would still have written "
        "templates from documentation for some of its messages, and a template that several "
        "entries could have had is lost with the one source that happens to show it.\n"
        "- A log whose every known line is gone can only be silent or undecided. That is the right "
        "behaviour, and counted as such, not as right.\n"
        "- Our own runs come from two programs. Leaving one of them out takes away nearly all that "
        "is known of its messages, so those rows show what happens without knowledge, not how "
        "well it carries over; the reported logs are the rows to look at.\n"
        "- Sources are few and some classes small: one log more or less is several percent.\n"
        "- The noise is our generator's. Real noise holds surprises that no generator has.\n"
        "- The cause model was trained on all of these logs, so what it adds here is kinder than "
        "on a new one; `python tools/train_doctor.py --evaluate` leaves whole repositories out of "
        "its training.\n"
        "- Labels are those of the people who reported the failures, and may be wrong themselves.\n"
    )


def _failures(found: Sequence[Result]) -> Iterator[str]:
    """Which answers were wrong, by name: a number alone cannot be looked into."""
    wrong = [one for one in found if one.grade == "wrong"]
    yield "### Wrong answers\n"
    if not wrong:
        yield "None.\n"
        return
    yield "| log | labelled | form | base | entries that spoke |"
    yield "|---|---|---|---|---|"
    for one in wrong:
        label = f"{one.case.stage}, {one.case.cause}"
        base = "source left out" if one.left_out else "whole"
        said = ", ".join(dict.fromkeys(one.entries))
        yield f"| {one.case.id} | {label} | {one.form} | {base} | {said} |"
    yield ""


def main() -> int:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="without noise, nothing written")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of stored logs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # a base for each source is of no use later
        cases = read_cases(given.logs)
        base = Base(cases)
        forms = FAST if given.quick else {**FAST, **SLOW}
        found = [one for out in (False, True) for one in results(cases, base, forms, out)]
        fresh = [fresh_logs.answer(one, base.whole) for one in fresh_logs.read_fresh()]
        robust = () if given.quick else tuple(robust_logs.table(base.whole))
        messages = (*fresh_logs.messages(base.whole), *foreign_logs.tables(base.whole))
        everything = tuple(share_table(over_all(cases)))
    text = "\n".join(page(cases, base, found, fresh, robust, messages, everything))
    print(text)
    if not given.quick:
        PAGE.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
