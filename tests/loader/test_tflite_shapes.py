"""Shapes of TFLite models for inputs of sizes other than the stored ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence, verb
from tflite_writer import FLOAT32, INT32, G, O, T, write_tflite

from qnnmem.errors import UsageError
from qnnmem.loader import tflite

Shape = tuple[int, ...]
plan = verb("plan")


def ints(name: str, *numbers: int, shape: Shape | None = None) -> T:
    """Return a constant of integers."""
    shape = (len(numbers),) if shape is None else shape
    return T(name, shape, INT32, struct.pack(f"<{len(numbers)}i", *numbers))


def weights(*shape: int) -> T:
    """Return a constant of zeros with this shape."""
    size = 4
    for one in shape:
        size *= one
    return T("w", shape, FLOAT32, bytes(size))


def derived(folder: Path, op: O, shape: Shape, *others: T, ranks: tuple[int, ...]) -> list[Shape]:
    """Return the output shapes of an operator for an input of this shape."""
    ones = (1,) * len(shape)
    tensors = (T("in", ones, signature=(-1,) * len(shape)), *others)
    outputs = tuple(
        T(f"out{at}", (1,) * rank, signature=(-1,) * rank) for at, rank in enumerate(ranks)
    )
    first = len(tensors)
    places = tuple(range(first, first + len(outputs)))
    graph = G((*tensors, *outputs), (0,), places, (O(op.type, op.inputs, places, op.options),))
    path = write_tflite(folder / "one.tflite", graph)
    model = tflite.read(path, shapes={"in": shape})
    return [model.tensors[f"out{at}"].shape for at in range(len(ranks))]


SAME, VALID = 0, 1
CONV = {1: 2, 2: 3, 4: 1, 5: 1}  # strides of 2 across and 3 down, no dilation
RULES = [
    (O("ADD", (0, 1), ()), (5, 1, 7), (weights(6, 1),), [(5, 6, 7)]),
    (O("SOFTMAX", (0,), ()), (5, 9), (), [(5, 9)]),
    (O("CONV_2D", (0, 1), (), {0: SAME, **CONV}), (2, 31, 20, 3), (weights(8, 5, 4, 3),),
     [(2, 11, 10, 8)]),
    (O("CONV_2D", (0, 1), (), {0: VALID, **CONV}), (2, 31, 20, 3), (weights(8, 5, 4, 3),),
     [(2, 9, 9, 8)]),
    (O("CONV_2D", (0, 1), (), {0: VALID, 1: 1, 2: 1, 4: 3, 5: 2}), (1, 31, 20, 3),
     (weights(8, 5, 4, 3),), [(1, 23, 11, 8)]),
    (O("DEPTHWISE_CONV_2D", (0, 1), (), {0: VALID, 1: 1, 2: 1, 5: 1, 6: 1}), (1, 9, 9, 3),
     (weights(1, 3, 3, 6),), [(1, 7, 7, 6)]),
    (O("MAX_POOL_2D", (0,), (), {0: VALID, 1: 2, 2: 2, 3: 2, 4: 3}), (1, 9, 8, 3), (),
     [(1, 4, 4, 3)]),
    (O("FULLY_CONNECTED", (0, 1), (), {2: 0}), (6, 8), (weights(5, 16),), [(3, 5)]),
    (O("FULLY_CONNECTED", (0, 1), (), {2: 1}), (2, 6, 16), (weights(5, 16),), [(2, 6, 5)]),
    (O("BATCH_MATMUL", (0, 1), (), {0: 0, 1: 1}), (4, 3, 16), (weights(5, 16),), [(4, 3, 5)]),
    (O("RESHAPE", (0, 1), ()), (3, 8), (ints("to", -1, 4),), [(6, 4)]),
    (O("RESHAPE", (0,), (), {0: (2, -1)}), (3, 8), (), [(2, 12)]),
    (O("SQUEEZE", (0,), (), {0: (1,)}), (3, 1, 8), (), [(3, 8)]),
    (O("EXPAND_DIMS", (0, 1), ()), (3, 8), (ints("axis", -1, shape=()),), [(3, 8, 1)]),
    (O("TRANSPOSE", (0, 1), ()), (3, 8, 5), (ints("order", 2, 0, 1),), [(5, 3, 8)]),
    (O("CONCATENATION", (0, 0, 1), (), {0: 1}), (3, 8), (weights(3, 2),), [(3, 18)]),
    (O("PACK", (0, 0), (), {0: 2, 1: -1}), (3, 8), (), [(3, 8, 2)]),
    (O("UNPACK", (0,), (), {0: 2, 1: 1}), (3, 2), (), [(3,), (3,)]),
    (O("SPLIT", (1, 0), (), {0: 2}), (3, 8), (ints("axis", 1, shape=()),), [(3, 4), (3, 4)]),
    (O("SPLIT_V", (0, 1, 2), ()), (3, 8), (ints("sizes", 2, -1), ints("axis", 1, shape=())),
     [(3, 2), (3, 6)]),
    (O("SLICE", (0, 1, 2), ()), (3, 8), (ints("begin", 1, 2), ints("size", -1, 3)), [(2, 3)]),
    (O("STRIDED_SLICE", (0, 1, 2, 3), (), {0: 0, 1: 2, 2: 0, 3: 0, 4: 1, 5: 0}), (3, 8),
     (ints("b", 1, 1), ints("e", 2, 0), ints("s", 1, 2)), [(4,)]),
    (O("GATHER", (0, 1), (), {0: 1, 1: 0}), (3, 8), (ints("at", 0, 1, 1),), [(3, 3)]),
    (O("GATHER_ND", (0, 1), ()), (3, 8), (ints("at", 0, 1, 2, 3, shape=(4, 1)),), [(4, 8)]),
    (O("MEAN", (0, 1), (), {0: 1}), (3, 8, 5), (ints("axes", 1, -1),), [(3, 1, 1)]),
    (O("REDUCE_MAX", (0, 1), (), {0: 0}), (3, 8, 5), (ints("axes", 1),), [(3, 5)]),
    (O("ARG_MAX", (0, 1), ()), (3, 8), (ints("axis", 1, shape=()),), [(3,)]),
    (O("PAD", (0, 1), ()), (3, 8), (ints("by", 0, 0, 2, 3, shape=(2, 2)),), [(3, 13)]),
    (O("TILE", (0, 1), ()), (3, 8), (ints("times", 2, 1),), [(6, 8)]),
    (O("BROADCAST_TO", (0, 1), ()), (1, 8), (ints("to", 4, 8),), [(4, 8)]),
    (O("RESIZE_BILINEAR", (0, 1), ()), (2, 8, 8, 3), (ints("to", 16, 12),), [(2, 16, 12, 3)]),
    (O("SPACE_TO_DEPTH", (0,), (), {0: 2}), (1, 8, 6, 3), (), [(1, 4, 3, 12)]),
    (O("DEPTH_TO_SPACE", (0,), (), {0: 2}), (1, 8, 6, 12), (), [(1, 16, 12, 3)]),
    (O("SPACE_TO_BATCH_ND", (0, 1, 2), ()), (1, 7, 6, 3),
     (ints("block", 2, 2), ints("pads", 0, 1, 0, 0, shape=(2, 2))), [(4, 4, 3, 3)]),
    (O("BATCH_TO_SPACE_ND", (0, 1, 2), ()), (4, 4, 3, 3),
     (ints("block", 2, 2), ints("crop", 0, 1, 0, 0, shape=(2, 2))), [(1, 7, 6, 3)]),
    (O("TOPK_V2", (0, 1), ()), (3, 8), (ints("k", 2, shape=()),), [(3, 2), (3, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "shape", "others", "expected"),
    RULES,
    ids=[f"{r[0].type}-{n}" for n, r in enumerate(RULES)],
)
def test_an_operator_returns_what_tflite_returns(
    tmp_path: Path, op: O, shape: Shape, others: tuple[T, ...], expected: list[Shape]
) -> None:
    """Each shape rule gives the sizes worked out by hand."""
    ranks = tuple(map(len, expected))
    assert derived(tmp_path, op, shape, *others, ranks=ranks) == expected


@pytest.mark.parametrize(
    ("op", "shape", "others", "fault"),
    [
        (RULES[3][0], (1, 4, 20, 3), RULES[3][2], "needs an input size of at least 5 but has 4"),
        (RULES[7][0], (3, 5), RULES[7][2], "cannot multiply 3x5 by weights for 16"),
        (RULES[10][0], (3, 7), RULES[10][2], r"cannot turn 3x7 into \?x4"),
        (RULES[15][0], (4, 8), RULES[15][2], "cannot join 4x8 and 4x8 and 3x2"),
        (RULES[18][0], (3, 7), RULES[18][2], "cannot split 7 into 2 equal parts"),
        (RULES[0][0], (5, 2, 7), RULES[0][2], "which are inconsistent"),
    ],
)
def test_a_shape_that_cannot_run_is_refused_by_the_operator(
    tmp_path: Path, op: O, shape: Shape, others: tuple[T, ...], fault: str
) -> None:
    """A shape that an operator cannot process is refused with the operator and the reason."""
    with pytest.raises(UsageError, match=rf"operator 0 \('{op.type}'\) .*{fault}"):
        derived(
            tmp_path, op, shape, *others, ranks=(len(shape),) * (2 if "SPLIT" in op.type else 1)
        )


@pytest.mark.parametrize(
    "op",
    [
        O("SVDF", (0,), ()),
        O("CUSTOM", (0,), (), custom="ADD"),
        O("NON_MAX_SUPPRESSION_V4", (0,), ()),
    ],
)
def test_an_operator_without_a_rule_is_refused(tmp_path: Path, op: O) -> None:
    """An operator without a shape rule is refused when a shape is given."""
    tensors = (T("in", (1, 4), signature=(-1, 4)), T("out", (1, 4), signature=(-1, 4)))
    graph = G(tensors, (0,), (1,), (O(op.type, (0,), (1,), {}, op.custom),))
    path = write_tflite(tmp_path / "own.tflite", graph)
    with pytest.raises(UsageError, match=r"operator 0 .* cannot be computed"):
        tflite.read(path, shapes={"in": (2, 4)})


def test_a_size_that_the_file_fixes_cannot_come_out_otherwise(tmp_path: Path) -> None:
    """A given shape that contradicts a fixed stored shape raises UsageError."""
    tensors = (T("in", (1, 8), signature=(-1, 8)), T("out", (1, 8)))
    path = write_tflite(tmp_path / "m.tflite", G(tensors, (0,), (1,), (O("ABS", (0,), (1,)),)))
    with pytest.raises(UsageError, match="returns 5x8, but the file states 1x8"):
        tflite.read(path, shapes={"in": (5, 8)})


def flattening() -> G:
    """Return a model that computes its reshape's target from its input's shape."""
    tensors = (
        T("in", (1, 1, 4), signature=(-1, -1, 4)),
        T("shape", (3,), INT32),
        ints("zero", 0),
        ints("one", 1),
        T("batch", (), INT32),
        ints("rest", -1, shape=()),
        T("to", (2,), INT32),
        T("out", (1, 1), signature=(-1, -1)),
    )
    first = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 0}
    ops = (
        O("SHAPE", (0,), (1,)),
        O("STRIDED_SLICE", (1, 2, 3, 3), (4,), first),
        O("PACK", (4, 5), (6,), {0: 2, 1: 0}),
        O("RESHAPE", (0, 6), (7,)),
    )
    return G(tensors, (0,), (7,), ops)


def test_sizes_computed_of_sizes_are_followed(tmp_path: Path) -> None:
    """A reshape target that the model computes, as for `reshape(x, (batch, -1))`, is resolved."""
    path = write_tflite(tmp_path / "flat.tflite", flattening())
    assert tflite.read(path, shapes={"in": (3, 5, 4)}).tensors["out"].shape == (3, 20)
    # The stored 1x1 is wrong even for the stored input.
    assert tflite.read(path, shapes={}).tensors["out"].shape == (1, 4)


def spectrogram() -> G:
    """Return an audio model whose batch and length are open and stored as 1."""
    tensors = (
        T("audio", (1, 1), signature=(-1, -1)),
        ints("axes", 1, shape=()),
        T("row", (1, 1, 1), signature=(-1, 1, -1)),
        ints("last", 3, shape=()),
        T("image", (1, 1, 1, 1), signature=(-1, 1, -1, 1)),
        weights(257, 1, 512, 1),
        T("out", (1, 1, 1, 257), signature=(-1, 1, -1, 257)),
    )
    ops = (
        O("EXPAND_DIMS", (0, 1), (2,)),
        O("EXPAND_DIMS", (2, 3), (4,)),
        O("CONV_2D", (4, 5), (6,), {0: VALID, 1: 160, 2: 1, 4: 1, 5: 1}),
    )
    return G(tensors, (0,), (6,), ops)


def test_a_placeholder_is_said_in_the_first_line(tmp_path: Path) -> None:
    """The first line names the placeholder, why it cannot run, and the option to set it."""
    path = write_tflite(tmp_path / "mel.tflite", spectrogram())
    first = plan(path).output.splitlines()[0]
    assert "placeholder: input 'audio' is 1x1 in the file" in first
    assert "operator 2 ('CONV_2D') needs an input size of at least 512 but has 1" in first
    assert "--shape audio=NxN" in first


def test_a_budget_cannot_be_judged_for_a_placeholder(tmp_path: Path) -> None:
    """A budget with a placeholder ends with exit code 3, in every format; the header warns."""
    path = write_tflite(tmp_path / "mel.tflite", spectrogram())
    done = plan(path, "--budget", "scratch=1M")
    assert exit_code(done) == 3
    assert "cannot tell whether it fits: with only the known sizes, scratch takes" in done.output
    values = json.loads(plan(path, "--budget", "scratch=1M", "--json").output)
    assert (values["fits"], values["exit_code"]) == (None, 3)
    assert values["notes"][0].startswith("planned with a placeholder")
    assert exit_code(plan(path, path, "--budget", "scratch=1M")) == 3
    assert " * WARNING: planned with a placeholder" in plan(path, "--format", "c").output
    true = ("--shape", "audio=1x1632", "--budget", "scratch=1M")
    assert exit_code(plan(path, *true)) == 0


def test_a_binary_for_a_placeholder_is_refused(tmp_path: Path) -> None:
    """`prepare` refuses a placeholder and names the input; `--shape` makes it work."""
    path = write_tflite(tmp_path / "mel.tflite", spectrogram())
    done = run("prepare", path, "--float", "-o", tmp_path / "mel.bin")
    assert "placeholder: input 'audio' is 1x1 in the file" in sentence(done)
    assert not (tmp_path / "mel.bin").exists()
    words = ("prepare", path, "--float", "-o", tmp_path / "b.bin", "--shape", "audio=1x1632")
    assert run(*words).output.startswith("prepared ")


def test_a_true_shape_is_planned(tmp_path: Path) -> None:
    """A true shape is planned without a note: 1,632 samples give eight windows."""
    path = write_tflite(tmp_path / "mel.tflite", spectrogram())
    done = plan(path, "--shape", "audio=2x1632")
    assert exit_code(done) == 0
    assert done.output.startswith("scratch ")
    assert "its open" not in done.output
    assert tflite.read(path, shapes={"audio": (2, 1632)}).tensors["out"].shape == (2, 1, 8, 257)


def test_a_batch_stored_as_one_is_no_placeholder(tmp_path: Path) -> None:
    """An open batch stored as 1 is not a placeholder; a note states the stored shape."""
    tensors = (T("in", (1, 8), signature=(-1, 8)), T("out", (1, 8), signature=(-1, 8)))
    path = write_tflite(tmp_path / "m.tflite", G(tensors, (0,), (1,), (O("ABS", (0,), (1,)),)))
    done = plan(path)
    assert done.output.startswith("scratch ")
    assert "'in' has no fixed size; planned with the stored shape 1x8" in done.output


@pytest.mark.parametrize("shape", ["audio=1x0", "audio=1632", "audio=1x1x1632", "audio=scalar"])
def test_a_shape_that_the_input_cannot_have_is_refused(tmp_path: Path, shape: str) -> None:
    """A shape of another rank or with a zero is refused with exit code 2."""
    path = write_tflite(tmp_path / "mel.tflite", spectrogram())
    done = plan(path, "--shape", shape)
    assert exit_code(done) == 2
    assert "input 'audio' is 1x1 in the TFLite file" in sentence(done)


def test_a_name_for_a_size_is_asked_for_as_a_shape(tmp_path: Path) -> None:
    """`--dim` is refused for TFLite, which has no dimension names; `--shape` is proposed."""
    path = write_tflite(tmp_path / "mel.tflite", spectrogram())
    done = plan(path, "--dim", "batch=1")
    assert exit_code(done) == 2
    assert "dimensions of a TFLite model have no names" in sentence(done)
    assert "--shape audio=NxN" in sentence(done)


def test_every_open_input_needs_a_shape_once_one_has(tmp_path: Path) -> None:
    """Once one open input has a shape, every open input needs one."""
    tensors = (
        T("a", (1, 8), signature=(-1, 8)),
        T("b", (1, 8), signature=(-1, 8)),
        T("out", (1, 8), signature=(-1, 8)),
    )
    graph = G(tensors, (0, 1), (2,), (O("ADD", (0, 1), (2,)),))
    path = write_tflite(tmp_path / "two.tflite", graph)
    with pytest.raises(UsageError, match="'b' has no fixed size either"):
        tflite.read(path, shapes={"a": (3, 8)})
    model = tflite.read(path, shapes={"a": (3, 8), "b": (1, 8)})
    assert model.tensors["out"].shape == (3, 8)


def test_shapes_reach_into_branches_and_loops(tmp_path: Path) -> None:
    """Given shapes propagate into branches and loops."""
    flag = T("flag", (1,), 9)
    main = G(
        (
            flag,
            T("x", (1, 4), signature=(-1, 4)),
            T("y", (1, 8), signature=(-1, 8)),
            T("z", (1, 8), signature=(-1, 8)),
        ),
        (0, 1),
        (3,),
        (O("IF", (0, 1), (2,), {0: 1, 1: 1}), O("WHILE", (2,), (3,), {0: 2, 1: 3})),
    )
    inner = (T("x", (1, 4), signature=(-1, 4)), T("y", (1, 8), signature=(-1, 8)))
    twice = G(inner, (0,), (1,), (O("CONCATENATION", (0, 0), (1,), {0: 1}),))
    test = G((inner[1], flag), (0,), (1,), (O("CUSTOM", (0,), (1,), custom="Any"),))
    turn = G((inner[1], T("after", (1, 8), signature=(-1, 8))), (0,), (1,), (O("ABS", (0,), (1,)),))
    path = write_tflite(tmp_path / "deep.tflite", main, twice, test, turn)
    with pytest.raises(UsageError, match=r"'Any'\) cannot be computed"):
        tflite.read(path, shapes={"x": (5, 4)})
    test = G((inner[1], flag), (0,), (1,), (O("SLICE", (0, 2, 3), (1,)),))
    test = G(
        (inner[1], ints("axes", 0, 1), T("any", (), FLOAT32)),
        (0,),
        (2,),
        (O("REDUCE_MAX", (0, 1), (2,), {0: 0}),),
    )
    path = write_tflite(tmp_path / "deep.tflite", main, twice, test, turn)
    model = tflite.read(path, shapes={"x": (5, 4)})
    assert [model.tensors[name].shape for name in ("x", "y", "z")] == [(5, 4), (5, 8), (5, 8)]
    assert model.ops[1].bodies[1].tensors[model.ops[1].bodies[1].inputs[0]].shape == (5, 8)


def test_a_transform_that_is_stored_with_the_size_of_its_input_is_corrected(tmp_path: Path) -> None:
    """An RFFT2D stored with its input's size is corrected, and later ops use the right size."""
    signature = (-1, 1, 16)
    graph = G(
        (
            T("in", (1, 1, 16), signature=signature),
            ints("length", 1, 16),
            T("waves", (1, 1, 16), signature=signature),
            T("loud", (1, 1, 16), signature=signature),
            ints("start", 0, 0, 0),
            ints("size", -1, 1, 9),
            T("low", (1, 1, 9), signature=(-1, 1, 9)),
        ),
        (0,),
        (6,),
        (
            O("RFFT2D", (0, 1), (2,)),
            O("COMPLEX_ABS", (2,), (3,)),
            O("SLICE", (3, 4, 5), (6,)),
        ),
    )
    path = write_tflite(tmp_path / "m.tflite", graph)
    for shapes, batch in (({}, 1), ({"in": (3, 1, 16)}, 3)):
        tensors = tflite.read(path, shapes=shapes).tensors
        assert tensors["waves"].shape == tensors["loud"].shape == (batch, 1, 9)
        assert tensors["low"].shape == (batch, 1, 9)
