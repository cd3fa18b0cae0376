"""`fix` caches its results by content, completely or not at all, and checks them on reading."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fix_samples import wide_picture

from qnnmem.cache import ResultCache
from qnnmem.fix import bench as bench_module
from qnnmem.fix import recipe
from qnnmem.fix.bench import CaseBench
from qnnmem.fix.lpai import REMEDIES, PlanJudge, fix_for_lpai
from qnnmem.fix.proof import prove
from qnnmem.fix.proof.program import Proof
from qnnmem.fix.remedy import Change, FixCase
from qnnmem.fix.remedy_search import FixResult, cost_of
from qnnmem.fix.tiling.region_search import RegionSearch, RememberedCovers
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx import read_shaped
from qnnmem.planner import PoolOptions


@pytest.fixture
def case(tmp_path: Path) -> FixCase:
    """Return a case that tiling helps."""
    model = read_shaped(wide_picture(tmp_path / "wide.onnx"), dims={"batch": 1})
    return FixCase(tmp_path / "wide.onnx", model, PoolOptions())


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[FixCase, FixResult, Path]:
    """Return a case, its result and the folder of the cache."""
    folder = tmp_path_factory.mktemp("known")
    model = read_shaped(wide_picture(folder / "wide.onnx"), dims={"batch": 1})
    case = FixCase(folder / "wide.onnx", model, PoolOptions())
    return case, fix_for_lpai(case, memory=ResultCache(folder, "fix")), folder


def test_the_second_run_neither_searches_nor_compares(
    known: tuple[FixCase, FixResult, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run neither searches nor compares, and has the same result."""
    case, first, folder = known
    searched: list[int] = []
    monkeypatch.setattr(RegionSearch, "_from", lambda *_: searched.append(1))
    monkeypatch.setattr(bench_module, "Prover", None)
    again = fix_for_lpai(case, memory=ResultCache(folder, "fix"))
    assert not searched
    assert first.best.change.steps
    assert again.best.change.steps == first.best.change.steps
    assert [one.need.size for one in again.tried] == [one.need.size for one in first.tried]
    assert again.best.proof == first.best.proof


def test_a_bad_file_counts_as_missing(
    known: tuple[FixCase, FixResult, Path], tmp_path: Path
) -> None:
    """A truncated, empty or malformed cache file is ignored, and the result is found again."""
    case, first, folder = known
    bad = (b"", b"{", b"[]", b'{"key": 1}')
    for number, path in enumerate(sorted(folder.rglob("fix/*/*.json"))):
        copy = tmp_path / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(bad[number % len(bad)])
        copy.chmod(0o600)
    again = fix_for_lpai(case, memory=ResultCache(tmp_path, "fix"))
    assert again.best.change.steps == first.best.change.steps


@pytest.mark.parametrize(
    "kept",
    [
        {"regions": "all"},
        {"regions": [[0, 2]]},
        {"regions": [[0, 2, 2.5, -2]]},
        {"regions": [[0, 99, 2, -2]]},
        {"regions": [[1, 0, 2, -2]]},
        {"regions": [[0, 2, 5, -2]]},
        {"regions": [[0, 2, 2, 7]]},
        {"regions": [], "more": 1},
    ],
)
def test_regions_that_cannot_be_are_not_believed(
    case: FixCase, tmp_path: Path, kept: dict[str, object]
) -> None:
    """Cached regions that do not belong to the model or exceed the limit are ignored."""
    start = Change("none", "as it is", case.model, case.options)
    with CaseBench(case, PlanJudge(), ResultCache(tmp_path)) as bench:
        covers = RememberedCovers(bench, start, PoolOptions())
        search = RegionSearch(TiledGraph.of(case.model), PoolOptions())
        limit = search.peak * 3 // 4
        bench.remember(covers._question(limit, ()), kept)
        honest = search.cover(limit)
        told = RegionSearch(TiledGraph.of(case.model), PoolOptions(), kept=covers).cover(limit)
        assert honest is not None
        assert told == honest
        assert covers.find(limit, ()) is not None  # the correct cover replaces the wrong one


def test_what_the_clock_cut_is_not_kept(case: FixCase, tmp_path: Path) -> None:
    """A search that the time limit cuts off is not cached."""
    start = Change("none", "as it is", case.model, case.options)
    with CaseBench(case, PlanJudge(), ResultCache(tmp_path)) as bench:
        covers = RememberedCovers(bench, start, PoolOptions())
        search = RegionSearch(TiledGraph.of(case.model), PoolOptions(), seconds=-1, kept=covers)
        assert search.cover(search.peak // 2) is None
        assert covers.find(search.peak // 2, ()) is None


def test_a_proof_is_asked_for_by_all_it_depends_on(
    case: FixCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another runtime or seed, or a damaged cached proof, makes a new comparison."""
    asked: list[str] = []
    same = Proof(3, 1, (), 0.0, 0.0)
    monkeypatch.setattr(prove.Prover, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(prove.Prover, "__exit__", lambda *_: None)

    def compare(*_: object, **__: object) -> Proof:
        asked.append("")
        return same

    monkeypatch.setattr(prove.Prover, "compare", compare)
    start = Change("none", "as it is", case.model, case.options)

    def questions(seed: int = 0) -> int:
        with CaseBench(replace(case, seed=seed), PlanJudge(), ResultCache(tmp_path)) as bench:
            assert bench.prove(start) == same
        return len(asked)

    assert [questions(), questions(), questions(seed=1)] == [1, 1, 2]
    monkeypatch.setattr(bench_module, "runtime_words", lambda: ("another",))
    assert questions() == 3
    for path in tmp_path.rglob("*.json"):
        values = json.loads(path.read_text())
        values["result"]["differing"] = "none"
        path.write_text(json.dumps(values))
    assert questions() == 4


def test_a_looser_budget_gets_nothing_worse_than_a_tighter_one_found(
    known: tuple[FixCase, FixResult, Path], tmp_path: Path
) -> None:
    """A run with a looser budget finds a result no costlier than an earlier, tighter run."""
    case, least, _ = known
    peak = least.tried[0].need.size or 0
    memory = ResultCache(tmp_path, "fix")
    tight = fix_for_lpai(case, {"scratch": least.best.need.size or 0}, memory=memory)
    assert tight.best.is_enough
    for part in (0.7, 0.8, 0.9):
        loose = fix_for_lpai(case, {"scratch": int(part * peak)}, memory=memory)
        assert loose.best.is_enough
        assert cost_of(loose.best) <= cost_of(tight.best)


def test_what_an_earlier_run_proved_is_used_without_time(
    known: tuple[FixCase, FixResult, Path], tmp_path: Path
) -> None:
    """Without time, a search still returns the cached result of an earlier run."""
    case, least, _ = known
    limit = {"scratch": int(0.6 * (least.tried[0].need.size or 0))}
    late = replace(case, ends_at=0.0)
    memory = ResultCache(tmp_path, "fix")
    assert not fix_for_lpai(late, limit, memory=memory).fits
    first = fix_for_lpai(case, {"scratch": limit["scratch"] - 1024}, memory=memory)
    assert first.fits
    again = fix_for_lpai(late, limit, memory=memory)
    assert again.fits
    assert again.best.change.steps == first.best.change.steps


def test_kept_changes_of_another_shape_are_not_believed(case: FixCase, tmp_path: Path) -> None:
    """Cached changes of the wrong shape, or for another model, are ignored."""
    start = Change("none", "as it is", case.model, case.options)
    bad: list[object] = [
        "all",
        [[1, [0.0], "", "steps"]],
        [[1, [0.0], 7, [{"remedy": "plan"}]]],
        [["1", [0.0], "", []]],
        [[1, [0.0], "", [{"remedy": "tiling"}]]],
        [[1, [0.0], "", [{"remedy": "unknown"}]]],
        [[1, ["much"], "", [{"remedy": "plan"}]]],
    ]
    for kept in bad:
        with CaseBench(case, PlanJudge(), ResultCache(tmp_path)) as bench:
            bench.remember(recipe._question(bench), {"changes": kept})
            tried = (bench.judged(start),)
            assert recipe.add_proven(bench, tried, REMEDIES) == tried
