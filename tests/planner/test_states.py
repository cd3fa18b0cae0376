from __future__ import annotations

import pytest

from qnnmem.errors import UsageError
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.planner.pools import check_states, suggest_states


def model(inputs: dict[str, int], outputs: dict[str, int], dtype: DType = DType.FLOAT32) -> Model:
    """Return a model with one op from all inputs to all outputs, each with its size."""
    tensors = {name: Tensor(name, dtype, (1, size)) for name, size in {**inputs, **outputs}.items()}
    return Model(
        "m",
        "onnx",
        tensors,
        (Op("op", "any", tuple(inputs), tuple(outputs)),),
        tuple(inputs),
        tuple(outputs),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state", "stateN"),
        ("h", "hn"),
        ("c", "cn"),
        ("h0", "hn"),
        ("h_in", "h_out"),
        ("decoder_hidden_1", "decoder_hidden_2"),
        ("past_key_values.0.key", "present.0.key"),
        ("prev_state", "next_state"),
    ],
)
def test_names_that_look_like_state_are_suggested(old: str, new: str) -> None:
    """The names that exporters give to old and new states are recognised as a pair."""
    assert suggest_states(model({"x": 8, old: 16}, {"y": 4, new: 16})) == ((old, new),)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("input", "output"),
        ("in", "out"),
        ("x", "y"),
        ("image", "depth"),
        ("data", "output"),
        ("serving_default_input:0", "StatefulPartitionedCall:0"),
    ],
)
def test_an_image_to_image_net_has_no_state(old: str, new: str) -> None:
    """Equal shapes alone do not make a state pair."""
    assert suggest_states(model({old: 16}, {new: 16})) == ()


@pytest.mark.parametrize(
    ("old", "new"), [("input_1", "output_1"), ("input.1", "1234"), ("1", "19")]
)
def test_numbers_are_not_names_of_states(old: str, new: str) -> None:
    """Numbered inputs and outputs of an image-to-image network are not a state pair."""
    assert suggest_states(model({old: 16}, {new: 16})) == ()


def test_different_shapes_are_not_a_pair() -> None:
    """Tensors of different shapes are not a state pair, even if their names match."""
    assert suggest_states(model({"h": 16}, {"hn": 17})) == ()


def test_layers_are_paired_with_their_own_successors() -> None:
    """Keys and values of several layers pair within their own layer."""
    kinds = [f"{layer}.{kind}" for layer in (0, 1, 10) for kind in ("key", "value")]
    old = {f"past_key_values.{kind}": 16 for kind in kinds}
    new = {f"present.{kind}": 16 for kind in reversed(kinds)}
    expected = {(f"past_key_values.{kind}", f"present.{kind}") for kind in kinds}
    assert set(suggest_states(model(old, new))) == expected


def test_an_lstm_pairs_hidden_with_hidden_and_cell_with_cell() -> None:
    """An LSTM's hidden and cell states pair by name, although their shapes are equal."""
    found = suggest_states(model({"c": 8, "h": 8}, {"hn": 8, "cn": 8}))
    assert set(found) == {("h", "hn"), ("c", "cn")}


def test_suggestions_pass_the_check() -> None:
    """Suggested state pairs are valid as an option."""
    m = model({"h": 8, "c": 8}, {"hn": 8, "cn": 8})
    assert check_states(m, suggest_states(m)) == suggest_states(m)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("nope", "hn")], "inputs are x, h"),
        ([("h", "nope")], "outputs are y, hn"),
        ([("hn", "h")], "expected input=output"),
        ([("x", "hn")], "float32 1x4 and float32 1x8 differ"),
        ([("h", "hn"), ("h", "hn")], "states names the same tensor twice"),
    ],
)
def test_impossible_pairs_are_refused(pairs: list[tuple[str, str]], words: str) -> None:
    """An invalid state pair raises UsageError, which states the problem."""
    m = model({"x": 4, "h": 8}, {"y": 2, "hn": 8})
    with pytest.raises(UsageError, match=words):
        check_states(m, pairs)


def test_types_must_agree_too() -> None:
    """A state pair with different element types raises UsageError."""
    m = model({"h": 8}, {"y": 8})
    tensors = {**m.tensors, "y": Tensor("y", DType.INT8, (1, 8))}
    with pytest.raises(UsageError, match="float32 1x8 and int8 1x8 differ"):
        check_states(Model("m", "onnx", tensors, m.ops, m.inputs, m.outputs), [("h", "y")])


def test_an_input_that_is_handed_through_is_no_state() -> None:
    """A mask that passes through the model unchanged is not suggested as a state."""
    tensors = {
        name: Tensor(name, DType.FLOAT32, (1, 8))
        for name in ("mask", "mid", "mask_out", "h", "h_out")
    }
    ops = (
        Op("a", "Identity", ("mask",), ("mid",), Effect.VIEW),
        Op("b", "Reshape", ("mid",), ("mask_out",), Effect.VIEW),
        Op("c", "GRU", ("h", "mask"), ("h_out",)),
    )
    made = Model("m", "onnx", tensors, ops, ("mask", "h"), ("mask_out", "h_out"))
    assert suggest_states(made) == (("h", "h_out"),)
