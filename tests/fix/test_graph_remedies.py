"""Graph remedies: fused, recomputed or replaced nodes count only if the results are the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import onnx
import onnx.parser
import pytest
from changed_graphs import change_and_compare
from command_line import exit_code, run
from onnx import numpy_helper
from picture_graphs import shaped
from seeds import seeds

from qnnmem.errors import UsageError
from qnnmem.fix.graph.fusion import FusionRemedy
from qnnmem.fix.graph.operators import OperatorRemedy, about_operators, without_einsum
from qnnmem.fix.graph.plan_settings import PlanRemedy
from qnnmem.fix.graph.rematerialise import RecomputeRemedy
from qnnmem.fix.lpai import fix_for_lpai
from qnnmem.fix.proof.prove import prove
from qnnmem.fix.recipe import apply_recipe, recipe_of
from qnnmem.fix.remedy import FixCase, ModelRemedy, self_contained
from qnnmem.fix.remedy_search import FixResult
from qnnmem.loader.onnx.passes.shape import write_typed
from qnnmem.planner import PoolOptions
from qnnmem.results.schema import encode

# A tensor is made wide, kept over the fullest step, and read at the end.
WIDE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64] x) => (float[1,256] y) {
    early = Concat <axis=1> (x, x, x, x)
    top = ReduceMax <axes=[1]> (early)
    near = Add (x, top)
    wide = MatMul (near, k)
    high = Relu (wide)
    back = MatMul (high, m)
    y = Add (back, early)
}"""
# A separate node adds padding; the last op changes its rounding if it is fused.
PADDED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,12,12] x) => (float[1,8,12,12] y) <int64[8] ends = {0,0,1,1,0,0,1,1}> {
    wide = Pad (x, ends)
    made = Conv (wide, k)
    y = %s
}"""
NORMAL = "BatchNormalization (made, s, b, m, v)"


def parsed(text: str, **constants: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model with random constants."""
    model = onnx.parser.parse_model(text)
    random = numpy.random.default_rng(3)
    for name, shape in constants.items():
        value = random.standard_normal(shape).astype("float32")
        value = numpy.abs(value) if name == "v" else value
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def padded(last: str) -> onnx.ModelProto:
    """Return a convolution with padding before it and another op after it."""
    own = dict.fromkeys("sbmv", (8,)) if last == NORMAL else {}
    return parsed(PADDED % last, k=(8, 4, 3, 3), **own)


def fixed(model: onnx.ModelProto, *remedies: ModelRemedy, allow: str = "") -> FixResult:
    """Return the result of remedies for a model, without a budget."""
    case = FixCase(Path("g.onnx"), shaped(model), PoolOptions(), allow=frozenset(allow.split()))
    return fix_for_lpai(case, remedies=remedies)


def again(result: FixResult, *remedies: ModelRemedy) -> onnx.ModelProto:
    """Return the model that the recipe of a result makes."""
    said = json.loads(encode(recipe_of(result)))
    change = apply_recipe(result.case, said["steps"], Path("r.json"), remedies)
    return self_contained(change.model)


def test_random_graphs_stay_what_they_are() -> None:
    """Fused and replaced graphs differ by rounding at most; recomputed ops are bit-identical."""
    found = [(seed, *one) for seed in seeds(40) for one in change_and_compare(seed).items()]
    wrong = [
        (seed, name, gaps)
        for seed, name, gaps in found
        if max(gaps) > (0 if name in ("again", "exact") else 1e-5)
    ]
    assert wrong == []
    assert {name for _, name, _ in found} == {"exact", "rounding", "again", "replaced"}


def test_padding_goes_into_the_convolution() -> None:
    """A Pad node is merged into its convolution without a changed bit, also by the recipe."""
    result = fixed(padded("Relu (made)"), FusionRemedy())
    best = result.best
    assert best.change.steps[0]["level"] == "exact"
    assert best.proof is not None
    assert best.proof.identical
    assert best.need.rank < best.before.rank
    kinds = [node.op_type for node in best.change.model.scope.graph.node]
    assert "Pad" not in kinds
    assert again(result, PlanRemedy(), FusionRemedy()) == self_contained(best.change.model)


def test_other_last_bits_count_only_where_they_are_allowed() -> None:
    """A merged BatchNormalization rounds differently, so it is taken only with --allow rounding."""
    model = padded(NORMAL)
    refused = fixed(model, FusionRemedy())
    last = refused.tried[-1]
    assert last.proof is not None
    assert 0 < last.proof.relative < 1e-5
    assert "not allowed" in last.change.what
    assert not last.holds
    assert refused.best is not last
    taken = fixed(model, FusionRemedy(), allow="rounding").best
    assert taken.change.is_lossy
    assert any("rounded differently" in note for note in taken.change.notes)
    kinds = [node.op_type for node in taken.change.model.scope.graph.node]
    assert "BatchNormalization" not in kinds


def test_a_cheap_tensor_is_computed_again() -> None:
    """A cheap tensor that is held over the peak is recomputed, and no bit changes."""
    result = fixed(parsed(WIDE, k=(64, 512), m=(512, 256)), RecomputeRemedy())
    best = result.best
    assert best.change.remedy == "recompute"
    assert best.proof is not None
    assert best.proof.identical
    assert best.before.size is not None
    assert best.need.size is not None
    assert best.need.size == best.before.size - 4 * (256 - 64)  # the source of the tensor is kept
    assert best.change.extra_macs == 256  # one for each element
    assert again(result, RecomputeRemedy()) == self_contained(best.change.model)


def test_a_recipe_for_another_model_is_refused() -> None:
    """A recipe whose recomputed ops are missing or too early is refused."""
    case = FixCase(Path("g.onnx"), shaped(padded("Relu (made)")), PoolOptions())
    step = {"remedy": "recompute", "nodes": 3, "inplace": False}
    wrong = {**step, "redos": [{"ops": ["nothing"], "before": "y"}]}
    with pytest.raises(UsageError, match="another model"):
        apply_recipe(case, (wrong,), Path("r"), (RecomputeRemedy(),))
    late = {**step, "redos": [{"ops": ["y"], "before": "wide"}]}
    with pytest.raises(UsageError, match="before its first run"):
        apply_recipe(case, (late,), Path("r"), (RecomputeRemedy(),))


def test_operators_are_said_by_others_where_that_is_allowed() -> None:
    """With --allow operators, Mish becomes documented ops; without, a note names Mish."""
    model = padded("Mish (made)")
    model.opset_import[0].version = 18
    plain = fixed(model)
    assert any("might not support Mish" in note for note in plain.notes)
    result = fixed(model, allow="operators")
    best = result.best
    kinds = {node.op_type for node in best.change.model.scope.graph.node}
    assert kinds.isdisjoint({"Mish", "Softplus"})
    assert best.proof is not None
    assert best.proof.relative < 1e-5
    assert about_operators(best.change.model) == ""
    assert again(result, OperatorRemedy()) == self_contained(best.change.model)


@pytest.mark.parametrize(
    ("equation", "shapes", "result"),
    [
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5)), "MatMul"),
        ("ij,kj->ki", ((3, 4), (5, 4)), "MatMul"),
        ("abc->ca", ((2, 3, 4),), "ReduceSum"),
        ("ij,jk", ((2, 3), (3, 4)), "MatMul"),
        ("ii->i", ((3, 3),), "Einsum"),
        ("i,j,k->ijk", ((2,), (3,), (4,)), "Einsum"),
    ],
)
def test_einsum_is_a_product_of_matrices(
    equation: str, shapes: tuple[tuple[int, ...], ...], result: str
) -> None:
    """Equations of one or two operands become other ops; other equations stay."""
    names = [f"x{number}" for number in range(len(shapes))]
    inputs = [
        onnx.helper.make_tensor_value_info(name, 1, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    node = onnx.helper.make_node("Einsum", names, ["y"], equation=equation)
    y = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph([node], "g", inputs, [y])
    sets = [onnx.helper.make_opsetid("", 17)]
    before = shaped(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8))
    after = without_einsum(before)
    assert result in {node.op_type for node in after.scope.graph.node}
    if result != "Einsum":
        assert prove(write_typed(before), write_typed(after)).relative < 1e-6


def test_a_result_is_validated_in_planned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--validate compares each output on the CPU and in the planned memory, and reports NaNs."""
    monkeypatch.chdir(tmp_path)
    onnx.save(padded("Log (made)"), "odd.onnx")
    done = run("fix", "odd.onnx", "--validate", "-o", "out", "--json", "--time-limit", "1")
    assert exit_code(done) == 1  # logarithms of negative numbers
    found = json.loads(done.stdout)["validation"]
    (output,) = found["outputs"]
    assert found["planned"]
    assert output["identical"]
    assert output["planned_difference"] == 0
    assert output["nans"] > 0
    assert not found["holds"]
    assert not Path("out").exists() or not list(Path("out").iterdir())
