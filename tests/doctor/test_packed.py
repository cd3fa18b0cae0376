"""A packed base: its content, when the cached base is used, and its immutability."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from qnnmem.doctor import cache, folder
from qnnmem.doctor.kb import files, knowledge
from qnnmem.doctor.kb.entry import Condition, Entry, Line, When
from qnnmem.doctor.kb.matcher import Matcher
from qnnmem.doctor.logs import source
from qnnmem.errors import UsageError

NOTE = "## Camera one\n\n### Typical Logs\n- boardcam: cdsp busy, owner camera\n"
NEEDED = Condition("", "needed", ">=", (5,))
SIZE = Condition("size", "total", "==", (1,))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a built-in base with one note and an empty cache; return a team's note."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "ours.md").write_text(NOTE.replace("amera", "ensor"))
    monkeypatch.setattr(knowledge, "BUILT_IN", tmp_path / "ours")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "note.md"
    path.write_text(NOTE)
    return path


def test_a_kept_base_is_used(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached base is used without packing again and equals the fresh base."""
    fresh = knowledge.with_own([own])
    assert [(entry.title, entry.own) for entry in fresh.entries] == [
        ("Camera one", True),
        ("Censor one", False),
    ]
    monkeypatch.setattr(knowledge, "pack", lambda *_: pytest.fail("packed again"))
    assert knowledge.with_own([own]).packed == fresh.packed


@pytest.mark.parametrize("lie", [{"format": 9}, {"key": "kb-other.json"}])
def test_a_kept_base_of_another_form_is_made_anew(own: Path, lie: dict[str, object]) -> None:
    """A cached base with another format or key is replaced."""
    fresh = knowledge.with_own([own])
    other = msgspec.structs.replace(fresh.packed, entries=(), **lie)
    cache.keep(fresh.key, msgspec.json.encode(other))
    assert knowledge.with_own([own]).packed == fresh.packed
    kept = cache.load(fresh.key)
    assert kept is not None
    assert knowledge.unpack(kept) == fresh.packed


def test_a_matcher_is_made_once() -> None:
    """A matcher is built once per template."""
    line = Line("full", "heap of {size} is full")
    base = knowledge.Knowledge(knowledge.pack((Line("x", "other words"), line), ()))
    found = base.matcher(1)
    assert isinstance(found, Matcher)
    assert base.matcher(1) is found
    assert base.matcher(0) is not found
    assert found.search(b"heap of 12 is full", b"heap of 12 is full") is not None


def test_what_conditions_compare_is_listed() -> None:
    """The packed base lists the entries of each sign and the signs that comparisons use."""
    lines = tuple(Line(sign, f"text of {sign} here") for sign in ("a", "b", "c", "size"))
    one = Entry("one", "One", "unknown", "init", (When(("a", "b"), (NEEDED,)), When(("a",))))
    two = Entry("two", "Two", "unknown", "init", (When(("c",), (SIZE,)), When(("b",))))
    packed = knowledge.pack(lines, (one, two))
    assert packed.by_sign == {"a": [0], "b": [0, 1], "c": [1]}
    assert packed.tested == ["a", "b", "size"]
    assert packed.signs == ["a", "b", "c", "size"]


def test_a_key_is_that_of_the_content_unless_given() -> None:
    """The key of a base depends on its content, unless a key is given."""
    keys = {knowledge.pack((Line(sign, "some text"),), ()).key for sign in "ab"}
    assert len(keys) == 2
    assert all(len(key) == 64 for key in keys)
    assert knowledge.pack((), (), "given").key == "given"


@pytest.mark.parametrize(
    "when",
    [
        When(("x",)),
        When(("a",), unless=("x",)),
        When(("a",), needs=(("a",), ("x",))),
        When(("a",), after=(("a", "x"),)),
        When(("a",), where=(Condition("x", "n", "==", (1,)),)),
    ],
)
def test_a_sign_that_no_line_gives_is_refused_anywhere(when: When) -> None:
    """An unknown sign is refused in every kind of condition."""
    lines = (Line("a", "some text"),)
    with pytest.raises(UsageError, match=r"^e: no line template has the sign 'x'$"):
        knowledge.pack(lines, (Entry("e", "E", "unknown", "init", (when,)),))
    with pytest.raises(UsageError, match=r"^e: no line template has the sign 'x'$"):
        knowledge.pack(lines, (Entry("e", "E", "unknown", "init", (), explains=("x",)),))


def test_a_base_of_ours_that_is_gone_is_one_sentence(own: Path, tmp_path: Path) -> None:
    """A missing built-in base is refused with one sentence."""
    (tmp_path / "ours" / "ours.md").unlink()
    (tmp_path / "ours").rmdir()
    with pytest.raises(UsageError, match=r"ours: No such file or directory$"):
        knowledge.with_own([own])


@pytest.mark.parametrize(
    "kind",
    [
        *(knowledge.PackedKnowledge, files.KbFiles, folder.LeftOut),
        *(source.Stream, source.FoundLogs),
    ],
)
def test_values_do_not_change(kind: type[msgspec.Struct]) -> None:
    """The types of packed bases and found logs are frozen."""
    assert kind.__struct_config__.frozen
