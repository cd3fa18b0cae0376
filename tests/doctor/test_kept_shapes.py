"""The search engine of a knowledge base is built once per thread."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import Knowledge, built_in
from qnnmem.doctor.logs import shapes
from qnnmem.doctor.logs.search import SearchEngine
from qnnmem.doctor.logs.shapes import KeptShapes, kept_shapes
from qnnmem.doctor.logs.source import find_streams

LOG = "graph requires estimated allocation of 4194304 KB, limit is 3670016 KB\n"


def test_shapes_are_made_once_for_several_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two logs share one set of line shapes and give the same cause."""
    made: list[Knowledge] = []

    class Counted(shapes.LineShapes):
        """Line shapes that record their creation."""

        def __init__(self, knowledge: Knowledge, engine: SearchEngine) -> None:
            made.append(knowledge)
            super().__init__(knowledge, engine)

    monkeypatch.setattr(shapes, "LineShapes", Counted)
    (tmp_path / "a.log").write_text(LOG)
    knowledge = Knowledge(built_in().packed)
    found = []
    for _ in range(2):
        diagnosis = diagnose(find_streams([str(tmp_path / "a.log")]), knowledge)
        found.append([one.cause for one in diagnosis.incidents()])
        diagnosis.close()
    assert found == [["mem_graph_limit"]] * 2
    assert made == [knowledge]


def test_threads_and_bases_have_their_own() -> None:
    """Each thread and each base has its own engines."""
    one, other = Knowledge(built_in().packed), Knowledge(built_in().packed)
    kept = kept_shapes(one)
    assert kept_shapes(one) is kept
    elsewhere: list[KeptShapes] = []
    thread = Thread(target=lambda: elsewhere.append(kept_shapes(one)))
    thread.start()
    thread.join()
    assert elsewhere[0] is not kept
    assert kept_shapes(other).knowledge is other
    assert kept.of(0, "plain") is kept.of(0, "plain") is not kept.of(0)
