"""The sections in an entry's Markdown: typical logs, root cause and solutions."""

from __future__ import annotations

import re

from qnnmem.doctor.kb.entry import Entry
from qnnmem.text import lazy_pattern

_SENTENCE = lazy_pattern(r"(?<=[.!?])\s+(?=[A-Z0-9`'\"(])")
_MARK = lazy_pattern(r"^\s*(?:[-*+]|[0-9]+[.)])\s+")


def section(entry: Entry, heading: str) -> str:
    """Return the text from a heading to the next heading; empty if the heading is missing."""
    found = re.search(
        rf"^#+ *{re.escape(heading)} *$(.*?)(?=^#+ |\Z)",
        entry.body,
        re.DOTALL | re.MULTILINE | re.IGNORECASE,
    )
    return found[1] if found else ""


def typical_lines(entry: Entry) -> tuple[str, ...]:
    """Return the typical log lines of an entry, as devices and the SDK's tools print them."""
    return _lines_below(entry, "Typical Logs")


def own_lines(entry: Entry) -> tuple[str, ...]:
    """Return the lines that qnnmem prints for a failure where devices print only a code."""
    return _lines_below(entry, "Printed by qnnmem")


def _lines_below(entry: Entry, heading: str) -> tuple[str, ...]:
    shown = section(entry, heading).splitlines()
    return tuple(line for line in shown if line.strip() and not line.startswith("```"))


def root_cause(entry: Entry, sentences: int = 2) -> str:
    """Return the first sentences of an entry's root cause, or its list items joined by `;`."""
    lines = section(entry, "Root Cause").strip().splitlines()
    items = [_MARK.sub("", line).strip() for line in lines if _MARK.match(line)]
    if items and len(items) == len([line for line in lines if line.strip()]):
        return "; ".join(item.rstrip(".;") for item in items)
    paragraph = " ".join(" ".join(lines).split())
    return " ".join(_SENTENCE.split(paragraph)[:sentences])
