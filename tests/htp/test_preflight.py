"""Preflight: warnings from the file before a compile, and missing parts of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from command_line import run
from onnx import helper, numpy_helper

from qnnmem.errors import NoCompiler
from qnnmem.htp.compile import CompileOptions, HtpPrecision
from qnnmem.htp.compile.preflight import preflight_warnings
from qnnmem.htp.compile.refused import VALIDATOR, decisive_line, meaning, refused_nodes
from qnnmem.htp.library import check_started
from qnnmem.htp.log import LogLine, read_line
from qnnmem.htp.requests import RequestOutcome

F = onnx.TensorProto.FLOAT
node, info = helper.make_node, helper.make_tensor_value_info


def save(path: Path, nodes: list[Any], shapes: tuple[Any, Any], **weights: Any) -> Path:
    """Write a model from x to y."""
    constants = [numpy_helper.from_array(numpy.asarray(v), name) for name, v in weights.items()]
    inputs, outputs = [info("x", F, shapes[0])], [info("y", F, shapes[1])]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("operator", "given", "declared", "warned"),
    [
        ("Relu", [1, 8], [1, 8, 1], "declared with 3 dimensions (1x8x1), but 'n' (Relu) gives 2"),
        ("Flatten", [1, 8, 2], [16], "declared with 1 dimensions (16), but 'n' (Flatten) gives 2"),
        ("Relu", [1, 8], [1, 8], ""),
        ("Relu", ["b", 8], ["b", 8], ""),
        ("Squeeze", [1, 8], [8], ""),  # the sizes decide, and preflight compares ranks only
    ],
)
def test_a_wrong_declared_rank_is_told(
    tmp_path: Path, operator: str, given: list[Any], declared: list[Any], warned: str
) -> None:
    """A declared output rank that differs from the operator's rank gives a warning with both."""
    path = save(tmp_path / "a.onnx", [node(operator, ["x"], ["y"], "n")], (given, declared))
    assert "; ".join(preflight_warnings(path, CompileOptions())).endswith(warned)
    assert bool(preflight_warnings(path, CompileOptions())) == bool(warned)


@pytest.mark.parametrize(
    ("operator", "axes", "kept", "rank"),
    [
        *(("Squeeze", [0], None, 2), ("Unsqueeze", [0, 1], None, 5)),
        *(("ReduceSum", [1, 2], 0, 1), ("ReduceSum", [1, 2], 1, 3), ("ReduceSum", [1], None, 3)),
        *(("ArgMax", None, 0, 2), ("ArgMax", None, 1, 3)),
    ],
)
def test_axes_that_a_constant_states_are_counted(
    tmp_path: Path, operator: str, axes: list[int] | None, kept: int | None, rank: int
) -> None:
    """Constant axes and keepdims decide the rank; only another declared rank gives a warning."""
    weights = {} if axes is None else {"axes": numpy.array(axes)}
    reduces = node(operator, ["x", *weights], ["y"], "n")
    if kept is not None:
        reduces.attribute.append(helper.make_attribute("keepdims", kept))
    for declared in range(1, 6):
        path = save(tmp_path / "a.onnx", [reduces], ([1, 1, 1], [1] * declared), **weights)
        words = f"but 'n' ({operator}) gives {rank}"
        assert (words in "".join(preflight_warnings(path, CompileOptions()))) == (declared != rank)


def scaled(path: Path, factor: Any, *, beside: bool = False) -> Path:
    """Write a product with a constant; with `beside`, the constant is in a separate file."""
    shape = [1, 4]
    save(path, [node("Mul", ["x", "k"], ["y"])], (shape, shape), k=factor)
    if beside:
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, location="k.data", size_threshold=0)
    return path


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_constants_beyond_fp16_are_told(tmp_path: Path, kind: str, beside: bool) -> None:
    """A constant beyond FP16 gives a warning with its count and maximum, except with INT8."""
    factor = numpy.array([1, 65504, 65600, -1e6], kind)
    path = scaled(tmp_path / "a.onnx", factor, beside=beside)
    (told,) = preflight_warnings(path, CompileOptions())
    assert told.startswith(
        "1 constant might overflow: HTP computes in FP16, whose largest value is 65,504"
    )
    assert "'k' of Mul (2 of 4 values, the largest is 1e+06)" in told
    assert preflight_warnings(path, CompileOptions(precision=HtpPrecision.INT8)) == ()


def test_infinite_and_small_constants_are_meant(tmp_path: Path) -> None:
    """Minus infinity, as in a mask, and values within FP16 give no warning."""
    factor = numpy.array([-numpy.inf, 65504, 0, 1e-3], "f4")
    assert preflight_warnings(scaled(tmp_path / "a.onnx", factor), CompileOptions()) == ()


@pytest.mark.parametrize(("steps", "layout"), [(400, 0), (400, 1), ("time", 0), (20, 0)])
def test_a_long_recurrence_is_told(tmp_path: Path, steps: int | str, layout: int) -> None:
    """A recurrence of 400 steps gives a warning, also if an option fixes the steps; 20 do not."""
    units, batch = 4, 1
    size = [batch, steps, 3] if layout else [steps, batch, 3]
    path = save(
        tmp_path / "a.onnx",
        [node("GRU", ["x", "w", "r"], ["y"], hidden_size=units, layout=layout)],
        (size, None),
        w=numpy.zeros((1, 3 * units, 3), "f4"),
        r=numpy.zeros((1, 3 * units, units), "f4"),
    )
    told = preflight_warnings(path, CompileOptions(dims={"time": 500} if steps == "time" else {}))
    expected = {400: "'y' (GRU) runs 400 steps", "time": "'y' (GRU) runs 500 steps", 20: ""}[steps]
    assert "".join(told).startswith(expected)
    assert bool(told) == bool(expected)


@pytest.mark.parametrize("inside", [False, True])
def test_steps_that_the_file_does_not_state_are_told(tmp_path: Path, inside: bool) -> None:
    """Shape inference finds the steps of a recurrence, in the graph and in branches of an If."""
    units = 4
    gru = node("GRU", ["t", "w", "r"], ["g"], "memory", hidden_size=units)
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0, 2])]
    if inside:
        branches = {
            name: helper.make_graph([gru], name, [], [info("g", F, None)])
            for name in ("then_branch", "else_branch")
        }
        nodes += [
            node("ReduceMax", ["x"], ["m"], keepdims=0),
            node("Cast", ["m"], ["c"], to=onnx.TensorProto.BOOL),
            node("If", ["c"], ["y"], **branches),
        ]
    else:
        nodes += [gru, node("Identity", ["g"], ["y"])]
    path = save(
        tmp_path / "a.onnx",
        nodes,
        ([1, 500, 3], None),
        w=numpy.zeros((1, 3 * units, 3), "f4"),
        r=numpy.zeros((1, 3 * units, units), "f4"),
    )
    told = preflight_warnings(path, CompileOptions())
    assert told[0].startswith("'memory' (GRU) runs 500 steps")
    assert len(told) == 2 if inside else 1


def test_an_unreadable_file_is_not_warned_of(tmp_path: Path) -> None:
    """An unreadable file gives no warning, because the compile reports the fault."""
    path = tmp_path / "a.onnx"
    path.write_bytes(b"no model")
    assert preflight_warnings(path, CompileOptions()) == ()


LOG = """\
Validation PASSED for 1 nodes in OrtNodeUnit (Relu) :
\tOperator type: Relu Node name: fine Node index: 0
 <E> [4294967295] has incorrect Rank 6.
 <E> QnnBackend_validateOpConfig failed 3110
Validation FAILED for 1 nodes in OrtNodeUnit (Relu) :
\tOperator type: Relu Node name: deep Node index: 1
\tREASON : Failed to add node.
Validation FAILED for 1 nodes in OrtNodeUnit (Det) :
\tOperator type: Det Node name:  Node index: 2
\tREASON : Operators of type `Det` are not supported by QNN EP.
 <E> QnnBackend_validateOpConfig failed 3110
Validation FAILED for 1 nodes in OrtNodeUnit (Abs) :
\tOperator type: Abs Node name: silent Node index: 3
\tREASON : Failed to add node.
"""
LIST = " <E> Unsupported nodes in QNN EP: { name: deep, type: Relu }{ name: , type: Det }, "


def log(text: str) -> tuple[LogLine, ...]:
    """Parse lines as the log tap does."""
    return tuple(map(read_line, text.splitlines()))


def test_each_node_has_the_line_that_decides_it() -> None:
    """Each refused node gets its decisive line, not a repeated refusal or another node's line."""
    found = {(one.name, one.operator): one.line for one in refused_nodes(log(LOG))}
    assert found == {
        ("deep", "Relu"): "[4294967295] has incorrect Rank 6.",
        ("", "Det"): "REASON : Operators of type `Det` are not supported by QNN EP.",
        ("silent", "Abs"): "",
    }
    assert meaning("", "SM8650") == VALIDATOR


def test_the_first_list_of_nodes_counts() -> None:
    """Only the first list of nodes counts, because the rest depends on when the process stopped."""
    after = LOG.replace("deep", "deep_token_1").replace("silent", "later")
    found = refused_nodes(log(LOG + LIST + "\n" + after))
    assert [(one.name, one.index) for one in found] == [("deep", 1), ("", 2)]
    assert decisive_line(log(LOG + " <E> tensor datatype 612 not supported\n")) == (
        "tensor datatype 612 not supported"
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("libatomic.so.1: cannot open shared object file: No such file", "apt-get install libatom"),
        ("libfoo.so.3: cannot open shared object file: No such file", "apt-file search libfoo.so"),
        ("libc++-71bc274c.so.1.0: cannot open shared object file", "the package is damaged"),
        ("libQnnHtp.so: version `GLIBC_2.99' not found", "GLIBC_2.99"),
        ("Failed to get QNN providers!", "did not start: 'Failed to get QNN providers!'"),
    ],
)
def test_what_the_machine_lacks_is_said(said: str, words: str) -> None:
    """A missing library or symbol is named, with the package that contains it if known."""
    line = read_line(f"[E:onnxruntime:, q.cc:1 F] QNN SetupBackend failed {said}")
    with pytest.raises(NoCompiler) as caught:
        check_started(RequestOutcome("refused", sentence="all on the CPU", log=(line,)))
    assert words in str(caught.value)
    check_started(RequestOutcome("memory", log=(line,)))  # another cause


def test_the_table_of_socs_counts_ids_and_names() -> None:
    """`socs` counts names and ids; FP16 support is measured for each id."""
    assert run("socs").output.startswith("82 SoC names with HTP, 69 ids\n")
    assert "fp16           yes, measured: " in run("socs", "SM8350").output
    assert "fp16           no, measured: " in run("socs", "SM7350").output
