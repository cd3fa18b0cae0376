"""Small models of each kind that QNN refuses; each refusal names the node and the reason."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from command_line import exit_code, run, sentence
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import LoadError
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.worker import Worker
from qnnmem.targets.socs import find_soc

SM8650 = find_soc("SM8650")
F, D, I64, U16, BF, TEXT, C64 = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT16),
    *(TensorProto.BFLOAT16, TensorProto.STRING, TensorProto.COMPLEX64),
)
node = helper.make_node
info = helper.make_tensor_value_info
NO_TYPE = "QNN has no operator of this type"
RELU = node("Relu", ["x"], ["r"], "first")
pytestmark = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]


def save(
    path: Path, nodes: Any, inputs: Any, outputs: Any, opset: int = 19, **weights: Any
) -> None:
    """Write a model."""
    stored = [
        one if isinstance(one, TensorProto) else numpy_helper.from_array(numpy.asarray(one), name)
        for name, one in weights.items()
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, stored)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)


def scan() -> onnx.GraphProto:
    """Return the body of a running sum."""
    nodes = [node("Add", ["s", "e"], ["s2"]), node("Identity", ["s2"], ["o"])]
    inputs = [info("s", F, [8]), info("e", F, [8])]
    return helper.make_graph(nodes, "b", inputs, [info("s2", F, [8]), info("o", F, [8])])


def sequence(name: str) -> onnx.ValueInfoProto:
    """Return the type of a sequence of tensors."""
    one = helper.make_tensor_type_proto(F, [4, 8])
    return helper.make_value_info(name, helper.make_sequence_type_proto(one))


X, Y = info("x", F, [4, 8]), info("y", F, [4, 8])
D48 = [info("x", D, [4, 8])], [info("y", D, [4, 8])]
WIDE = numpy.ones((8, 8))
FLOAT8 = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
WORDS = numpy_helper.from_array(numpy.array(["a", "b"], dtype=object), "w")
# The model, then the node, the operator and the reason in the log.
KINDS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "float64": (
        lambda p: save(p, [node("MatMul", ["x", "w"], ["y"], "mm")], *D48, w=WIDE),
        *("mm", "MatMul", "HTP does not support the operator with these data types"),
    ),
    "no name": (
        lambda p: save(p, [node("Sqrt", ["x"], ["y"])], *D48),
        *("y", "Sqrt", "HTP does not support the operator with these data types"),
    ),
    "uint16": (
        lambda p: save(
            p,
            [node("Add", ["x", "x"], ["y"], "sum16")],
            [info("x", U16, [4, 8])],
            [info("y", U16, [4, 8])],
        ),
        *("sum16", "Add", "HTP does not support the operator with these data types"),
    ),
    "bfloat16": (
        lambda p: save(
            p, [node("Add", ["x", "x"], ["y"], "b")], [info("x", BF, [4])], [info("y", BF, [4])]
        ),
        *("b", "Add", "ONNX Runtime has no QNN data type for bfloat16"),
    ),
    "float8": (
        lambda p: save(
            p,
            [
                node("QuantizeLinear", ["x", "s", "z"], ["q"], "q8"),
                node("DequantizeLinear", ["q", "s", "z"], ["y"], "dq8"),
            ],
            *([X], [Y]),
            s=numpy.array(0.1, "f4"),
            z=FLOAT8,
        ),
        *("q8", "QuantizeLinear", "QNN does not support zero points of float8e4m3fn"),
    ),
    "complex": (
        lambda p: save(
            p,
            [node("Identity", ["x"], ["y"], "same")],
            [info("x", C64, [4])],
            [info("y", C64, [4])],
        ),
        *("same", "Identity", "ONNX Runtime does not support tensors of complex64"),
    ),
    "strings": (
        lambda p: save(
            p,
            [node("Gather", ["w", "x"], ["y"], "words")],
            [info("x", I64, [3])],
            [info("y", TEXT, [3])],
            w=WORDS,
        ),
        *("words", "Gather", "ONNX Runtime has no QNN data type for string"),
    ),
    "a sequence as input": (
        lambda p: save(
            p,
            [node("ConcatFromSequence", ["x"], ["y"], "cat", axis=0)],
            [sequence("x")],
            [info("y", F, None)],
        ),
        *("cat", "ConcatFromSequence", NO_TYPE),
    ),
    "an optional": (
        lambda p: save(
            p,
            [
                *(RELU, node("Optional", ["r"], ["o"], "maybe")),
                node("OptionalGetElement", ["o"], ["y"], "get"),
            ],
            *([X], [Y]),
        ),
        *("maybe", "Optional", NO_TYPE),
    ),
    "scan": (
        lambda p: save(
            p,
            [RELU, node("Scan", ["z", "r"], ["f", "y"], "sums", body=scan(), num_scan_inputs=1)],
            *([X], [Y, info("f", F, [8])]),
            z=numpy.zeros(8, "f4"),
        ),
        *("sums", "Scan", NO_TYPE),
    ),
    "a shape from data": (
        lambda p: save(
            p, [RELU, node("Unique", ["r"], ["y"], "distinct")], [X], [info("y", F, ["n"])]
        ),
        *("distinct", "Unique", NO_TYPE),
    ),
    "seven dimensions": (
        lambda p: save(
            p,
            [node("Transpose", ["x"], ["y"], "swap", perm=[0, 2, 1, 3, 4, 5, 6])],
            [info("x", F, [1, 2, 3, 1, 1, 1, 2])],
            [info("y", F, [1, 3, 2, 1, 1, 1, 2])],
        ),
        *(
            "swap",
            "Transpose",
            "one of the tensors has 7 dimensions, which HTP does not support for this operator",
        ),
    ),
    "an own domain that is not imported": (
        lambda p: save(p, [RELU, node("Fancy", ["r"], ["y"], domain="org.none")], [X], [Y]),
        *("y", "Fancy", "ONNX Runtime has no operator org.none:Fancy"),
    ),
    "a function of the standard": (
        lambda p: save(
            p,
            [node("CenterCropPad", ["x", "s"], ["y"], "crop", axes=[1])],
            *([X], [info("y", F, [4, 6])]),
            s=numpy.array([6]),
        ),
        *("crop", "CenterCropPad", f"{NO_TYPE}; ONNX Runtime computes it with Pad, Shape, Slice"),
    ),
    "a bound of a parameter": (
        lambda p: save(
            p,
            [node("ScatterElements", ["x", "i", "u"], ["y"], "put", reduction="mul")],
            *([X, info("u", F, [1, 8])], [Y]),
            i=numpy.zeros((1, 8), "i8"),
        ),
        *("put", "ScatterElements", "one parameter is 2, but HTP expects < 1"),
    ),
    "no reason in the log": (
        lambda p: save(
            p,
            [node("GatherND", ["x", "i"], ["y"], "pick", batch_dims=1)],
            [info("x", F, [2, 4, 8])],
            [info("y", F, [2, 8])],
            i=numpy.array([[1], [2]]),
        ),
        *(
            "pick",
            "GatherND",
            "the library's validator rejects the operator without giving a reason",
        ),
    ),
    "a contraction of one": (
        lambda p: save(
            p,
            [RELU, node("Einsum", ["r"], ["y"], "trace", equation="ii->i")],
            [info("x", F, [8, 8])],
            [info("y", F, [8])],
        ),
        *("trace", "Einsum", "Einsum requires at least 2 inputs"),
    ),
    "classical learning": (
        lambda p: save(
            p,
            [node("Binarizer", ["x"], ["y"], "cut", domain="ai.onnx.ml", threshold=0.5)],
            *([X], [Y]),
        ),
        *("cut", "Binarizer", NO_TYPE),
    ),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return one worker for all compiles."""
    with Worker(warm=True) as one:
        yield one


@pytest.mark.parametrize("kind", KINDS)
def test_the_node_and_the_reason(kind: str, worker: Worker, tmp_path: Path) -> None:
    """The first refused node is named with its operator and the reason from the log."""
    make, name, operator, reason = KINDS[kind]
    path = tmp_path / "model.onnx"
    make(path)
    failure = compile_model(path, SM8650, CompileOptions(log_level="verbose"), worker=worker)
    assert isinstance(failure, CompileFailure)
    first = failure.unsupported[0]
    assert (first.name, first.operator, first.reason[: len(reason)]) == (name, operator, reason)
    assert all(text in failure.sentence for text in (name, operator, reason))
    assert first.outputs or kind == "an optional"


def test_a_model_of_the_future(worker: Worker, tmp_path: Path) -> None:
    """An unsupported IR version is quoted from ONNX Runtime without its source location."""
    path = tmp_path / "model.onnx"
    save(path, [node("Relu", ["x"], ["y"])], [X], [Y], 19)
    model = onnx.load(path)
    model.ir_version = 99
    onnx.save(model, path)
    failure = compile_model(path, SM8650, worker=worker)
    assert isinstance(failure, CompileFailure)
    said = "Unsupported model IR version: 99, max supported IR version: "
    assert failure.sentence.startswith(f"compile failed: {said}")


def test_an_operator_set_of_the_future(worker: Worker, tmp_path: Path) -> None:
    """An unknown operator set is refused before the compile."""
    path = tmp_path / "model.onnx"
    save(path, [node("Relu", ["x"], ["y"])], [X], [Y], 99)
    with pytest.raises(LoadError, match="uses ONNX operator set 99; the newest supported one is"):
        compile_model(path, SM8650, worker=worker)


def test_a_shape_that_the_user_can_state(worker: Worker, tmp_path: Path) -> None:
    """A data-dependent shape is an error that suggests --shape, not a refusal by QNN."""
    path = tmp_path / "model.onnx"
    save(path, [RELU, node("NonZero", ["r"], ["y"], "where")], [X], [info("y", I64, [2, "n"])])
    with pytest.raises(LoadError, match=r"depends on the data; set its largest shape with"):
        compile_model(path, SM8650, worker=worker)


def test_sparse_weights_are_called_so(tmp_path: Path) -> None:
    """A model with sparse weights exits with 2 and says that sparse tensors are not supported."""
    path = tmp_path / "model.onnx"
    save(path, [node("MatMul", ["x", "w"], ["y"], "mm")], [X], [Y])
    model = onnx.load(path)
    values = numpy_helper.from_array(numpy.array([1.5, 2.5], "f4"), "w")
    places = numpy_helper.from_array(numpy.array([3, 17]), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [8, 8]))
    onnx.save(model, path)
    done = run("footprint", path, "--soc", "SM8650")
    assert exit_code(done) == 2
    assert sentence(done).endswith("contains sparse tensors, which are not supported")


def test_the_recommended_command_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recommended command names model, SoC, sizes, settings and output, for each verb."""
    monkeypatch.chdir(tmp_path)
    path = Path("odd model.onnx")
    nodes = [RELU, node("Acosh", ["r"], ["y"], "arc")]
    save(path, nodes, [info("x", F, ["n", 8])], [info("y", F, ["n", 8])])
    size = ("--dim", "n=4")
    told = {}
    for verb in ("footprint", "fit", "qmem"):
        told[verb] = run(verb, path, "--soc", "SM8650", *size).output
    varied = ("--vary", "n=2,4", "--vary", "opt_level=3", "--cache", tmp_path / "kept")
    told["sweep"] = run("sweep", path, "--soc", "SM8650", *varied).output
    told["search"] = run("sweep", path, "--soc", "SM8650", *varied, "--max", "n").output
    commands = {
        verb: text.partition("; `")[2].partition("` leaves")[0] for verb, text in told.items()
    }
    words = {verb: shlex.split(line) for verb, line in commands.items()}
    assert words["footprint"] == words["fit"] == words["qmem"]
    assert {"--opt-level", "n=2"} <= set(words["sweep"])
    assert words["search"] == words["sweep"]
    assert "of `qnnmem prepare" not in told["search"]
    for name in ("footprint", "sweep"):
        first, *rest = words[name]
        assert first == "qnnmem"
        assert exit_code(run(*rest)) == 0
        assert Path("model.bin").stat().st_size > 0
        for file in Path().glob("model*"):
            file.unlink()


def test_a_sweep_without_time_says_so(tmp_path: Path) -> None:
    """A sweep in which no row finished in time exits with 4, and its rows are not cached."""
    path = tmp_path / "relu.onnx"
    save(path, [node("Relu", ["x"], ["y"])], [info("x", F, ["n", 8])], [info("y", F, ["n", 8])])
    words = ("sweep", path, "--soc", "SM8650", "--vary", "n=1,2", "--cache", tmp_path / "kept")
    late = run(*words, "--time-limit", "0.01")
    assert exit_code(late) == 4
    assert "2 failed" in late.output
    # The failed rows were not cached as refusals.
    assert exit_code(run(*words)) == 0


def test_one_limit_is_for_all_that_qmem_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests of `qmem` share one time limit; each request gets the remaining time."""
    path = tmp_path / "relu.onnx"
    save(path, [node("Relu", ["x"], ["y"])], [info("x", F, [64, 64])], [info("y", F, [64, 64])])
    given: list[float] = []
    ask = Worker.ask

    def asked(self: Worker, *args: Any, time_limit_s: float, **rest: Any) -> Any:
        given.append(time_limit_s)
        return ask(self, *args, time_limit_s=time_limit_s, **rest)

    monkeypatch.setattr(Worker, "ask", asked)
    done = run("qmem", path, "--soc", "SM8650", "--run", "--misuse", "--time-limit", "300")
    assert exit_code(done) == 0
    assert len(given) > 6
    assert given[0] < 300
    assert given == sorted(given, reverse=True)
