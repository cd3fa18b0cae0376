"""Graphs during composition: the recorded calls, and the code of each refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest

from qnnmem.errors import UsageError
from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.qnn.graph import ComposedTensor, GraphDraft
from qnnmem.qnn.tensor import Quantization, ScaleOffset

U8, F32 = DataType.UFIXED_POINT_8, DataType.FLOAT_32


class Failed(Exception):
    """A refused call, with its code first."""


def refuse(code: int, sentence: str, call: str) -> NoReturn:
    """Raise Failed with the code."""
    raise Failed(code, call, sentence)


@pytest.fixture
def draft() -> GraphDraft:
    """Return an empty graph."""
    return GraphDraft("net", refuse)


def test_calls_are_kept_in_their_order(draft: GraphDraft) -> None:
    """Calls are recorded in order; the tensors of parameters come before their node."""
    x = draft.create_tensor("x", U8, (1, 4), TensorType.APP_WRITE, mem_type=TensorMemType.MEMHANDLE)
    y = draft.create_tensor("y", U8, (4, 1), TensorType.APP_READ, quantize_params=ScaleOffset(1, 2))
    node = draft.add_node("qti.aisw", "Transpose", {"perm": [1, 0]}, [x], [y])
    names = [one.name for one in draft.calls]
    assert names == ["x", "y", "Transpose_0.perm", "Transpose_0"]
    assert node.arrays["perm"].data == np.array([1, 0], "u4").tobytes()
    assert (x.mem_type, y.quantization) == (TensorMemType.MEMHANDLE, Quantization(0, (1.0,), (2,)))
    assert (draft.composed.ops, node.inputs, node.outputs) == ((node,), (x.id,), (y.id,))


@pytest.mark.parametrize(
    ("value", "kind", "number"),
    [
        (True, DataType.BOOL_8, True),
        (3, DataType.UINT_32, 3),
        (0.5, DataType.FLOAT_32, 0.5),
        (np.int32(-3), DataType.INT_32, -3),
        (np.float64(0.25), DataType.FLOAT_64, 0.25),
    ],
)
def test_numbers_have_types(draft: GraphDraft, value: Any, kind: DataType, number: Any) -> None:
    """Python numbers have one QNN type each; NumPy numbers keep their own type."""
    node = draft.add_node("qti.aisw", "Anything", {"p": value}, [], [])
    assert (node.scalars["p"], node.scalar_types["p"]) == (number, kind)


Call = Callable[[GraphDraft], Any]


def stranger() -> ComposedTensor:
    """Return a tensor of another graph."""
    return GraphDraft("other", refuse).create_tensor("x", F32, (1,))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (7003, lambda one: [one.create_tensor("x", F32, (1,)) for _ in range(2)]),
        (7004, lambda one: one.create_tensor("x", F32, (1,), TensorType.STATIC)),
        (7004, lambda one: one.create_tensor("x", F32, (2,), TensorType.STATIC, data=b"1234")),
        (7004, lambda one: one.create_tensor("x", F32, (1,), data=b"1234")),
        (7004, lambda one: one.create_tensor("x", F32, (1,), mem_handle=object())),
        (6004, lambda one: one.add_node("qti.aisw", "Relu", {}, [stranger()], [])),
        (6005, lambda one: [one.add_node("p", "Relu", {}, [], [], name="a") for _ in range(2)]),
    ],
)
def test_a_wrong_call_is_refused_with_its_code(draft: GraphDraft, code: int, call: Call) -> None:
    """A wrong call is refused with its code and leaves no record."""
    with pytest.raises(Failed) as error:
        call(draft)
    assert error.value.args[0] == code
    assert len(draft.calls) == (1 if code in (7003, 6005) else 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.create_tensor("x", 12345, (1,)),
        lambda one: one.create_tensor("x", F32, (-1,)),
        lambda one: one.create_tensor("x", F32, ("1",)),
        lambda one: one.create_tensor(
            "x", F32, (1,), quantize_params=Quantization(1, (1.0,), (0,))
        ),
        lambda one: one.create_tensor("x", F32, (1,), TensorType.STATIC, data="1234"),
        lambda one: one.add_node("qti.aisw", "Relu", {"p": -1}, [], []),
        lambda one: one.add_node("qti.aisw", "Relu", {"p": "text"}, [], []),
        lambda one: one.add_node("qti.aisw", "Relu", {}, ["x"], []),
    ],
)
def test_nonsense_is_a_usage_error(draft: GraphDraft, call: Call) -> None:
    """A value that C could not express is a usage error without a code."""
    with pytest.raises(UsageError):
        call(draft)


def test_a_finalized_graph_stays_as_it_is(draft: GraphDraft) -> None:
    """A finalized graph refuses new tensors and nodes."""
    draft.is_finalized = True
    with pytest.raises(Failed, match="6024"):
        draft.create_tensor("x", F32, (1,))
