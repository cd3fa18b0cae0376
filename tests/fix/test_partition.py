"""Partitioning models: random graphs, real models, and refusals."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy
import onnx
import pytest
from chain_proofs import check_parts, prove_partition
from onnx import TensorProto, helper, numpy_helper
from partition_graphs import random_model
from seeds import few

from qnnmem.errors import LoadError, UsageError
from qnnmem.fix.parts.op_sequence import OpRange, OpSequence, make_sequence, read_sequence
from qnnmem.fix.parts.partition import (
    NoPartition,
    PartFit,
    Partition,
    PartVerdict,
    PlannedParts,
    Rows,
    partition,
)
from qnnmem.ir import Model
from qnnmem.loader.onnx.inputs import Fixed
from qnnmem.loader.onnx.passes.build import build
from qnnmem.loader.onnx.passes.guard import guard
from qnnmem.loader.onnx.passes.read import read
from qnnmem.loader.onnx.passes.resolve import open_model
from qnnmem.loader.onnx.passes.shape import write_typed
from qnnmem.loader.onnx.sizes.advice import shape_or_advise
from qnnmem.loader.onnx.trial import TrialChild
from qnnmem.planner import plan_model
from qnnmem.quiet_onnxruntime import import_onnxruntime

ROOT = Path(__file__).parents[2]
GRAPHS = few(160, 2)
BATCH = 40


class ShortParts:
    """A judge that accepts each range up to a number of ops."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, sequence: OpSequence, op_range: OpRange) -> PartVerdict:
        """Judge a range by its number of ops."""
        short = op_range.last - op_range.first <= self.most
        return PartVerdict(PartFit.YES if short else PartFit.NEVER)

    def rows(self, sequence: OpSequence) -> Rows | None:
        """Return None: no fits are known in advance."""
        return None


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialChild]:
    """Return one child process that reads all random models."""
    path = tmp_path_factory.mktemp("random") / "model.onnx"
    with TrialChild(path, 600.0) as one:
        yield one


def read_with(child: TrialChild, path: Path) -> tuple[Model, onnx.ModelProto]:
    """Return the result of `read_with_graph`, using an existing child process."""
    opened = open_model(guard(read(path)), child)
    shaped = shape_or_advise(opened, Fixed({}, {}, {}), child)
    return build(shaped), write_typed(shaped)


def run(blob: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    """Run a model and return its outputs by name."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    wanted = {item.name: feeds[item.name] for item in session.get_inputs()}
    return dict(zip(names, session.run(names, wanted), strict=True))


def run_parts(blobs: Sequence[bytes], feeds: dict[str, Any]) -> dict[str, Any]:
    """Check and run all parts, and return their outputs."""
    known = dict(feeds)
    given: dict[str, Any] = {}
    for blob in blobs:
        onnx.checker.check_model(blob)
        results = run(blob, known)
        known.update(results)
        given.update(results)
    return given


def cut_and_compare(child: TrialChild, seed: int, folder: Path) -> int:
    """Cut a random model at random places, compare every bit, and return the number of parts.

    The number is 0 for a refused model, because not every shape behind control flow is known.
    """
    whole = random_model(seed)
    path = folder / "model.onnx"
    onnx.save(whole, path)
    random = Random(seed)  # noqa: S311  a seed is wanted
    try:
        sequence = make_sequence(path, *read_with(child, path), reorder=random.random() < 0.3)
    except LoadError as exc:
        if "depends on the data" not in str(exc):
            raise
        return 0
    found = partition(sequence, ShortParts(random.choice((1, 2, 3, 5))))
    assert isinstance(found, Partition)
    stored = {one.name for one in whole.graph.initializer}
    values = numpy.random.default_rng(seed)
    feeds = {
        item.name: values.normal(
            size=[size.dim_value for size in item.type.tensor_type.shape.dim]
        ).astype("float32")
        for item in whole.graph.input
        if item.name not in stored
    }
    expected, given = run(whole.SerializeToString(), feeds), run_parts(found.models(), feeds)
    for name, value in expected.items():
        assert given[name].tobytes() == value.tobytes(), (seed, name)
        assert given[name].shape == value.shape
    if seed % 8 == 0:
        plans_agree(child, found, folder)
    return len(found.parts)


def plans_agree(child: TrialChild, found: Partition, folder: Path) -> None:
    """Check that the planner sees the same constants and scratch in each part file."""
    for blob, part in zip(found.models(), found.parts, strict=True):
        path = folder / "part.onnx"
        path.write_bytes(blob)
        back, _ = read_with(child, path)
        assert set(back.inputs) == set(part.inputs)
        assert set(back.outputs) == set(part.outputs)
        again, before = plan_model(back), plan_model(part.model)
        assert again.constant_bytes == before.constant_bytes
        assert again.scratch_bytes == before.scratch_bytes


@pytest.mark.parametrize("batch", range(GRAPHS // BATCH))
def test_parts_of_random_models_compute_the_same(
    batch: int, child: TrialChild, tmp_path: Path
) -> None:
    """Parts with residuals, views, control flow, functions and QDQ pairs compute the same bits."""
    parts = [
        cut_and_compare(child, seed, tmp_path) for seed in range(batch * BATCH, (batch + 1) * BATCH)
    ]
    assert sum(parts) > 2 * BATCH
    assert parts.count(0) < BATCH // 10


def save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, list[int]],
    outputs: list[str],
    **weights: Any,
) -> Path:
    """Write a model of float inputs, with outputs of no stated shape."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "graph",
        [info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(numpy.asarray(value), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def hourglass(path: Path) -> Path:
    """Write a model whose tensors take 4,000, then 40, then 4,000 bytes."""
    random = numpy.random.default_rng(0)
    return save(
        path,
        [
            helper.make_node("Relu", ["x"], ["a"], "first"),
            helper.make_node("MatMul", ["a", "down"], ["b"], "narrow"),
            helper.make_node("Relu", ["b"], ["c"], "middle"),
            helper.make_node("MatMul", ["c", "up"], ["d"], "wide"),
            helper.make_node("Relu", ["d"], ["y"], "last"),
        ],
        {"x": [1, 1000]},
        ["y"],
        down=random.normal(size=(1000, 10)).astype("float32"),
        up=random.normal(size=(10, 1000)).astype("float32"),
    )


def test_a_model_is_cut_where_it_is_narrow(tmp_path: Path) -> None:
    """A partition cuts at the 40-byte tensor, halves the weights and computes the same results."""
    sequence = read_sequence(hourglass(tmp_path / "model.onnx"))
    assert sequence.crossing == (0, 4000, 40, 40, 4000, 0)
    found = partition(sequence, PlannedParts({"constants": "40K"}))
    assert isinstance(found, Partition)
    assert [(part.first, part.last) for part in found.parts] == [(0, 2), (2, 5)]
    assert found.cuts.crossing_bytes == 40
    assert prove_partition(found).identical
    check_parts(found.models())


def test_parts_keep_only_what_they_need(tmp_path: Path) -> None:
    """A part holds only its own weights and keeps the names of tensors at its border."""
    sequence = read_sequence(hourglass(tmp_path / "model.onnx"))
    found = partition(sequence, PlannedParts({"constants": "40K"}))
    assert isinstance(found, Partition)
    first, second = map(onnx.load_from_string, found.models())
    assert [one.name for one in first.graph.initializer] == ["down"]
    assert [one.name for one in second.graph.initializer] == ["up"]
    assert [one.name for one in first.graph.output] == ["b"]
    assert [one.name for one in second.graph.input] == ["b"]
    assert [dim.dim_value for dim in second.graph.input[0].type.tensor_type.shape.dim] == [1, 10]
    assert first.opset_import == second.opset_import


def test_the_pool_of_model_and_io_counts_both(tmp_path: Path) -> None:
    """The tcm pool counts constants and IO, so a cut at a wide tensor does not fit."""
    sequence = read_sequence(hourglass(tmp_path / "model.onnx"))
    found = partition(sequence, PlannedParts({"tcm": 45_000}))
    assert isinstance(found, Partition)
    assert [(part.first, part.last) for part in found.parts] == [(0, 2), (2, 5)]


def test_a_model_that_fits_is_left_whole(tmp_path: Path) -> None:
    """A model that fits stays one part."""
    found = partition(read_sequence(hourglass(tmp_path / "model.onnx")), PlannedParts("1M"))
    assert isinstance(found, Partition)
    assert len(found.parts) == 1


def test_an_op_in_the_way_is_named(tmp_path: Path) -> None:
    """If one op alone is too large, no partition exists; the reason names the op and its need."""
    found = partition(read_sequence(hourglass(tmp_path / "model.onnx")), PlannedParts("4K"))
    assert isinstance(found, NoPartition)
    words = "".join(map(str, found.why))
    assert "Relu 'first'" in words
    assert "scratch needs 8,064 bytes, over the limit of 4,096" in words


def test_external_weights_come_into_the_parts(tmp_path: Path) -> None:
    """External weights are stored inside the parts, so a part needs no other file."""
    path = hourglass(tmp_path / "model.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = partition(read_sequence(path), PlannedParts({"constants": "40K"}))
    assert isinstance(found, Partition)
    blobs = found.models()
    (tmp_path / "w.bin").rename(tmp_path / "gone.bin")
    assert sum(len(blob) for blob in blobs) > 80_000
    feeds = {"x": numpy.ones((1, 1000), "float32")}
    assert run_parts(blobs, feeds)["y"].shape == (1, 1000)


@pytest.mark.parametrize(
    ("nodes", "outputs", "words"),
    [
        (
            [
                helper.make_node("RandomNormalLike", ["x"], ["r"], "dice"),
                helper.make_node("Add", ["x", "r"], ["y"]),
            ],
            ["y"],
            "'dice' draws random numbers",
        ),
        ([], ["x"], "no operators"),
        (
            [
                helper.make_node("SequenceConstruct", ["x", "x"], ["s"], "row"),
                helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
            ],
            ["y"],
            "",
        ),
        (
            [
                helper.make_node("NonZero", ["x"], ["n"], "count"),
                helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
            ],
            ["y"],
            "depends on the data",
        ),
        ([helper.make_node("Relu", ["nothing"], ["y"])], ["y"], "no node produces"),
        ([helper.make_node("Strange", ["x"], ["y"], domain="own")], ["y"], "not an ONNX operator"),
    ],
    ids=["random", "empty", "sequence", "dependent", "dangling", "foreign"],
)
def test_what_cannot_be_cut_is_refused(
    nodes: list[Any], outputs: list[str], words: str, tmp_path: Path
) -> None:
    """A model with random ops, or without ops, is refused with one sentence."""
    path = save(tmp_path / "model.onnx", nodes, {"x": [2, 3]}, outputs)
    with pytest.raises((UsageError, LoadError)) as caught:
        read_sequence(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stated_shape_inside_is_refused(tmp_path: Path) -> None:
    """A model with a data-dependent inner shape is refused, because its parts would differ."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], "count"),
        helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    path = save(tmp_path / "model.onnx", nodes, {"x": [2, 3]}, ["y"])
    with pytest.raises(UsageError, match="'n' depends on data"):
        read_sequence(path, shapes={"n": (2, 6)})


def test_constants_that_are_outputs_and_read_stay_constants(tmp_path: Path) -> None:
    """A constant that is also an output stays a constant in each part."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, ["y"], shape=numpy.asarray([3, 2]))
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    onnx.save(model, path)
    found = partition(read_sequence(path), ShortParts(1))
    assert isinstance(found, Partition)
    assert not any("shape" in part.inputs for part in found.parts)
    assert prove_partition(found).identical


def test_a_constant_output_comes_first_in_any_order(child: TrialChild, tmp_path: Path) -> None:
    """In a reordered model constant outputs come first, and each part's file has the same plan."""
    path = tmp_path / "model.onnx"
    onnx.save(random_model(1784), path)
    sequence = make_sequence(path, *read_with(child, path), reorder=True)
    assert [op.type for op in sequence.model.ops][:2] == ["Constant", "MaxPool"]
    found = partition(sequence, ShortParts(len(sequence)))
    assert isinstance(found, Partition)
    plans_agree(child, found, tmp_path)


def test_what_passes_through_is_given_by_the_last_part(tmp_path: Path) -> None:
    """An input that is also an output belongs only to the last part."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    path = save(tmp_path / "model.onnx", nodes, {"x": [2, 3]}, ["y", "x"])
    found = partition(read_sequence(path), ShortParts(1))
    assert isinstance(found, Partition)
    assert [part.outputs for part in found.parts] == [("a",), ("y", "x")]
    assert prove_partition(found).identical


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "budget", "least"),
    [
        ("silero_ov16k", {"constants": 700_000}, 2),
        ("silero_if", {"constants": 700_000}, 2),
        ("lk_embed", {"constants": 500_000}, 3),
        ("centerface", {"tcm": 2_600_000}, 8),
        ("smartturn", {"tcm": 2_035_712}, 11),
    ],
)
def test_parts_of_real_models_compute_the_same(
    name: str, budget: dict[str, int], least: int
) -> None:
    """Each part of a real model fits, and the parts compute the same bits.

    Tensors that wait for later parts count: without them ten parts of the last would be enough.
    """
    path = ROOT / ".cache" / "models" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"model {name} is not there")
    listed = tomllib.loads((ROOT / "tools" / "models.toml").read_text("utf-8"))["model"]
    entry = next(one for one in listed if one["id"] == name)
    shapes = {key: tuple(shape) for key, shape in entry.get("shapes", {}).items()}
    sequence = read_sequence(
        path, dims=entry.get("dims", {}), shapes=shapes, values=entry.get("values", {})
    )
    found = partition(sequence, PlannedParts(budget))
    assert isinstance(found, Partition)
    assert len(found.parts) == least
    assert prove_partition(found).identical
