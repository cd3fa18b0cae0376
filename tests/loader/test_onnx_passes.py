"""The passes that load an ONNX file: no pass changes the result of an earlier one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from qnnmem.errors import LoadError
from qnnmem.flags import flag
from qnnmem.loader.onnx import read, read_guarded, read_shaped
from qnnmem.loader.onnx.inputs import Fixed
from qnnmem.loader.onnx.passes import build as build_pass
from qnnmem.loader.onnx.passes.build import build
from qnnmem.loader.onnx.passes.fold import fold
from qnnmem.loader.onnx.passes.guard import guard
from qnnmem.loader.onnx.passes.read import read as read_file
from qnnmem.loader.onnx.passes.resolve import open_model, resolve
from qnnmem.loader.onnx.passes.shape import shape
from qnnmem.loader.onnx.trial import TrialChild

ONNX = Path(build_pass.__file__).parents[1]
PASSES = ("read", "guard", "resolve", "fold", "shape", "build")

# A Reshape to a computed shape, a branch that folds, and a branch and a loop that stay.
TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,4] x, bool c) => (float[A,B] y, float[T,U] z)
<float[4] w = {1,2,3,4}, int64 n = {3}, bool yes = {1}, float[1] unread = {0}>
{ h = Add(x, w) s = Shape(h)
  e = If (yes) <then_branch = t () => (float[V] u) { u = Relu(h) },
                else_branch = f () => (float[W] v) { k = Constant<value_int = 2>() v = Neg(h) }>
  r = Reshape(e, s)
  y = If (c) <then_branch = p () => (float[V] q) { i = Shape(r) q = Reshape(r, i) },
              else_branch = o () => (float[W] m) { m = Neg(r) }>
  d, z = Loop (n, yes, h) <body = b (int64 a, bool g0, float[P,Q] l) => (bool g1, float[R] l1,
    float[S] l2) { g1 = Identity(g0) l1 = Relu(l) l2 = ReduceSum<keepdims=0>(l) }> }"""


def save(folder: Path, text: str = TEXT) -> Path:
    """Write a model given as text and return its path."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def test_the_passes_in_a_line_give_the_model(tmp_path: Path) -> None:
    """Calling all passes in order gives the same model as `read`."""
    path = save(tmp_path)
    with TrialChild(path, 60.0) as child:
        resolved = resolve(open_model(guard(read_file(path)), child), Fixed({"N": 2}))
        built = build(shape(fold(resolved, child), child))
    assert built == read(path, dims={"N": 2})
    assert built.tensors["z"].shape == (3,)


def test_no_pass_changes_the_value_it_is_given(tmp_path: Path) -> None:
    """Each pass leaves the earlier passes' results unchanged, byte for byte."""
    path = save(tmp_path)
    with TrialChild(path, 60.0) as child:
        guarded = guard(read_file(path))
        before = guarded.proto.SerializeToString()
        resolved = resolve(open_model(guarded, child), Fixed({"N": 2}))
        open_graph = resolved.proto().SerializeToString()
        folded = fold(resolved, child)
        nodes = [node.SerializeToString() for node in folded.scope.graph.node]
        build(shape(folded, child))
    assert guarded.proto.SerializeToString() == before
    assert resolved.proto().SerializeToString() == open_graph
    assert [node.SerializeToString() for node in folded.scope.graph.node] == nodes


def test_each_pass_leaves_its_mark(tmp_path: Path) -> None:
    """Each pass has its effect: sizes are fixed, constant branches fold, shapes are known."""
    path = save(tmp_path)
    with TrialChild(path, 60.0) as child:
        resolved = resolve(open_model(guard(read_file(path)), child), Fixed({"N": 2}))
        folded = fold(resolved, child)
        shaped = shape(folded, child)
    assert [dim.dim_value for dim in resolved.graph.input[0].type.tensor_type.shape.dim] == [2, 4]
    assert "unread" not in {item.name for item in resolved.graph.initializer}
    assert [node.op_type for node in resolved.graph.node].count("If") == 2
    assert [node.op_type for node in folded.scope.graph.node].count("If") == 1
    assert not folded.scope.is_typed("z")
    assert shaped.scope.types["z"].shape == (3,)
    assert "Shape" not in {node.op_type for node in shaped.scope.graph.node}


def _cut(folder: Path) -> Path:
    path = save(folder)
    path.write_bytes(path.read_bytes()[:-3])
    return path


def _old(folder: Path) -> Path:
    return save(folder, TEXT.replace('"" : 18', '"" : 6'))


def _headless(folder: Path) -> Path:
    path = save(folder, TEXT.replace("float[N,4] x", "float[2,4] x"))
    model = onnx.load(path)
    folded = next(node for node in model.graph.node if node.op_type == "If")
    del folded.attribute[:]
    path.write_bytes(model.SerializeToString())
    return path


def _by_data(folder: Path) -> Path:
    return save(
        folder,
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (int64[A,B] y)'
        "{ y = NonZero(x) }",
    )


@pytest.mark.parametrize(
    ("make", "stage", "sentence"),
    [
        (_cut, "read", "is truncated or not an ONNX model"),
        (_old, "guard", "uses ONNX operator set 6"),
        (save, "resolve", "these dimensions are open: N (input 'x')"),
        (_headless, "fold", "If node 'e' has no "),
        (_by_data, "shape", "depends on the data"),
    ],
)
def test_an_error_knows_its_pass(
    tmp_path: Path, make: Callable[[Path], Path], stage: str, sentence: str
) -> None:
    """An error has the name of its pass as `stage`, and its sentence states the cause."""
    path = make(tmp_path)
    with pytest.raises(LoadError) as caught:
        read(path)
    assert caught.value.stage == stage
    assert sentence in caught.value.sentence(flag)


def test_reading_without_shapes_stops_after_the_guard(tmp_path: Path) -> None:
    """`read_guarded` reads a model with open dimensions."""
    assert len(read_guarded(save(tmp_path)).proto.graph.node) == 6


def test_a_shaped_model_keeps_the_caller_s_sizes(tmp_path: Path) -> None:
    """`read_shaped` applies the caller's dimensions."""
    assert read_shaped(save(tmp_path), dims={"N": 5}).scope.types["h"].shape == (5, 4)


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {str(node.module) for node in found}


@pytest.mark.parametrize("number", range(len(PASSES)))
def test_a_pass_imports_only_passes_before_it(number: int) -> None:
    """A pass imports only earlier passes, imports inside functions included."""
    found = _imports(ONNX / "passes" / f"{PASSES[number]}.py")
    later = {f"qnnmem.loader.onnx.passes.{name}" for name in PASSES[number:]}
    assert not found & later


def test_what_passes_stand_on_knows_no_pass() -> None:
    """No module beside the passes imports a pass."""
    above = {"__init__.py"}
    below = [path for path in ONNX.glob("*.py") if path.name not in above]
    for path in (*below, *(ONNX / "trial").glob("*.py")):
        assert not [name for name in _imports(path) if ".passes" in name], path.name


def test_the_loader_has_no_circle_of_imports() -> None:
    """The modules of the ONNX loader have no circular imports."""
    root = ONNX.parents[2]
    waiting = {}
    for path in ONNX.rglob("*.py"):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        waiting[name] = _imports(path)
    while waiting:
        ready = {name for name, found in waiting.items() if not found & (waiting.keys() - {name})}
        assert ready, sorted(waiting)
        waiting = {name: found for name, found in waiting.items() if name not in ready}
