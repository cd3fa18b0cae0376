from __future__ import annotations

from qnnmem.contract.handles import HandleTable
from qnnmem.contract.regions import Extent


def made() -> HandleTable[str, int, str]:
    """Return a table with a backend, two contexts and a graph."""
    table: HandleTable[str, int, str] = HandleTable(most_freed=2)
    table.add("backend", 1)
    table.add("context", 2, "backend")
    table.add("other", 3, "backend")
    table.add("graph", 4, "context")
    return table


def test_a_freed_handle_is_gone_and_known() -> None:
    """A freed handle keeps the place of its release; owned handles stay alive."""
    table = made()
    assert table.free("context", "a.c:1") == 2
    assert ("context" in table, table.get("context")) == (False, None)
    assert (table.freed("context"), table.freed("graph")) == ("a.c:1", None)
    assert table.get("graph") == 4
    assert table.owned("context") == ("graph",)
    assert table.owned("backend") == ("other",)


def test_a_handle_is_freed_once() -> None:
    """A second release returns None and keeps the place of the first."""
    table = made()
    table.free("graph", "a.c:1")
    assert table.free("graph", "a.c:2") is None
    assert table.freed("graph") == "a.c:1"


def test_a_key_that_is_used_again_is_alive() -> None:
    """A reused key is alive, also under another owner."""
    table = made()
    table.free("graph", "a.c:1")
    table.add("graph", 5, "other")
    assert (table.get("graph"), table.freed("graph")) == (5, None)
    assert (table.owned("context"), table.owned("other")) == ((), ("graph",))
    table.add("graph", 6)
    assert table.owned("other") == ()


def test_the_oldest_freed_handles_are_forgotten() -> None:
    """The table forgets the oldest freed handles beyond its limit."""
    table = made()
    for key in ("graph", "other", "context"):
        table.free(key, key)
    assert [table.freed(key) for key in ("graph", "other", "context")] == [
        None,
        "other",
        "context",
    ]
    assert (len(table), table.values()) == (1, (1,))


def test_handles_can_be_disowned() -> None:
    """Disowning returns the handles of an owner once and keeps them alive."""
    table = made()
    assert table.disown("backend") == ("context", "other")
    assert table.disown("backend") == ()
    assert len(table) == 4


def test_handles_may_go_while_they_are_listed() -> None:
    """Handles may be freed while the table is listed, as by another thread."""
    table = made()
    for key, _ in table:
        table.free(key)
    assert len(table) == 0


def test_extents_overlap_in_one_space_only() -> None:
    """Extents of different processes or files do not overlap, even at equal addresses."""
    first, second = Extent(0, 100), Extent(60, 160)
    assert (first.overlap(second), second.overlap(first)) == (40, 40)
    assert first.overlap(Extent(100, 200)) == 0
    assert first.overlap(Extent(0, 100, "file")) == 0
    assert Extent(0, 100, (1, 2)).overlap(Extent(50, 60, (1, 2))) == 10
    assert (first.holds(99), first.holds(100)) == (True, False)
    assert (first.covers(Extent(10, 100)), first.covers(second)) == (True, False)
