from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from qnnmem.errors import LoadError, UsageError
from qnnmem.flags import flag
from qnnmem.ir import Effect, Model
from qnnmem.loader.onnx import executable, read
from qnnmem.planner import plan_model
from qnnmem.results.proof import ProofScope

BRANCHES = (
    "If ({cond}) <then_branch = t () => (float[A] u) {{ k = Constant<value = float[2] {{1,2}}>()"
    " u = Add(x, k) }}, else_branch = f () => (float[B] v) {{ {other} }}>"
)


def save(folder: Path, body: str) -> Path:
    """Write a model given as text and return its path."""
    path = folder / "model.onnx"
    text = f'<ir_version: 8, opset_import: ["" : 18]> {body}'
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def branches(cond: str, other: str = "v = Neg(x)") -> str:
    """Return an If on `cond` that reads `x`."""
    return BRANCHES.format(cond=cond, other=other)


def loop(folder: Path, signature: str, body: str, rest: str) -> Path:
    """Write a model with one Loop `h, t = Loop(n, c, x)`; `rest` makes the outputs."""
    inner = (
        f"body = b (int64 i, bool go, float[2] a) => (bool on, float[2] e, float[C] f) {{ {body} }}"
    )
    return save(folder, f"g {signature} {{ h, t = Loop(n, c, x) <{inner}> {rest} }}")


def test_both_branches_become_bodies(tmp_path: Path) -> None:
    """Both branches of an If become bodies with their own constants; captures are op inputs."""
    model = read(
        save(tmp_path, f"g (float[2] x, bool c) => (float[2] y) {{ y = {branches('c')} }}")
    )
    (op,) = model.ops
    assert (op.type, op.inputs, op.repeats) == ("If", ("c", "x"), False)
    then, other = op.bodies
    assert [inner.inputs for inner in then.ops] == [("x", "k")]
    assert (then.inputs, then.outputs, then.constants) == ((), ("u",), ("k",))
    assert [inner.type for inner in other.ops] == ["Neg"]
    assert "x" not in then.tensors


def test_a_constant_condition_picks_its_branch(tmp_path: Path) -> None:
    """An If with a constant condition is replaced by its chosen branch."""
    path = save(
        tmp_path,
        "g (float[2] x, float[2] k) => (float[2] y) <int64 two = {2}>"
        f"{{ n = Size(x) c = Equal(n, two) y = {branches('c')} }}",
    )
    model = read(path)
    assert [op.type for op in model.ops] == ["Add"]
    assert "If" not in [node.op_type for node in executable(path).graph.node]
    assert len({"k", *model.constants}) == 2  # the branch's own k differs from the input


def test_branches_of_different_shape_are_refused(tmp_path: Path) -> None:
    """An output whose shape depends on the branch is refused until `--shape` states its bound."""
    text = branches("c", "v = Concat<axis=0>(x, x)")
    path = save(tmp_path, f"g (float[2] x, bool c) => (float[2] y) {{ y = {text} }}")
    with pytest.raises(LoadError, match=r"'y', output of 'If', depends on the branch") as caught:
        read(path)
    assert caught.value.sentence(flag).endswith(" with --shape y=AxB")
    assert read(path, shapes={"y": (4,)}).tensors["y"].shape == (4,)


def test_a_loop_of_known_length_stacks_its_results(tmp_path: Path) -> None:
    """A Loop with a constant trip count has a known stacked output."""
    path = loop(
        tmp_path,
        "(float[2] x) => (float[2] h, float[A,B] t) <int64 n = {3}, bool c = {1}>",
        "on = Identity(go) e = Exp(a) f = Neg(e)",
        "",
    )
    model = read(path)
    assert model.tensors["t"].shape == (3, 2)
    assert model.ops[0].repeats
    assert model.ops[0].bodies[0].inputs == ("i", "go", "a")


def test_a_loop_that_data_steer_is_refused_until_stated(tmp_path: Path) -> None:
    """A Loop whose trip count depends on data is refused until a shape is given."""
    path = loop(
        tmp_path,
        "(float[2] x, int64 n, bool c) => (float[2] h, float[A,B] y)",
        "on = Identity(go) e = Exp(a) f = Neg(e)",
        "y = Relu(t)",
    )
    with pytest.raises(
        LoadError, match="'t', output of 'Loop', depends on the number of iterations"
    ):
        read(path)
    assert read(path, shapes={"t": (9, 2)}).tensors["y"].shape == (9, 2)


def test_a_loop_that_counts_itself_is_measured(tmp_path: Path) -> None:
    """The length of a Loop with a constant counter is measured in a trial run."""
    inner = (
        "body = b (int64 i, bool go, int64 j) => (bool on, int64 e, float[2] f)"
        "{ one = Constant<value = int64 {1}>() five = Constant<value = int64 {5}>()"
        "  e = Add(j, one) on = Less(e, five) f = Exp(x) }"
    )
    text = f"y0, y = Loop(n, c, zero) <{inner}>"
    signature = "g (float[2] x) => (float[A,B] y) <int64 n = {99}, bool c = {1}, int64 zero = {0}>"
    assert read(save(tmp_path, f"{signature} {{ {text} }}")).tensors["y"].shape == (5, 2)


def test_a_loop_whose_state_grows_is_refused(tmp_path: Path) -> None:
    """A Loop whose carried tensor changes its shape is refused."""
    path = loop(
        tmp_path,
        "(float[2] x) => (float[2] h, float[A,B] t) <int64 n = {3}, bool c = {1}>",
        "on = Identity(go) e = Concat<axis=0>(a, a) f = Neg(a)",
        "",
    )
    with pytest.raises(LoadError, match="changes its shape between iterations, which is"):
        read(path)


def test_scan_slices_and_stacks(tmp_path: Path) -> None:
    """A Scan body sees one slice; the results stack along the scanned length."""
    path = save(
        tmp_path,
        "g (float[2] x, float[7,2] s) => (float[2] h, float[A,B] t) {"
        "h, t = Scan <num_scan_inputs=1, "
        "body = b (float[2] a, float[2] p) => (float[2] e, float[2] f) { e = Add(a, p) f = Neg(e) }"
        "> (x, s) }",
    )
    model = read(path)
    assert model.tensors["t"].shape == (7, 2)
    assert model.ops[0].repeats


@pytest.mark.parametrize(
    ("nodes", "tensor", "op", "largest"),
    [
        ("h = NonZero(x) y = Neg(h)", "h", "NonZero", "1x3"),
        ("h = Cast<to=7>(x) y = Expand(x, h)", "y", "Expand", "AxB"),  # random data fail here
        ("h = Cast<to=7>(x) y = ConstantOfShape(h)", "y", "ConstantOfShape", ""),
        ("c = Cast<to=9>(x) h = Compress(x, c) y = Neg(h)", "h", "Compress", "3"),
        ("h = Cast<to=7>(x) y = Slice(x, h, h)", "y", "Slice", "3"),
        ("h = Unique(x) y = Neg(h)", "h", "Unique", "3"),
    ],
)
def test_shapes_that_depend_on_data_are_refused(
    tmp_path: Path, nodes: str, tensor: str, op: str, largest: str
) -> None:
    """The error names the first tensor whose shape depends on data, with the option to set it."""
    path = save(tmp_path, f"g (float[3] x) => (float[N] y) {{ {nodes} }}")
    with pytest.raises(LoadError, match=f"'{tensor}', output of '{op}', depends on") as caught:
        read(path)
    said = caught.value.sentence(flag)
    assert f"depends on the data; set its largest shape with --shape {tensor}={largest}" in said
    # Without a known bound, the proposed shape is measured, and the message says so.
    assert said.endswith("in a trial run; real data may need more)") == (not largest)


def test_all_shapes_that_depend_on_data_come_in_one_answer(tmp_path: Path) -> None:
    """One error lists all tensors whose shapes depend on data; its options are sufficient."""
    path = save(
        tmp_path,
        "g (float[4] x, float[5] z, int64[1] n) => (float[A] c, int64[B] r)"
        "<int64 zero = {0}, int64 one = {1}> {"
        "h = NonZero(x) i = Cast<to=1>(h) d = Reshape(i, n) c = Neg(d)"
        "u = Unique(z) q = Size(u) r = Range(zero, q, one) }",
    )
    with pytest.raises(LoadError) as caught:
        read(path)
    said = caught.value.sentence(flag)
    assert "the shapes of 4 tensors depend on the data: 'h' (NonZero), 'u' (Unique), 'r'" in said
    assert "--shape h=1x4 --shape u=5 --shape r=5 --shape d=AxB (1 of them measured in" in said
    model = read(path, shapes={"h": (1, 4), "u": (5,), "r": (5,), "d": (4,)})
    assert model.tensors["c"].shape == (4,)


def test_a_stated_shape_bounds_what_follows(tmp_path: Path) -> None:
    """Shapes after a given shape are inferred from it, and the plan states the condition."""
    path = save(tmp_path, "g (float[4] x) => (int64[A,B] y) { h = NonZero(x) y = Neg(h) }")
    model = read(path, shapes={"h": (1, 4)})
    assert model.tensors["y"].shape == (1, 4)
    assert model.notes == ()
    assert model.holds_for == (
        "the plan is valid while the shape of 'h' of NonZero 'h' stays within the given 1x4",
    )


def test_a_stated_shape_must_not_contradict(tmp_path: Path) -> None:
    """A given shape that contradicts the inferred one raises UsageError."""
    path = save(tmp_path, "g (float[4] x) => (float[4] y) { h = Exp(x) y = Neg(h) }")
    with pytest.raises(UsageError, match="tensor 'h' has shape 4, not the given 2x2"):
        read(path, shapes={"h": (2, 2)})


def test_a_body_never_overwrites_what_it_captures(tmp_path: Path) -> None:
    """An element-wise op in a body never overwrites a captured tensor."""
    other = "m = Exp(x) v = Neg(x)"
    path = save(
        tmp_path, f"g (float[2] x, bool c) => (float[2] y) {{ y = {branches('c', other)} }}"
    )
    effects = {op.effect for body in read(path).ops[0].bodies for op in body.ops}
    assert effects == {Effect.COMPUTE}


def test_captures_reach_through_nested_bodies(tmp_path: Path) -> None:
    """A tensor that a nested body captures is an input of the outer op."""
    inner = (
        "If (d) <then_branch = t2 () => (float[2] a) { a = Add(x, w) },"
        "        else_branch = f2 () => (float[2] b) { b = Exp(x) }>"
    )
    path = save(
        tmp_path,
        "g (float[2] x, bool c, bool d) => (float[2] y) <float[2] w = {1,2}>"
        f"{{ y = If (c) <then_branch = t () => (float[2] u) {{ u = {inner} }},"
        "               else_branch = f () => (float[2] v) { v = Neg(x) }> }",
    )
    model: Model = read(path)
    assert set(model.ops[0].inputs) == {"c", "d", "x", "w"}
    assert model.constants == ("w",)
    assert model.ops[0].bodies[0].constants == ()


@pytest.mark.parametrize("view", ["Flatten(x)", "Identity(x)", "Reshape(x, s)"])
def test_a_view_of_a_captured_tensor_costs_nothing(tmp_path: Path, view: str) -> None:
    """A branch that reshapes a captured tensor makes no copy; the total is an upper bound."""
    chosen = (
        f"If (c) <then_branch = t () => (float[1,64] u) {{ m = {view} k = Identity(m)"
        " u = MatMul(k, w) }, else_branch = f () => (float[1,64] v) { v = MatMul(x, w) }>"
    )
    weights = "float[1,1520] one = {" + ",".join(["1"] * 1520) + "}"
    path = save(
        tmp_path,
        f"g (float[1,1520] x, bool c) => (float[1,64] y) <int64[2] s = {{1,1520}}, {weights},"
        " int64[2] p = {64,1520}>"
        f"{{ e = Expand(one, p) w = Transpose(e) y = {chosen} }}",
    )
    plan = plan_model(read(path))
    # Input, condition, output, and the branch's output.
    assert plan.scratch_bytes == 6_080 + 64 + 256 + 256
    assert plan.proof is ProofScope.UPPER_BOUND


def test_a_view_of_a_captured_tensor_in_a_loop_costs_nothing(tmp_path: Path) -> None:
    """A loop that flattens a captured tensor needs no more scratch than one without."""
    body = "m = Flatten(x) f = ReduceSum<keepdims=0>(m) e = Add(a, a) on = Identity(go)"
    plain = "f = ReduceSum<keepdims=0>(x) e = Add(a, a) on = Identity(go)"
    sizes = []
    for text in (body, plain):
        head = "body = b (int64 i, bool go, float[2] a) => (bool on, float[2] e, float f)"
        path = save(
            tmp_path,
            "g (float[1,800] x, float[2] h) => (float[2] y, float[3] t)"
            " <int64 n = {3}, bool c = {1}>"
            f"{{ y, t = Loop(n, c, h) <{head} {{ {text} }}> }}",
        )
        sizes.append(plan_model(read(path)).scratch_bytes)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("body", "fixed", "sentence"),
    [
        (
            "g (float[12] x, int64[2] s) => (float[A,B] y) { h = Reshape(x, s) y = Neg(h) }",
            {"values": {"s": [3, 4]}},
            "the plan is valid only for 's' = 3,4, on which Reshape 'h' depends",
        ),
        (
            "g (float[2] x, int64 k) => (float[2] y) <int64 one = {1}>"
            f"{{ c = Equal(k, one) y = {BRANCHES.format(cond='c', other='v = Neg(x)')} }}",
            {"values": {"k": 1}},
            "the plan is valid only for 'k' = 1, on which If 'y' depends",
        ),
        (
            "g (float[4] x) => (int64[A,B] y) { y = NonZero(x) }",
            {"shapes": {"y": (1, 4)}},
            "the plan is valid while the shape of 'y' of NonZero 'y' stays within the given 1x4",
        ),
    ],
)
def test_a_plan_for_one_input_says_so(
    tmp_path: Path, body: str, fixed: dict[str, Any], sentence: str
) -> None:
    """A plan that holds only for a given value or shape names the node that depends on it."""
    assert read(save(tmp_path, body), **fixed).holds_for == (sentence,)


def test_turns_that_a_trial_run_counted_are_named(tmp_path: Path) -> None:
    """A trip count measured in a trial run is stated as a condition of the plan."""
    inner = (
        "body = b (int64 i, bool go, float[2] a, int64 k)"
        " => (bool on, float[2] e, int64 l, float f)"
        " { l = Add(k, one) on = Less(l, five) f = ReduceSum<keepdims=0>(a) e = Add(a, a) }"
    )
    path = save(
        tmp_path,
        "g (float[2] x) => (float[2] y, float[T] t) <bool c = {1}, int64 n = {100},"
        " int64 zero = {0}, int64 one = {1}, int64 five = {5}>"
        f"{{ y, k, t = Loop(n, c, x, zero) <{inner}> }}",
    )
    model = read(path)
    assert model.tensors["t"].shape == (5,)
    assert model.holds_for == (
        "the plan is valid while these shapes stay as measured in a trial run: 't' of Loop 'y'",
    )


def test_a_value_that_changes_no_size_is_not_mentioned(tmp_path: Path) -> None:
    """A given value that changes no size adds no condition to the plan."""
    path = save(tmp_path, "g (float[4] x, float k) => (float[4] y) { y = Mul(x, k) }")
    assert read(path, values={"k": 3.0}).holds_for == ()


def test_a_reason_of_its_own_stands_beside_the_tensor(tmp_path: Path) -> None:
    """With several open tensors, an If states the sizes of its branches as the reason."""
    text = branches("c", "v = Concat<axis=0>(x, x)")
    outputs = "(float[2] y, int64[A,B] z)"
    path = save(tmp_path, f"g (float[2] x, bool c) => {outputs} {{ y = {text} z = NonZero(x) }}")
    with pytest.raises(LoadError) as caught:
        read(path)
    said = caught.value.sentence(flag)
    assert "'z' (NonZero)" in said
    assert "'y' (If, depends on the branch taken (2 or 4))" in said
