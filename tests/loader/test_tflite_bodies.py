"""Weights that nested graphs of a TFLite file read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tflite_writer import FLOAT16, INT8, G, O, T, write_tflite

from qnnmem.ir import Model
from qnnmem.loader import tflite
from qnnmem.planner import plan_model
from qnnmem.results.proof import ProofScope

WEIGHTS = T("weights", (64, 64), data=bytes(4 * 64 * 64))
FLAG = T("flag", (1,), INT8)
X, Y = T("x", (1, 64)), T("y", (1, 64))
CONNECT = O("FULLY_CONNECTED", (0, 1), (2,), {2: 0})


def read(folder: Path, *graphs: G) -> Model:
    """Return the model read from these graphs."""
    return tflite.read(write_tflite(folder / "model.tflite", *graphs), shapes={})


def sizes(model: Model) -> tuple[int, int]:
    """Return the bytes of scratch and of constants."""
    plan = plan_model(model)
    return plan.scratch_bytes, plan.constant_bytes


def inside() -> G:
    """Return a layer whose weights are an argument."""
    return G((X, T("arg", (64, 64)), Y), (0, 1), (2,), (CONNECT,))


def straight() -> G:
    """Return the same layer without control flow."""
    return G((X, WEIGHTS, Y), (0,), (2,), (CONNECT,))


def chosen() -> tuple[G, ...]:
    """Return the layer in a branch; the other branch returns its input."""
    main = G((FLAG, X, WEIGHTS, Y), (0, 1), (3,), (O("IF", (0, 1, 2), (3,), {0: 1, 1: 2}),))
    return main, inside(), G((X, T("arg", (64, 64))), (0, 1), (0,), ())


def repeated() -> tuple[G, ...]:
    """Return the layer in a loop that carries its weights unchanged."""
    main = G(
        (X, WEIGHTS, Y, T("after", (64, 64))), (0,), (2,),
        (O("WHILE", (0, 1), (2, 3), {0: 1, 1: 2}),),
    )  # fmt: skip
    test = G((X, T("arg", (64, 64)), FLAG), (0, 1), (2,), (O("GREATER", (0, 0), (2,)),))
    body = G((X, T("arg", (64, 64)), Y), (0, 1), (2, 1), (CONNECT,))
    return main, test, body


def called() -> tuple[G, ...]:
    """Return the layer in a called graph."""
    return G((X, WEIGHTS, Y), (0,), (2,), (O("CALL", (0, 1), (2,), {0: 1}),)), inside()


def branch_in_branch() -> tuple[G, ...]:
    """Return the layer two branches deep, with the weights passed through both."""
    outer = G((FLAG, X, WEIGHTS, Y), (0, 1), (3,), (O("IF", (0, 0, 1, 2), (3,), {0: 1, 1: 3}),))
    tensors = (FLAG, X, T("arg", (64, 64)), Y)
    middle = G(tensors, (0, 1, 2), (3,), (O("IF", (0, 1, 2), (3,), {0: 2, 1: 2}),))
    return outer, middle, inside(), G(tensors, (0, 1, 2), (1,), ())


@pytest.mark.parametrize("graphs", [chosen(), repeated(), called(), branch_in_branch()])
def test_weights_handed_to_a_body_are_constants(tmp_path: Path, graphs: tuple[G, ...]) -> None:
    """Weights passed to a body count once, as constants, and never in scratch."""
    model = read(tmp_path, *graphs)
    assert model.constants == ("weights",)
    scratch, constants = sizes(model)
    assert constants == sizes(read(tmp_path, straight()))[1] == 4 * 64 * 64
    assert scratch < 4 * 1024


def test_a_branch_reads_what_it_is_handed_in_place(tmp_path: Path) -> None:
    """A branch reads its argument in place: no copy of the input in scratch."""
    assert sizes(read(tmp_path, *chosen()))[0] == 64 + 3 * 256


def test_what_a_loop_changes_is_copied(tmp_path: Path) -> None:
    """A constant that a loop modifies is copied to scratch."""
    start = T("start", (1, 64), data=bytes(256))
    main = G((T("unused"), start, Y), (0,), (2,), (O("WHILE", (1,), (2,), {0: 1, 1: 2}),))
    test = G((X, FLAG), (0,), (1,), (O("GREATER", (0, 0), (1,)),))
    body = G((X, Y), (0,), (1,), (O("ABS", (0,), (1,)),))
    model = read(tmp_path, main, test, body)
    assert (model.constants, model.ops[0].outputs) == (("start",), ("y",))
    assert model.ops[0].bodies[1].inputs != ()


def test_what_a_loop_leaves_alone_keeps_its_place(tmp_path: Path) -> None:
    """A tensor that a loop carries unchanged keeps its bytes after the loop."""
    main = G(
        (X, T("other", (1, 64)), Y, T("after", (1, 64)), T("out", (1, 64))), (0, 1), (4,),
        (O("WHILE", (0, 1), (2, 3), {0: 1, 1: 2}), O("ADD", (2, 3), (4,))),
    )  # fmt: skip
    test = G((X, Y, FLAG), (0, 1), (2,), (O("GREATER", (0, 1), (2,)),))
    body = G((X, Y, T("sum", (1, 64))), (0, 1), (2, 1), (O("ADD", (0, 1), (2,)),))
    model = read(tmp_path, main, test, body)
    assert model.ops[0].outputs == ("y",)
    assert model.ops[1].inputs == ("y", "other")


def test_weights_unpacked_inside_a_body_count_as_stored(tmp_path: Path) -> None:
    """Float16 weights that a branch widens count at their stored 16 bits."""
    half = T("half", (64, 64), FLOAT16, bytes(2 * 64 * 64))
    main = G((FLAG, X, half, Y), (0, 1), (3,), (O("IF", (0, 1, 2), (3,), {0: 1, 1: 1}),))
    branch = G(
        (X, T("arg", (64, 64), FLOAT16), T("wide", (64, 64)), Y), (0, 1), (3,),
        (O("DEQUANTIZE", (1,), (2,)), O("FULLY_CONNECTED", (0, 2), (3,), {2: 0})),
    )  # fmt: skip
    assert sizes(read(tmp_path, main, branch)) == (64 + 3 * 256, 2 * 64 * 64)


@pytest.mark.parametrize("shape", [(64, 64), (4096,)])
def test_tensors_that_share_a_buffer_are_counted_once(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """Tensors that share a stored buffer count once, in one graph or in several."""
    twin = T("twin", shape, shares=1)
    main = G(
        (WEIGHTS, FLAG, X, T("mid", (1, 64)), Y), (1, 2), (4,),
        (O("FULLY_CONNECTED", (2, 0), (3,), {2: 0}), O("IF", (1, 3), (4,), {0: 1, 1: 1})),
    )  # fmt: skip
    branch = G((X, twin, Y), (0,), (2,), (O("CUSTOM", (0, 1), (2,), custom="Own"),))
    model = read(tmp_path, main, branch)
    assert model.constants == ("weights",)
    assert sizes(model)[1] == 4 * 64 * 64


def test_a_weight_that_no_branch_reads_is_not_counted(tmp_path: Path) -> None:
    """A weight that is passed to branches but not read is not counted."""
    same = G((X, T("arg", (64, 64)), Y), (0, 1), (2,), (O("ABS", (0,), (2,)),))
    model = read(tmp_path, chosen()[0], same, same)
    assert model.constants == ()


def test_branches_nested_in_many_ways_are_refused(tmp_path: Path) -> None:
    """Forty nested levels of two branches with different arguments are refused."""
    from qnnmem.errors import LoadError

    levels = [
        G(
            (FLAG, X, T("a", (1, 64)), T("b", (1, 64))), (0, 1), (3,),
            (
                O("IF", (0, 0, 1), (2,), {0: deeper, 1: deeper}),
                O("IF", (0, 0, 2), (3,), {0: deeper, 1: deeper}),
            ),
        )
        for deeper in range(1, 40)
    ]  # fmt: skip
    last = G((FLAG, X, Y), (0, 1), (2,), (O("ABS", (1,), (2,)),))
    with pytest.raises(LoadError, match=r"too many ways|operators"):
        read(tmp_path, *levels, last)


def test_a_reshape_of_what_is_handed_to_a_branch_costs_nothing(tmp_path: Path) -> None:
    """A branch that reshapes its argument needs no copy."""
    wide = T("wide", (1, 40, 38))
    row = T("row", (1, 1520))
    table = T("table", (64, 1520), data=bytes(4 * 64 * 1520))
    main = G(
        (FLAG, wide, table, Y), (0, 1), (3,), (O("IF", (0, 1, 2), (3,), {0: 1, 1: 1}),)
    )  # fmt: skip
    layer = O("FULLY_CONNECTED", (2, 1), (3,), {2: 0})
    body = G(
        (wide, T("arg", (64, 1520)), row, Y), (0, 1), (3,), (O("RESHAPE", (0,), (2,)), layer)
    )  # fmt: skip
    plan = plan_model(read(tmp_path, main, body))
    # Input, condition, output, and the branch's output.
    assert plan.scratch_bytes == 6_080 + 64 + 256 + 256
    assert plan.proof is ProofScope.UPPER_BOUND
