"""Deployment files as parts of a page: contexts, host memory, claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, badge, lines, table, tag
from qnnmem.results.carrier import CarrierFacts, CarrierResult

_MOST = 50  # rows of one kind
_HOLDS = ("holds", "wrong", "not checked")
_CONTEXTS = ("context", "bytes in the file", "bill", "process domain at most", "used by")


def carrier_section(found: CarrierResult) -> PageSection:
    """Return the content of a file as a section."""
    title = tag("p", found.facts.title, class_="answer")
    name = PurePath(found.file).name or found.file
    return PageSection(f"What {name} carries", lines([title, *carrier_parts(found.facts)]))


def carrier_parts(facts: CarrierFacts) -> Iterator[Html]:
    """Distinct contexts, the host side, claims, and parts without a bill."""
    contexts = [
        (
            one.name,
            one.bytes,
            None if one.total is None else one.total.value,
            None if one.need_high is None else one.need_high.value,
            ", ".join(one.used_by[:_MOST]),
        )
        for one in facts.binaries
    ]
    state = [] if facts.state is None else [("KV cache, part of the IO", facts.state)]
    host = [*((part.name, part.size) for part in facts.host), *state]
    sides = [(name, size.value, size.origin.value, size.source) for name, size in host]
    claims = [(one.what, one.claimed, one.found, badge(one.holds, _HOLDS)) for one in facts.claims]
    unread = [(one.name, one.bytes, one.why) for one in facts.unread]
    for title, head, rows in (
        ("Contexts, each counted once", _CONTEXTS, contexts),
        ("Kept by the application", ("what", "bytes", "origin", "from"), sides),
        ("What the file claims", ("what", "the file says", "the binaries say", ""), claims),
        ("Parts without a bill", ("part", "bytes in the file", "why"), unread),
    ):
        if rows:
            yield tag("h3", title)
            yield table(head, rows[:_MOST])
            if len(rows) > _MOST:
                yield tag("p", f"{len(rows) - _MOST:,} more are in the JSON.", class_="faint")
