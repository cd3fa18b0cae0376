"""The TCM account of sizes, plans, and graphs of a binary, alone and together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import TcmFatal, UsageError
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.runtime.heap import BASE, TcmPool
from qnnmem.lpai.tcm import judge_binary, judge_graphs, request_of
from qnnmem.planner import PoolOptions, plan_model
from qnnmem.planner.model_plan import judge_plan
from qnnmem.planner.tcm_pool import TcmAlignment, TcmVerdict, judge, judge_tcm
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.enums import MemType
from qnnmem.targets import tcm_pool
from qnnmem.units import Align, Bytes

POOL = 2_035_712


def judged(model: int, *io: int, align: int = 64, limit: int = POOL) -> TcmVerdict:
    """Return the verdict on sizes for a pool of 32 allocations."""
    size, most = (Sourced(n, Origin.DOCUMENTED, "test") for n in (limit, 32))
    return judge_tcm(Bytes(model), [Bytes(n) for n in io], Align(align), size, most)


def model(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Model:
    """Return a model of one op with inputs and outputs of these sizes."""
    sizes = {f"x{n}": size for n, size in enumerate(inputs)}
    sizes |= {f"y{n}": size for n, size in enumerate(outputs)}
    tensors = {name: Tensor(name, DType.INT8, (size,)) for name, size in sizes.items()}
    names = tuple(tensors)
    first, last = names[: len(inputs)], names[len(inputs) :]
    return Model("m", "onnx", tensors, (Op("a", "A", first, last),), first, last)


def graph(
    inputs: tuple[int, ...], outputs: tuple[int, ...], name: str = "g", program: bytes = b"p"
) -> CompiledGraph:
    """Return a graph with this name and IO; nothing else matters."""
    zero = Bytes(0)
    return CompiledGraph(name, model(inputs, outputs), (), zero, zero, Align(64), program=program)


def test_the_pool_is_the_documented_one() -> None:
    """The default pool has the documented 2,035,712 bytes and 32 allocations, with their source."""
    pool = tcm_pool()
    assert (pool.size.value, pool.max_allocations.value) == (POOL, 32)
    assert pool.size.origin is Origin.DOCUMENTED
    assert pool.size.source
    verdict = judge_tcm(Bytes(1), [], Align(1))
    assert (verdict.limit, verdict.max_buffers) == (pool.size, pool.max_allocations)


def test_the_worked_check_fits() -> None:
    """The worked example of a binary, two inputs and an output fits in four allocations."""
    verdict = judged(1_500_000, 100_000, 100_000, 4_000)
    assert (verdict.need, verdict.buffers, verdict.fits) == (1_704_128, 4, True)
    assert verdict.missing == 0
    assert all(row.fits for row in verdict.rows)


def test_larger_inputs_fail_on_the_second() -> None:
    """With inputs of 300,000 bytes, the second input is the first row that does not fit."""
    verdict = judge_graphs([graph((300_000, 300_000), (4_000,))], 1_500_000)
    assert (verdict.fits, verdict.need, verdict.missing) == (False, 2_104_128, 2_104_128 - POOL)
    assert next(row for row in verdict.rows if not row.fits) is verdict.rows[2]
    assert [row.what for row in verdict.rows][2:] == ["input 'x1'", "output 'y0'"]
    assert [row.fits for row in verdict.rows] == [True, True, False, False]
    assert [row.padding for row in verdict.rows] == [32, 32, 32, 32]
    totals = [row.running_total for row in verdict.rows]
    assert totals == [1_500_032, 1_800_064, 2_100_096, 2_104_128]


@pytest.mark.parametrize(("buffers", "fits"), [(31, True), (32, True), (33, False)])
def test_the_model_and_its_tensors_are_at_most_32_allocations(buffers: int, fits: bool) -> None:
    """At most 32 allocations fit; the binary is one of them."""
    verdict = judged(64, *[1] * (buffers - 1))
    assert (verdict.buffers, verdict.fits) == (buffers, fits)
    of_graph = judge_graphs([graph((1,) * (buffers - 2), (1,))], 64)
    assert (of_graph.buffers, of_graph.fits, of_graph.missing) == (buffers, fits, 0)


@pytest.mark.parametrize(("over", "fits"), [(-64, True), (0, True), (1, False)])
def test_an_exact_fit_succeeds(over: int, fits: bool) -> None:
    """A need equal to the pool fits; one byte more does not."""
    assert judged(POOL - 128 + over, 128).fits is fits


@pytest.mark.parametrize(("align", "need"), [(16, 1_008 + 32 + 16), (64, 1_024 + 64 + 64)])
def test_each_allocation_is_rounded_by_itself(align: int, need: int) -> None:
    """The binary and each tensor are rounded to the alignment separately."""
    assert judged(1_000, 17, 1, align=align).need == need
    pair = TcmAlignment(align, align)
    assert judge_graphs([graph((17,), (1,))], 1_000, pair).need == need


def test_a_larger_start_alignment_leaves_gaps() -> None:
    """With start alignment 256 and size alignment 64, the gaps count as padding."""
    verdict = judge_graphs([graph((1,), (1,))], 1, TcmAlignment(256, 64))
    assert [row.running_total for row in verdict.rows] == [64, 320, 576]
    assert [row.padding for row in verdict.rows] == [63, 255, 255]


def test_names_from_files_are_escaped() -> None:
    """Control characters in tensor names are escaped."""
    made = model((1,), (1,))
    evil = replace(made.tensors["x0"], name="a\x1b[31m")
    named = replace(made, tensors=dict(made.tensors) | {evil.name: evil}, inputs=(evil.name,))
    verdict = judge_graphs([replace(graph((1,), (1,)), model=named)], 64)
    assert verdict.rows[1].what == "input 'a\\x1b[31m'"


def test_sizes_below_zero_are_bad_usage() -> None:
    """A negative size raises UsageError."""
    with pytest.raises(UsageError):
        judged(64, -64)


# Graphs of one binary


def test_graphs_that_fit_alone_need_not_fit_together() -> None:
    """Together, the binary counts once, and the IO of every graph counts."""
    graphs = graph((400_000,), (64,), "one"), graph((1_200_000,), (64,), "two")
    context = CompiledContext(graphs, "v6", "qnnmem 0.1.0")
    tcm = judge_binary(context, 640_000)
    assert [found.fits if found else None for found in tcm.graphs] == [True, True]
    assert tcm.together is not None
    assert (tcm.together.need, tcm.together.fits) == (640_000 + 1_600_000 + 128, False)
    assert tcm.together.missing == 640_000 + 1_600_000 + 128 - POOL
    assert judge_graphs(graphs[1:], 640_000) == tcm.graphs[1]


def test_tensors_lie_graph_by_graph() -> None:
    """Rows are ordered as in a run: all IO of one graph before the next graph."""
    rows = judge_graphs([graph((1,), (1,), "a"), graph((1,), (1,), "b")], 64).rows
    assert [row.what for row in rows] == [
        "model binary",
        *("input 'a/x0'", "output 'a/y0'", "input 'b/x0'", "output 'b/y0'"),
    ]


def test_a_layout_is_not_judged() -> None:
    """A layout has no TCM verdict, since its binary lacks the constants."""
    layout, program = graph((1,), (1,), "a", b""), graph((1,), (1,), "b")
    tcm = judge_binary(CompiledContext((layout, program), "v6", "qnnmem 0.1.0"), 64)
    assert tcm.graphs[0] is None
    assert tcm.together == tcm.graphs[1] == judge_graphs([program], 64)
    assert judge_binary(CompiledContext((layout,), "v6", "qnnmem 0.1.0"), 64).together is None


# Plans


def test_constants_stand_in_for_the_binary_of_a_plan() -> None:
    """A plan is judged like a graph whose binary has the size of the constants."""
    made = model((1_000,), (17,))
    weights = Tensor("w", DType.INT8, (5_000,))
    made = replace(made, tensors=dict(made.tensors) | {"w": weights}, constants=("w",))
    for align in (16, 64, 256):
        plan = plan_model(made, PoolOptions(align=Align(align)))
        verdict = judge_plan(plan)
        same = judge_graphs([graph((1_000,), (17,))], 5_000, TcmAlignment(align, align))
        assert verdict == same


def test_state_is_not_in_the_pool() -> None:
    """States are not in the TCM pool; persistent memory is DDR."""
    made = model((1_000, 100), (17, 100))
    plan = plan_model(made, PoolOptions(states=(("x1", "y1"),)))
    verdict = judge_plan(plan)
    assert verdict is not None
    assert [row.what for row in verdict.rows][1:] == ["input 'x0'", "output 'y0'"]


def test_a_tensor_that_is_input_and_output_has_two_buffers() -> None:
    """A tensor that is both input and output needs two buffers."""
    made = replace(model((1_000,), (17,)), outputs=("y0", "x0"))
    verdict = judge_plan(plan_model(made))
    assert verdict is not None
    assert (verdict.buffers, verdict.need) == (4, 1_024 + 64 + 1_024)


def test_a_bare_list_of_buffers_is_not_judged() -> None:
    """A buffer list has no TCM verdict, since it has neither constants nor IO."""
    assert judge_plan(plan_model(Model("l", "csv"))) is None


# Properties

sizes = st.lists(st.integers(0, 700_000), min_size=1, max_size=4).map(tuple)
graphs = st.lists(st.builds(graph, sizes, sizes), min_size=1, max_size=4)
alignments = st.sampled_from([(64, 64), (256, 64), (16, 16), (16, 64)])


@given(st.integers(1, 2_500_000), graphs, alignments)
def test_the_running_total_is_where_the_pool_stands(
    binary: int, chosen: list[CompiledGraph], pair: tuple[int, int]
) -> None:
    """The verdict's rows equal a simulated pool, filled in the order of a run."""
    request = request_of(chosen, binary, TcmAlignment(*pair))
    verdict = judge(request)
    pool = TcmPool(lambda level, text: None, start_alignment=pair[0], size_alignment=pair[1])
    order = [binary]
    for one in chosen:
        order += [one.model.tensors[name].nbytes for name in (*one.inputs, *one.outputs)]
    assert [row.exact for row in verdict.rows] == order
    for row in verdict.rows:
        buffer = pool.allocate(row.exact)
        assert (buffer is not None) is row.fits
        if buffer is None:
            break
        assert row.running_total == buffer.heap_address - BASE[MemType.TCM] + buffer.size
    assert verdict.fits is all(row.fits for row in verdict.rows)


@given(st.integers(30, 40))
def test_the_number_of_allocations_is_the_pools(tensors: int) -> None:
    """More than 32 allocations are fatal in the pool and do not fit in the verdict."""
    pool = TcmPool(lambda level, text: None)
    try:
        fits = all(pool.allocate(64) is not None for _ in range(1 + tensors))
    except TcmFatal:
        fits = False
    assert judged(64, *[64] * tensors).fits is fits


@given(st.integers(1, 2_500_000), graphs, alignments)
def test_together_is_never_less_than_alone(
    binary: int, made: list[CompiledGraph], pair: tuple[int, int]
) -> None:
    """All graphs together need at least as much as each graph alone."""
    tcm = judge_binary(CompiledContext(tuple(made), "v6", "t"), binary, TcmAlignment(*pair))
    assert tcm.together is not None
    for alone in tcm.graphs:
        assert alone is not None
        assert tcm.together.need >= alone.need
        assert tcm.together.buffers >= alone.buffers
        assert alone.fits or not tcm.together.fits
