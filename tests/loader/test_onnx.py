from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from qnnmem.errors import FreeDimensions, LoadError, UsageError
from qnnmem.flags import flag
from qnnmem.ir import DType, Effect, Model
from qnnmem.loader.onnx import executable, read, read_with_graph


def save(folder: Path, body: str, opset: int = 18) -> Path:
    """Write a model from its text, with signature, initializers and nodes; return the path."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft": 1, "custom": 1]>'
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{head} {body}").SerializeToString())
    return path


def op_types(model: Model) -> list[str]:
    """Return the types of the ops in order."""
    return [op.type for op in model.ops]


def test_a_static_model_becomes_tensors_and_ops(tmp_path: Path) -> None:
    """Inputs, outputs, constants, shapes and the order of ops match the file."""
    path = save(
        tmp_path,
        "g (float[2,3] x) => (float[2,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}>"
        "{ h = MatMul(x, w) y = Relu(h) }",
    )
    model = read(path)
    assert (model.inputs, model.outputs, model.constants) == (("x",), ("y",), ("w",))
    assert [(op.type, op.inputs, op.outputs) for op in model.ops] == [
        ("MatMul", ("x", "w"), ("h",)),
        ("Relu", ("h",), ("y",)),
    ]
    assert model.tensors["h"].shape == (2, 4)
    assert model.tensors["h"].dtype is DType.FLOAT32


def test_free_dimensions_are_listed_with_options(tmp_path: Path) -> None:
    """The error names each open dimension and the options that fix all of them."""
    path = save(tmp_path, "g (float[batch,3] x, float[?] z) => (float[N] y) { y = Relu(x) }")
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    assert caught.value.free == ("batch (input 'x')", "axis 0 (input 'z')")
    assert " ".join(map(flag, caught.value.settings)) == "--dim batch=1 --shape z=1"


def test_the_options_repeat_what_was_given(tmp_path: Path) -> None:
    """The proposed options repeat the given ones."""
    path = save(tmp_path, "g (float[a,b] x, float[c] z) => (float[N] y) { y = Relu(x) }")
    with pytest.raises(FreeDimensions) as caught:
        read(path, dims={"a": 4}, shapes={"z": (7,)})
    assert caught.value.sentence(flag).endswith(" --dim a=4 --dim b=128 --shape z=7")


def test_minus_one_is_a_free_dimension(tmp_path: Path) -> None:
    """A dimension of -1 counts as open."""
    path = save(tmp_path, "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FreeDimensions):
        read(path)
    assert read(path, shapes={"x": (5, 3)}).tensors["y"].shape == (5, 3)


def test_dims_and_shapes_fix_what_is_open(tmp_path: Path) -> None:
    """A dimension name applies to every input; a given shape replaces the declared one."""
    path = save(
        tmp_path,
        "g (float[N,3] x, float[N,1] z, float[8,2] s) => (float[N,3] y, float[8,2] t)"
        "{ y = Add(x, z) t = Relu(s) }",
    )
    model = read(path, dims={"N": 5}, shapes={"s": (4, 2)})
    assert model.tensors["y"].shape == (5, 3)
    assert model.tensors["t"].shape == (4, 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dims": {"M": 2}}, "no dimension 'M'; the model has 'N'"),
        ({"shapes": {"q": (2,)}}, "no tensor 'q'; the inputs are 'x'"),
        ({"shapes": {"x": (2,)}}, "input 'x' has 2 dimensions, but its given shape has 1"),
        ({"dims": {"N": -2}}, "dimension 'N' cannot be -2"),
    ],
)
def test_options_that_do_not_match_are_refused(
    tmp_path: Path, options: dict[str, dict[str, int]], sentence: str
) -> None:
    """An unknown name or a wrong rank raises UsageError with the valid choices."""
    path = save(tmp_path, "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match=sentence):
        read(path, **options)  # type: ignore[arg-type]  # one call for options of both kinds


def test_declared_shapes_are_not_believed(tmp_path: Path) -> None:
    """The plan uses inferred shapes; a wrong declared shape is only noted."""
    path = save(tmp_path, "g (float[4,4] x) => (float[1] y) <float[1] h> { h = Exp(x) y = Neg(h) }")
    model = read(path)
    assert model.tensors["h"].shape == model.tensors["y"].shape == (4, 4)
    assert model.notes == ("output 'y' is declared as 1 but has shape 4x4",)


@pytest.mark.parametrize(
    ("declared", "options", "notes"),
    [
        ("float[1,8,1]", {}, ("output 'y' is declared as 1x8x1 but has shape 1x8",)),
        ("float[N,9]", {}, ("output 'y' is declared as ?x9 but has shape 1x8",)),
        ("float[1,8]", {}, ()),
        ("float[N,M]", {}, ()),
        ("float[1,8]", {"shapes": {"x": (2, 8)}}, ()),  # the caller changes the shape
    ],
)
def test_a_wrong_declared_output_is_said(
    tmp_path: Path, declared: str, options: dict[str, Any], notes: tuple[str, ...]
) -> None:
    """A declared output shape that differs from the inferred one is noted."""
    path = save(tmp_path, f"g (float[1,8] x) => ({declared} y) {{ y = Relu(x) }}")
    assert read(path, **options).notes == notes


def test_constants_beyond_what_the_file_stores_are_said(tmp_path: Path) -> None:
    """Constants computed while loading are noted with their size, if the file stores less."""
    text = "g (float[1,64] x) => (float[1,64] y) <int64[2] s = {64, 64}>"
    path = save(tmp_path, f"{text} {{ w = ConstantOfShape(s) y = MatMul(x, w) }}")
    said = (
        "constants take 16,384 bytes, but the file stores only 16 of them; the rest is computed: "
        "1 constant (largest: 'w', 16,384 bytes)"
    )
    assert read(path).notes == (said,)


def test_what_inputs_do_not_change_is_constant(tmp_path: Path) -> None:
    """Shapes and values that no input can change become constants, not ops."""
    path = save(
        tmp_path,
        "g (float[2,3,4] x) => (float[N,M] y) <int64[1] i = {0}, int64[1] rest = {-1}>"
        "{ s = Shape(x) n = Gather(s, i) t = Concat<axis=0>(n, rest) y = Reshape(x, t) }",
    )
    model = read(path)
    assert op_types(model) == ["Reshape"]
    assert model.constants == ("t",)
    assert model.tensors["y"].shape == (2, 12)


def test_initializers_among_the_inputs_are_constants(tmp_path: Path) -> None:
    """Initializers that are also listed as inputs, as in IR version 3, are constants."""
    path = save(
        tmp_path,
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1,2}> { y = Add(x, w) }",
    )
    model = onnx.load(path)
    model.ir_version = 3
    path.write_bytes(model.SerializeToString())
    loaded = read(path)
    assert (loaded.inputs, loaded.constants) == (("x",), ("w",))


def test_an_output_that_is_constant_is_still_written(tmp_path: Path) -> None:
    """A constant output keeps an op that writes it."""
    path = save(
        tmp_path,
        "g (float[2,3] x) => (float[2,3] y, int64[2] n) { h = Exp(x) n = Shape(h) y = Neg(x) }",
    )
    model = read(path)
    assert [(op.type, op.inputs, op.outputs) for op in model.ops] == [
        ("Constant", (), ("n",)),
        ("Neg", ("x",), ("y",)),
    ]


def test_dead_ops_are_dropped_aloud(tmp_path: Path) -> None:
    """An op that no output depends on is removed with a note; an unread input stays."""
    path = save(tmp_path, "g (float[2] x, float[2] u) => (float[2] y) { d = Exp(x) y = Neg(x) }")
    model = read(path)
    assert op_types(model) == ["Neg"]
    assert model.inputs == ("x", "u")
    assert model.notes == ("ops removed because no output depends on them: 1",)


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    """Nodes may come in any order in the file; they are sorted."""
    path = save(tmp_path, "g (float[2] x) => (float[2] y) { h = Exp(x) y = Neg(h) }")
    model = onnx.load(path)
    nodes = list(reversed(model.graph.node))
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    del model.graph.node[:]
    model.graph.node.extend([onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes])
    path.write_bytes(model.SerializeToString())
    assert op_types(read(path)) == ["Exp", "Neg"]


def test_effects_follow_the_op(tmp_path: Path) -> None:
    """Reshapes are views, element-wise ops may run in place, and the rest computes."""
    path = save(
        tmp_path,
        "g (float[2,6] x) => (float[6,2] y) <int64[2] s = {3,4}>"
        "{ a = Reshape(x, s) b = Identity(a) c = Cast<to=1>(b) d = Dropout(c) e = Relu(d)"
        "  f = Reshape(e, s) y = Transpose<perm=[1,0]>(x) z = Add(f, f) }",
    )
    onnx_model = onnx.load(path)
    onnx_model.graph.output.add(name="z")
    path.write_bytes(onnx_model.SerializeToString())
    effects = {op.outputs[0]: op.effect for op in read(path).ops}
    assert [name for name, effect in effects.items() if effect is Effect.VIEW] == list("abcdf")
    assert effects["e"] is effects["z"] is Effect.ELEMENTWISE
    assert effects["y"] is Effect.COMPUTE


def test_a_broadcast_input_of_equal_bytes_is_not_overwritten(tmp_path: Path) -> None:
    """An input that is broadcast may not be overwritten, even if the sizes in bytes match."""
    path = save(tmp_path, "g (float[4] x, float[4,1] z) => (bool[4,4] y) { y = Less(x, z) }")
    assert read(path).ops[0].effect is Effect.COMPUTE


def test_repeated_node_names_are_told_apart(tmp_path: Path) -> None:
    """Op names are unique even when node names repeat."""
    path = save(tmp_path, "g (float[2] x) => (float[2] y) { h = Exp(x) y = Neg(h) }")
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = "same"
    path.write_bytes(model.SerializeToString())
    assert [op.name for op in read(path).ops] == ["same", "same#2"]


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    """Calls of functions defined in the model are inlined."""
    path = save(
        tmp_path,
        "g (float[2] x) => (float[2] y) { h = custom.twice(x) y = custom.twice(h) }"
        '<domain: "custom", opset_import: ["" : 18]> twice (a) => (b) { t = Exp(a) b = Neg(t) }',
    )
    assert op_types(read(path)) == ["Exp", "Neg", "Exp", "Neg"]


def test_shapes_inference_misses_are_measured(tmp_path: Path) -> None:
    """An op that only onnxruntime knows gets its shape from a trial run, with a note."""
    path = save(tmp_path, "g (float[2,3] x) => (float[A,B] y) { y = com.microsoft.Gelu(x) }")
    model = read(path)
    assert model.tensors["y"].shape == (2, 3)
    assert model.notes == ("shapes measured in a trial run: 1",)


def test_an_unknown_op_with_declared_shape_is_accepted_aloud(tmp_path: Path) -> None:
    """The declared output shape of a custom op is used, with a note."""
    path = save(
        tmp_path, "g (float[2] x) => (float[5] y) <float[5] h> { h = custom.Op(x) y = Neg(h) }"
    )
    model = read(path)
    assert model.tensors["y"].shape == (5,)
    assert model.notes == ("shapes taken from the file without verification: 1 ('h')",)


def test_an_unknown_op_without_shape_is_refused(tmp_path: Path) -> None:
    """A custom op whose output has no declared shape is refused."""
    path = save(tmp_path, "g (float[2] x) => (float[N] y) { y = custom.Op(x) }")
    with pytest.raises(LoadError, match="Op 'y' of domain 'custom' is not an ONNX operator"):
        read(path)


def test_sources_point_into_the_executable_graph(tmp_path: Path) -> None:
    """Each op's sources are the nodes of the executable graph that make its outputs."""
    path = save(
        tmp_path,
        "g (float[N,4] x) => (float[A,B] y) <int64[2] s = {2,-1}>"
        "{ n = Shape(x) h = Exp(x) r = Reshape(h, s) y = Reshape(r, n) }",
    )
    model, proto = read(path, dims={"N": 3}), executable(path, dims={"N": 3})
    assert read_with_graph(path, dims={"N": 3}) == (model, proto)
    graph = proto.graph
    made = {op.outputs[0]: graph.node[op.sources[-1]].output[0] for op in model.ops}
    assert made == {name: name for name in ("h", "r", "y")}
    onnx.checker.check_graph(graph, _context(graph))


def _context(graph: onnx.GraphProto) -> "onnx.checker.C.CheckerContext":
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 8, {"": 18}
    return context
