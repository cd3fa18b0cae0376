"""The sections of an entry's Markdown: typical logs, root cause, solutions."""

from __future__ import annotations

import re

from qnnmem.doctor.kb.entry import Entry

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`'\"(])")
_MARK = re.compile(r"^\s*(?:[-*+]|[0-9]+[.)])\s+")


def section(entry: Entry, heading: str) -> str:
    """The text below a heading, up to the next one; empty when there is none."""
    found = re.search(
        rf"^#+ *{re.escape(heading)} *$(.*?)(?=^#+ |\Z)",
        entry.body,
        re.DOTALL | re.MULTILINE | re.IGNORECASE,
    )
    return found[1] if found else ""


def typical_lines(entry: Entry) -> tuple[str, ...]:
    """The log lines that an entry shows: those of devices and of the SDK's tools."""
    return _lines_below(entry, "Typical Logs")


def own_lines(entry: Entry) -> tuple[str, ...]:
    """What this tool prints where a device gives no more than a code."""
    return _lines_below(entry, "Printed by qnnmem")


def _lines_below(entry: Entry, heading: str) -> tuple[str, ...]:
    shown = section(entry, heading).splitlines()
    return tuple(line for line in shown if line.strip() and not line.startswith("```"))


def root_cause(entry: Entry, sentences: int = 2) -> str:
    """Why it happens, in the first sentences of what the entry says; a list becomes one of them."""
    lines = section(entry, "Root Cause").strip().splitlines()
    items = [_MARK.sub("", line).strip() for line in lines if _MARK.match(line)]
    if items and len(items) == len([line for line in lines if line.strip()]):
        return "; ".join(item.rstrip(".;") for item in items)
    paragraph = " ".join(" ".join(lines).split())
    return " ".join(_SENTENCE.split(paragraph)[:sentences])
