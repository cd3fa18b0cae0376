"""Hostile uploads: each is answered 4xx with one sentence and leaves nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_uploads import HostileCase, cases, send
from seeds import seeds
from served import Served

from qnnmem.workbench import intake

# Packed bombs take long to make; the doctor's own tests have them.
_LEFT_OUT = ("packed bomb",)


def some() -> list[HostileCase]:
    """One of each kind, or as many as were asked for."""
    return [case for case in cases(len(seeds(10)), seed=7) if case.kind not in _LEFT_OUT]


def test_hostile_uploads_are_refused_in_a_sentence_and_leave_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came, the next one is answered."""
    monkeypatch.setattr(intake, "IDLE_S", 0.5)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda case: send(case, served.port), some()))
    assert [one.fault for one in answers if one.fault] == []
    state = served.get("/api/state").values
    folder = served.bench.uploads.path("x").parent
    assert {path.name for path in folder.iterdir()} == {file["id"] for file in state["files"]}
    assert not list((folder.parent / "work").iterdir())
    assert {file["name"] for file in state["files"]}.isdisjoint({"..", ".", "../../etc/passwd"})


def test_a_result_whose_schema_is_no_text_is_refused(served: Served) -> None:
    """In a sentence, as any other that cannot be shown."""
    came = served.drop("z.json", b'{"schema":"qnnmem.plan/1","qnnmem":{"schema":[]}}')
    assert 400 <= came.status < 500
    assert "have no page" in came.said
