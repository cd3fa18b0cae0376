"""Notes about many logs: the first are said, the rest is counted.

A bug report holds thousands of files besides its logs, and a page of notes hides the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

_SAID = 20
_FOREIGN = ": nothing of QNN in here; "  # as `Diagnosis.close_log` says it


def few_notes(notes: Iterable[str]) -> list[str]:
    """The notes in their order, with the first only of those about logs of other things."""
    kept: list[str] = []
    foreign = 0
    for note in notes:
        foreign += (other := _FOREIGN in note)
        if not other or foreign <= _SAID:
            kept.append(note)
    if foreign > _SAID:
        kept.append(f"nothing of QNN in {foreign - _SAID:,} more files")
    return kept
