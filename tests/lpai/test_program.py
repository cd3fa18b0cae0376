"""A program computes what the model computes, op by op or as a whole; damage is refused."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from patience import patient

from qnnmem import lpai
from qnnmem.errors import ProgramError, QnnError, UsageError
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.lpai.binary import pack
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.program import INLINE_BYTES, arrange, bytes_of
from qnnmem.lpai.program import run as program_run
from qnnmem.lpai.program.run import Parts, runs_in_order
from qnnmem.results.inspect import FrameWindow

FLOAT = 1


def weight(*shape: int) -> Any:
    """Return random weights, the same in every run."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def diamond(bench: Any) -> onnx.ModelProto:
    """Return a convolution whose result is read again after a side branch."""
    nodes = [
        bench.node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        bench.node("Relu", ["a"], ["b"]),
        bench.node("Tanh", ["b"], ["c"]),
        bench.node("Add", ["a", "c"], ["y"]),
    ]
    proto: onnx.ModelProto = bench.model(
        nodes, {"x": [1, 2, 9, 9]}, ["y"], {"w": weight(4, 2, 3, 3)}
    )
    return proto


def test_runs_op_by_op_and_in_one_piece(bench: Any) -> None:
    """Op by op and as a whole, the program gives the bits of a plain run and no finding."""
    proto = diamond(bench)
    bench.check(proto, bench.compile(proto))
    bench.check(proto, bench.compile(proto), in_order=False)
    bench.check(proto, bench.compile(proto), sanitize=False)


def test_a_long_chain_reuses_memory(bench: Any) -> None:
    """A chain of a hundred ops needs the scratch of two tensors."""
    kinds = ("Sigmoid", "Neg", "Tanh", "Exp")
    nodes = [bench.node(kinds[i % 4], [f"t{i}"], [f"t{i + 1}"]) for i in range(100)]
    proto = bench.model(nodes, {"t0": [3, 50]}, ["t100"])
    parts = bench.compile(proto)
    assert parts.graph.scratch_bytes == 2 * 640
    bench.check(proto, parts)


def test_an_in_place_op_is_sound(bench: Any) -> None:
    """In-place element-wise ops share one buffer and compute the right result."""
    nodes = [bench.node("Conv", ["x", "w"], ["a"])]
    nodes += [bench.node("Neg", ["a"], ["b"]), bench.node("Exp", ["b"], ["y"])]
    proto = bench.model(nodes, {"x": [1, 2, 9, 9]}, ["y"], {"w": weight(2, 2, 1, 1)})
    tight = bench.compile(proto, inplace=True)
    assert len({tight.graph.buffer_of[name].name for name in ("a", "b", "y")}) == 1
    bench.check(proto, tight)


def test_views_cost_nothing(bench: Any) -> None:
    """Views share the buffer of their source; only inputs and outputs are copied."""
    nodes = [
        bench.node("Relu", ["x"], ["a"]),
        bench.node("Reshape", ["a", "s"], ["b"]),
        bench.node("Reshape", ["b", "r"], ["c"]),
        bench.node("Neg", ["c"], ["y"]),
    ]
    shapes = {"s": np.array([150]), "r": np.array([5, 30])}
    proto = bench.model(nodes, {"x": [3, 50]}, ["y"], shapes)
    parts = bench.compile(proto)
    assert len({parts.graph.buffer_of[name].name for name in "abc"}) == 1
    memory = bench.check(proto, parts)
    _, outcome = memory.run(bench.noise(parts.graph))
    assert outcome.copied_bytes == 2 * 600
    _, outcome = memory.run(bench.noise(parts.graph), shared=True)
    assert outcome.copied_bytes == 0


def test_any_valid_order_is_run_as_given(bench: Any) -> None:
    """The program's nodes are in the plan's order, not in the file's order."""
    nodes = [
        bench.node("Neg", ["x"], ["a"]),
        bench.node("Exp", ["x"], ["b"]),
        bench.node("Add", ["a", "b"], ["y"]),
    ]
    proto = bench.model(nodes, {"x": [8]}, ["y"])
    model = bench.ir(proto)
    swapped = replace(model, ops=(model.ops[1], model.ops[0], model.ops[2]))
    parts = bench.compile(proto, swapped)
    assert [node.op_type for node in parts.proto.graph.node] == ["Exp", "Neg", "Add"]
    bench.check(proto, parts)


def test_scalars_and_empty_tensors_run(bench: Any, tmp_path: Path) -> None:
    """A scalar has one element and a tensor with a zero dimension none; both run."""
    nodes = [
        bench.node("ReduceSum", ["x"], ["sum"], keepdims=0),
        bench.node("Slice", ["x", "zero", "zero", "axis"], ["empty"]),
        bench.node("Concat", ["empty", "none", "x"], ["all"], axis=0),
        bench.node("Mul", ["all", "sum"], ["y"]),
        bench.node("Relu", ["empty"], ["nothing"]),
    ]
    index = {"zero": np.array([0]), "axis": np.array([0])}
    weights = {"none": np.zeros((0, 3), np.float32)} | index
    proto = bench.model(nodes, {"x": [4, 3]}, ["y", "nothing"], weights)
    parts = bench.compile(proto)
    bench.check(proto, parts)
    with bench.open(bench.context(parts), tmp_path) as session:
        for _ in range(2):
            assert session.run(bench.noise(parts.graph))["nothing"].shape == (0, 3)


def branches(bench: Any) -> tuple[onnx.ModelProto, Model]:
    """Return an If whose branches read a tensor and a weight from outside."""
    bodies = {
        f"{word}_branch": helper.make_graph(
            [bench.node(kind, ["a", "w"], [word])], word, [], [onnx.ValueInfoProto(name=word)]
        )
        for word, kind in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        bench.node("Neg", ["x"], ["a"]),
        bench.node("ReduceSum", ["x"], ["sum"], keepdims=0),
        bench.node("Greater", ["sum", "limit"], ["flag"]),
        bench.node("If", ["flag"], ["b"], **bodies),
        bench.node("Exp", ["b"], ["y"]),
    ]
    weights = {"w": np.full(6, 3, np.float32), "limit": np.array(0, np.float32)}
    proto = bench.model(nodes, {"x": [6]}, ["y"], weights)
    model = bench.ir(proto)
    ops = tuple(replace(op, inputs=("flag", "a")) if op.type == "If" else op for op in model.ops)
    return proto, replace(model, ops=ops)


def test_branches_read_captured_tensors(bench: Any) -> None:
    """An If runs as one op that also reads the captured tensors of its branches."""
    proto, model = branches(bench)
    bench.check(proto, bench.compile(proto, model))


def test_a_captured_tensor_missing_from_an_op_is_refused(bench: Any) -> None:
    """An op that omits a captured tensor is refused, since its plan would be wrong."""
    proto, model = branches(bench)
    ops = tuple(replace(op, inputs=("flag",)) if op.type == "If" else op for op in model.ops)
    with pytest.raises(ProgramError, match="the nodes of op 'n3' do not use 'a' as planned"):
        bench.compile(proto, replace(model, ops=ops)).check()


def test_a_loop_runs_as_one_op(bench: Any) -> None:
    """A Loop runs as one op, with a captured input and stacked results."""

    def info(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            bench.node("Add", ["acc", "x"], ["more"]),
            bench.node("Identity", ["on"], ["go"]),
            bench.node("Identity", ["more"], ["turn"]),
        ],
        "body",
        [info("i", 7, []), info("on", 9, []), info("acc", FLOAT, [6])],
        [info("go", 9, []), info("more", FLOAT, [6]), info("turn", FLOAT, [6])],
    )
    nodes = [
        bench.node("Neg", ["x"], ["a"]),
        bench.node("Loop", ["n", "", "a"], ["r", "turns"], body=body),
        bench.node("Exp", ["r"], ["y"]),
    ]
    proto = bench.model(nodes, {"x": [6]}, ["y", "turns"], {"n": np.array(3)})
    model = bench.ir(proto)
    ops = tuple(replace(op, inputs=("a", "x")) if op.type == "Loop" else op for op in model.ops)
    shapes = {
        name: Tensor(name, DType.FLOAT32, shape)
        for name, shape in (("r", (6,)), ("turns", (3, 6)), ("y", (6,)))
    }
    model = replace(model, ops=ops, tensors={**model.tensors, **shapes})
    bench.check(proto, bench.compile(proto, model))


def test_constants_are_computed_once(bench: Any) -> None:
    """Values that depend only on constants are computed once, during preparation."""
    five = helper.make_tensor("five", FLOAT, [1], [5.0])
    nodes = [
        bench.node("Constant", [], ["k"], value=five),
        bench.node("Sqrt", ["k"], ["root"]),
        bench.node("Exp", ["root"], ["big"]),
        bench.node("Mul", ["x", "big"], ["a"]),
        bench.node("Add", ["a", "k"], ["y"]),
    ]
    proto = bench.model(nodes, {"x": [6]}, ["y"])
    parts = bench.compile(proto, bench.ir(proto, ["k", "root", "big"]))
    assert [node.op_type for node in parts.proto.graph.node] == ["Mul", "Add"]
    assert parts.values["big"] == pytest.approx(np.exp(np.sqrt(5)), rel=1e-6)
    bench.check(proto, parts)


def test_large_computed_constants_are_lent(bench: Any) -> None:
    """A large computed constant is stored in the binary and passed to the program as an input."""
    count = INLINE_BYTES
    nodes = [bench.node("Exp", ["w"], ["big"]), bench.node("Mul", ["x", "big"], ["y"])]
    proto = bench.model(nodes, {"x": [count]}, ["y"], {"w": weight(count)})
    parts = bench.compile(proto, bench.ir(proto, ["big"]))
    assert [(c.name, c.folded) for c in parts.graph.constants] == [("big", True)]
    bench.check(proto, parts)


def test_constants_may_come_from_a_shape(bench: Any) -> None:
    """A value computed only from a tensor's shape is a constant."""
    nodes = [
        bench.node("Neg", ["x"], ["a"]),
        bench.node("Shape", ["a"], ["shape"]),
        bench.node("Cast", ["shape"], ["sizes"], to=FLOAT),
        bench.node("Mul", ["a", "sizes"], ["y"]),
    ]
    proto = bench.model(nodes, {"x": [5, 2]}, ["y"])
    info = proto.graph.value_info.add(name="a")
    info.CopyFrom(helper.make_tensor_value_info("a", FLOAT, [5, 2]))
    parts = bench.compile(proto, bench.ir(proto, ["shape", "sizes"]))
    assert [node.op_type for node in parts.proto.graph.node] == ["Neg", "Mul"]
    bench.check(proto, parts)


@pytest.mark.parametrize("source", ["node", "weight"])
def test_constant_outputs_are_delivered(bench: Any, source: str) -> None:
    """A constant output is written by an op without inputs."""
    nodes = [bench.node("Neg", ["x"], ["y"]), bench.node("Sqrt", ["w"], ["node"])]
    weights = {"w": np.arange(3, dtype=np.float32), "weight": np.ones(3, np.float32)}
    proto = bench.model(nodes, {"x": [4]}, ["y", source], weights)
    tensors = {source: Tensor(source, DType.FLOAT32, (3,))}
    tensors |= {name: Tensor(name, DType.FLOAT32, (4,)) for name in ("x", "y")}
    ops = (
        Op("deliver", "Constant", (), (source,), sources=(1,) if source == "node" else ()),
        Op("neg", "Neg", ("x",), ("y",), sources=(0,)),
    )
    model = Model("tiny", "onnx", tensors, ops, ("x",), ("y", source))
    bench.check(proto, bench.compile(proto, model))


def test_a_dequantize_node_may_serve_two_groups(bench: Any) -> None:
    """A DequantizeLinear that two ops share is duplicated, so each op reads only its own inputs."""
    scale, zero = np.array(0.05, np.float32), np.array(3, np.uint8)
    nodes = [
        bench.node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        bench.node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        bench.node("Sigmoid", ["f"], ["g"]),
        bench.node("QuantizeLinear", ["g", "s", "z"], ["r"]),
        bench.node("Tanh", ["f"], ["h"]),
        bench.node("QuantizeLinear", ["h", "s", "z"], ["t"]),
    ]
    proto = bench.model(nodes, {"x": [40]}, ["r", "t"], {"s": scale, "z": zero})
    model = bench.ir(proto)
    ops = (
        model.ops[0],
        Op("one", "Sigmoid", ("q",), ("r",), sources=(1, 2, 3)),
        Op("two", "Tanh", ("q",), ("t",), sources=(1, 4, 5)),
    )
    kept = {name: model.tensors[name] for name in ("x", "q", "r", "t", "s", "z")}
    parts = bench.compile(proto, replace(model, ops=ops, tensors=kept))
    kinds = [node.op_type for node in parts.proto.graph.node]
    assert kinds.count("DequantizeLinear") == 2
    assert parts.graph.quants["q"].zero_point == 3
    bench.check(proto, parts)


def test_external_weights_are_found_in_their_folder(bench: Any, tmp_path: Path) -> None:
    """Weights in a file beside the model become constants of the program."""
    proto = diamond(bench)
    target = tmp_path / "m.onnx"
    onnx.save(proto, target, save_as_external_data=True, location="w.bin", size_threshold=0)
    outer = onnx.load(target, load_external_data=False)
    assert outer.graph.initializer[0].external_data
    bench.check(diamond(bench), bench.compile(outer, bench.ir(outer), tmp_path))


def test_a_false_view_is_found(bench: Any) -> None:
    """A Transpose planned as a view changes its source, which is reported as X1."""
    nodes = [
        bench.node("Relu", ["x"], ["a"]),
        bench.node("Transpose", ["a"], ["b"]),
        bench.node("Sub", ["a", "c"], ["y"]),
        bench.node("Neg", ["b"], ["z"]),
    ]
    proto = bench.model(nodes, {"x": [3, 5]}, ["y", "z"], {"c": np.ones(5, np.float32)})
    model = bench.ir(proto)
    ops = tuple(
        replace(op, effect=Effect.VIEW) if op.type == "Transpose" else op for op in model.ops
    )
    parts = bench.compile(proto, replace(model, ops=ops))
    _, outcome = bench.Memory(parts).run(bench.noise(parts.graph))
    assert [found.rule for found in outcome.findings] == ["X1"]
    assert "'a' changed before op 'n2' read it" in outcome.findings[0].sentence


def test_an_op_without_nodes_is_refused(bench: Any) -> None:
    """An op without nodes raises UsageError."""
    proto = diamond(bench)
    model = bench.ir(proto)
    ops = tuple(replace(op, sources=()) for op in model.ops)
    with pytest.raises(UsageError, match="does not list the nodes"):
        arrange(proto, replace(model, ops=ops), None)


def test_constants_that_cannot_be_computed_are_one_sentence(bench: Any) -> None:
    """Constants that onnxruntime cannot compute raise UsageError."""
    nodes = [bench.node("Reshape", ["w", "s"], ["k"]), bench.node("Mul", ["x", "k"], ["y"])]
    weights = {"w": weight(6), "s": np.array([5])}
    proto = bench.model(nodes, {"x": [5]}, ["y"], weights)
    model = replace(
        bench.ir(proto, ["k"]), tensors={n: Tensor(n, DType.FLOAT32, (5,)) for n in "xy"}
    )
    with pytest.raises(UsageError, match="constants cannot be computed"):
        arrange(proto, model, None)


def test_bytes_treat_nan_like_any_value() -> None:
    """Values are compared by their bits: NaN equals NaN, and 0 differs from -0."""
    nan, zero = np.array([np.nan], np.float32), np.zeros(1, np.float32)
    assert (bytes_of(nan) == bytes_of(nan.copy())).all()
    assert (bytes_of(zero) != bytes_of(-zero)).any()


# --- Damage --------------------------------------------------------------------------------------


def small(bench: Any) -> Parts:
    """Return a compiled program with one weight and three ops."""
    nodes = [
        bench.node("Conv", ["x", "w"], ["a"]),
        bench.node("Relu", ["a"], ["b"]),
        bench.node("Transpose", ["b"], ["y"], perm=[0, 2, 1]),
    ]
    proto = bench.model(nodes, {"x": [1, 4, 16]}, ["y"], {"w": weight(8, 4, 3)})
    parts: Parts = bench.compile(proto)
    return parts


def changed(parts: Parts, change: Any) -> Parts:
    """Return the same graph with a changed program."""
    proto = onnx.ModelProto.FromString(parts.graph.program)
    change(proto.graph)
    return Parts(replace(parts.graph, program=proto.SerializeToString()), parts.constants)


def refusal(bench: Any, parts: Parts) -> str:
    """Return the sentence with which `create_from_binary` refuses a binary."""
    binary = b"".join(pack(bench.context(parts)))
    with pytest.raises(QnnError) as caught:
        lpai.Context.create_from_binary(lpai.Backend.create(), binary)
    assert caught.value.code == 5005
    assert caught.value.finding.rule == "B1"
    assert "\n" not in caught.value.finding.sentence
    return caught.value.finding.sentence


def tensors(graph: CompiledGraph, **changes: Any) -> Parts:
    """Return the graph with changed tensors."""
    every = dict(graph.model.tensors)
    every |= {name: replace(every[name], **change) for name, change in changes.items()}
    return Parts(replace(graph, model=replace(graph.model, tensors=every)), memoryview(b""))


def test_a_sound_program_is_rehearsed_in_order(bench: Any) -> None:
    """A valid program runs in its own order in the trial run."""
    assert runs_in_order(small(bench))


def test_an_unknown_op_is_refused(bench: Any) -> None:
    """An operator that onnxruntime does not know is refused when the context is created."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[1].op_type = "NoSuchOp"

    assert "uses operator 'NoSuchOp'" in refusal(bench, changed(small(bench), change))


def test_a_program_that_cannot_be_opened_is_refused_by_the_child_alone(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that onnxruntime rejects is opened in the child process only."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[1].attribute.append(helper.make_attribute("no_such_attribute", 1))

    def never(*_arguments: Any) -> None:
        raise AssertionError("opened in this process")

    monkeypatch.setattr(program_run, "_open", never)
    assert "cannot be opened" in refusal(bench, changed(small(bench), change))


def test_other_shapes_than_planned_are_refused(bench: Any) -> None:
    """A tensor with another shape than planned is refused before it is written."""
    parts = small(bench)
    wrong = tensors(parts.graph, b={"shape": (1, 7, 14)})
    sentence = refusal(bench, Parts(wrong.graph, parts.constants))
    assert sentence == "'b' has shape [1, 8, 14] instead of the planned [1, 7, 14]"


def test_other_types_than_planned_are_refused(bench: Any) -> None:
    """A tensor with another type than planned is refused, since it would overrun its buffer."""
    parts = small(bench)
    narrow = {name: {"dtype": DType.INT8} for name in ("b", "y")}
    sentence = refusal(bench, Parts(tensors(parts.graph, **narrow).graph, parts.constants))
    assert "Type Error" in sentence


@pytest.mark.parametrize("where", ["/etc/passwd", "weights.bin"])
@pytest.mark.parametrize("holder", ["initializer", "attribute"])
def test_a_program_reads_no_other_file(bench: Any, where: str, holder: str) -> None:
    """External data in a program is refused, in initializers and in attributes."""

    def change(graph: onnx.GraphProto) -> None:
        outside = onnx.TensorProto(name="out", data_type=2, dims=[8])
        outside.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", where), ("offset", "0"), ("length", "8")):
            outside.external_data.add(key=key, value=value)
        if holder == "initializer":
            graph.initializer.append(outside)
        else:
            graph.node.append(helper.make_node("Constant", [], ["k"], value=outside))

    sentence = refusal(bench, changed(small(bench), change))
    assert sentence == "constant 'out' is stored in another file, which is not allowed in a binary"


def test_a_hanging_program_is_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with an endless loop is refused when its trial run times out."""
    monkeypatch.setattr(program_run, "_CHECK_TIME_LIMIT_S", patient(1))

    def info(name: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [] if kind != FLOAT else None)

    def change(graph: onnx.GraphProto) -> None:
        body = helper.make_graph(
            [bench.node("Identity", ["c"], ["d"]), bench.node("Identity", ["v"], ["u"])],
            "body",
            [info("i", 7), info("c", 9), info("v", FLOAT)],
            [info("d", 9), info("u", FLOAT)],
        )
        endless = bench.node("Loop", ["trips", "", "a"], ["b"], body=body)
        graph.node[1].CopyFrom(endless)
        graph.initializer.append(numpy_helper.from_array(np.array(1 << 62), "trips"))

    assert re.search(r"did not finish within \d+ s", refusal(bench, changed(small(bench), change)))


def test_a_crashing_program_is_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the trial child is a refusal, not a crash of the client."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ProgramError, match="crashed or used up"):
        runs_in_order(small(bench))


def test_a_program_that_needs_too_much_memory_is_refused(bench: Any) -> None:
    """A program that exceeds the child's memory limit is refused."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[1].CopyFrom(bench.node("Expand", ["a", "s"], ["b"]))
        huge = np.array([1 << 20, 1 << 10, 8, 14])
        graph.initializer.append(numpy_helper.from_array(huge, "s"))

    assert "cannot be run" in refusal(bench, changed(small(bench), change))


@pytest.mark.parametrize("damage", [b"\xff\x00nonsense", b"", None])
def test_bytes_that_are_no_program_are_refused(bench: Any, damage: bytes | None) -> None:
    """Damaged or truncated programs are refused; an empty program means a layout."""
    parts = small(bench)
    program = parts.graph.program[:-20] if damage is None else damage
    broken = Parts(replace(parts.graph, program=program), parts.constants)
    if damage == b"":
        binary = b"".join(pack(bench.context(broken)))
        assert lpai.Context.create_from_binary(lpai.Backend.create(), binary)
    else:
        assert "program of graph 'tiny'" in refusal(bench, broken)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: {"model": with_sources(g.model, (99,))}, "nodes that the program does not have"),
        (lambda g: {"constants": ()}, "do not use 'w' as planned"),
        (lambda g: {"constants": one(g, element=6)}, "cannot be opened"),
        (lambda g: {"constants": one(g, element=22, shape=(8, 4, 24))}, "wrong size"),
    ],
)
def test_references_that_do_not_fit_are_refused(bench: Any, change: Any, words: str) -> None:
    """Node and constant references that do not fit the program are refused."""
    parts = small(bench)
    broken = Parts(replace(parts.graph, **change(parts.graph)), parts.constants)
    assert words in refusal(bench, broken)


def with_sources(model: Model, sources: tuple[int, ...]) -> Model:
    """Return the model with every op referring to these nodes."""
    return replace(model, ops=tuple(replace(op, sources=sources) for op in model.ops))


def one(graph: CompiledGraph, **changes: Any) -> Any:
    """Return the constants with the first one changed."""
    first, *rest = graph.constants
    return (replace(first, **changes), *rest)


def test_a_hidden_read_is_refused(bench: Any) -> None:
    """A node that reads a tensor its op does not list is refused."""

    def change(graph: onnx.GraphProto) -> None:
        graph.node[1].op_type = "Sum"
        graph.node[1].input.extend(["a", "x"])

    sentence = refusal(bench, changed(small(bench), change))
    assert sentence == "the nodes of op 'n1' do not use 'x' as planned"


def test_a_program_that_fails_on_any_input_fails_with_a_code(bench: Any) -> None:
    """A program that fails on every input raises ProgramError in each execution."""
    parts = small(bench)
    constants = one(parts.graph, shape=(4, 8, 3))
    broken = Parts(replace(parts.graph, constants=constants), parts.constants)
    assert not runs_in_order(broken)
    memory = bench.Memory(broken)
    with pytest.raises(ProgramError, match="execution failed"):
        memory.run(bench.noise(parts.graph))


def test_a_window_that_nothing_fills_is_refused(bench: Any) -> None:
    """A window that no op fills is refused."""
    nodes = [bench.node("Neg", ["x"], ["y"])]
    proto = bench.model(nodes, {"x": [1, 4], "h": [1, 4]}, ["y", "h"])
    proto.graph.output[1].CopyFrom(proto.graph.input[1])
    parts = bench.compile(proto)
    window = FrameWindow("w", "x", "h", 1, 4, 1, blocking=True, padding=0, reset=None)
    states = (("x", "h"),)
    broken = Parts(replace(parts.graph, states=states, windows=(window,)), parts.constants)
    assert "no op fills window 'w'" in refusal(bench, broken)


def test_state_and_outputs_without_bytes_need_no_place(bench: Any) -> None:
    """Empty states and outputs need no buffer."""
    nodes = [bench.node("Neg", ["x"], ["y"]), bench.node("Relu", ["h"], ["n"])]
    proto = bench.model(nodes, {"x": [4], "h": [0, 3]}, ["y", "n"])
    parts = bench.compile(proto, states=(("h", "n"),))
    for graph in (parts.graph, replace(parts.graph, states=())):
        placed = tuple(b for b in graph.buffers if b.name in ("x", "y"))
        memory = bench.Memory(Parts(replace(graph, buffers=placed), parts.constants))
        for _ in range(2):
            _, outcome = memory.run(bench.noise(graph))
            assert outcome.complete
        assert memory.execution.view("n").size == 0
