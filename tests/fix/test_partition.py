"""Cutting models: random graphs, real ones, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from partition_graphs import random_model

from qnnmem.errors import LoadError, UsageError
from qnnmem.fix.chain import check_parts, prove_partition
from qnnmem.fix.chain_manifest import part_models
from qnnmem.fix.cut import PartFit, Rows
from qnnmem.fix.partition import NoPartition, Partition, PartVerdict, PlannedParts, partition
from qnnmem.fix.partition_line import OpLine, Stretch, make_line, read_line
from qnnmem.ir import Model
from qnnmem.load.onnx.fixed import Fixed
from qnnmem.load.onnx.passes.build import build
from qnnmem.load.onnx.passes.guard import guard
from qnnmem.load.onnx.passes.read import read
from qnnmem.load.onnx.passes.resolve import open_model
from qnnmem.load.onnx.sizes.advice import shape_or_advise
from qnnmem.load.onnx.trial.child import TrialChild
from qnnmem.load.onnx.typed import write_typed
from qnnmem.quiet_onnxruntime import import_onnxruntime

GRAPHS = 320
BATCH = 40


class ShortParts:
    """A judge that passes every stretch of at most so many ops."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, line: OpLine, stretch: Stretch) -> PartVerdict:
        """Count."""
        short = stretch.last - stretch.first <= self.most
        return PartVerdict(PartFit.YES if short else PartFit.NEVER)

    def rows(self, line: OpLine) -> Rows | None:
        """Nothing is known before."""
        return None


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialChild]:
    """Give one child that reads all random models."""
    path = tmp_path_factory.mktemp("random") / "model.onnx"
    with TrialChild(path, 600.0) as one:
        yield one


def read_with(child: TrialChild, path: Path) -> tuple[Model, onnx.ModelProto]:
    """What `read_with_graph` gives, with a child that stays."""
    opened = open_model(guard(read(path)), child)
    shaped = shape_or_advise(opened, Fixed({}, {}, {}), child)
    return build(shaped), write_typed(shaped)


def run(blob: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a model by name."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    wanted = {item.name: feeds[item.name] for item in session.get_inputs()}
    return dict(zip(names, session.run(names, wanted), strict=True))


def run_parts(found: Partition, feeds: dict[str, Any]) -> dict[str, Any]:
    """Outputs of all parts, each a valid model that gets what it needs."""
    known = dict(feeds)
    given: dict[str, Any] = {}
    for blob in part_models(found):
        onnx.checker.check_model(blob)
        results = run(blob, known)
        known.update(results)
        given.update(results)
    return given


def cut_and_compare(child: TrialChild, seed: int, folder: Path) -> int:
    """Cut a random model at random places and compare every bit; gives the number of parts.

    It is 0 for a model that is refused: not every shape behind control flow is known.
    """
    whole = random_model(seed)
    path = folder / "model.onnx"
    onnx.save(whole, path)
    random = Random(seed)  # noqa: S311  a seed is wanted
    try:
        line = make_line(path, *read_with(child, path), reorder=random.random() < 0.3)
    except LoadError as exc:
        if "depends on the data" not in str(exc):
            raise
        return 0
    found = partition(line, ShortParts(random.choice((1, 2, 3, 5))))
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
    expected, given = run(whole.SerializeToString(), feeds), run_parts(found, feeds)
    for name, value in expected.items():
        assert given[name].tobytes() == value.tobytes(), (seed, name)
        assert given[name].shape == value.shape
    return len(found.parts)


@pytest.mark.parametrize("batch", range(GRAPHS // BATCH))
def test_parts_of_random_models_compute_the_same(
    batch: int, child: TrialChild, tmp_path: Path
) -> None:
    """Residuals, views, control flow, functions, quantized pairs: every output bit is the same."""
    parts = [
        cut_and_compare(child, seed, tmp_path) for seed in range(batch * BATCH, (batch + 1) * BATCH)
    ]
    assert sum(parts) > 2 * BATCH
    assert parts.count(0) < BATCH // 10
