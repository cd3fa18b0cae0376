"""A model with several shapes becomes several graphs of one binary that stores weights once."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy
import onnx
import pytest
from command_line import exit_code, run, sentence
from onnx import helper, numpy_helper
from picture_graphs import run as run_plainly

from qnnmem import lpai
from qnnmem.errors import UsageError
from qnnmem.fix.graph.shape_sets import set_names, shape_sets


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a convolution with weights of 9,216 bytes for images of any size."""
    monkeypatch.chdir(tmp_path)
    random = numpy.random.default_rng(0)
    weights = random.standard_normal((64, 4, 3, 3)).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", 1, [1, 4, "h", "w"])
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "k")])
    sets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), "m.onnx")
    return "m.onnx"


def test_each_shape_is_a_graph_and_weights_are_stored_once(model: str) -> None:
    """The printed command makes one binary with a graph for each shape, and weights stored once."""
    shapes = ("--shape", "x=1x4x9x9", "--shape", "x=1x4x11x7")
    done = run("fix", model, *shapes, "--time-limit", "1", "-o", "out")
    assert exit_code(done) == 0
    command = shlex.split(done.stdout.splitlines()[-1].partition("qnnmem ")[2])
    assert exit_code(run(*command)) == 0
    # LPAI has no floating point, so the bits are compared in a float build.
    at = command.index("--quantize")
    command[at : at + 2] = ["--float", "--force"]
    assert exit_code(run(*command)) == 0
    names = ["m_1x4x9x9", "m_1x4x11x7"]
    for name in names:
        with lpai.open("out/m.bin", graph=name) as session:
            sizes = [int(size) for size in name.removeprefix("m_").split("x")]
            values = numpy.random.default_rng(1).standard_normal(sizes).astype("float32")
            found = numpy.asarray(session.run({"x": values})["y"])
        (wanted,) = run_plainly(onnx.load(model), {"x": values})
        assert found.tobytes() == wanted.tobytes()
    alone = run("prepare", f"out/{names[0]}.onnx", "--float", "-o", "alone.bin")
    assert exit_code(alone) == 0
    more = Path("out/m.bin").stat().st_size - Path("alone.bin").stat().st_size
    assert more < 64 * 4 * 9 * 4  # bytes of the weights


def test_free_dimensions_are_named(model: str) -> None:
    """Open dimensions without a size exit with 2, and the sentence names them."""
    done = run("fix", model, "-o", "out")
    assert exit_code(done) == 2
    assert "these dimensions are open: h" in sentence(done)


def test_what_is_given_once_holds_for_all() -> None:
    """Several shapes of a tensor make several graphs; a tensor with one shape is equal in all."""
    sets = shape_sets([("a", (1, 2)), ("b", (3,)), ("a", (1, 4))])
    assert sets == ({"a": (1, 2), "b": (3,)}, {"a": (1, 4), "b": (3,)})
    assert set_names(sets) == ["1x2", "1x4"]
    assert shape_sets([]) == ({},)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([("a", (1,)), ("a", (2,)), ("b", (1,)), ("b", (2,)), ("b", (3,))], "one shape per graph"),
        ([("a", (1,)), ("a", (1,))], "two graphs would be equal"),
        ([("a", (size,)) for size in range(17)], "the limit is 16"),
    ],
)
def test_sets_that_make_no_sense_are_refused(given: list[tuple[str, tuple[int]]], why: str) -> None:
    """Shapes that make unequal, equal or more than 16 sets are refused."""
    with pytest.raises(UsageError, match=why):
        shape_sets(given)


def test_several_shapes_are_not_one_json(model: str) -> None:
    """Several shape sets with --json exit with 2, because one document holds one result."""
    done = run("fix", model, "--shape", "x=1x4x9x9", "--shape", "x=1x4x8x8", "--json", "-o", "out")
    assert exit_code(done) == 2
    assert "several --shape sets cannot be combined with --json" in sentence(done)
