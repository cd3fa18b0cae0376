"""A team's notes: the note with more matched lines is chosen."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from command_line import run

LINES = ("widget heap is gone", "gizmo pool refused", "frob arena exhausted", "gadget map denied")


def note(title: str, *lines: str) -> str:
    """Return a plain note with a title and typical lines."""
    shown = "\n".join(f"- {line}" for line in lines)
    return (
        f"## {title}\n### Typical Logs\n{shown}\n### Root Cause\n- memory\n"
        "### Solutions\n- restart it\n"
    )


def speaks(folder: Path, notes: tuple[str, ...], lines: tuple[str, ...]) -> str:
    """Return the chosen entry, with the notes in one file in this order."""
    (folder / "notes.md").write_text("\n".join(notes), "utf-8")
    (folder / "dev.log").write_text("\n".join(lines) + "\n", "utf-8")
    done = run("doctor", folder / "dev.log", "--kb", folder / "notes.md", "--json")
    (found,) = msgspec.json.decode(done.stdout)["incidents"]
    return str(found["entry"])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_note_with_more_lines_wins(
    order: tuple[int, ...], turned: bool, tmp_path: Path
) -> None:
    """The note with more matched lines wins, in any order of notes and lines."""
    notes = (note("Short", LINES[0]), note("Long", *LINES[:3]))
    lines = tuple(LINES[k] for k in order)
    assert speaks(tmp_path, notes[::-1] if turned else notes, lines) == "long"


@pytest.mark.parametrize("turned", [False, True])
def test_more_lines_win_over_a_larger_share(turned: bool, tmp_path: Path) -> None:
    """More matched lines win; with equal counts, the larger share of the note wins."""
    notes = (note("Short", LINES[3]), note("Long", *LINES[:3], "something else entirely"))
    chosen = notes[::-1] if turned else notes
    assert speaks(tmp_path, chosen, (LINES[3], LINES[0], LINES[1])) == "long"
    assert speaks(tmp_path, chosen, (LINES[0], LINES[3])) == "short"


@pytest.mark.parametrize("turned", [False, True])
def test_a_line_shown_twice_counts_once(turned: bool, tmp_path: Path) -> None:
    """A typical line that a note repeats counts once."""
    notes = (note("Twice", LINES[0], LINES[0].upper(), LINES[0]), note("Two", LINES[1], LINES[2]))
    chosen = notes[::-1] if turned else notes
    assert speaks(tmp_path, chosen, LINES[:3]) == "two"


def test_a_note_wins_over_what_we_know(tmp_path: Path) -> None:
    """A team's note wins over a built-in entry, even with one line."""
    ours = "graph requires estimated allocation of 2347229 KB, limit is 2097152 KB"
    assert speaks(tmp_path, (note("Short", LINES[0]),), (ours, LINES[0])) == "short"
