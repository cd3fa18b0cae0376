"""Workers that take turns, and the results that remain when some are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec import structs

from qnnmem.cache import ResultCache
from qnnmem.errors import Setting, WorkerError, WorkerLost
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.htp.fit import Fit, fit_all
from qnnmem.htp.remote.cluster import ClusterModel
from qnnmem.htp.sweep import Identity, Sweep, SweepOutcome, SweepPoint, TaskCompiler
from qnnmem.htp.worker import Slots
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import BillItem, SizeRange
from qnnmem.targets.socs import find_soc, socs

POINTS: list[SweepPoint] = [{"batch": n, "vtcm_mb": m} for n in range(1, 13) for m in (2, 8)]


class Mortal:
    """A compiler whose worker is lost after a number of points, or at certain batches."""

    def __init__(self, life: int, dead: set[int] | None = None) -> None:
        self.life, self.closed, self.dead = life, False, dead

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Return an outcome, or raise WorkerLost."""
        if self.life <= 0 or (self.dead and point["batch"] in self.dead):
            raise WorkerLost("the HTP worker ssh box is gone")
        self.life -= 1
        return SweepOutcome("fits", compile_need=100 * int(point["batch"]) + int(point["vtcm_mb"]))

    def close(self) -> None:
        """Record the close."""
        self.closed = True


def table(folder: Path, *makers: Callable[[], Mortal]) -> list[tuple[object, ...]]:
    """Return the rows of a sweep, without values that vary."""
    with Sweep(list(makers), ResultCache(folder), Identity("d", 57, "l", {})) as run:
        rows = run.table(POINTS)
    return [(row.point, row.result.state, row.result.compile_need) for row in rows]


def test_a_lost_worker_costs_no_row(tmp_path: Path) -> None:
    """A sweep of 24 points loses no row when one of two workers is lost."""
    alone = table(tmp_path / "alone", lambda: Mortal(99))
    assert len(alone) == 24
    lives = iter((5, 0, 0))
    lock = threading.Lock()

    def dying() -> Mortal:
        with lock:
            return Mortal(next(lives, 0))

    assert table(tmp_path / "two", lambda: Mortal(99), dying) == alone


def test_rows_are_kept_when_no_worker_is_left(tmp_path: Path) -> None:
    """If all workers are lost, finished rows are stored, and the next run does only the rest."""
    made: list[Mortal] = []

    def once() -> Mortal:
        if made:
            raise WorkerLost("the HTP worker ssh box is gone")
        made.append(Mortal(7))
        return made[0]

    with pytest.raises(
        WorkerError,
        match="is gone; stored: 7 finished rows; run the same command again to continue",
    ):
        table(tmp_path, once)
    rest = Mortal(99)
    table(tmp_path, lambda: rest)
    assert rest.life == 99 - 17


def test_a_point_that_ends_every_worker_is_a_failed_row(tmp_path: Path) -> None:
    """A point that ends three workers is a failed row; the other points continue."""
    makers = [lambda: Mortal(99, dead={3})] * 4
    found = table(tmp_path, *makers)
    assert [state for _, state, _ in found].count("failed") == 2
    assert [state for _, state, _ in found].count("fits") == 22


def test_a_closed_set_of_slots_closes_what_was_made() -> None:
    """Closing the slots closes the workers that were made; unused workers are never made."""
    made: list[Mortal] = []

    def make() -> Mortal:
        made.append(Mortal(9))
        return made[-1]

    slots = Slots([make, make])
    slots.use(lambda one: one.run({"batch": 1, "vtcm_mb": 2}))
    slots.close()
    assert [one.closed for one in made] == [True]


def size(value: int) -> Sourced:
    """Return a number with an origin."""
    return Sourced(value, Origin.MEASURED, "log")


FIT = Fit(
    soc=find_soc("SM8650"),
    fits=False,
    checks=(
        FitCheck.of("vtcm", SizeRange(size(3), size(4)), None),
        FitCheck.of("pd", None, size(5)),
    ),
    why=("try ", Setting("precision", "int8")),
    code=1002,
    largest=(BillItem("g", "x", "input", 9),),
    seconds=1,
)


def test_an_answer_is_kept_and_read_back() -> None:
    """A verdict written as JSON reads back equal."""
    import json

    assert from_builtins(Fit, json.loads(json.dumps(to_builtins(FIT)))) == FIT


@pytest.mark.parametrize(
    "change",
    [
        {"fits": "yes"},
        {"soc": "SM9999"},
        {"soc": None},
        {"checks": [{"pool": "pd"}]},
        {"checks": 3},
        {"code": 1 << 70},
        {"why": [[]]},
        {"largest": [{"graph": "g", "name": "x", "kind": "input", "size": {"value": 1}}]},
    ],
)
def test_a_file_that_holds_something_else_counts_as_missing(change: dict[str, object]) -> None:
    """A stored verdict with a wrong field counts as missing."""
    import json

    values = json.loads(json.dumps(to_builtins(FIT)))
    assert from_builtins(Fit, {**values, **change}) is None
    assert from_builtins(Fit, None) is None


def test_spread_answers_are_those_of_one_after_another() -> None:
    """Judging SoCs in parallel gives the same order and verdicts as one after another."""
    targets = tuple(soc for soc in socs() if soc.has_htp)[:40]
    with ThreadPoolExecutor(3) as pool:
        spread = fit_all(targets, lambda soc: structs.replace(FIT, soc=soc), pool.map)
    assert spread == fit_all(targets, lambda soc: structs.replace(FIT, soc=soc))
    assert [one.soc for one in spread] == list(targets)


class Here(ThreadPoolExecutor):
    """A cluster whose only worker is this process."""


def test_a_cluster_is_sent_a_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster worker without the model asks for it once and keeps it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen: list[bytes] = []

    def compiled(
        _worker: None, path: Path, _soc: str, _base: CompileOptions, point: SweepPoint
    ) -> SweepOutcome:
        seen.append(path.read_bytes())
        return SweepOutcome("refused", f"{path}: {point['batch']}")

    monkeypatch.setattr("qnnmem.htp.remote.cluster.Worker", lambda **_: nullcontext())
    monkeypatch.setattr("qnnmem.htp.sweep.compile_task", compiled)
    model = Path(__file__).parents[2] / "examples" / "small.onnx"
    sent: list[int] = []

    class Counting(Here):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as its base
            sent.append(len(args[1]))
            return super().submit(fn, *args, **kwargs)

    with Counting(1) as executor:
        there = TaskCompiler(ClusterModel(model, executor, lambda: True), FIT.soc, CompileOptions())
        found = [there.run({"batch": number}) for number in (1, 2)]
    assert [one.reason for one in found] == [f"{model}: 1", f"{model}: 2"]
    assert seen == [model.read_bytes()] * 2
    assert sent == [0, 1, 0]
    assert [path.name[0] for path in (tmp_path / "cache" / "qnnmem" / "htp-worker").iterdir()] != [
        "."
    ]


def test_a_cluster_that_is_gone_loses_the_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception or silence of the cluster gives one sentence and loses only the point."""
    monkeypatch.setattr("qnnmem.htp.remote.cluster._LOOK_S", 0.01)
    monkeypatch.setattr("qnnmem.htp.remote.cluster.run_task", lambda *_: 1 // 0)
    model = Path(__file__).parents[2] / "examples" / "small.onnx"
    with Here(1) as executor:
        broken = TaskCompiler(
            ClusterModel(model, executor, lambda: True), FIT.soc, CompileOptions()
        )
        with pytest.raises(WorkerError, match="was lost: integer division"):
            broken.run({"batch": 1})
        wait = threading.Event()
        executor.submit(wait.wait)
        gone = TaskCompiler(ClusterModel(model, executor, lambda: False), FIT.soc, CompileOptions())
        with pytest.raises(WorkerError, match="no worker of the cluster answers"):
            gone.run({"batch": 1})
        wait.set()


def test_a_cluster_judges_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster returns its worker's verdict with the local model name, or a WorkerError."""
    from qnnmem.errors import NoCompiler
    from qnnmem.htp import fit as judges
    from qnnmem.verbs.fit import WorkerJudge

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = Path(__file__).parents[2] / "examples" / "small.onnx"
    asked: list[str] = []

    def judge(
        _worker: None, path: Path, soc: str, _options: CompileOptions, budgets: dict[str, Sourced]
    ) -> judges.JudgedModel:
        asked.append(soc)
        assert budgets == {"pd": size(5)}
        why = (f"{path} and ", Setting("precision", "int8"))
        return judges.JudgedModel(structs.replace(FIT, soc=FIT.soc, why=why), is_final=True)

    monkeypatch.setattr("qnnmem.htp.remote.cluster.Worker", lambda **_: nullcontext())
    monkeypatch.setattr(judges, "judge_task", judge)
    with Here(1) as executor:
        there = ClusterModel(model, executor, lambda: True)
        verdicts = WorkerJudge(model, "library", [lambda: there], {"pd": size(5)}, many=False)
        found = verdicts(FIT.soc, CompileOptions())
        assert found == structs.replace(FIT, why=(f"{model} and ", Setting("precision", "int8")))
        with pytest.raises(WorkerError, match="sent an unreadable message"):
            verdicts(find_soc("SM8350"), CompileOptions())
        assert asked == ["SM8650", "SM8350"]

        def none(**_: object) -> None:
            raise NoCompiler("it is not installed")

        monkeypatch.setattr("qnnmem.htp.remote.cluster.Worker", none)
        with pytest.raises(WorkerError, match="cannot compile: it is not installed"):
            verdicts(FIT.soc, CompileOptions())
