"""Lossy changes are made only if allowed, and their differences are measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qnnmem.calibration import find_samples, read_sample
from qnnmem.errors import ChildFailed, UsageError
from qnnmem.fix.bench import CaseBench, LossyBench
from qnnmem.fix.lossy.lower_precision import PrecisionRemedy, calibration_folder, without_layout
from qnnmem.fix.lossy.remedies import LOSSY_REMEDIES, judged_steps, needed_words
from qnnmem.fix.lossy.smaller_inputs import (
    BatchRemedy,
    ResolutionRemedy,
    batch_of,
    run_in_batches,
    smaller_images,
    with_sizes,
)
from qnnmem.fix.lpai import REMEDIES, PlanJudge, fix_for_lpai
from qnnmem.fix.proof.program import ModelBorder, Proof, resized
from qnnmem.fix.proof.prove import inputs_of, prove
from qnnmem.fix.recipe import apply_recipe
from qnnmem.fix.remedy import Change, FixCase, JudgedChange, self_contained
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.loader.onnx import read_shaped
from qnnmem.lpai.quantize.precision import classify
from qnnmem.planner import PoolOptions

Array = numpy.ndarray[Any, Any]


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Return random numbers."""
    random = numpy.random.default_rng(len(name) + shape[0])
    return numpy_helper.from_array(random.standard_normal(shape).astype("float32"), name)


def model(
    nodes: list[onnx.NodeProto], shape: list[int], stored: list[onnx.TensorProto]
) -> onnx.ModelProto:
    """Return a model from `x` to `y`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def picture(batch: int = 1, side: int = 16, *, means: bool = True) -> onnx.ModelProto:
    """Return two convolutions, optionally followed by the mean of each channel."""
    last = "c" if means else "y"
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "kk"], [last], strides=[2, 2]),
    ]
    if means:
        nodes.append(helper.make_node("GlobalAveragePool", ["c"], ["y"]))
    return model(
        nodes, [batch, 3, side, side], [weights("k", 8, 3, 3, 3), weights("kk", 4, 8, 3, 3)]
    )


def mixing(batch: int) -> onnx.ModelProto:
    """Return a model that subtracts the mean of a batch from each item."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return model(nodes, [batch, 8], [])


def case_of(made: onnx.ModelProto, folder: Path, *allow: str, **more: Any) -> FixCase:
    """Return a case for LPAI."""
    path = folder / "m.onnx"
    onnx.save(made, path)
    options = more.pop("options", PoolOptions())
    return FixCase(path, read_shaped(path), options, allow=frozenset(allow), **more)


def bench_of(case: FixCase, **budget: int) -> CaseBench:
    """Return a bench that judges by plans."""
    judge = PlanJudge(dict(budget) or None)
    return CaseBench(replace(case, limit=judge.limit), judge)


def first(bench: CaseBench) -> JudgedChange:
    """Judge the unchanged model."""
    return bench.judged(Change("none", "as it is", bench.case.model, bench.case.options))


def proof_of(judged: JudgedChange) -> Proof:
    """Return the proof of a change."""
    assert judged.proof is not None
    return judged.proof


# --- Measuring -----------------------------------------------------------------------------------


def test_a_difference_is_measured_for_every_output() -> None:
    """A proof states the largest difference, its relative size and decibels for each output."""
    before = picture()
    after = picture()
    kernel = numpy_helper.to_array(after.graph.initializer[1])
    after.graph.initializer[1].CopyFrom(numpy_helper.from_array(kernel * numpy.float32(1.01), "kk"))
    found = prove(before, after, lossy=True)
    assert [one.name for one in found.each] == ["y"]
    assert found.relative == pytest.approx(0.01, rel=1e-3)
    assert found.decibels == pytest.approx(40, abs=0.1)
    assert from_builtins(Proof, json.loads(json.dumps(to_builtins(found)))) == found


def test_another_border_is_refused_where_nothing_may_be_lost() -> None:
    """A changed batch is refused by an exact proof and accepted by a lossy one."""
    with pytest.raises(ChildFailed, match="dimension"):
        prove(picture(2), picture(1))
    assert prove(picture(2), picture(1), lossy=True).identical


def test_integers_stand_for_what_the_file_notes() -> None:
    """Floats are quantized as in ONNX: rounded to even, clipped and moved by the zero point."""
    border = ModelBorder({"x": ("uint8", (4,))}, {"x": (0.5, 10)})
    [feed] = border.feeds({"x": numpy.array([0.25, 0.75, -100, 1000], "float32")})
    assert feed["x"].tolist() == [10, 12, 0, 255]
    y = {"x": numpy.array([10, 12], "uint8")}
    assert border.joined([y], {"x": numpy.zeros(2, "float32")})["x"].tolist() == [0.0, 1.0]


def test_a_resized_ramp_is_a_ramp() -> None:
    """Resizing a ramp interpolates between its values; another number of axes is refused."""
    ramp = numpy.arange(8, dtype="float32").reshape(1, 1, 8, 1)
    assert resized(ramp, (1, 1, 4, 1)).ravel().tolist() == [0.5, 2.5, 4.5, 6.5]
    assert resized(ramp.astype("int64"), (1, 1, 4, 1)).shape == (1, 1, 4, 1)
    with pytest.raises(ValueError, match="axes"):
        resized(ramp, (4,))


# --- Precision -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CaseBench, JudgedChange]]:
    """Return a bench whose model was quantized to 8 bits with given samples."""
    folder = tmp_path_factory.mktemp("q")
    numpy.save(folder / "s.npy", numpy.random.default_rng(5).random((1, 3, 16, 16)).astype("f"))
    case = case_of(picture(), folder, "int8", samples=((("x", folder / "s.npy"),),))
    with bench_of(case) as bench:
        [judged] = PrecisionRemedy(("int8",)).changes(bench, first(bench))
        yield bench, judged


def test_what_is_judged_and_compared_is_quantized(
    quantized: tuple[CaseBench, JudgedChange],
) -> None:
    """An int8 change has no float op, a quarter of the bytes and a small measured difference."""
    _, judged = quantized
    assert judged.change.is_lossy
    assert judged.holds
    assert classify(judged.plan.model).is_quantized
    assert (judged.need.size or 0) * 4 <= (judged.before.size or 0)
    assert 0 < proof_of(judged).relative < 0.1
    assert (proof_of(judged).decibels or 0) > 20
    assert proof_of(judged).samples == 1
    assert not any("WARNING" in note for note in judged.change.notes)


def test_made_up_ranges_are_a_warning(tmp_path: Path) -> None:
    """Without samples a note warns that ranges are random; wider integers are tried first."""
    case = case_of(picture(), tmp_path, "int16", "w8a16")
    with bench_of(case) as bench:
        made = list(PrecisionRemedy(("int16", "w8a16")).changes(bench, first(bench)))
    # Narrower weights do not change scratch, so they are not tried.
    assert [one.change.what for one in made] == ["int16"]
    assert any(note.startswith("WARNING") for note in made[0].change.notes)
    assert proof_of(made[0]).relative < 1e-3


def test_what_is_on_top_may_lose_nothing_more(quantized: tuple[CaseBench, JudgedChange]) -> None:
    """An exact step on top of a lossy change is compared with that change bit for bit."""
    bench, judged = quantized
    inner = LossyBench(bench, judged)
    copy = onnx.ModelProto.FromString(self_contained(judged.change.model).SerializeToString())
    same = judged.change.then("tiling", "nothing", {}, model=_again(copy))
    assert inner.judged(same).holds
    scale = next(item for item in copy.graph.initializer if item.name == "kk_scale")
    values = numpy_helper.to_array(scale)
    other = numpy_helper.from_array(numpy.array(values * 2, values.dtype), scale.name)
    scale.CopyFrom(other)
    broken = inner.judged(judged.change.then("tiling", "wrong", {}, model=_again(copy)))
    assert not broken.holds
    assert not inner.prove(replace(broken.change, is_lossy=True)).identical


def _again(proto: onnx.ModelProto) -> Any:
    from qnnmem.fix.remedy import read_again

    return read_again(proto)


def test_bands_come_on_top_of_fewer_bits(tmp_path: Path) -> None:
    """If int8 and tiling each fail alone, `fix` combines them, and the recipe repeats both."""
    case = case_of(picture(), tmp_path, "int8")
    found = fix_for_lpai(case, {"scratch": 2048})
    assert found.fits
    assert [step["remedy"] for step in found.best.change.steps] == ["precision", "tiling"]
    assert proof_of(found.best).digest == proof_of(_quantized_one(found.tried)).digest
    steps = found.best.change.steps
    assert needed_words(steps) == ("int8",)
    again = apply_recipe(case, steps, tmp_path, (*REMEDIES, *LOSSY_REMEDIES))
    with bench_of(case) as bench:
        first(bench)
        judged = judged_steps(bench, again)
    assert judged.holds
    assert judged.need.size == found.best.need.size
    assert without_layout(again).remedy == "precision"


def _quantized_one(tried: tuple[JudgedChange, ...]) -> JudgedChange:
    return next(one for one in tried if one.change.remedy == "precision")


def test_bands_that_were_found_are_quantized_as_well(tmp_path: Path) -> None:
    """After the plain model, the precision remedy also quantizes the tiled model."""
    with bench_of(case_of(picture(), tmp_path)) as bench:
        base = first(bench)
        copy = _again(self_contained(base.change.model))
        tiled = bench.judged(base.change.then("tiling", "bands", {}, model=copy))
        made = list(PrecisionRemedy(("int8",)).changes(bench, tiled))
    steps = [[step["remedy"] for step in one.change.steps] for one in made]
    assert steps == [["precision"], ["tiling", "precision"]]


def test_what_does_not_fit_by_its_plan_is_not_made(tmp_path: Path) -> None:
    """A width whose plan does not fit is skipped, because quantizing is slow."""
    case = case_of(picture(), tmp_path)
    with bench_of(case, scratch=3000) as bench:
        remedy = PrecisionRemedy(("int16", "w8a16", "int8"))
        made = next(remedy.changes(bench, first(bench)))
    assert made.change.what == "int8"
    assert "int16 loses less accuracy, but its plan does not fit" in made.change.notes


def test_what_is_quantized_already_is_said(
    tmp_path: Path, quantized: tuple[CaseBench, JudgedChange]
) -> None:
    """A model that is already quantized is refused with the reason, without internal file names."""
    made = self_contained(quantized[1].change.model)
    case = case_of(made, tmp_path, "int8")
    with (
        bench_of(case) as bench,
        pytest.raises(ChildFailed, match="int8: is already partly quantized"),
    ):
        list(PrecisionRemedy(("int8",)).changes(bench, first(bench)))


def test_samples_are_cut_for_a_smaller_batch(tmp_path: Path) -> None:
    """For a smaller batch, calibration samples are split and keep all items."""
    x = numpy.random.default_rng(0).random((4, 8)).astype("float32")
    numpy.save(tmp_path / "s.npy", x)
    case = case_of(mixing(4), tmp_path, samples=((("x", tmp_path / "s.npy"),),))
    small = with_sizes(case.model, {"x": (2, 8)})
    folder = calibration_folder(case, small, tmp_path / "samples")
    assert folder is not None
    files = find_samples(folder, inputs_of(self_contained(small)))
    read = [read_sample(one, inputs_of(self_contained(small)))["x"] for one in files]
    assert numpy.array_equal(numpy.concatenate(read), x)


# --- Batches -------------------------------------------------------------------------------------


def test_a_batch_is_halved_until_it_fits(tmp_path: Path) -> None:
    """A batch is halved until it fits, and the joined results equal those of the whole batch."""
    case = case_of(picture(batch=6), tmp_path, "batch")
    with bench_of(case) as bench:
        made = list(BatchRemedy().changes(bench, first(bench)))
    assert [one.change.steps[-1]["size"] for one in made] == [3, 1]
    assert all(proof_of(one).identical for one in made)
    assert (made[1].need.size or 0) * 5 < (made[1].before.size or 0)


def test_a_batch_whose_items_are_mixed_is_not_cut(tmp_path: Path) -> None:
    """A model whose ops mix batch items gives other results, so a smaller batch does not count."""
    with bench_of(case_of(mixing(4), tmp_path, "batch")) as bench:
        [found] = BatchRemedy().changes(bench, first(bench))
    assert not found.holds


def test_states_keep_a_batch_together(tmp_path: Path) -> None:
    """A model with states keeps its batch, because items must not share a state."""
    case = case_of(mixing(4), tmp_path, options=PoolOptions(states={"x": "y"}))
    assert batch_of(case) == 1


def test_the_runner_splits_and_joins(tmp_path: Path) -> None:
    """`run_in_batches` splits and joins a whole batch; another multiple is refused."""
    small = read_shaped(_saved(picture(batch=2), tmp_path / "small.onnx"))
    (tmp_path / "two.onnx").write_bytes(self_contained(small).SerializeToString())
    x = numpy.random.default_rng(0).standard_normal((6, 3, 16, 16)).astype("float32")
    whole = run_in_batches(tmp_path / "two.onnx", {"x": x})["y"]
    alone = run_in_batches(tmp_path / "two.onnx", {"x": x[2:4]})["y"]
    assert whole.shape == (6, 4, 1, 1)
    assert numpy.array_equal(whole[2:4], alone)
    with pytest.raises(UsageError, match="not a multiple"):
        run_in_batches(tmp_path / "two.onnx", {"x": x[:3]})


def _saved(made: onnx.ModelProto, path: Path) -> Path:
    onnx.save(made, path)
    return path


# --- Pictures ------------------------------------------------------------------------------------


def test_smaller_pictures_with_outputs_as_before_are_compared(tmp_path: Path) -> None:
    """Smaller images with outputs of the same shape are compared on resized samples."""
    with bench_of(case_of(picture(side=32), tmp_path, "resolution")) as bench:
        made = list(ResolutionRemedy().changes(bench, first(bench)))
    assert [one.change.what for one in made] == ["images 1x3x24x24", "images 1x3x16x16"]
    assert not any(proof_of(one).unmeasured for one in made)
    assert all(0 < proof_of(one).largest < numpy.inf for one in made)
    assert (made[1].need.size or 0) < (made[0].need.size or 0) < (made[0].before.size or 0)


def test_outputs_of_another_shape_are_not_called_measured(tmp_path: Path) -> None:
    """An output whose shape changes is called unmeasured, with a note."""
    with bench_of(case_of(picture(side=32, means=False), tmp_path, "resolution")) as bench:
        made = next(ResolutionRemedy().changes(bench, first(bench)))
    assert proof_of(made).unmeasured == ("y",)
    assert not proof_of(made).identical
    assert "1 of 1 outputs have another shape" in made.change.notes[-1]


def test_a_model_for_one_size_is_refused(tmp_path: Path) -> None:
    """A model whose weights fix the image size is refused."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    made = model(nodes, [1, 3, 16, 16], [weights("w", 3 * 256, 4)])
    with (
        bench_of(case_of(made, tmp_path, "resolution")) as bench,
        pytest.raises(ChildFailed, match="not accept images of another size"),
    ):
        list(ResolutionRemedy().changes(bench, first(bench)))


@pytest.mark.parametrize(
    ("shape", "smaller"),
    [
        ([1, 3, 224, 320], (1, 3, 160, 256)),
        ([1, 96, 128, 3], (1, 64, 96, 3)),
        ([1, 3, 1, 64], None),
        ([4, 100], None),
    ],
)
def test_sizes_stay_what_strides_divide(
    shape: list[int], smaller: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """Smaller image sizes stay multiples of 32; tensors that are not images stay unchanged."""
    made = model([helper.make_node("Relu", ["x"], ["y"])], shape, [])
    found = smaller_images(case_of(made, tmp_path), 0.75)
    assert found == ({} if smaller is None else {"x": smaller})
