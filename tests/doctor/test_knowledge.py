"""The knowledge base: reading entries and notes, and packing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from qnnmem.doctor.kb import knowledge as kb
from qnnmem.doctor.kb.entry import Entry, When
from qnnmem.doctor.kb.read import read_entries
from qnnmem.doctor.kb.template import parse
from qnnmem.errors import UsageError

GOOD = """+++
id = "graph-limit"
title = "Too large a graph"
cause = "mem_graph_limit"
stage = "graph"
remedies = ["split it"]
[[line]]
sign = "estimate"
text = "estimated allocation of {needed:KB} KB, limit is {limit:KB} KB"
[[when]]
sign = "estimate"
where = ["needed >= 2 GB"]
+++
## Typical Logs
lines
## Root Cause
words
## Solutions
more words
"""

NOTES = """# Notes

## Our board runs out
### Typical Logs
- `our_daemon: mapping failed`
- Error code: QNN_STATUS_MEMORY_ALLOCATION_FAILED
### Root Cause
Memory is short while the graph is created.
### Solutions
1. restart the daemon
2. smaller batch
"""


def test_an_entry_is_read_with_its_conditions() -> None:
    """Sizes in conditions use powers of 1000, sizes in lines powers of 1024."""
    (entry,) = read_entries(GOOD, "graph-limit.md")
    assert (entry.id, entry.cause, entry.stage) == ("graph-limit", "mem_graph_limit", "graph")
    assert entry.whens[0].where[0].values == (2_000_000_000,)
    assert entry.is_memory is True


def test_notes_without_front_matter_are_entries() -> None:
    """Plain notes become entries: typical lines as templates, solutions as remedies."""
    (entry,) = read_entries(NOTES, "notes.md", own=True)
    assert entry.typical == 2
    assert entry.cause == "mem_unknown"
    assert entry.stage == "graph" or entry.stage == "init"
    assert entry.remedies == ("restart the daemon", "smaller batch")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('cause = "mem_graph_limit"', 'cause = "bad_luck"'),
        ('stage = "graph"', 'stage = "later"'),
        ('id = "graph-limit"', 'id = "Graph Limit"'),
        ("needed >= 2 GB", "needed is large"),
        ("## Root Cause", "## Cause"),
        ('remedies = ["split it"]', "remedies = 5"),
        ('sign = "estimate"\nwhere', 'sing = "estimate"\nwhere'),
        ("+++\n## Typical", "## Typical"),
        ("{needed:KB}", "{needed:stones}"),
        ('title = "Too large a graph"', "title = "),
        ('[[when]]\nsign = "estimate"\nwhere = ["needed >= 2 GB"]\n', ""),
    ],
)
def test_a_damaged_entry_is_refused_in_one_sentence(old: str, new: str) -> None:
    """A damaged entry is refused with a sentence that names the file."""
    assert old in GOOD
    with pytest.raises(UsageError, match=r"graph-limit\.md"):
        read_entries(GOOD.replace(old, new), "graph-limit.md")


def test_text_that_is_no_entry_is_refused() -> None:
    """Text without front matter and notes is refused."""
    with pytest.raises(UsageError, match="neither front matter"):
        read_entries("hello\n", "x.md")


def test_a_condition_about_an_unknown_sign_is_refused() -> None:
    """A condition on an unknown sign is refused, as the entry could never match."""
    entry = Entry("x", "x", "unknown", "init", (When(("nowhere",)),))
    with pytest.raises(UsageError, match="nowhere"):
        kb.pack((), (entry,))


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    """Two entries with the same id are refused."""
    (tmp_path / "a.md").write_text(GOOD, "utf-8")
    (tmp_path / "b.md").write_text(GOOD, "utf-8")
    with pytest.raises(UsageError, match="graph-limit"):
        kb.read_folder(tmp_path)


def test_packing_loses_nothing(tmp_path: Path) -> None:
    """Packing keeps everything but the text for readers."""
    (tmp_path / "a.md").write_text(GOOD, "utf-8")
    lines, entries = kb.read_folder(tmp_path)
    knowledge = kb.Knowledge(kb.unpack(msgspec.json.encode(kb.pack(lines, entries))))
    people = {"lines": (), "body": "", "sources": ()}
    assert knowledge.entries == (msgspec.structs.replace(entries[0], **people),)


def test_the_built_in_base_is_the_same_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base from the cache equals the fresh base, even after the cached file was damaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh = kb._with_own(())
    (cached,) = (tmp_path / "qnnmem").glob("kb-*.json")
    assert kb._with_own(()).texts == fresh.texts
    cached.write_bytes(b'{"format": 1')
    assert kb._with_own(()).signs == fresh.signs


def test_every_template_holds_its_prefilter_text() -> None:
    """Each template contains its prefilter, and the prefilter's keys reach all its anchors."""
    lines, entries = kb.read_folder(kb.BUILT_IN)
    knowledge = kb.Knowledge(kb.pack(lines, entries))
    anchors = list(knowledge.anchors)
    for text, prefilter in zip(knowledge.texts, knowledge.prefilters, strict=True):
        template = parse(text)
        assert any(prefilter in run for run in template.runs)
        reached = {
            n for key, numbers in knowledge.keys.items() if key in prefilter for n in numbers
        }
        assert {anchors.index(anchor) for anchor in template.anchors} <= reached
