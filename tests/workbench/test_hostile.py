"""Hostile uploads: each gets a 4xx answer with one sentence and leaves no file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_uploads import HostileCase, cases, send
from seeds import seeds
from served import Served

from qnnmem.workbench import intake

# Decompression bombs take long to make; the doctor's tests cover them.
_LEFT_OUT = ("packed bomb",)


def some() -> list[HostileCase]:
    """Return one case of each kind, or as many as requested."""
    return [case for case in cases(len(seeds(10)), seed=7) if case.kind not in _LEFT_OUT]


def test_hostile_uploads_are_refused_in_a_sentence_and_leave_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every hostile upload gets a 4xx answer and leaves no file."""
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
    """A result whose schema is not text is refused with one sentence."""
    came = served.drop("z.json", b'{"schema":"qnnmem.plan/1","qnnmem":{"schema":[]}}')
    assert 400 <= came.status < 500
    assert "have no page" in came.said
