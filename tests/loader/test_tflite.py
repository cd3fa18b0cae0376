from __future__ import annotations

import random
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tflite_writer import (
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    RESOURCE,
    STRING,
    G,
    O,
    T,
    TfliteWriter,
    tflite_bytes,
    write_tflite,
)

from qnnmem.errors import LoadError, UsageError, join_words
from qnnmem.ir import DType, Effect, Model
from qnnmem.loader import tflite


def load(folder: Path, *graphs: G, **shapes: tuple[int, ...]) -> Model:
    """Return the model read from these graphs."""
    return tflite.read(write_tflite(folder / "model.tflite", *graphs), shapes=shapes)


def chain() -> G:
    """Return a graph of input, convolution with stored weights, reshape and output."""
    tensors = (
        T("in", (1, 8), INT8),
        T("weights", (16,), INT8, bytes(16)),
        T("mid", (1, 8), INT8),
        T("out", (2, 4), INT8),
    )
    ops = (O("CONV_2D", (0, 1, -1), (2,)), O("RESHAPE", (2,), (3,)))
    return G(tensors, (0,), (3,), ops)


def streaming() -> tuple[G, G]:
    """Return a model with a 6-byte resource variable, and the graph that initializes it."""
    tensors = (
        T("in", (6,), INT8),
        T("handle", (), RESOURCE),
        T("before", (6,), INT8),
        T("out", (6,), INT8),
    )
    ops = (
        O("CALL_ONCE", (), (), {0: 1}),
        O("VAR_HANDLE", (), (1,), {1: "ring"}),
        O("READ_VARIABLE", (1,), (2,)),
        O("ADD", (0, 2), (3,)),
        O("ASSIGN_VARIABLE", (1, 3), ()),
    )
    start = G(
        (T("handle", (), RESOURCE), T("zeros", (6,), INT8, bytes(6))),
        (),
        (),
        (O("VAR_HANDLE", (), (0,), {1: "ring"}), O("ASSIGN_VARIABLE", (0, 1), ())),
    )
    return G(tensors, (0,), (3,), ops), start


def test_reads_operators_tensors_and_weights(tmp_path: Path) -> None:
    """Ops keep the file's order, absent inputs are dropped, stored tensors are constants."""
    model = load(tmp_path, chain())
    assert [(op.type, op.inputs, op.outputs) for op in model.ops] == [
        ("CONV_2D", ("in", "weights"), ("mid",)),
        ("RESHAPE", ("mid",), ("out",)),
    ]
    assert (model.inputs, model.outputs, model.constants) == (("in",), ("out",), ("weights",))
    assert model.tensors["in"].nbytes == 8
    assert model.tensors["in"].dtype is DType.INT8


def test_a_reshape_is_a_view(tmp_path: Path) -> None:
    """A reshape is a view."""
    assert load(tmp_path, chain()).ops[1].effect is Effect.VIEW


def test_four_bit_elements_are_packed(tmp_path: Path) -> None:
    """Seven 4-bit elements take four bytes."""
    graph = G((T("a", (7,), INT4), T("b", (7,), INT4)), (0,), (1,), (O("CONV_2D", (0,), (1,)),))
    assert load(tmp_path, graph).tensors["a"].nbytes == 4


def test_operators_above_127_are_found(tmp_path: Path) -> None:
    """An operator's code is the larger of its old and its new field."""
    assert "READ_VARIABLE" in [op.type for op in load(tmp_path, *streaming()).ops]


def test_a_resource_variable_is_state(tmp_path: Path) -> None:
    """A resource variable is a state with the file's name and the size of its reads."""
    model = load(tmp_path, *streaming())
    assert model.states == ("ring",)
    assert model.tensors["ring"].nbytes == 6
    assert [(op.type, op.inputs, op.outputs) for op in model.ops] == [
        ("READ_VARIABLE", ("ring",), ("before",)),
        ("ADD", ("in", "before"), ("out",)),
        ("ASSIGN_VARIABLE", ("ring", "out"), ()),
    ]


def test_a_variable_of_two_sizes_is_refused(tmp_path: Path) -> None:
    """A variable that is read and assigned at different sizes is refused."""
    graph, start = streaming()
    tensors = (*graph.tensors[:2], T("before", (7,), INT8), graph.tensors[3])
    with pytest.raises(LoadError, match="'ring' has 7 bytes for one operator but 6 for another"):
        load(tmp_path, G(tensors, graph.inputs, graph.outputs, graph.ops), start)


def test_a_variable_tensor_is_state(tmp_path: Path) -> None:
    """A tensor marked as variable is a state, which its op reads."""
    tensors = (T("in"), T("memory", (32,), variable=True), T("out"))
    model = load(tmp_path, G(tensors, (0,), (2,), (O("SVDF", (0, 1), (2,)),)))
    assert model.states == ("memory",)
    assert model.ops[0].inputs == ("in", "memory")


def test_an_operator_that_updates_state_is_not_dead(tmp_path: Path) -> None:
    """An op that updates a state stays, even if its result is unused."""
    tensors = (T("in"), T("memory", (32,), variable=True), T("unread"), T("out"))
    ops = (O("SVDF", (0, 1), (2,)), O("CONV_2D", (0,), (3,)))
    model = load(tmp_path, G(tensors, (0,), (3,), ops))
    assert [op.type for op in model.ops] == ["SVDF", "CONV_2D"]


def test_dead_operators_are_left_out_with_a_note(tmp_path: Path) -> None:
    """An op whose result is unused is removed with a note."""
    tensors = (T("in"), T("unread"), T("out"))
    ops = (O("CONV_2D", (0,), (1,)), O("CONV_2D", (0,), (2,)))
    model = load(tmp_path, G(tensors, (0,), (2,), ops))
    assert [op.sources for op in model.ops] == [(1,)]
    assert model.notes == ("1 operators with unused outputs were removed",)


def test_dequantized_weights_count_as_stored(tmp_path: Path) -> None:
    """Ops that use float16 weights through DEQUANTIZE read the stored tensor."""
    tensors = (T("in"), T("half", (8,), FLOAT16, bytes(16)), T("wide", (8,)), T("out"))
    ops = (O("DEQUANTIZE", (1,), (2,)), O("CONV_2D", (0, 2), (3,)))
    model = load(tmp_path, G(tensors, (0,), (3,), ops))
    assert [op.inputs for op in model.ops] == [("in", "half")]
    assert model.tensors["half"].nbytes == 16


@pytest.mark.parametrize("densify", [True, False])
def test_sparse_constants_count_dense(tmp_path: Path, densify: bool) -> None:
    """Sparse constants count as dense; a note states their stored size."""
    values, starts, columns = bytes(4 * 2), (0, 1, 3, 3, 4), (5, 0, 7, 2)
    tensors = (
        T("in"),
        T("sparse", (4, 8), FLOAT16, values, sparse=True, segments=starts, indices=columns),
        T("dense", (4, 8), FLOAT16),
        T("wide", (4, 8), FLOAT32),
        T("out"),
    )
    stored = (O("DENSIFY", (1,), (2,)), O("DEQUANTIZE", (2,), (3,))) if densify else ()
    ops = (*stored, O("CONV_2D", (0, 3 if densify else 1), (4,)))
    model = load(tmp_path, G(tensors, (0,), (4,), ops))
    assert [op.inputs for op in model.ops] == [("in", "sparse")]
    assert model.tensors["sparse"].nbytes == 4 * 8 * 2
    said = (
        "1 sparse constant counted as dense (64 bytes), because QNN has no sparse constants; the "
        "file stores 32 bytes, 24 of them indices"
    )
    assert model.notes == (said + "; 1 DENSIFY op computed at load time" * densify,)
    run, nodes, _ = tflite.read_with_graph(tmp_path / "model.tflite", shapes={})
    assert nodes is None
    assert ("operator 0 ('DENSIFY')" if densify else "operator 0 ('CONV_2D')") in run.notes[-1]


def test_constant_parts_are_folded(tmp_path: Path) -> None:
    """Ops on constants, and ops that only read a shape, become constants."""
    tensors = (T("in"), T("one", (4,), FLOAT32, bytes(16)), T("two"), T("shape"), T("out"))
    ops = (O("ADD", (1, 1), (2,)), O("SHAPE", (0,), (3,)), O("CONV_2D", (0, 2, 3), (4,)))
    model = load(tmp_path, G(tensors, (0,), (4,), ops))
    assert [op.type for op in model.ops] == ["CONV_2D"]
    assert model.constants == ("shape", "two")


def test_a_constant_part_that_is_an_output_still_runs(tmp_path: Path) -> None:
    """An op on constants stays if its result is an output."""
    tensors = (T("in"), T("one", (4,), FLOAT32, bytes(16)), T("out"))
    model = load(tmp_path, G(tensors, (0,), (2,), (O("ADD", (1, 1), (2,)),)))
    assert [op.type for op in model.ops] == ["ADD"]
    assert model.constants == ("one",)


def test_elementwise_operators_may_run_in_place(tmp_path: Path) -> None:
    """An addition of equal shapes may run in place."""
    graph = G((T("a"), T("b"), T("c")), (0, 1), (2,), (O("ADD", (0, 1), (2,)),))
    assert load(tmp_path, graph).ops[0].effect is Effect.ELEMENTWISE


def test_broadcast_of_equal_bytes_is_not_in_place(tmp_path: Path) -> None:
    """An input that is broadcast may not be overwritten, even if the sizes in bytes match."""
    tensors = (T("a", (4, 1)), T("b", (1, 4)), T("c", (4, 4), INT8))
    graph = G(tensors, (0, 1), (2,), (O("GREATER", (0, 1), (2,)),))
    assert load(tmp_path, graph).ops[0].effect is Effect.COMPUTE


def test_a_custom_operator_named_like_a_builtin_is_not_one(tmp_path: Path) -> None:
    """A custom operator with a builtin's name is not treated as the builtin."""
    graph = G((T("a"), T("b")), (0,), (1,), (O("CUSTOM", (0,), (1,), custom="RESHAPE"),))
    op = load(tmp_path, graph).ops[0]
    assert (op.type, op.effect) == ("RESHAPE", Effect.COMPUTE)


def test_what_a_custom_operator_needs_inside_is_said_to_be_unknown(tmp_path: Path) -> None:
    """Unknown needs of custom operators are stated as an assumption of the plan."""
    names = [f"op{number}" for number in range(7)]
    tensors = tuple(T(str(number)) for number in range(8))
    ops = tuple(O("CUSTOM", (i,), (i + 1,), custom=name) for i, name in enumerate(names))
    one = load(tmp_path, G(tensors[:2], (0,), (1,), ops[:1]))
    assert "custom operator 'op0' are unknown" in join_words(one.assumed)
    assert one.notes == ("custom operators: 1 ('op0')",)
    assert "'op4' and 2 more are unknown" in join_words(
        load(tmp_path, G(tensors, (0,), (7,), ops)).assumed
    )
    builtin = G((T("a"), T("b")), (0,), (1,), (O("ABS", (0,), (1,)),))
    assert load(tmp_path, builtin).assumed == ""


def test_a_custom_operator_and_a_placeholder_are_both_said(tmp_path: Path) -> None:
    """Both a custom operator and a placeholder size are stated."""
    tensors = (T("a", (1, 1), signature=(1, -1)), T("b", (1, 1), signature=(1, -1)))
    model = load(tmp_path, G(tensors, (0,), (1,), (O("CUSTOM", (0,), (1,), custom="mine"),)))
    said = join_words(model.assumed)
    assert "placeholder" in said
    assert "'mine'" in said


def test_repeated_and_empty_names_become_unique(tmp_path: Path) -> None:
    """Tensors with a repeated or empty name get their index in the name."""
    tensors = (T("x"), T("x"), T(""))
    ops = (O("CONV_2D", (0,), (1,)), O("CONV_2D", (1,), (2,)))
    model = load(tmp_path, G(tensors, (0,), (2,), ops))
    assert [op.outputs for op in model.ops] == [("x_1",), ("tensor_2",)]


def branches() -> tuple[G, G, G]:
    """Return an IF between two graphs."""
    main = G(
        (T("flag", (1,), INT8), T("in"), T("out")),
        (0, 1),
        (2,),
        (O("IF", (0, 1), (2,), {0: 1, 1: 2}),),
    )
    inner = (T("in"), T("mid"), T("out"))
    then = G(inner, (0,), (2,), (O("CONV_2D", (0,), (1,)), O("CONV_2D", (1,), (2,))))
    other = G(inner[:2], (0,), (1,), (O("CONV_2D", (0,), (1,)),))
    return main, then, other


def test_branches_become_bodies(tmp_path: Path) -> None:
    """Both branches of an IF become bodies, which share the outer input."""
    op = load(tmp_path, *branches()).ops[0]
    assert [len(body.ops) for body in op.bodies] == [2, 1]
    assert not op.repeats
    names = {name for body in op.bodies for name in body.tensors}
    assert len(names) == 3  # the branches read the outer input in place
    assert op.inputs == ("flag", "in")


def loop() -> tuple[G, G, G]:
    """Return a WHILE that carries a variable's handle and writes the variable inside."""
    main = G(
        (T("in"), T("handle", (), RESOURCE), T("out"), T("carried", (), RESOURCE)),
        (0,),
        (2,),
        (
            O("VAR_HANDLE", (), (1,), {1: "ring"}),
            O("WHILE", (0, 1), (2, 3), {0: 1, 1: 2}),
        ),
    )
    state = T("handle", (), RESOURCE)
    go_on = G((T("in"), state, T("flag", (1,), INT8)), (0, 1), (2,), (O("CONV_2D", (0,), (2,)),))
    body = G(
        (T("in"), state, T("out")),
        (0, 1),
        (2, 1),
        (O("CONV_2D", (0,), (2,)), O("ASSIGN_VARIABLE", (1, 2), ())),
    )
    return main, go_on, body


def test_a_loop_repeats_and_reads_the_state_inside(tmp_path: Path) -> None:
    """A WHILE repeats its bodies; a state that a body uses is an input of the op."""
    model = load(tmp_path, *loop())
    op = model.ops[0]
    assert op.repeats
    assert (op.inputs, op.outputs) == (("in", "ring"), ("out",))
    assert model.states == ("ring",)
    assert op.bodies[1].ops[1].inputs[0] == "ring"


def test_a_graph_that_runs_itself_is_refused(tmp_path: Path) -> None:
    """A graph that calls itself is refused."""
    main, _, other = branches()
    itself = G(main.tensors, (0, 1), (2,), (O("IF", (0, 1), (2,), {0: 0, 1: 0}),))
    with pytest.raises(LoadError, match="recursively, which is not supported"):
        load(tmp_path, itself, other, other)


def test_nested_graphs_that_multiply_are_refused(tmp_path: Path) -> None:
    """Nested graphs that expand to more than 1,000,000 operators are refused."""
    tensors = (T("flag", (1,), INT8), T("in"), T("a"), T("out"))
    levels = [
        G(
            tensors,
            (0, 1),
            (3,),
            (
                O("WHILE", (0, 1), (2, 3), {0: deeper, 1: deeper}),
                O("WHILE", (0, 1), (), {0: deeper, 1: deeper}),
            ),
        )
        for deeper in range(1, 40)
    ]
    last = G(tensors, (0, 1), (3,), (O("CONV_2D", (1,), (3,)),))
    with pytest.raises(LoadError, match="to more than 1,000,000 operators"):
        load(tmp_path, *levels, last)


def batched() -> G:
    """Return a model with an open batch that is stored as 1."""
    tensors = (
        T("in", (1, 8), signature=(-1, 8)),
        T("mid", (2, 4), signature=(-1, 4)),
        T("out", (2, 12), signature=(-1, 12)),
        T("weights", (12, 4), data=bytes(192)),
    )
    ops = (O("RESHAPE", (0,), (1,)), O("FULLY_CONNECTED", (1, 3), (2,), {2: 0}))
    return G(tensors, (0,), (2,), ops)


def test_an_open_batch_is_planned_as_stored(tmp_path: Path) -> None:
    """An open batch is planned at its stored size, and a note names the input."""
    model = load(tmp_path, batched())
    assert model.tensors["in"].shape == (1, 8)
    assert model.notes == ("input 'in' has no fixed size; planned with the stored shape 1x8",)


def test_an_open_batch_can_be_set(tmp_path: Path) -> None:
    """A given batch scales every tensor that depends on it."""
    model = load(tmp_path, batched(), **{"in": (5, 8)})
    assert [model.tensors[name].shape for name in ("in", "mid", "out")] == [
        (5, 8),
        (10, 4),
        (10, 12),
    ]


@pytest.mark.parametrize("shape", [(1, 9), (8,), (0, 8), (-2, 8)])
def test_other_shapes_cannot_be_changed(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A given shape may change only the open batch."""
    with pytest.raises(UsageError, match="'in' is 1x8"):
        load(tmp_path, batched(), **{"in": shape})


def test_an_unknown_input_is_named_with_the_known_ones(tmp_path: Path) -> None:
    """A shape for an unknown input raises UsageError with the list of inputs."""
    with pytest.raises(UsageError, match="no input 'x'; its inputs are 'in'"):
        load(tmp_path, batched(), x=(1, 8))


def test_a_size_known_only_while_running_is_refused(tmp_path: Path) -> None:
    """An open size in a model with fixed inputs is refused, since it depends on data."""
    graph = G((T("a"), T("b", signature=(-1,))), (0,), (1,), (O("CONV_2D", (0,), (1,)),))
    with pytest.raises(LoadError, match="known only at run time"):
        load(tmp_path, graph)


def test_data_dependent_operators_are_refused(tmp_path: Path) -> None:
    """An op whose output size depends on data is refused, even with an open batch."""
    tensors = (T("a", signature=(-1,)), T("b", (1, 1), signature=(-1, 1)))
    with pytest.raises(LoadError, match="WHERE"):
        load(tmp_path, G(tensors, (0,), (1,), (O("WHERE", (0,), (1,)),)))


def test_a_stored_size_of_what_data_decide_is_said_first(tmp_path: Path) -> None:
    """A stored size for a data-dependent op is used, and the plan states the condition."""
    tensors = (T("x", (4,)), T("y", (3, 1)))
    model = load(tmp_path, G(tensors, (0,), (1,), (O("WHERE", (0,), (1,)),)))
    assert model.holds_for == (
        "the plan is valid while the shape of 'y' of operator 0 ('WHERE') stays within the "
        "stored 3x1",
    )


def test_stored_shapes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """A stored reshape that changes the number of elements is refused."""
    tensors = (T("a", (1, 8), signature=(-1, 8)), T("b", (1, 3), signature=(-1, 3)))
    with pytest.raises(LoadError, match="8 input elements but 3"):
        load(tmp_path, G(tensors, (0,), (1,), (O("RESHAPE", (0,), (1,)),)))


def test_an_unknown_rank_is_refused(tmp_path: Path) -> None:
    """If the file marks ranks, an unmarked empty shape is unknown and refused."""
    tensors = (T("a", has_rank=True), T("b", ()))
    with pytest.raises(LoadError, match="'b' has an unknown shape"):
        load(tmp_path, G(tensors, (0,), (1,), (O("CONV_2D", (0,), (1,)),)))


def one_op(*tensors: T, inputs: tuple[int, ...] = (0,), outputs: tuple[int, ...] = (1,)) -> G:
    """Return a graph of one convolution."""
    return G(tensors, (0,), (1,), (O("CONV_2D", inputs, outputs),))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (one_op(T("a"), T("b", type=STRING)), "'b' contains strings"),
        (one_op(T("a"), T("b", type=99)), "unknown type 99"),
        (one_op(T("a"), T("b", (-4,))), "negative size"),
        (one_op(T("a"), T("b", (2**31 - 1,) * 2)), "more than"),
        (one_op(T("a"), T("b", (2**30,) * 3)), "more than"),
        (one_op(T("a"), T("b"), inputs=(7,)), "tensor 7, which does not exist"),
        (one_op(T("a"), T("b"), inputs=(-2,)), "tensor -2, which does not exist"),
        (one_op(T("a"), T("b"), inputs=(1,)), "no operator has produced"),
        (one_op(T("a"), T("b"), T("c"), inputs=(0, 2)), "no operator has produced"),
        (one_op(T("a"), T("b"), outputs=(1, 1)), "produced twice"),
        (one_op(T("a"), T("b"), outputs=(0,)), "overwritten"),
        (one_op(T("a"), T("b"), T("w", (9,), FLOAT32, b"1234"), inputs=(0, 2)), "stores 4 bytes"),
        (one_op(T("a", type=RESOURCE), T("b")), "'a' is a resource"),
        (G((T("a"),), (5,), (0,), ()), "not a tensor of the graph"),
        (G((T("a"), T("b")), (0,), (1,), ()), "no operator has produced"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, graph: G, reason: str) -> None:
    """A graph that cannot run is refused with the reason."""
    with pytest.raises(LoadError, match=reason):
        load(tmp_path, graph)


def test_long_names_are_shortened_in_messages(tmp_path: Path) -> None:
    """Tensor names are shortened and escaped in messages."""
    with pytest.raises(LoadError) as caught:
        load(tmp_path, one_op(T("a"), T("\n\x1b" + "b" * 100_000, (-1,))))
    assert len(caught.value.reason) < 200
    assert "\n" not in caught.value.reason


def test_a_giant_vector_is_refused_at_once(tmp_path: Path) -> None:
    """A vector that claims 2**31 entries is refused as damaged without delay."""
    content = bytearray(tflite_bytes(chain()))
    root = struct.unpack_from("<I", content)[0]
    vtable = root - struct.unpack_from("<i", content, root)[0]
    subgraphs = root + struct.unpack_from("<H", content, vtable + 4 + 2 * 2)[0]
    length = subgraphs + struct.unpack_from("<I", content, subgraphs)[0]
    struct.pack_into("<I", content, length, 2**31)
    path = tmp_path / "giant.tflite"
    path.write_bytes(content)
    began = time.monotonic()
    with pytest.raises(LoadError, match="damaged"):
        tflite.read(path, shapes={})
    assert time.monotonic() - began < 60


def test_a_file_that_points_to_one_table_many_times_is_refused(tmp_path: Path) -> None:
    """A file that refers to one table 20,000 times is refused as damaged."""
    writer = TfliteWriter()
    long_list = writer.numbers([0] * 20_000)
    op = writer.table({0: ("Uint32", writer.code(O("ADD", (), ()))), 1: long_list})
    tensor = writer.tensor(T("a"))
    graph = writer.table(
        {
            0: writer.tables([tensor]),
            1: writer.numbers([0]),
            2: writer.numbers([0]),
            3: writer.tables([op] * 20_000),
        }
    )
    model = writer.table(
        {
            1: writer.tables(writer.codes),
            2: writer.tables([graph]),
            4: writer.tables(writer.buffers),
        }
    )
    writer.builder.Finish(model, b"TFL3")
    path = tmp_path / "shared.tflite"
    path.write_bytes(bytes(writer.builder.Output()))
    with pytest.raises(LoadError, match="damaged"):
        tflite.read(path, shapes={})


def test_a_missing_identifier_is_named(tmp_path: Path) -> None:
    """A file without the mark 'TFL3' is refused."""
    path = tmp_path / "x.tflite"
    path.write_bytes(bytes(64))
    with pytest.raises(LoadError, match="'TFL3' is missing"):
        tflite.read(path, shapes={})


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return a damaged copy: bytes flipped, cut, deleted, repeated or overwritten."""
    at, end = sorted((chance.randrange(len(content)), chance.randrange(len(content))))
    kind = chance.randrange(5)
    if kind == 0:
        flipped = bytearray(content)
        for _ in range(chance.randint(1, 8)):
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[end:]
    if kind == 3:
        return content[:end] + content[at:]
    word = chance.choice([0, 1, 0x7F, 0x80, 0xFF]).to_bytes(1, "little") * 4
    return content[:at] + word + content[at + 4 :]


@pytest.mark.parametrize("sample", ["chain", "streaming", "loop", "branches", "batched"])
def test_damaged_files_are_refused_or_read(tmp_path: Path, sample: str) -> None:
    """200 damaged files each end in a model or in LoadError, all within 60 seconds."""
    made = globals()[sample]()
    content = tflite_bytes(*(made if isinstance(made, tuple) else (made,)))
    chance = random.Random(sample)  # noqa: S311 - reproducible, not secret
    path = tmp_path / "damaged.tflite"
    began = time.monotonic()
    for _ in range(200):
        path.write_bytes(mutate(content, chance) or b"\0")
        with suppress(LoadError):
            tflite.read(path, shapes={})
    assert time.monotonic() - began < 60


def test_a_model_is_named_like_its_file(tmp_path: Path) -> None:
    """A model is named after its file, since converters call every graph `main`."""
    path = write_tflite(tmp_path / "wake word.tflite", chain())
    assert tflite.read(path, shapes={}).name == "wake word"
