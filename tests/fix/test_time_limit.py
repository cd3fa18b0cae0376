"""The time limit of a search also stops a single long step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_samples import wide_picture

from qnnmem.deadline import ask_deadline
from qnnmem.fix import remedy_search
from qnnmem.fix.lpai import fix_for_lpai
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.loader.onnx import read_shaped
from qnnmem.loader.onnx.graph import live
from qnnmem.planner import PoolOptions


class LongWalks:
    """A remedy that walks over the nodes of the model for ever and checks no clock."""

    name = "walks"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Walk for ever."""
        ask_deadline()
        while True:
            live(base.change.model.scope.graph)
        yield base

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Fail: the test never replays this remedy."""
        raise NotImplementedError


def test_a_long_step_ends_with_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over the time limit ends the search with the results so far and a note."""
    monkeypatch.setattr(remedy_search, "_LAST_STEP_S", 0.2)
    path = wide_picture(tmp_path / "m.onnx")
    model = read_shaped(path, dims={"batch": 1})
    case = FixCase(path, model, PoolOptions(), ends_at=time.monotonic())
    found = fix_for_lpai(case, remedies=(LongWalks(),))
    assert [one.change.remedy for one in found.tried] == ["none"]
    assert "the time limit ended the search; more time might find a smaller result" in found.notes
    ask_deadline()  # no deadline is active any more
