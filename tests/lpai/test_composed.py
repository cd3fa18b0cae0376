"""Graphs composed in Python for LPAI: planned, packed and executed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qnnmem import QnnError, lpai
from qnnmem.lpai.runtime.composed_context import ComposedLpaiGraph
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.tensor import ScaleOffset


@pytest.fixture
def context() -> lpai.ComposedContext:
    """Return a context without graphs."""
    return lpai.ComposedContext.create(lpai.Backend.create())


def relu(
    context: lpai.ComposedContext, kind: DataType = DataType.UFIXED_POINT_8, name: str = "net"
) -> ComposedLpaiGraph:
    """Return a composed graph of one node."""
    graph = context.create_graph(name)
    quant = ScaleOffset(0.5, -100) if kind.is_quantized else None
    sides = (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    x, y = (
        graph.create_tensor(side, kind, (1, 64), type, quantize_params=quant)
        for side, type in sides
    )
    graph.add_node("qti.aisw", "Relu", {}, [x], [y])
    return graph


def twice(graph: ComposedLpaiGraph) -> None:
    """Finalize a graph twice."""
    graph.finalize()
    graph.finalize()


def test_a_composed_graph_is_executed(context: lpai.ComposedContext, tmp_path: Any) -> None:
    """The binary of a composed graph runs with the plan that `finalize` made."""
    graph = relu(context)
    graph.finalize()
    assert graph.prepared is not None
    assert graph.prepared.plans[0].scratch is not None
    path = tmp_path / "net.bin"
    path.write_bytes(context.get_binary())
    values = np.arange(64, dtype="u1").reshape(1, 64) + np.uint8(70)
    with lpai.open(path, native=True) as session:
        found = session.run({"x": values})
    np.testing.assert_array_equal(found["y"], np.maximum(values, 100))


def test_scales_stay_where_elements_are_only_moved(
    context: lpai.ComposedContext, tmp_path: Any
) -> None:
    """A graph of a Transpose alone keeps its scales, so it takes and returns floats."""
    graph = context.create_graph("net")
    quant = ScaleOffset(0.5, -100)
    sides = (("x", TensorType.APP_WRITE, (2, 32)), ("y", TensorType.APP_READ, (32, 2)))
    x, y = (
        graph.create_tensor(name, DataType.UFIXED_POINT_8, shape, type, quantize_params=quant)
        for name, type, shape in sides
    )
    order = np.array([1, 0], "u4")
    graph.add_node("qti.aisw", "Transpose", {"perm": order}, [x], [y])
    graph.finalize()
    path = tmp_path / "net.bin"
    path.write_bytes(context.get_binary())
    values = np.arange(64, dtype="f4").reshape(2, 32) / 2 - 10
    with lpai.open(path) as session:
        found = session.run({"x": values})
    np.testing.assert_array_equal(found["y"], values.T)


def test_an_operator_outside_of_the_table_is_refused(context: lpai.ComposedContext) -> None:
    """An unsupported operator is refused by name in `add_node`, with code 6005."""
    graph = context.create_graph("net")
    with pytest.raises(QnnError, match="'Nonsense'") as error:
        graph.add_node("qti.aisw", "Nonsense", {}, [], [])
    assert error.value.code == 6005


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (5003, lambda one: one.get_binary()),
        (6003, lambda one: one.create_graph("")),
        (6003, lambda one: [one.create_graph("net") for _ in range(2)]),
        (6022, lambda one: one.create_graph("net").finalize()),
        (6022, lambda one: relu(one, DataType.FLOAT_32).finalize()),
        (6024, lambda one: twice(relu(one))),
        (5002, lambda one: [one.free() for _ in range(2)]),
    ],
)
def test_a_wrong_call_fails_as_in_c(context: lpai.ComposedContext, code: int, call: Any) -> None:
    """A wrong call fails with QNN's code and adds a finding to the backend."""
    with pytest.raises(QnnError) as error:
        call(context)
    assert error.value.code == code
    assert context.backend.findings[-1] == error.value.finding
