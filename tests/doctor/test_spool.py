"""The spool of incidents: sorted by place, in memory or in a file."""

from __future__ import annotations

import random

import pytest

from qnnmem.doctor import spool as module
from qnnmem.doctor.spool import Spool
from qnnmem.results.incident import Incident


def incident(number: int) -> Incident:
    """Return an incident with this number."""
    words = ("graph", "mem", "meaning", True, "high", "cause", "entry", f"title {number} é")
    return Incident(
        *words, (), (), (), "a.log", number, number, "a.log", None, None, 1, (), {}, None
    )


def places(count: int) -> list[tuple[int, int]]:
    """Return shuffled, unique places in three logs."""
    found = [(n % 3, n) for n in range(count)]
    random.Random(0).shuffle(found)  # noqa: S311 - reproducible, not secret
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 300])
def test_incidents_come_in_order_of_their_places(count: int) -> None:
    """Incidents come out sorted by log and offset, in memory and in a file."""
    spool = Spool()
    for number, place in enumerate(places(count)):
        spool.put(*place, incident(place[1]))
        assert len(spool) == number + 1
    wanted = [incident(offset) for _, offset in sorted(places(count))]
    assert list(spool.incidents()) == wanted
    assert list(spool.incidents()) == wanted  # a second reading
    spool.close()


def test_incidents_may_come_after_a_look() -> None:
    """Incidents added after a reading are returned, too."""
    spool = Spool()
    for number in (*range(150, 300), *range(150)):
        spool.put(0, number, incident(number))
    assert len(list(spool.incidents())) == 300
    spool.put(0, 1000, incident(1000))
    assert [one.first_line for one in spool.incidents()] == [*range(300), 1000]
    assert len(spool._runs) == 2  # memory holds the new incidents only
    spool.close()


@pytest.mark.parametrize("in_memory", [0, 2, 256])
def test_incidents_of_one_place_come_as_they_were_put(
    in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incidents at the same place keep their order and are never compared."""
    monkeypatch.setattr(module, "_IN_MEMORY", in_memory)
    spool = Spool()
    for number in (7, 3, 9, 1):
        spool.put(0, 5, incident(number))
    spool.put(0, 4, incident(8))
    spool.put(0, 5, incident(2))
    assert [one.first_line for one in spool.incidents()] == [8, 7, 3, 9, 1, 2]
    spool.close()


def test_many_are_kept_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first incident over the memory limit moves all to a file, which close() closes."""
    monkeypatch.setattr(module, "_IN_MEMORY", 3)
    spool = Spool()
    for number in range(3):
        spool.put(0, number, incident(number))
    assert spool._file is None
    spool.put(0, 3, incident(3))
    file = spool._file
    assert file is not None
    assert not spool._few
    assert len(spool) == 4
    spool.close()
    assert file.closed


def test_memory_holds_256() -> None:
    """The spool keeps 256 incidents in memory."""
    assert module._IN_MEMORY == 256
