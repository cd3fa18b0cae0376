from __future__ import annotations

import pytest

from qnnmem.ir import DType, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.ir.lifetime import reordered
from qnnmem.units import Bytes, Step


def chain(*names: str) -> Model:
    """Return a chain in which each op makes a one-byte tensor with its own name."""
    tensors = {name: Tensor(name, DType.UINT8, (1,)) for name in ("x", *names)}
    before = ("x", *names)
    ops = tuple(
        Op(new, "any", (old,), (new,)) for old, new in zip(before, names, strict=False) if new
    )
    return Model("m", "onnx", tensors, ops, ("x",), names[-1:])


def test_tensors_cannot_be_changed_through_the_model() -> None:
    """The model's mapping of tensors is read-only."""
    with pytest.raises(TypeError):
        chain("a").tensors["b"] = Tensor("b", DType.UINT8, (1,))  # type: ignore[index]  # tested


def test_tensors_are_copied_from_the_caller() -> None:
    """Changing the dictionary passed to the model does not change the model."""
    tensors = {"x": Tensor("x", DType.UINT8, (1,))}
    model = Model("m", "onnx", tensors)
    tensors.clear()
    assert set(model.tensors) == {"x"}


def test_reordered_moves_only_the_ops() -> None:
    """`reordered` changes the order of the ops and nothing else."""
    model = chain("a", "b", "c")
    moved = reordered(model, (2, 0, 1))
    assert [op.name for op in moved.ops] == ["c", "a", "b"]
    assert (moved.tensors, moved.inputs, moved.outputs) == (
        model.tensors,
        model.inputs,
        model.outputs,
    )


def test_reordered_leaves_its_input_alone() -> None:
    """`reordered` leaves the given model unchanged."""
    model = chain("a", "b")
    reordered(model, (1, 0))
    assert [op.name for op in model.ops] == ["a", "b"]


def test_reordering_back_gives_the_same_ops() -> None:
    """An order followed by its inverse restores the ops."""
    model = chain("a", "b", "c")
    assert reordered(reordered(model, (2, 0, 1)), (1, 2, 0)).ops == model.ops


def test_a_fixed_buffer_may_start_anywhere_unless_the_file_says() -> None:
    """A fixed buffer defaults to an alignment of one byte and an unknown offset."""
    buffer = FixedBuffer("b", Bytes(5), Span(Step(0), Step(1)))
    assert (buffer.align, buffer.offset) == (1, None)
