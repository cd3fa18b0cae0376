"""Sweeps: points, cached results, search, and workers that die during a sweep."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from patience import patient

from qnnmem.cache import ResultCache
from qnnmem.errors import OutputError, Setting, UsageError, join_words
from qnnmem.htp.compile import CompileOptions, HtpPrecision, no_progress
from qnnmem.htp.compile_cache import default_folder, model_digest, settings_of
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.sweep import (
    Axis,
    Identity,
    Question,
    Sweep,
    SweepOutcome,
    SweepPoint,
    SweepRow,
    TaskCompiler,
    options_of,
    parse_axis,
    points_of,
)
from qnnmem.htp.worker import LocalModel, Worker
from qnnmem.report.sweep import render_text
from qnnmem.results.sweep import SweepState
from qnnmem.targets.socs import find_soc

IDENTITY = Identity("digest", 57, "library 1", {})
SM8650 = find_soc("SM8650")


class FakeCompiler:
    """A compiler that answers without a library and records the points."""

    def __init__(
        self, answer: Callable[[SweepPoint], SweepOutcome], asked: list[SweepPoint]
    ) -> None:
        self.answer, self.asked, self.closed = answer, asked, False

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Record the point and answer."""
        self.asked.append(point)
        return self.answer(point)

    def close(self) -> None:
        """Record the close."""
        self.closed = True


def up_to(limit: int) -> Callable[[SweepPoint], SweepOutcome]:
    """Return an answer that fits up to a batch."""
    return lambda point: SweepOutcome("fits" if int(point["batch"]) <= limit else "over", "big")


def sweep(
    folder: Path,
    answer: Callable[[SweepPoint], SweepOutcome],
    identity: Identity = IDENTITY,
    jobs: int = 1,
) -> tuple[Sweep, list[SweepPoint]]:
    """Return a sweep over a fake compiler, and the list of compiled points."""
    asked: list[SweepPoint] = []
    made = Sweep(lambda: FakeCompiler(answer, asked), ResultCache(folder), identity, jobs=jobs)
    return made, asked


def batches(*values: int) -> list[SweepPoint]:
    """Return one point for each batch."""
    return [{"batch": value} for value in values]


# --- Settings ------------------------------------------------------------------------------------


def test_every_combination_is_a_setting() -> None:
    """The points are all combinations of the axes; the last axis changes fastest."""
    axes = [parse_axis("batch=1,2"), parse_axis("precision=fp16,int8")]
    assert [tuple(point.values()) for point in points_of(axes)] == [
        *((1, "fp16"), (1, "int8"), (2, "fp16"), (2, "int8")),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("batch", "=1", "batch=", "batch=0", "batch=1,,2", "batch=9..1", "batch=-1", "batch=x"),
        *("precision=fp8", "vtcm_mb=65", "opt_level=0", "batch=1..99999999999", "batch=٣"),
    ],
)
def test_a_wrong_axis_is_bad_usage(text: str) -> None:
    """A malformed axis is a usage error."""
    with pytest.raises(UsageError):
        parse_axis(text)


def test_too_many_compiles_are_refused() -> None:
    """A table of 1,000,000 points and a repeated axis are refused."""
    with pytest.raises(UsageError, match=r"1,000,000 compiles"):
        list(points_of([parse_axis("a=1..1000"), parse_axis("b=1..1000")]))
    with pytest.raises(UsageError, match="varied only once"):
        list(points_of([parse_axis("a=1"), parse_axis("a=2")]))


def test_names_that_are_no_option_are_dimensions() -> None:
    """Known names become options; other names join the fixed dimensions."""
    base = CompileOptions(dims={"seq": 7})
    point: SweepPoint = {"batch": 2, "vtcm_mb": 4, "opt_level": 3, "precision": "int8"}
    options = options_of(point, base)
    assert dict(options.dims) == {"seq": 7, "batch": 2}
    assert (options.vtcm_mb, options.opt_level, options.precision) == (4, 3, HtpPrecision.INT8)


# --- Cached results ------------------------------------------------------------------------------


def test_finished_results_are_not_compiled_again(tmp_path: Path) -> None:
    """A second sweep compiles only new points, and rows keep the requested order."""
    first, _ = sweep(tmp_path, up_to(2))
    first.table(batches(1, 2))
    second, asked = sweep(tmp_path, up_to(2))
    rows = second.table(batches(3, 2, 1))
    assert asked == batches(3)
    assert [row.from_cache for row in rows] == [False, True, True]
    assert [row.result.state for row in rows] == ["over", "fits", "fits"]


@pytest.mark.parametrize(
    "identity",
    [
        Identity("other", 57, "library 1", {}),
        Identity("digest", 58, "library 1", {}),
        Identity("digest", 57, "library 2", {}),
        Identity("digest", 57, "library 1", settings_of(CompileOptions(dims={"seq": 1}))),
    ],
)
def test_whatever_changes_a_result_changes_its_key(tmp_path: Path, identity: Identity) -> None:
    """Another model, SoC, library or fixed option does not use the cached result."""
    sweep(tmp_path, up_to(2))[0].table(batches(1))
    again, asked = sweep(tmp_path, up_to(2), identity)
    again.table(batches(1))
    assert asked == batches(1)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff{"),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_text(json.dumps({"key": path.stem, "result": {"state": 1}})),
        lambda path: path.write_text(path.read_text().replace('"fits"', "[1]")),
        lambda path: path.write_text(path.read_text().replace('"fits"', '"over"')),
        lambda path: path.write_text(path.read_text().replace('"big"', '["a", {"name": 1}]')),
        lambda path: path.write_text(path.read_text().replace('"big"', "7")),
        lambda path: path.write_text(path.read_text().replace(path.stem, "0" * 64)),
    ],
)
def test_a_damaged_result_is_compiled_again(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """A damaged cached result is compiled again."""
    sweep(tmp_path, up_to(2))[0].table(batches(1))
    (kept,) = tmp_path.rglob("*.json")
    spoil(kept)
    again, asked = sweep(tmp_path, up_to(2))
    assert again.table(batches(1))[0].result.state == "fits"
    assert asked == batches(1)


def test_settings_of_a_reason_survive_the_disk(tmp_path: Path) -> None:
    """A setting inside a reason is still a setting after caching."""
    reason = ("QNN cannot take it; ", Setting("precision", "int8"), " may do")
    sweep(tmp_path, lambda _point: SweepOutcome("refused", reason))[0].table(batches(1))
    (row,) = sweep(tmp_path, up_to(1))[0].table(batches(1))
    assert (row.from_cache, row.result.reason) == (True, reason)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A cache folder that cannot be written raises one error."""
    (tmp_path / "sweep").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written"):
        sweep(tmp_path, up_to(2))[0].table(batches(1))


def test_the_folder_follows_the_desktop_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute XDG_CACHE_HOME sets the cache folder; a relative value is ignored."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/qnnmem")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == Path.home() / ".cache" / "qnnmem"


def test_weights_beside_the_model_belong_to_it(tmp_path: Path) -> None:
    """Changing the external file of a tensor changes the digest of the model."""
    tensor = numpy_helper.from_array(numpy.zeros(4, numpy.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights")
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    node = helper.make_node("Relu", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [value], [tensor])
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    (tmp_path / "weights").write_bytes(bytes(16))
    before = model_digest(path)
    (tmp_path / "weights").write_bytes(bytes(15) + b"\1")
    assert model_digest(path) != before


# --- Failed points -------------------------------------------------------------------------------


def test_an_accident_costs_its_row_only(tmp_path: Path) -> None:
    """A failed row carries the reason, does not stop the sweep and is compiled again next time."""

    def answer(point: SweepPoint) -> SweepOutcome:
        if point["batch"] == 2:
            return SweepOutcome("failed", "ended by SIGKILL")
        if point["batch"] == 3:
            raise OSError("no more processes")
        return SweepOutcome("fits")

    rows = sweep(tmp_path, answer)[0].table(batches(1, 2, 3, 4))
    assert [row.result.state for row in rows] == ["fits", "failed", "failed", "fits"]
    assert "no more processes" in rows[2].result.reason
    again, asked = sweep(tmp_path, up_to(9))
    again.table(batches(1, 2, 3, 4))
    assert asked == batches(2, 3)


def test_an_interrupted_sweep_keeps_what_is_done(tmp_path: Path) -> None:
    """Ctrl-C during the third compile keeps the results of the first two."""

    def answer(point: SweepPoint) -> SweepOutcome:
        if point["batch"] == 3:
            raise KeyboardInterrupt
        return SweepOutcome("fits")

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, answer)[0].table(batches(1, 2, 3))
    again, asked = sweep(tmp_path, up_to(9))
    again.table(batches(1, 2, 3))
    assert asked == batches(3)


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    """With two jobs, two compiles run at the same time."""
    meeting = threading.Barrier(2, timeout=120)

    def answer(_point: SweepPoint) -> SweepOutcome:
        meeting.wait()
        return SweepOutcome("fits")

    run, _ = sweep(tmp_path, answer, jobs=2)
    with run:
        rows = run.table(batches(1, 2))
    assert [row.point["batch"] for row in rows] == [1, 2]


def test_compilers_are_closed(tmp_path: Path) -> None:
    """The sweep closes its compilers."""
    compiler = FakeCompiler(up_to(1), [])
    with Sweep(lambda: compiler, ResultCache(tmp_path), IDENTITY) as run:
        run.table(batches(1))
    assert compiler.closed


# --- Search --------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(0, 400))
def test_the_search_finds_the_largest(count: int, limit: int) -> None:
    """The search finds the same largest value as trying all, with far fewer compiles."""
    asked: list[SweepPoint] = []
    run = Sweep(lambda: FakeCompiler(up_to(limit), asked), NoCache(), IDENTITY)
    largest, rows = run.largest(Axis("batch", range(1, count + 1)), {})
    assert largest.value == (min(limit, count) or None)
    assert largest.next_value == (limit + 1 if limit < count else None)
    assert len(rows) == len(asked) <= 2 * count.bit_length() + 1


GIB = 1 << 30


def growing(slope: int, base: int, limit: int, jump_at: int | None = None) -> Any:
    """Return an answer whose process domain grows with the batch, up to a limit."""

    def answer(point: SweepPoint) -> SweepOutcome:
        batch = int(point["batch"])
        need = base + slope * batch + (limit // 3 if jump_at and batch >= jump_at else 0)
        state: SweepState = "fits" if need <= limit else "over"
        return SweepOutcome(state, "big", compile_need=need // 2, pd_need=need, file_bytes=1)

    return answer


@given(st.integers(1, 1 << 20), st.integers(0, GIB), st.integers(8, 5000))
def test_a_line_is_predicted_and_confirmed_by_two_compiles(
    slope: int, base: int, count: int
) -> None:
    """A linear need takes at most five compiles, and the predicted value is confirmed."""
    limit = base + slope * 1000 + slope // 2
    asked: list[SweepPoint] = []
    run = Sweep(lambda: FakeCompiler(growing(slope, base, limit), asked), NoCache(), IDENTITY)
    axis = Axis("batch", range(1, count + 1))
    largest, _rows = run.largest(axis, {}, limits={"pd": limit})
    assert largest.value == largest.predicted == min(1000, count)
    assert not largest.halved
    assert len(asked) <= 5
    assert {"batch": largest.value} in asked
    assert count <= 1000 or {"batch": 1001} in asked


@given(st.integers(5, 900), st.integers(100, 3000))
def test_a_wrong_prediction_falls_back_to_halving(jump_at: int, count: int) -> None:
    """If a step in the need makes the prediction wrong, halving still finds the largest value."""
    limit = 1000 << 20
    asked: list[SweepPoint] = []
    answer = growing(1 << 20, 0, limit, jump_at)
    run = Sweep(lambda: FakeCompiler(answer, asked), NoCache(), IDENTITY)
    axis = Axis("batch", range(1, count + 1))
    largest, _rows = run.largest(axis, {}, limits={"pd": limit})
    fitting = [n for n in range(1, count + 1) if answer({"batch": n}).state == "fits"]
    assert largest.value == fitting[-1]
    assert len(asked) <= 7 + count.bit_length()


def test_the_largest_that_compiles_is_another_question(tmp_path: Path) -> None:
    """The largest value that compiles may exceed the largest value that fits a process domain."""

    def answer(point: SweepPoint) -> SweepOutcome:
        need = int(point["batch"]) * 10
        if need > 500:
            return SweepOutcome("over", "over the compile limit", compile_need=need)
        state: SweepState = "fits" if need <= 300 else "over"
        return SweepOutcome(state, "no room", compile_need=need, pd_need=need, file_bytes=1)

    axis, found = Axis("batch", range(1, 100)), {}
    for question in Question:
        run, asked = sweep(tmp_path / question.value, answer)
        limits = {"compile": 500, **({"pd": 300} if question is Question.FITS else {})}
        found[question], _rows = run.largest(axis, {}, question, limits)
        assert len(asked) == 5
    fits, compiles = found[Question.FITS], found[Question.COMPILES]
    assert (fits.value, fits.next_value, fits.next_reason) == (30, 31, "no room")
    assert (compiles.value, compiles.next_reason) == (50, "over the compile limit")


def test_a_compile_that_takes_too_long_ends_the_search(tmp_path: Path) -> None:
    """A compile over the time limit ends the search with an open answer instead of halving."""

    def answer(point: SweepPoint) -> SweepOutcome:
        batch = int(point["batch"])
        late = SweepOutcome("failed", "not finished", timed_out=True)
        return late if batch > 9 else SweepOutcome("fits", pd_need=batch * 10, file_bytes=1)

    run, asked = sweep(tmp_path, answer)
    largest, _rows = run.largest(Axis("batch", range(1, 200)), {}, limits={"pd": 1000})
    assert (largest.value, largest.next_value, largest.predicted) == (4, 100, 100)
    assert largest.is_open
    assert len(asked) == 4
    text = render_text([], [largest], "m.onnx", "SM8650")
    assert text.startswith("largest batch so far that fits SM8650 is 4; 100 is undecided")
    assert "100 was predicted from small values and is not confirmed" in text


class NoCache(ResultCache):
    """A cache that stores nothing."""

    def __init__(self) -> None:
        super().__init__(Path())

    def get(self, key: str) -> None:
        """Return no result."""

    def put(self, key: str, result: Any) -> None:
        """Discard the result."""


def test_a_list_is_searched_from_small_to_large(tmp_path: Path) -> None:
    """A list of values is searched in ascending order, with the other values fixed."""
    run, _ = sweep(tmp_path, up_to(5))
    largest, rows = run.largest(Axis("batch", (8, 1, 4, 2)), {"vtcm_mb": 2})
    assert (largest.value, largest.next_value) == (4, 8)
    assert all(row.point["vtcm_mb"] == 2 for row in rows)


# --- The real library ----------------------------------------------------------------------------


def conv(path: Path) -> Path:
    """Write a small convolution with a free batch."""
    weights = numpy.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(numpy.float32)
    shape: list[int | str] = ["batch", 16, 16, 16]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
class TestRealLibrary:
    """Sweeps of a tiny model with the real library."""

    def run(
        self,
        folder: Path,
        points: list[SweepPoint],
        spoil: Callable[[SweepPoint, int], None],
        limit_s: float = 300.0,
    ) -> tuple[SweepRow, ...]:
        """Return the rows of a sweep whose worker may be harmed before a compile."""
        path = conv(folder / "conv.onnx")
        compiler = SpoiltCompiler(path, spoil, limit_s)
        with Sweep(lambda: compiler, ResultCache(folder), IDENTITY) as run:
            return run.table(points)

    def test_a_killed_worker_loses_no_result(self, tmp_path: Path) -> None:
        """SIGKILL during the second compile fails that row only; the other rows stay cached."""

        def kill(point: SweepPoint, pid: int) -> None:
            if point["batch"] == 2:
                os.killpg(pid, signal.SIGKILL)

        rows = self.run(tmp_path, batches(1, 2, 3), kill)
        assert [row.result.state for row in rows] == ["fits", "failed", "fits"]
        assert "killed from outside" in rows[1].result.reason
        again = self.run(tmp_path, batches(1, 2, 3), lambda _point, _pid: None)
        assert [row.from_cache for row in again] == [True, False, True]
        assert again[1].result.state == "fits"

    def test_a_hanging_worker_is_given_up(self, tmp_path: Path) -> None:
        """A stopped worker runs into the time limit, and the sweep continues."""

        def stop(point: SweepPoint, pid: int) -> None:
            if point["batch"] == 2:
                os.killpg(pid, signal.SIGSTOP)

        limit = patient(6)
        rows = self.run(tmp_path, batches(1, 2, 3), stop, limit_s=limit)
        assert [row.result.state for row in rows] == ["fits", "failed", "fits"]
        assert f"not finished within {limit} s" in join_words(rows[1].result.reason)

    def test_want_of_memory_is_said(self, tmp_path: Path) -> None:
        """A lack of address space fails that row only, and the reason names memory."""
        base = CompileOptions(memory_limit=450_000 << 10)
        model = LocalModel(conv(tmp_path / "conv.onnx"), Worker(warm=True), no_progress)
        compiler = TaskCompiler(model, SM8650, base)
        with Sweep(lambda: compiler, ResultCache(tmp_path), IDENTITY) as run:
            rows = run.table(batches(1))
        assert rows[0].result.state == "failed"
        assert "memory" in join_words(rows[0].result.reason)
        again = self.run(tmp_path, batches(1, 2), lambda _point, _pid: None)
        assert [row.result.state for row in again] == ["fits", "fits"]

    def test_numbers_are_the_librarys_own(self, tmp_path: Path) -> None:
        """VTCM above the SoC's is refused in its row, and IO grows with the batch."""
        points: list[SweepPoint] = [
            *({"batch": batch, "vtcm_mb": size} for batch in (1, 2) for size in (2, 16)),
        ]
        rows = self.run(tmp_path, points, lambda _point, _pid: None)
        assert [row.result.state for row in rows] == ["fits", "refused", "fits", "refused"]
        small, large = rows[0].result, rows[2].result
        assert (small.io, large.io, small.vtcm) == (32_768, 65_536, 2 << 20)
        assert None not in (small.pd_need, small.ram, small.ddr_read, small.host_ram)


class SpoiltCompiler(TaskCompiler):
    """A compiler whose worker is harmed when a compile starts."""

    def __init__(
        self, path: Path, spoil: Callable[[SweepPoint, int], None], limit_s: float
    ) -> None:
        options = CompileOptions(time_limit_s=limit_s)
        self.worker = Worker(warm=True)
        super().__init__(LocalModel(path, self.worker, self._heard), SM8650, options)
        self.spoil = spoil
        self.now: SweepPoint = {}

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Remember the point and compile it."""
        self.now = dict(point)
        return super().run(point)

    def _heard(self, text: str) -> None:
        if text.startswith("compiling") and self.worker.pid is not None:
            self.spoil(self.now, self.worker.pid)
