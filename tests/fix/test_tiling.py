"""A tiled model computes the same results, or tiling is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from picture_graphs import cut_and_compare, largest_gap, make, run, shaped
from seeds import seeds

from qnnmem.fix.graph.plan_settings import PlanRemedy
from qnnmem.fix.lpai import fix_for_lpai
from qnnmem.fix.remedy import FixCase
from qnnmem.fix.tiling.bands import Bander, TileRegion
from qnnmem.fix.tiling.cost import RegionCosts
from qnnmem.fix.tiling.region_search import RegionSearch
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.fix.tiling.tiling_remedy import TilingRemedy, rewrite
from qnnmem.ir.lifetime import lifetimes
from qnnmem.loader.onnx import read_shaped
from qnnmem.loader.onnx.passes.build import build
from qnnmem.loader.onnx.passes.shape import write_typed
from qnnmem.planner import PoolOptions
from qnnmem.units import round_up


def chain(*ops: dict[str, Any], rows: int = 12, opset: int = 17) -> onnx.ModelProto:
    """Return a chain of nodes on an image of 4 channels and 10 columns."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    last = "x"
    for number, op in enumerate(ops):
        given = dict(op)
        inputs = [last]
        for value in given.pop("constants", ()):
            constants.append(numpy_helper.from_array(numpy.asarray(value), f"c{len(constants)}"))
            inputs.append(constants[-1].name)
        last = f"y{number}"
        nodes.append(helper.make_node(given.pop("op"), inputs, [last], **given))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, rows, 10])
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def weights(*shape: int) -> numpy.ndarray[Any, Any]:
    """Return random numbers."""
    return numpy.random.default_rng(1).standard_normal(shape).astype(numpy.float32)


CONV = {"op": "Conv", "constants": [weights(4, 4, 3, 3)], "pads": [1, 1, 1, 1]}


def refusal(model: onnx.ModelProto, bands: int = 2) -> str:
    """Return why a whole model cannot be tiled; empty if it can."""
    graph = TiledGraph.of(shaped(model))
    found = Bander(graph).bands(TileRegion(0, len(graph.nodes), bands))
    return found if isinstance(found, str) else ""


def test_random_graphs_are_the_same_bit_by_bit() -> None:
    """Tiling a random graph changes no bit of any output."""
    found = {seed: cut_and_compare(seed)[0] for seed in seeds(60)}
    assert {seed: gaps for seed, gaps in found.items() if any(gaps)} == {}
    assert sum(map(len, found.values())) > len(found)  # most graphs can be tiled


@pytest.mark.parametrize("seed", range(0, 60, 3))
@pytest.mark.parametrize("inplace", [False, True])
def test_bytes_of_a_region_are_those_of_the_model(seed: int, inplace: bool) -> None:
    """The cost of a tiled region equals the live bytes of the written model."""
    graph = TiledGraph.of(shaped(make(seed)))
    costs = RegionCosts(graph, PoolOptions(inplace=inplace))
    bander = Bander(graph)
    for bands in (2, 3):
        banded = bander.bands(TileRegion(0, len(graph.nodes), bands))
        if isinstance(banded, str):
            continue
        lives = lifetimes(build(rewrite(graph, [banded])), inplace=inplace)
        steps = range(-1, max(life.live.upper for life in lives))
        alive = (
            sum(round_up(life.size, 64) for life in lives if life.live.covers(step))
            for step in steps
        )
        assert costs.of(banded) == max(alive)


def test_search_finds_regions_that_need_less() -> None:
    """Tiling a model that widens and narrows saves more than 40 % of the peak."""
    wide = {"op": "Conv", "constants": [weights(12, 4, 3, 3)], "pads": [1, 1, 1, 1]}
    narrow = {"op": "Conv", "constants": [weights(2, 12, 3, 3)], "strides": [2, 2]}
    graph = TiledGraph.of(shaped(chain(wide, {"op": "Relu"}, narrow, rows=40)))
    search = RegionSearch(graph, PoolOptions())
    found = search.fewest()
    assert found.peak < 0.6 * search.peak
    within = search.cover(found.peak)
    assert within is not None
    assert within.peak <= found.peak
    assert search.cover(found.peak // 4) is None


def test_search_is_the_same_every_time() -> None:
    """Two searches of one model find the same regions."""
    model = shaped(make(5))
    found = [RegionSearch(TiledGraph.of(model), PoolOptions()).fewest() for _ in range(2)]
    assert [one.region for one in found[0].regions] == [one.region for one in found[1].regions]


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        (({"op": "GlobalAveragePool"},), "fewer rows"),
        (({"op": "Softmax", "axis": 2},), "along the cut axis"),
        (({"op": "Transpose", "perm": [0, 1, 3, 2]},), "moves the cut axis"),
        (
            ({"op": "InstanceNormalization", "constants": [weights(4)] * 2},),
            "not known to be computable row by row",
        ),
        (
            ({"op": "MaxPool", "kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},),
            "windows that extend beyond",
        ),
        ((CONV, {"op": "Flatten"}), ""),
    ],
)
def test_what_is_not_understood_is_refused(ops: tuple[dict[str, Any], ...], reason: str) -> None:
    """An op whose rows depend on each other in an unknown way is never tiled."""
    found = refusal(chain(*ops))
    assert found
    assert reason in found


def test_old_operator_sets_cut_by_attributes() -> None:
    """Before operator set 10, Slice is written with attributes."""
    model = chain(CONV, {"op": "Relu"}, opset=9)
    graph = TiledGraph.of(shaped(model))
    banded = Bander(graph).bands(TileRegion(0, 2, 3))
    assert not isinstance(banded, str)
    changed = write_typed(rewrite(graph, [banded]))
    values = {"x": weights(1, 4, 12, 10)}
    gaps = map(largest_gap, run(model, values), run(changed, values))
    assert set(gaps) == {0.0}
    assert all(len(node.input) == 1 for node in changed.graph.node if node.op_type == "Slice")


def test_few_pixels_and_long_sums_are_refused() -> None:
    """Bands with few pixels and long sums are refused, because they would round differently."""
    long = {"op": "Conv", "constants": [weights(4, 64, 3, 3)], "pads": [1, 1, 1, 1]}
    wide = {"op": "Conv", "constants": [weights(64, 4, 1, 1)]}
    assert "round" in refusal(chain(wide, long), 6)
    assert refusal(chain(wide, long, rows=40), 2) == ""


def test_noise_is_no_constant() -> None:
    """A random node without inputs is an op, not a constant."""
    model = chain(CONV, {"op": "Relu"})
    noise = helper.make_node("RandomNormal", [], ["noise"], shape=[1, 4, 12, 10])
    model.graph.node.insert(0, noise)
    model.graph.node.append(helper.make_node("Add", ["noise", "y1"], ["z"]))
    model.graph.output[0].name = "z"
    graph = TiledGraph.of(shaped(model))
    banded = Bander(graph).bands(TileRegion(1, 3, 2))
    assert not isinstance(banded, str)
    built = build(rewrite(graph, [banded]))
    assert "RandomNormal" in [op.type for op in built.ops]
    assert "noise" not in built.constants


def test_an_order_that_needs_less_is_written_into_the_model(tmp_path: Path) -> None:
    """A better op order is written into the model, and the results stay the same."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[1,64] x) => (float[1,1] y) {
        a = Concat <axis=1> (x, x, x, x)  b = Concat <axis=1> (x, x, x, x)
        c = ReduceMax <axes=[1]> (a)  d = ReduceMax <axes=[1]> (b)  y = Add(c, d) }"""
    )
    path = tmp_path / "two.onnx"
    onnx.save(model, path)
    case = FixCase(path, read_shaped(path), PoolOptions())
    result = fix_for_lpai(case, remedies=(PlanRemedy(),))
    assert result.best.change.steps[-1]["reorder"]
    assert result.best.need.rank < result.best.before.rank
    kinds = [node.op_type for node in result.best.change.model.scope.graph.node]
    assert kinds == ["Concat", "ReduceMax", "Concat", "ReduceMax", "Add"]


def test_what_gives_other_results_is_dropped(tmp_path: Path) -> None:
    """A change with different results is dropped, however small its scratch."""
    wide = {"op": "Conv", "constants": [weights(12, 4, 3, 3)], "pads": [1, 1, 1, 1]}
    narrow = {"op": "Conv", "constants": [weights(2, 12, 3, 3)], "strides": [2, 2]}
    model = chain(wide, {"op": "Relu"}, narrow, rows=40)
    model.graph.node.append(helper.make_node("RandomNormalLike", ["y2"], ["noise"]))
    model.graph.node.append(helper.make_node("Add", ["noise", "y2"], ["z"]))
    model.graph.output[0].name = "z"
    path = tmp_path / "noise.onnx"
    onnx.save(model, path)
    case = FixCase(path, read_shaped(path), PoolOptions(inplace=True))
    result = fix_for_lpai(case, remedies=(TilingRemedy(),))
    assert result.best.change.steps == ()
    best = result.best.need.rank
    assert any(one.need.rank < best and not one.holds for one in result.tried)
