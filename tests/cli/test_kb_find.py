"""`qnnmem kb find`: entries that match words in any part, best first."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from command_line import exit_code, run, sentence, verb

from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
from qnnmem.doctor.kb.sections import typical_lines
from qnnmem.doctor.kb.similar import find as find_entries
from qnnmem.results.schema import load_schema

find = verb("kb", "find")


def found(*words: str | Path) -> list[dict[str, object]]:
    """Return the matching entries as JSON rows."""
    done = find(*words, "--json")
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.kb/1"))
    assert exit_code(done) == (0 if values["entries"] else 1)
    rows: list[dict[str, object]] = values["entries"]
    return rows


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        (("spill", "fill", "too", "small"), "spill-fill-too-small"),
        (("graph requires estimated allocation of 99 KB",), "graph-over-limit"),
        (("libcdsprpc", "manifest"), "rpc-library-hidden"),
        (("graph-over-limit",), "graph-over-limit"),
        (("GRAPH", "Over", "LIMIT"), "graph-over-limit"),
        (("huge", "pages"), "madvise-refused"),  # in the remedies only
    ],
)
def test_title_lines_and_body_are_searched(words: tuple[str, ...], entry: str) -> None:
    """The expected entry is among the first two results."""
    assert entry in [row["id"] for row in found(*words)[:2]]


def test_most_entries_are_found_by_their_own_line() -> None:
    """For at least 80 % of sampled entries, a search for the first typical line finds the entry."""
    entries = read_folder(BUILT_IN)[1]
    asked = [one for one in entries if typical_lines(one)][::12]
    hits = sum(
        one.id in [row.entry.id for row in find_entries(typical_lines(one)[0], entries)]
        for one in asked
    )
    assert hits >= 0.8 * len(asked)


def test_a_code_is_found_in_each_spelling() -> None:
    """A code in decimal and in hexadecimal finds the same entries."""
    assert found("1002") == found("0x3ea") != []


def test_text_shows_id_title_cause_and_the_best_line() -> None:
    """The shown line is the best match, not the first line of the entry."""
    first, head, line, *_ = find("estimated", "allocation").stdout.splitlines()
    assert first.endswith(" for 'estimated allocation'; `qnnmem kb show ID` shows an entry")
    assert head.split()[:2] == ["graph-over-limit", "mem_graph_limit"]
    assert head.endswith("The graph is over the compiler's limit for one graph")
    assert "graph requires estimated allocation of" in line


@pytest.mark.parametrize("words", ["zzyzx", "", "-", "\x1b\x07", "12", "\ud800"])
def test_nothing_found_is_exit_code_1(words: str) -> None:
    """No match gives exit code 1, one printable sentence and an empty JSON list."""
    done = find("--", words)
    assert exit_code(done) == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("nothing found for ")
    assert line.isprintable()


def test_a_teams_notes_are_searched_too(tmp_path: Path) -> None:
    """`--kb` adds a team's notes to the search; a missing notes folder gives exit code 2."""
    note = tmp_path / "notes.md"
    note.write_text("## Quux\n### Typical Logs\n- the quuxinator choked\n### Solutions\n- wait\n")
    (row,) = found("quuxinator", "--kb", note)
    assert (row["id"], row["own"], row["best_line"]) == ("quux", True, "- the quuxinator choked")
    done = run("kb", "find", "x", "--kb", tmp_path / "none")
    assert exit_code(done) == 2
    assert "none" in sentence(done)
