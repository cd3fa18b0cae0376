"""A planned model runs in place, and a wrong plan does not go unnoticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from qnnmem.errors import UsageError
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.lpai.arena import ArenaRun, plain_run, run_in_arena, run_program, same_bits
from qnnmem.lpai.arena_memory import GUARD_BYTES, POISON, Arena, Memory, Placement, address_of
from qnnmem.lpai.arena_steps import prepare
from qnnmem.units import round_up

Array = NDArray[Any]
FLOAT = onnx.TensorProto.FLOAT
ONNX_DTYPES = {1: DType.FLOAT32, 2: DType.UINT8, 3: DType.INT8, 6: DType.INT32, 7: DType.INT64}
ONNX_DTYPES |= {9: DType.BOOL, 10: DType.FLOAT16, 11: DType.FLOAT64}


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Iterable[str],
    weights: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """Build a float model; its tensors get their shapes by inference."""
    made = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return shape_inference.infer_shapes(proto, data_prop=True)


def ir(
    proto: onnx.ModelProto, constants: Iterable[str] = (), views: Iterable[str] = ("Reshape",)
) -> Model:
    """One op for each node that makes no constant."""
    constants = [*constants, *(weight.name for weight in proto.graph.initializer)]
    infos = [*proto.graph.input, *proto.graph.value_info, *proto.graph.output]
    tensors = {info.name: tensor(info) for info in infos}
    ops = [
        Op(
            name=f"n{at}",
            type=node.op_type,
            inputs=tuple(name for name in node.input if name and name not in constants),
            outputs=tuple(node.output),
            effect=Effect.VIEW if node.op_type in views else Effect.COMPUTE,
            sources=(at,),
        )
        for at, node in enumerate(proto.graph.node)
        if node.output[0] not in constants
    ]
    return Model(
        name="tiny",
        format="onnx",
        tensors=tensors,
        ops=tuple(ops),
        inputs=tuple(value.name for value in proto.graph.input),
        outputs=tuple(value.name for value in proto.graph.output),
        constants=tuple(constants),
    )


def tensor(info: onnx.ValueInfoProto) -> Tensor:
    """Say the same in our words."""
    kind = info.type.tensor_type
    shape = tuple(dim.dim_value for dim in kind.shape.dim)
    return Tensor(info.name, ONNX_DTYPES[kind.elem_type], shape)


def roots(model: Model) -> dict[str, str]:
    """Map each tensor to the one whose bytes it shows."""
    found = {name: name for name in model.tensors}
    for op in model.ops:
        if op.effect is Effect.VIEW:
            found[op.outputs[0]] = found[op.inputs[0]]
    return found


def bump(model: Model) -> Placement:
    """Every tensor at a place of its own, views where their root is."""
    offsets: dict[str, int] = {}
    size = 0
    for name, root in roots(model).items():
        if name == root:
            offsets[name] = size
            size = round_up(size + model.tensors[name].nbytes, 64)
    return Placement({name: offsets[root] for name, root in roots(model).items()}, size)


def ring(model: Model, slots: int = 3) -> Placement:
    """Put a chain into a few slots, used in turn: memory is reused, and soundly."""
    width = max(round_up(tensor.nbytes, 64) for tensor in model.tensors.values())
    return Placement(
        {name: (at % slots) * width for at, name in enumerate(model.tensors)}, slots * width
    )


def noise(model: Model) -> dict[str, Array]:
    """Random float inputs."""
    random = np.random.default_rng(7)
    shapes = {name: model.tensors[name].shape for name in model.inputs}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def chain(length: int = 6) -> onnx.ModelProto:
    """Element-wise ops one after another: t0 -> t1 -> ... ."""
    kinds = ("Sigmoid", "Neg", "Tanh", "Exp")
    nodes = [helper.make_node(kinds[i % 4], [f"t{i}"], [f"t{i + 1}"]) for i in range(length)]
    return graph(nodes, {"t0": [3, 50]}, [f"t{length}"])


def diamond() -> onnx.ModelProto:
    """Build a convolution whose result is needed again after a side branch."""
    weight = np.random.default_rng(1).standard_normal((4, 2, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    return graph(nodes, {"x": [1, 2, 9, 9]}, ["y"], {"w": weight})


def check(proto: onnx.ModelProto, model: Model, placement: Placement) -> ArenaRun:
    """Run in the arena against all tensors of a plain run."""
    feeds = noise(model)
    inner = [name for name in model.tensors if name not in model.constants]
    names = dict.fromkeys([*inner, *model.outputs])
    reference = plain_run(proto, feeds, list(names))
    result = run_in_arena(
        proto, model, placement.offsets, placement.size, feeds, reference=reference
    )
    if result.clean:
        assert all(same_bits(result.outputs[name], reference[name]) for name in model.outputs)
    return result


@pytest.mark.parametrize("proto", [chain(), diamond()], ids=["chain", "diamond"])
def test_own_places_give_the_plain_answer(proto: onnx.ModelProto) -> None:
    """With every tensor at its own place the outputs are bit-identical to a plain run."""
    model = ir(proto)
    result = check(proto, model, bump(model))
    assert result.clean
    assert result.copied_bytes == 0
    assert result.outside == result.opaque == ()


def test_memory_is_reused_by_a_long_chain() -> None:
    """Three hundred ops run correctly in three slots."""
    proto = chain(300)
    model = ir(proto)
    assert check(proto, model, ring(model)).clean


@pytest.mark.parametrize("victim", ["b", "c"])
def test_overlap_of_live_tensors_is_found(victim: str) -> None:
    """A tensor laid over another that is still needed is reported, by name and op."""
    proto = diamond()
    model = ir(proto)
    placement = bump(model)
    wrong = {**placement.offsets, victim: placement.offsets["a"]}
    result = check(proto, model, Placement(wrong, placement.size))
    assert any("'a' changed before op 'n3' (Add)" in finding for finding in result.findings)


def test_overlap_changes_the_answer_without_a_reference() -> None:
    """The outputs alone already betray a plan whose live tensors overlap."""
    proto = diamond()
    model = ir(proto)
    placement, feeds = bump(model), noise(model)
    wrong = {**placement.offsets, "b": placement.offsets["a"] + 16}
    result = run_in_arena(proto, model, wrong, placement.size, feeds)
    assert not same_bits(result.outputs["y"], plain_run(proto, feeds, ["y"])["y"])


def test_partial_overlap_of_an_output_is_found() -> None:
    """An early model output must survive to the end of the run."""
    proto = diamond()
    model = replace(ir(proto), outputs=("y", "b"))
    placement = bump(model)
    wrong = {**placement.offsets, "y": placement.offsets["b"] + 64}
    result = check(proto, model, Placement(wrong, placement.size + 64))
    assert any("'b' changed before the end" in finding for finding in result.findings)


def test_outputs_of_one_op_must_not_share() -> None:
    """Two results laid over each other are reported after the op that wrote both."""
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], num_outputs=2),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    proto = graph(nodes, {"x": [8]}, ["y"])
    model = ir(proto)
    placement = bump(model)
    wrong = {**placement.offsets, "a": placement.offsets["b"]}
    result = check(proto, model, Placement(wrong, placement.size))
    assert "'a' differs from the plain run after op 'n0' (Split)" in result.findings[0]


def test_in_place_op_is_sound() -> None:
    """An element-wise op may write over the input that dies with it."""
    proto = chain(4)
    model = ir(proto)
    assert check(proto, model, ring(model, slots=1)).clean


def views() -> onnx.ModelProto:
    """Build a model that sees a tensor through two reshapes."""
    weights = {"s": np.array([150], np.int64), "r": np.array([5, 30], np.int64)}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Reshape", ["b", "r"], ["c"]),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    return graph(nodes, {"x": [3, 50]}, ["y"], weights)


def test_views_cost_nothing() -> None:
    """A view at its root's address moves no bytes."""
    proto = views()
    model = ir(proto)
    result = check(proto, model, bump(model))
    assert result.clean
    assert result.copied_bytes == 0


def test_view_at_its_own_place_is_copied() -> None:
    """A view that the plan puts elsewhere is filled, and the bytes are counted."""
    proto = views()
    model = ir(proto)
    placement = bump(ir(proto, views=()))
    result = check(proto, model, placement)
    assert result.clean
    assert result.copied_bytes == 2 * 600


def test_false_view_is_found() -> None:
    """An op that moves bytes but is called a view is reported even without a reference."""
    nodes = [helper.make_node("Transpose", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    proto = graph(nodes, {"x": [3, 5]}, ["y"])
    model = ir(proto, views=["Transpose"])
    placement = bump(model)
    result = run_in_arena(proto, model, placement.offsets, placement.size, noise(model))
    assert result.findings == (
        "op 'n0' (Transpose) is no view: its output has other bytes than its input",
    )


def test_any_valid_order_is_run_as_given() -> None:
    """Ops run in the model's order, not in the file's."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    proto = graph(nodes, {"x": [8]}, ["y"])
    model = ir(proto)
    swapped = replace(model, ops=(model.ops[1], model.ops[0], model.ops[2]))
    seen: list[str] = []
    placement, feeds = bump(swapped), noise(swapped)
    result = run_program(
        prepare(proto, swapped),
        placement,
        feeds,
        after_step=lambda _at, op, _memory: seen.append(op.type),
    )
    assert seen == ["Exp", "Neg", "Add"]
    assert same_bits(result.outputs["y"], plain_run(proto, feeds, ["y"])["y"])


def test_scalars_and_empty_tensors_run() -> None:
    """A tensor without dimensions has one element, one with a zero dimension has none."""
    weights = {"none": np.zeros((0, 3), np.float32)}
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Slice", ["x", "zero", "zero", "axis"], ["empty"]),
        helper.make_node("Concat", ["empty", "none", "x"], ["all"], axis=0),
        helper.make_node("Mul", ["all", "sum"], ["y"]),
        helper.make_node("Relu", ["empty"], ["nothing"]),
    ]
    index = {"zero": np.array([0], np.int64), "axis": np.array([0], np.int64)}
    proto = graph(nodes, {"x": [4, 3]}, ["y", "nothing"], weights | index)
    model = ir(proto)
    assert model.tensors["sum"].shape == ()
    assert model.tensors["empty"].nbytes == 0
    result = check(proto, model, bump(model))
    assert result.clean
    assert result.outputs["nothing"].shape == (0, 3)


def branches() -> tuple[onnx.ModelProto, Model]:
    """Build an If whose branches take a tensor and a weight from outside."""
    bodies = {
        f"{word}_branch": helper.make_graph(
            [helper.make_node(kind, ["a", "w"], [word])], word, [], [onnx.ValueInfoProto(name=word)]
        )
        for word, kind in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "limit"], ["flag"]),
        helper.make_node("If", ["flag"], ["b"], **bodies),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    weights = {"w": np.full(6, 3, np.float32), "limit": np.array(0, np.float32)}
    proto = graph(nodes, {"x": [6]}, ["y"], weights)
    model = ir(proto)
    ops = [replace(op, inputs=("flag", "a")) if op.type == "If" else op for op in model.ops]
    body = Model("then", "onnx")
    ops[3] = replace(ops[3], bodies=(body, body))
    return proto, replace(model, ops=tuple(ops))


def test_branches_read_captured_tensors_from_the_arena() -> None:
    """An If runs as one step; that its bodies use memory of their own is said."""
    proto, model = branches()
    result = check(proto, model, bump(model))
    assert result.clean
    assert result.opaque == ("n3",)


def test_captured_tensor_missing_from_an_op_is_refused() -> None:
    """An op whose nodes read more than it lists would be planned wrongly: no run."""
    proto, model = branches()
    ops = tuple(replace(op, inputs=("flag",)) if op.type == "If" else op for op in model.ops)
    with pytest.raises(UsageError, match="'n3' and its nodes disagree on 'a'"):
        prepare(proto, replace(model, ops=ops))


def test_constants_are_computed_once_and_stay_outside() -> None:
    """Nodes that only depend on constants are run up front and take no room in the arena."""
    five = helper.make_tensor("five", FLOAT, [1], [5.0])
    nodes = [
        helper.make_node("Constant", [], ["k"], value=five),
        helper.make_node("Sqrt", ["k"], ["root"]),
        helper.make_node("Exp", ["root"], ["big"]),
        helper.make_node("Mul", ["x", "big"], ["a"]),
        helper.make_node("Add", ["a", "k"], ["y"]),
    ]
    proto = graph(nodes, {"x": [6]}, ["y", "root"])
    model = ir(proto, constants=["k", "root", "big"])
    placement = bump(replace(model, tensors={n: model.tensors[n] for n in ("x", "a", "y")}))
    result = check(proto, model, placement)
    assert result.clean
    assert result.outputs["root"] == np.sqrt(np.float32(5))


def test_constants_need_not_be_described() -> None:
    """A computed constant runs even when the model does not list its shape."""
    nodes = [
        helper.make_node("Range", ["from", "to", "by"], ["range"]),
        helper.make_node("Add", ["x", "range"], ["y"]),
    ]
    numbers = {"from": 0.0, "to": 6.0, "by": 1.0}
    weights = {name: np.array(value, np.float32) for name, value in numbers.items()}
    proto = graph(nodes, {"x": [6]}, ["y"], weights)
    model = ir(proto, constants=["range"])
    known = {name: model.tensors[name] for name in ("x", "y")}
    model = replace(model, tensors=known)
    assert check(proto, model, bump(model)).clean


def test_constants_may_come_from_a_shape() -> None:
    """The shape of a tensor is known without its values, and so is what follows from it."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=FLOAT),
        helper.make_node("Mul", ["a", "sizes"], ["y"]),
    ]
    proto = graph(nodes, {"x": [5, 2]}, ["y"])
    model = ir(proto, constants=["shape", "sizes"])
    kept = {name: model.tensors[name] for name in ("x", "a", "y", "sizes")}
    model = replace(model, tensors=kept, constants=("sizes",))
    assert check(proto, model, bump(model)).clean


@pytest.mark.parametrize("source", ["node", "weight"])
def test_op_that_delivers_a_constant(source: str) -> None:
    """A result that is constant is put into its place by an op that reads nothing."""
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Sqrt", ["w"], ["node"])]
    proto = graph(nodes, {"x": [4]}, ["y", source], {"w": np.arange(3, dtype=np.float32)})
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "weight"))
    tensors = {"weight": Tensor("weight", DType.FLOAT32, (2,))}
    tensors |= {"node": Tensor("node", DType.FLOAT32, (3,))}
    tensors |= {name: Tensor(name, DType.FLOAT32, (4,)) for name in ("x", "y")}
    makers = {"node": (1,), "weight": ()}
    model = Model(
        name="tiny",
        format="onnx",
        tensors=tensors,
        ops=(
            Op("deliver", "Constant", (), (source,), sources=makers[source]),
            Op("neg", "Neg", ("x",), ("y",), sources=(0,)),
        ),
        inputs=("x",),
        outputs=("y", source),
    )
    placement, feeds = bump(model), noise(model)
    result = run_in_arena(proto, model, placement.offsets, placement.size, feeds)
    assert result.clean
    assert same_bits(result.outputs[source], plain_run(proto, feeds, [source])[source])


def test_quantised_group_is_one_step() -> None:
    """Dequantise, compute, quantise run as one op on 8-bit tensors in the arena."""
    scale, zero = np.array(0.05, np.float32), np.array(3, np.uint8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        helper.make_node("Sigmoid", ["f"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "s", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    proto = graph(nodes, {"x": [40]}, ["y"], {"s": scale, "z": zero})
    model = ir(proto)
    ops = (
        model.ops[0],
        Op("group", "Sigmoid", ("q",), ("r",), sources=(1, 2, 3)),
        model.ops[4],
    )
    kept = {name: model.tensors[name] for name in ("x", "q", "r", "y")}
    model = replace(model, ops=ops, tensors=kept)
    result = check(proto, model, bump(model))
    assert result.clean
    assert result.opaque == ("group",)


def test_external_weights_are_found_in_their_folder(tmp_path: Path) -> None:
    """Weights in a file beside the model are read from the folder given."""
    proto = diamond()
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    outer = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert outer.graph.initializer[0].external_data
    model = ir(outer)
    placement, feeds = bump(model), noise(model)
    result = run_in_arena(outer, model, placement.offsets, placement.size, feeds, folder=tmp_path)
    assert same_bits(result.outputs["y"], plain_run(outer, feeds, ["y"], tmp_path)["y"])


def test_io_without_an_offset_lies_outside() -> None:
    """Inputs and outputs that the plan leaves out get memory of their own, and that is said."""
    proto = chain(3)
    model = ir(proto)
    placement = bump(model)
    inner = {name: at for name, at in placement.offsets.items() if name not in ("t0", "t3")}
    result = check(proto, model, Placement(inner, placement.size))
    assert result.clean
    assert result.outside == ("t0", "t3")


def test_view_of_an_outside_input_shares_it() -> None:
    """A reshaped input that the plan leaves out needs no place either."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    proto = graph(nodes, {"x": [4, 2]}, ["y"], {"s": np.array([8], np.int64)})
    model = ir(proto)
    result = check(proto, model, Placement({"y": 0}, 32))
    assert result.clean
    assert result.copied_bytes == 0
    assert result.outside == ("x", "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t1": 10**6}, "'t1' at offset 1,000,000 with 600 bytes lies outside the arena"),
        ({"t1": -64}, "'t1' at offset -64"),
        ({"t1": None}, "no offset for tensor 't1', 600 bytes"),
    ],
)
def test_impossible_place_is_refused(change: dict[str, int | None], message: str) -> None:
    """No op runs when a tensor has no place inside the arena."""
    model = ir(chain(3))
    placement = bump(model)
    merged = {**placement.offsets, **change}
    offsets = {name: at for name, at in merged.items() if at is not None}
    with pytest.raises(UsageError, match=message):
        Memory(model, Placement(offsets, placement.size))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "no value is given for input 't0'"),
        ({"t0": np.zeros((3, 51), np.float32)}, r"given as float32 \[3, 51\]"),
        ({"t0": np.zeros((3, 50), np.float64)}, r"given as float64 \[3, 50\]"),
    ],
)
def test_wrong_input_is_refused(feeds: dict[str, Array], message: str) -> None:
    """Inputs must be there, with the type and shape of the model."""
    proto = chain(2)
    model = ir(proto)
    placement = bump(model)
    with pytest.raises(UsageError, match=message):
        run_in_arena(proto, model, placement.offsets, placement.size, feeds)


def test_failing_plain_run_is_one_sentence() -> None:
    """A reference run that onnxruntime refuses is our error, not a foreign one."""
    with pytest.raises(UsageError, match=r"a plain run failed: .*t0"):
        plain_run(chain(2), {"t0": np.zeros((3, 51), np.float32)}, ["t2"])


def test_op_without_nodes_is_refused() -> None:
    """An op that stands for no node of the graph cannot be run."""
    proto = chain(2)
    model = ir(proto)
    ops = tuple(replace(op, sources=()) for op in model.ops)
    with pytest.raises(UsageError, match="does not say which nodes"):
        prepare(proto, replace(model, ops=ops))


def test_op_that_cannot_stand_alone_is_named() -> None:
    """An op onnxruntime refuses is one sentence with its name, not a foreign exception."""
    proto = chain(2)
    proto.graph.node[1].op_type = "NoSuchOp"
    with pytest.raises(UsageError, match="op 'n1' cannot run by itself"):
        prepare(proto, ir(proto))


def test_failing_op_ends_the_run_with_a_finding() -> None:
    """An index spoilt by an overlap stops the run and is reported."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("ArgMax", ["a"], ["i"], axis=0, keepdims=0),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Gather", ["b", "i"], ["y"]),
    ]
    proto = graph(nodes, {"x": [8]}, ["y"])
    model = ir(proto)
    placement = bump(model)
    wrong = {**placement.offsets, "i": placement.offsets["b"]}
    result = run_in_arena(proto, model, wrong, placement.size, {"x": np.ones(8, np.float32)})
    assert "op 'n3' (Gather) failed" in result.findings[0]
    assert not result.outputs


def test_dead_tensors_are_poisoned() -> None:
    """Bytes of a tensor that no later op reads do not keep their value."""
    proto = chain(3)
    model = ir(proto)
    seen: list[tuple[bool, bool]] = []

    def look(_at: int, op: Op, memory: Memory) -> None:
        dead, fresh = memory.raw(op.inputs[0]), memory.raw(op.outputs[0])
        seen.append((bool((dead == POISON).all()), bool((fresh == POISON).all())))

    placement = bump(model)
    run_in_arena(proto, model, placement.offsets, placement.size, noise(model), after_step=look)
    assert seen == [(True, False)] * 3


def test_poison_spares_what_lives() -> None:
    """Only the bytes of a dead tensor that no live one covers are overwritten."""
    shapes = {"dead": (100,), "live": (10,)}
    tensors = {name: Tensor(name, DType.UINT8, shape) for name, shape in shapes.items()}
    model = Model("m", "onnx", tensors, inputs=("dead", "live"))
    memory = Memory(model, Placement({"dead": 0, "live": 95}, 200))
    memory.write("dead", np.zeros(100, np.uint8))
    memory.write("live", np.zeros(10, np.uint8))
    memory.poison(["dead"], ["live"])
    assert (memory.raw("dead")[:95] == POISON).all()
    assert not memory.raw("live").any()


@pytest.mark.parametrize(("where", "zone"), [(-1, "before"), (600, "behind")])
def test_write_beside_the_arena_is_found(where: int, zone: str) -> None:
    """The guard zones on both sides tell of any byte written outside."""
    proto = chain(1)
    model = ir(proto)
    placement = Placement({"t0": 0, "t1": 0}, 600)

    def spill(_at: int, _op: Op, memory: Memory) -> None:
        memory.arena._block[memory.arena._base + where] = 0

    result = run_in_arena(
        proto, model, placement.offsets, placement.size, noise(model), after_step=spill
    )
    assert result.findings == (f"bytes {zone} the arena were overwritten",)


@pytest.mark.parametrize("size", [1, 64, 100_003])
def test_arena_base_is_aligned(size: int) -> None:
    """The base lies on a 64-byte boundary with a full guard zone on both sides."""
    arena = Arena.allocate(size)
    assert address_of(arena.slice(0, size)) % 64 == 0
    assert arena._base >= GUARD_BYTES
    assert arena._block.size - arena._base - size >= GUARD_BYTES
    assert arena.broken_guards() == ()


def test_nan_equals_itself() -> None:
    """Comparison is by bits: NaN matches, and the sign of zero counts."""
    nan, zero = np.array([np.nan], np.float32), np.zeros(1, np.float32)
    assert same_bits(nan, nan.copy())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.astype(np.float64))


def test_program_runs_many_times() -> None:
    """One preparation serves many inputs and many placements."""
    proto = chain(5)
    model = ir(proto)
    program = prepare(proto, model)
    for value in (0.5, -2.0):
        feeds = {"t0": np.full((3, 50), value, np.float32)}
        expected = plain_run(proto, feeds, ["t5"])["t5"]
        for placement in (bump(model), ring(model)):
            assert same_bits(run_program(program, placement, feeds).outputs["t5"], expected)
