"""Refusals of the real library name the node, its types, the reason and a cure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import onnx
import pytest
from command_line import exit_code, run
from epcontext_run import run_epcontext
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import NoCompiler
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import find_library, has_library
from qnnmem.htp.worker import Worker
from qnnmem.results.schema import load_schema
from qnnmem.targets.socs import find_soc
from qnnmem.verbs.refusal import reading_of

SM8650 = find_soc("SM8650")
F, D, I64, I32, U8 = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64),
    *(TensorProto.INT32, TensorProto.UINT8),
)
node = helper.make_node
info = helper.make_tensor_value_info
pytestmark = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return one worker for all compiles."""
    with Worker(warm=True) as one:
        yield one


def save(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **weights: Any
) -> Path:
    """Write a model."""
    constants = [numpy_helper.from_array(numpy.asarray(v), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 19), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def refused(path: Path, worker: Worker, **options: Any) -> CompileFailure:
    """Return the refusal of a model that must not compile."""
    result = compile_model(path, SM8650, CompileOptions(**options), worker=worker)
    assert isinstance(result, CompileFailure)
    return result


def many_kinds(path: Path) -> Path:
    """Write a model of independent nodes that QNN refuses, each for a different reason."""
    body = helper.make_graph(
        [node("Identity", ["c"], ["c2"]), node("Add", ["s", "s"], ["s2"])],
        "body",
        [info("i", I64, []), info("c", TensorProto.BOOL, []), info("s", F, [4, 8])],
        [info("c2", TensorProto.BOOL, []), info("s2", F, [4, 8])],
    )
    nodes = [
        node("Relu", ["x"], ["fine"], "fine"),
        node("Acosh", ["x"], ["o1"], "arc"),
        node("Det", ["m"], ["o2"]),
        node("Einsum", ["e", "w"], ["o3"], "contract", equation="bij,jki->bk"),
        node("LpPool", ["p"], ["o4"], "power_pool", kernel_shape=[2, 2], p=3),
        node("ScatterND", ["x", "at", "new"], ["o5"], "put", reduction="min"),
        node("Reshape", ["p", "six"], ["r6"], "fold"),
        node("Relu", ["r6"], ["o6"], "six_dimensions"),
        node("Pow", ["n", "k"], ["o7"], "integer_power"),
        node("BitShift", ["u", "one"], ["o8"], "shift", direction="LEFT"),
        node("Relu", ["d"], ["o9"], "double_relu"),
        node("Add", ["d", "half"], ["o10"], "double_plus"),
        node("Cast", ["d"], ["o11"], "narrow", to=F),
        node("Pad", ["p", "pads"], ["o12"], "wrap", mode="wrap"),
        node("CumSum", ["x", "axis"], ["o13"], "running"),
        node("MaxPool", ["p"], ["o14", "o15"], "pool_twice", kernel_shape=[2, 2]),
        node("Multinomial", ["x"], ["o16"], "draw", sample_size=2),
        node("Loop", ["times", "", "x"], ["o17"], "again", body=body),
    ]
    inputs = [
        *(info("x", F, [4, 8]), info("m", F, [1, 4, 4]), info("e", F, [2, 4, 5])),
        *(info("p", F, [1, 8, 4, 4]), info("n", I32, [4, 8]), info("u", U8, [1, 8])),
        *(info("d", D, [4, 8]), info("axis", I32, []), info("times", I64, [])),
    ]
    outputs = [
        *(info("fine", F, [4, 8]), info("o1", F, [4, 8]), info("o2", F, [1])),
        *(info("o3", F, [2, 6]), info("o4", F, [1, 8, 3, 3]), info("o5", F, [4, 8])),
        *(info("o6", F, [1, 8, 2, 2, 2, 2]), info("o7", I32, [4, 8]), info("o8", U8, [1, 8])),
        *(info("o9", D, [4, 8]), info("o10", D, [4, 8]), info("o11", F, [4, 8])),
        *(info("o12", F, [1, 8, 6, 6]), info("o13", F, [4, 8]), info("o14", F, [1, 8, 3, 3])),
        *(info("o15", I64, [1, 8, 3, 3]), info("o16", I32, [4, 2]), info("o17", F, [4, 8])),
    ]
    random = numpy.random.default_rng(0)
    return save(
        path,
        nodes,
        inputs,
        outputs,
        w=random.standard_normal((5, 6, 4)).astype("f4"),
        at=numpy.array([[0], [2]]),
        new=random.standard_normal((2, 8)).astype("f4"),
        six=numpy.array([1, 8, 2, 2, 2, 2]),
        k=numpy.array([3], "i4"),
        one=numpy.array([1], "u1"),
        half=numpy.full((4, 8), 0.5),
        pads=numpy.array([0, 0, 1, 1, 0, 0, 1, 1]),
    )


NO_TYPE = "QNN has no operator of this type"
SIX = "one of the tensors has 6 dimensions, which HTP does not support for this operator"
TYPES = "HTP does not support the operator with these data types"
REASONS = {
    "arc": ("Acosh", NO_TYPE),
    "o2": ("Det", NO_TYPE),  # a node without a name is identified by its output
    "contract": ("Einsum", "Einsum unsupported equation: bij,jki->bk"),
    "power_pool": ("LpPool", "QNN LpPool only supports p=1 or p=2"),
    "put": ("ScatterND", "ScatterND does not support reduction min"),
    "fold": ("Reshape", SIX),
    "six_dimensions": ("Relu", SIX),
    "integer_power": ("Pow", TYPES),
    "shift": ("BitShift", NO_TYPE),
    "double_relu": ("Relu", TYPES),
    "double_plus": ("Add", "the tensors are float64 and float32 in QNN but must have the same"),
    "narrow": ("Cast", "QNN does not support 64-bit floats as inputs or outputs of a graph"),
    "wrap": ("Pad", "Pad mode only support constant"),
    "running": ("CumSum", "QNN CumSum needs axis as a param"),
    "pool_twice": ("MaxPool", "QNN Pool only supports 1 output"),
    "draw": ("Multinomial", NO_TYPE),
    "again": ("Loop", NO_TYPE),
}


def test_every_node_is_named_with_types_and_the_right_reason(
    worker: Worker, tmp_path: Path
) -> None:
    """Each refused node is named with its types, the reason and the decisive line of the log."""
    failure = refused(many_kinds(tmp_path / "many.onnx"), worker)
    found = {one.name: one for one in failure.unsupported}
    assert set(found) == set(REASONS)
    for name, (operator, reason) in REASONS.items():
        one = found[name]
        assert (one.operator, one.reason[: len(reason)]) == (operator, reason)
        assert one.line
        assert one.inputs
        assert one.outputs
    assert found["double_plus"].inputs == ("float64 4x8", "float64 4x8")
    assert found["six_dimensions"].outputs == ("float32 1x8x2x2x2x2",)
    assert "export the model with 32-bit floats" in failure.sentence
    # A part that begins with 64-bit floats cannot be compiled, so a partition is no cure.
    assert "partition" not in failure.sentence
    assert "(op_unsupported)" in reading_of(failure.evidence)


def test_nodes_in_another_layout_keep_their_names(worker: Worker, tmp_path: Path) -> None:
    """A node that ONNX Runtime renames for another layout keeps its own name in the refusal."""
    path = save(
        tmp_path / "grid.onnx",
        [node("Conv", ["x", "w"], ["y"], "dilated", dilations=[2, 2, 2])],
        [info("x", F, [1, 2, 8, 8, 8])],
        [info("y", F, [1, 2, 4, 4, 4])],
        w=numpy.random.default_rng(0).standard_normal((2, 2, 3, 3, 3)).astype("f4"),
    )
    failure = refused(path, worker)
    (one,) = failure.unsupported
    assert (one.name, one.reason) == ("dilated", "one parameter is 2, but HTP supports 1 only")
    assert "partition" not in failure.sentence


def test_an_operator_of_an_own_domain_is_named(worker: Worker, tmp_path: Path) -> None:
    """ONNX Runtime refuses a whole model with an unknown domain; the refusal names the operator."""
    nodes = [node("Relu", ["x"], ["r"]), node("Mine", ["r"], ["y"], domain="com.example")]
    path = save(tmp_path / "own.onnx", nodes, [info("x", F, [1, 8])], [info("y", F, [1, 8])])
    (one,) = refused(path, worker).unsupported
    assert (one.name, one.reason) == ("y", "ONNX Runtime has no operator com.example:Mine")


def test_a_graph_that_cannot_be_composed_says_which_tensor(worker: Worker, tmp_path: Path) -> None:
    """A 64-bit float at the border of the QNN part gives code 7004, which is not about memory."""
    nodes = [
        node("Cast", ["x"], ["wide"], "widen", to=D),
        node("Exp", ["wide"], ["grown"]),
        node("Det", ["grown"], ["y"], "det"),
    ]
    path = save(tmp_path / "border.onnx", nodes, [info("x", F, [1, 4, 4])], [info("y", D, [1])])
    failure = refused(path, worker, partition=True)
    assert failure.sentence.startswith(
        "tensor 'grown' cannot be passed to QNN: QNN does not support tensors of float64"
    )
    assert failure.line == "tensor datatype 612 not supported"
    reading = reading_of(failure.evidence)
    assert "not memory" in reading
    assert "type-unsupported" in reading


def test_a_missing_system_library_is_no_refusal(tmp_path: Path) -> None:
    """A library that does not start raises an error about the host, not a refusal of the model."""
    library = find_library()
    for file in library.folder.glob("*.so"):
        # From the link's folder the loader cannot find the libraries in the package.
        tmp_path.joinpath(file.name).symlink_to(file)
    path = save(
        tmp_path / "relu.onnx",
        [node("Relu", ["x"], ["y"])],
        [info("x", F, [1, 8])],
        [info("y", F, [1, 8])],
    )
    with (
        Worker(library=replace(library, folder=tmp_path)) as lame,
        pytest.raises(NoCompiler, match=r"did not start: lib.* is missing on this"),
    ):
        compile_model(path, SM8650, worker=lame)


@pytest.mark.parametrize("verb", ["footprint", "fit", "qmem"])
def test_verbs_recommend_what_they_have(tmp_path: Path, verb: str) -> None:
    """`footprint`, `fit` and `qmem` recommend `prepare --partition` once, with the log line."""
    nodes = [node("Relu", ["x"], ["r"], "fine"), node("Acosh", ["r"], ["y"], "arc")]
    path = save(tmp_path / "odd.onnx", nodes, [info("x", F, [1, 8])], [info("y", F, [1, 8])])
    done = run(verb, path, "--soc", "SM8650")
    assert "--partition -o model.bin` leaves it on the CPU" in done.output
    assert done.output.count("leaves it on the CPU") == 1
    assert "decisive line: REASON : Operators of type `Acosh` are not supported" in done.output
    assert "the doctor's diagnosis: " in done.output
    if verb == "footprint":
        words: list[str | Path] = [
            "prepare",
            path,
            "--backend",
            "htp",
            "--partition",
            "--soc",
            "SM8650",
        ]
        made = run(*words, "-o", tmp_path / "made.bin")
        assert exit_code(made) == 0
        assert f"on the CPU: arc (Acosh): {NO_TYPE}" in made.output


def test_a_time_limit_has_its_own_exit_code(tmp_path: Path) -> None:
    """A compile over --time-limit exits with 4, neither refused nor undecided."""
    path = save(
        tmp_path / "relu.onnx",
        [node("Relu", ["x"], ["y"])],
        [info("x", F, [1, 8])],
        [info("y", F, [1, 8])],
    )
    for verb in ("footprint", "fit"):
        done = run(verb, path, "--soc", "SM8650", "--time-limit", "0.01")
        assert exit_code(done) == 4
        assert "not finished within 0.01 s; allow more time with --time-limit" in done.output


def test_a_binary_for_a_later_hexagon(tmp_path: Path) -> None:
    """`fit` first refuses a binary for a later Hexagon; `footprint` marks its excess VTCM."""
    path = save(
        tmp_path / "relu.onnx",
        [node("Relu", ["x"], ["y"])],
        [info("x", F, [1, 8])],
        [info("y", F, [1, 8])],
    )
    binary = tmp_path / "v75.bin"
    made = run("prepare", path, "--backend", "htp", "--soc", "SM8650", "-o", binary)
    assert "spilled to DDR " in made.output
    fit = run("fit", binary, "--soc", "SM8350", "--load")
    assert (exit_code(fit), fit.output.splitlines()[0]) == (
        1,
        "does not fit SM8350: the binary was made for Hexagon v75 but SM8350 is v68; compile the "
        "model for SM8350",
    )
    for words in ((), ("--load",)):
        shown = run("footprint", binary, "--soc", "SM8350", *words).output
        assert "4,194,304 bytes more than the SoC has" in shown
        assert "trap: the binary was made for Hexagon v75 but SM8350 is v68" in shown
    placed = run("place", binary, binary, "--verify").output
    assert "the real library confirms the predictions (" in placed
    assert "predicted admitted, " in placed


def branch_on_a_weight(path: Path) -> Path:
    """Write an If whose branch reads a weight of the graph, which no partition can pass on."""
    branches = {
        side: helper.make_graph([node(kind, ["r", "w"], [side])], side, [], [info(side, F, [1, 8])])
        for side, kind in (("then_branch", "Add"), ("else_branch", "Mul"))
    }
    nodes = [node("Relu", ["x"], ["r"], "fine"), node("If", ["c"], ["y"], "either", **branches)]
    inputs = [info("x", F, [1, 8]), info("c", TensorProto.BOOL, [])]
    return save(path, nodes, inputs, [info("y", F, [1, 8])], w=numpy.ones(8, "f4"))


@pytest.mark.parametrize("verb", ["footprint", "fit", "qmem"])
def test_a_partition_that_fails_is_not_recommended(tmp_path: Path, verb: str) -> None:
    """A partition that fails in a trial is not recommended, and the reason is shown."""
    path = branch_on_a_weight(tmp_path / "branch.onnx")
    done = run(verb, path, "--soc", "SM8650")
    assert "--partition" not in done.output
    assert "with it on the CPU the compile fails too: compile failed: " in done.output
    words = (path, "--backend", "htp", "--partition", "--soc", "SM8650", "-o", tmp_path / "m.bin")
    assert exit_code(run("prepare", *words)) == 1


def test_a_partitioned_model_is_written_with_its_cpu_nodes_and_runs(
    worker: Worker, tmp_path: Path
) -> None:
    """The EPContext model of a partition keeps the CPU nodes and matches the CPU results."""
    import onnxruntime

    nodes = [
        node("Relu", ["x"], ["r"], "fine"),
        node("Asinh", ["r"], ["a"], "arc"),
        node("Add", ["a", "r"], ["y"], "sum"),
    ]
    path = save(tmp_path / "odd.onnx", nodes, [info("x", F, [1, 8])], [info("y", F, [1, 8])])
    binary, model = tmp_path / "made.bin", tmp_path / "made_ctx.onnx"
    words = (path, "--backend", "htp", "--partition", "--soc", "SM8650", "-o", binary)
    done = run("prepare", *words)
    assert exit_code(done) == 0
    assert "verified: ran in ONNX Runtime, outputs within " in done.output
    kinds = {one.op_type for one in onnx.load(model).graph.node}
    assert kinds == {"EPContext", "Asinh"}
    given = numpy.linspace(-2, 2, 8, dtype="f4")[None]
    (found,) = run_epcontext(model, {"x": given}, SM8650.model_id).values()
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": given})
    assert numpy.allclose(found, wanted, rtol=0.01, atol=0.01)
    values = json.loads(run("prepare", *words, "--force", "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.footprint/1"))
    assert values["prepared"]["run"]["verified"] is True
