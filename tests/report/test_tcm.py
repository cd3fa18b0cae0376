"""The TCM pool in words: one line for a verdict, a table for a shortage."""

from __future__ import annotations

import pytest

from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.inspect import binary_info
from qnnmem.lpai.tcm import explain_tcm, request_of
from qnnmem.planner.tcm_pool import judge_tcm
from qnnmem.report.tcm import shortage_lines, together, verdict_words
from qnnmem.results.plan import TcmAnswer
from qnnmem.units import Align, Bytes

POOL = 2_035_712


def graph(
    elements: int = 4, inputs: int = 1, dtype: DType = DType.INT8, name: str = "g"
) -> CompiledGraph:
    """Return a graph with only these inputs and one output."""
    names = tuple(f"x{n}" for n in range(inputs))
    tensors = {one: Tensor(one, dtype, (elements,)) for one in (*names, "y")}
    model = Model("m", "onnx", tensors, (Op("a", "A", names, ("y",)),), names, ("y",))
    return CompiledGraph(name, model, (), Bytes(0), Bytes(0), Align(64), program=b"p")


@pytest.mark.parametrize(
    ("model", "io", "words"),
    [
        (POOL - 64, 1, "fits with 0 bytes to spare (2 allocations)"),
        (POOL, 1, "does not fit, 64 bytes over the limit (2 allocations)"),
        (
            64,
            32,
            "does not fit: 33 allocations, but TCM allows only 32, which is fatal on the device",
        ),
    ],
)
def test_a_verdict_says_by_how_much(model: int, io: int, words: str) -> None:
    """The verdict states the bytes to spare, the excess or the number of allocations."""
    verdict = judge_tcm(Bytes(model), [Bytes(1)] * io, Align(64))
    assert verdict_words(verdict.answer) == words


def in_one_run(context: CompiledContext) -> tuple[str, TcmAnswer] | None:
    """Return the verdict on all graphs together, or None."""
    ours = binary_info(context, 64).qnnmem
    return together(ours.tcm, [graph.tcm for graph in ours.graphs])


def test_a_binary_of_one_graph_is_not_judged_twice() -> None:
    """A binary of one graph gets no verdict on all graphs together."""
    one, two = graph(name="a"), graph(name="b")
    assert in_one_run(CompiledContext((one,), "v6", "t")) is None
    found = in_one_run(CompiledContext((one, two), "v6", "t"))
    assert found is not None
    assert (found[0], found[1].buffers) == ("all 2 graphs", 5)


def test_the_table_names_everything_in_order_of_allocation() -> None:
    """The table lists binary, inputs and outputs in order and marks those that do not fit."""
    request = request_of([graph(600_000, dtype=DType.INT16)], 1_000_000)
    lines = list(shortage_lines(explain_tcm(request)))
    total = 1_000_000 + 2 * 1_200_000  # all sizes are multiples of 64
    missing = total - POOL
    words = f"TCM: {total:,} bytes are needed, {missing:,} over the pool's 2,035,712"
    assert lines[0] == words
    assert [line.split("  ")[-1] for line in lines[2:5] if "fit" not in line] == ["model binary"]
    assert "input 'x0'  <- does not fit" in lines[3]
    assert "output 'y'  <- does not fit" in lines[4]
    assert any("8-bit elements" in line for line in lines)


def test_too_many_allocations_are_counted() -> None:
    """If only the number of allocations is too high, the table says so."""
    lines = list(shortage_lines(explain_tcm(request_of([graph(inputs=100)], 64))))
    assert lines[0] == "TCM: 102 allocations are needed, but the pool serves only 32"
    assert "  … and 38 more" in lines


def test_the_table_of_several_graphs_says_whose_tensor_it_is() -> None:
    """The table prefixes tensor names with their graph if there are several graphs."""
    request = request_of([graph(name="a"), graph(name="b")], 10)
    text = "\n".join(shortage_lines(explain_tcm(request)))
    assert (text.count("input 'a/x0'"), text.count("input 'b/x0'")) == (1, 1)
