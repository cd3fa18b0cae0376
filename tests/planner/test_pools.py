from __future__ import annotations

import pytest
from small_models import model, op

from qnnmem.errors import UsageError
from qnnmem.ir import DType, Effect, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.planner import Io, MemoryPlan, PlacedBuffer, Pool, PoolOptions, plan, plan_model, verify
from qnnmem.units import Align, Bytes, Offset, Step

VIEW = Effect.VIEW


def listed(*rows: tuple[str, int, int, int, int]) -> Model:
    """Return a buffer list of (name, size, lower, upper, alignment)."""
    return Model(
        "m",
        "csv",
        buffers=tuple(
            FixedBuffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align))
            for name, size, lower, upper, align in rows
        ),
    )


def pool(found: MemoryPlan, which: Pool) -> dict[str, PlacedBuffer]:
    """Return the buffers of one pool by name."""
    return {b.name: b for b in found.buffers if b.pool is which}


def spans(found: MemoryPlan, which: Pool) -> dict[str, tuple[int, int]]:
    """Return the lifetimes of one pool by name."""
    return {n: (b.live.lower, b.live.upper) for n, b in pool(found, which).items()}


CHAIN = model(
    [op("x w", "a"), op("a", "b"), op("b", "y")],
    constants="w",
    sizes={"x": 100, "w": 1000, "a": 200, "b": 10, "y": 70},
)


def test_scratch_holds_temporaries_and_io_by_default() -> None:
    """By default scratch holds temporaries, inputs and outputs, each rounded up to 64 bytes."""
    found = plan_model(CHAIN)
    assert {n: b.size for n, b in pool(found, Pool.SCRATCH).items()} == {
        "x": 128,
        "a": 256,
        "b": 64,
        "y": 128,
    }
    assert (found.scratch_bytes, found.io_bytes, found.persistent_bytes) == (384, 0, 0)
    assert found.scratch.optimal


def test_constants_are_the_binarys() -> None:
    """Constants are counted separately at their exact size and get no buffer."""
    found = plan_model(CHAIN)
    assert found.constant_bytes == 1000
    assert all(b.name != "w" for b in found.buffers)


def test_io_outside_gets_its_own_pool() -> None:
    """With IO outside, inputs and outputs get rounded buffers in the IO pool, none in scratch."""
    found = plan_model(CHAIN, PoolOptions(io=Io.OUTSIDE))
    assert {n: (b.offset, b.size) for n, b in pool(found, Pool.IO).items()} == {
        "x": (0, 128),
        "y": (128, 128),
    }
    assert (found.io_bytes, found.scratch_bytes) == (256, 320)
    assert set(pool(found, Pool.SCRATCH)) == {"a", "b"}


@pytest.mark.parametrize("io", Io)
def test_io_sizes_are_exact_wherever_io_lives(io: Io) -> None:
    """`io_sizes` holds the exact tensor sizes, wherever IO lives."""
    assert plan_model(CHAIN, PoolOptions(io=io)).io_sizes == (("x", 100), ("y", 70))


def test_a_view_of_an_input_goes_outside_with_it() -> None:
    """With IO outside, a view of an input shares the input's IO buffer."""
    found = plan_model(
        model([op("x", "v", VIEW), op("v", "a"), op("a", "y")]), PoolOptions(io=Io.OUTSIDE)
    )
    assert pool(found, Pool.IO)["x"].aliases == ("v",)
    assert set(pool(found, Pool.SCRATCH)) == {"a"}


def test_an_output_that_is_a_view_of_an_input_has_its_own_buffer_outside() -> None:
    """With IO outside, an output that is a view of an input still has its own IO buffer.

    The application supplies both buffers.
    """
    found = plan_model(model([op("x", "y", VIEW)]), PoolOptions(io=Io.OUTSIDE))
    assert set(pool(found, Pool.IO)) == {"x", "y"}
    assert found.io_bytes == 128


def test_the_alignment_applies_to_starts_and_sizes() -> None:
    """Every start and size in every pool is a multiple of the requested alignment."""
    for align in (1, 16, 256):
        found = plan_model(CHAIN, PoolOptions(io=Io.OUTSIDE, align=Align(align)))
        assert found.align == align
        assert all(b.offset % align == b.size % align == 0 for b in found.buffers)


def test_another_width_applies_to_tensors_and_constants() -> None:
    """A float32 model stored with 8 bits needs a quarter of the bytes in every pool."""
    m = model([op("x w", "y")], constants="w", dtype=DType.FLOAT32, sizes={"w": 1000})
    wide, narrow = plan_model(m), plan_model(m, PoolOptions(bits=8))
    assert (wide.scratch_bytes, wide.constant_bytes) == (512, 4000)
    assert (narrow.scratch_bytes, narrow.constant_bytes) == (128, 1000)


def test_in_place_ops_save_scratch_only_when_asked() -> None:
    """With in-place ops on, an element-wise op overwrites its dying operand; otherwise not."""
    m = model(
        [op("x", "a"), op("a", "b", Effect.ELEMENTWISE), op("b", "y")], sizes={"x": 1, "y": 1}
    )
    assert plan_model(m).scratch_bytes == 128
    saved = plan_model(m, PoolOptions(inplace=True))
    assert pool(saved, Pool.SCRATCH)["a"].aliases == ("b",)


def test_another_order_is_used_and_reported_when_asked() -> None:
    """A better order of ops lowers the peak, and the plan reports the bounds before and after."""
    sizes = {"a": 640, "b": 640, "p": 64, "q": 64}
    m = model([op("x", "a"), op("x", "b"), op("a", "p"), op("b", "q"), op("p q", "y")], sizes=sizes)
    plain, better = plan_model(m), plan_model(m, PoolOptions(reorder=True))
    assert plain.reordered is None
    assert better.reordered is not None
    assert better.scratch_bytes < plain.scratch_bytes
    assert (better.reordered.before, better.reordered.after) == (
        plain.scratch.lower_bound,
        better.scratch.lower_bound,
    )


def test_the_peak_is_explained() -> None:
    """The peak names its step, its rounded bytes, and the live buffers, largest first."""
    peak = plan_model(CHAIN).peak
    assert peak is not None
    assert (peak.step, peak.size) == (0, 384)
    assert [(b.name, b.size) for b in peak.live] == [("a", 256), ("x", 128)]


def test_the_package_function_accepts_a_model() -> None:
    """`qnnmem.plan` of a model accepts options and returns its pools."""
    assert plan(CHAIN, options=PoolOptions(io=Io.OUTSIDE)).io_bytes == 256


def test_a_model_without_ops_still_has_a_plan() -> None:
    """A model without ops needs only the bytes of its input."""
    found = plan_model(model([], outputs="x"))
    assert (found.scratch_bytes, found.scratch.optimal) == (64, True)


# States.

IN_PLACE = model([op("x h", "a"), op("a", "n"), op("a", "y")], "x h", "y n")
LATE = model([op("x h", "n"), op("n h", "y")], "x h", "y n")


def test_state_variables_are_persistent() -> None:
    """A state variable lives in the persistent pool for the whole run."""
    found = plan_model(model([op("x s", "y"), op("y", "s")], states="s", sizes={"s": 100}))
    assert spans(found, Pool.PERSISTENT) == {"s": (-1, 3)}
    assert found.persistent_bytes == 128


def test_state_is_never_assumed() -> None:
    """Likely state pairs are only suggested; they stay IO until the user declares them."""
    m = model([op("x h", "y hn")], "x h", "y hn")
    found = plan_model(m)
    assert found.likely_states == (("h", "hn"),)
    assert found.persistent_bytes == 0
    assert set(pool(found, Pool.SCRATCH)) == {"x", "h", "y", "hn"}


def test_nothing_is_suggested_once_states_are_given() -> None:
    """Once the user declares states, no state pairs are suggested."""
    m = model([op("x h", "y hn")], "x h", "y hn")
    assert plan_model(m, PoolOptions(states=(("h", "hn"),))).likely_states == ()


def test_new_state_is_written_over_old_state_that_is_dead() -> None:
    """If the old state is dead, the new state overwrites it in the persistent pool."""
    found = plan_model(IN_PLACE, PoolOptions(states=(("h", "n"),)))
    assert pool(found, Pool.PERSISTENT)["h"].aliases == ("n",)
    assert set(pool(found, Pool.SCRATCH)) == {"x", "a", "y"}
    assert found.persistent_bytes == 64


@pytest.mark.parametrize("m", [LATE, model([op("x h", "y n")], "x h", "y n")])
def test_new_state_waits_in_scratch_while_the_old_one_is_read(m: Model) -> None:
    """While the old state is still read, the new state waits in scratch until the end."""
    found = plan_model(m, PoolOptions(states=(("h", "n"),)))
    assert set(pool(found, Pool.PERSISTENT)) == {"h"}
    assert pool(found, Pool.PERSISTENT)["h"].aliases == ()
    assert spans(found, Pool.SCRATCH)["n"] == (0, len(m.ops) + 1)


def test_a_view_of_the_old_state_keeps_it_alive() -> None:
    """A view of the old state keeps it alive, so the new state waits in scratch."""
    m = model([op("h", "v", VIEW), op("x", "n"), op("v n", "y")], "x h", "y n")
    found = plan_model(m, PoolOptions(states=(("h", "n"),)))
    assert pool(found, Pool.PERSISTENT)["h"].aliases == ("v",)
    assert "n" in pool(found, Pool.SCRATCH)


def test_state_handed_through_needs_no_scratch() -> None:
    """A new state that is a view of the old state needs no scratch."""
    m = model([op("h", "n", VIEW), op("x", "y")], "x h", "y n")
    found = plan_model(m, PoolOptions(states=(("h", "n"),)))
    assert pool(found, Pool.PERSISTENT)["h"].aliases == ("n",)
    assert set(pool(found, Pool.SCRATCH)) == {"x", "y"}


def test_several_states_lie_side_by_side() -> None:
    """Each state pair has its own aligned bytes in the persistent pool."""
    m = model([op("x h c", "a"), op("a", "hn"), op("a", "cn"), op("a", "y")], "x h c", "y hn cn")
    found = plan_model(m, PoolOptions(states=(("h", "hn"), ("c", "cn"))))
    assert {n: b.offset for n, b in pool(found, Pool.PERSISTENT).items()} == {"h": 0, "c": 64}


def test_state_is_not_io() -> None:
    """Tensors of a state pair are neither in the IO pool nor in `io_sizes`."""
    found = plan_model(LATE, PoolOptions(io=Io.OUTSIDE, states=(("h", "n"),)))
    assert found.io_sizes == (("x", 64), ("y", 64))
    assert set(pool(found, Pool.IO)) == {"x", "y"}
    assert set(pool(found, Pool.SCRATCH)) == {"n"}


def test_an_impossible_pair_is_refused() -> None:
    """A state pair that is not input=output raises UsageError."""
    with pytest.raises(UsageError, match="expected input=output"):
        plan_model(CHAIN, PoolOptions(states=(("a", "y"),)))


def test_a_state_cut_from_a_larger_tensor_does_not_overflow() -> None:
    """If the new state is a view of a larger tensor, its buffer holds the larger tensor."""
    m = model([op("x h", "u"), op("u", "t"), op("t", "n", VIEW)], "x h", "n", sizes={"t": 1000})
    found = plan_model(m, PoolOptions(states=(("h", "n"),)))
    (holder,) = (b for b in found.buffers if "t" in (b.name, *b.aliases))
    assert holder.size >= 1000


def test_a_constant_as_new_state_is_planned_or_refused() -> None:
    """A constant output declared as a state is planned or refused; it never crashes."""
    m = model([op("x h", "y")], "x h", "y k", constants="k")
    try:
        found = plan_model(m, PoolOptions(states=(("h", "k"),)))
    except UsageError:
        return
    assert set(pool(found, Pool.PERSISTENT)) == {"h"}


def test_an_output_that_is_a_view_of_the_new_state_still_has_its_io_buffer() -> None:
    """An output that is a view of the new state still has its own buffer in the IO pool."""
    m = model([op("x h", "a"), op("a", "n"), op("n", "y", VIEW)], "x h", "n y")
    found = plan_model(m, PoolOptions(io=Io.OUTSIDE, states=(("h", "n"),)))
    assert set(pool(found, Pool.IO)) == {name for name, _ in found.io_sizes}


def test_a_constant_output_still_has_its_io_buffer() -> None:
    """An output that is a constant still has a buffer in the IO pool."""
    found = plan_model(
        model([op("x", "y")], outputs="y k", constants="k"), PoolOptions(io=Io.OUTSIDE)
    )
    assert set(pool(found, Pool.IO)) == {name for name, _ in found.io_sizes}


# Control flow.


def body(middle: int, inputs: str = "i", outputs: str = "o") -> Model:
    """Return a control-flow body with one intermediate tensor of `middle` bytes."""
    first = inputs.split()[0] if inputs else "x"
    ops = [op(first, "mid"), op("mid", "o")]
    return model(ops, inputs, outputs, sizes={"mid": middle, "x": 10**6})


def test_a_body_needs_its_workspace_only_while_its_op_runs() -> None:
    """A branch workspace lives for one step and is as large as the largest branch."""
    m = model([op("x", "c"), op("c", "d", Effect.COMPUTE, body(256), body(640)), op("d", "y")])
    found = plan_model(m)
    (work,) = (b for b in found.buffers if b.name == "d (body)")
    assert (work.live.lower, work.live.upper, work.size) == (1, 2, 704)
    assert found.scratch_bytes == 704 + 128


def test_the_body_of_a_loop_keeps_its_inputs() -> None:
    """A loop body needs separate bytes for its inputs, since results are copied to them."""
    once = model([op("x", "y", Effect.COMPUTE, body(64))])
    turns = model([op("x", "y", Effect.COMPUTE, body(64), loop=True)])
    assert pool(plan_model(once), Pool.SCRATCH)["y (body)"].size == 128
    assert pool(plan_model(turns), Pool.SCRATCH)["y (body)"].size == 192


def test_captured_tensors_cost_nothing_in_the_body() -> None:
    """A tensor that a body captures from the outer model is not counted again."""
    m = model([op("x", "y", Effect.COMPUTE, body(64, inputs=""))])
    assert pool(plan_model(m), Pool.SCRATCH)["y (body)"].size == 128


def test_bodies_within_bodies_add_up() -> None:
    """The workspace of an inner body is part of the outer op's workspace."""
    inner = model([op("i", "o", Effect.COMPUTE, body(640))], "i", "o")
    found = plan_model(model([op("x", "y", Effect.COMPUTE, inner)]))
    assert pool(found, Pool.SCRATCH)["y (body)"].size == 704 + 128


def test_constants_of_bodies_are_counted() -> None:
    """Constants inside a branch count as constants of the model."""
    branch = model([op("i w", "o")], "i", "o", constants="w", sizes={"w": 77})
    assert plan_model(model([op("x", "y", Effect.COMPUTE, branch)])).constant_bytes == 77


def test_a_workspace_never_takes_the_name_of_a_tensor() -> None:
    """Workspace names never collide with tensor names or with each other."""
    ops = [
        Op("f", "If", ("x",), ("f (body)",), bodies=(body(64),)),
        Op("f", "If", ("f (body)",), ("y",), bodies=(body(64),)),
    ]
    tensors = {n: Tensor(n, DType.UINT8, (64,)) for n in ("x", "f (body)", "y")}
    found = plan_model(Model("m", "onnx", tensors, tuple(ops), ("x",), ("y",)))
    names = [b.name for b in found.buffers]
    assert len(set(names)) == len(names) == 5


def test_state_inside_a_body_is_persistent() -> None:
    """A state variable that only a body uses is persistent too."""
    branch = model([op("i s", "o")], "i", "o", states="s")
    assert plan_model(model([op("x", "y", Effect.COMPUTE, branch)])).persistent_bytes == 64


# Budgets.


@pytest.mark.parametrize(("have", "fits"), [(383, False), (384, True), (10**6, True)])
def test_a_scratch_budget_is_judged(have: int, fits: bool) -> None:
    """A scratch budget fits at exactly the need; one byte less fails and names the blockers."""
    found = plan_model(CHAIN, budget={Pool.SCRATCH: Bytes(have)})
    (verdict,) = found.budgets
    assert (verdict.fits, found.fits, verdict.need, verdict.have) == (fits, fits, 384, have)
    assert verdict.blockers == (() if fits else ("a", "x"))


@pytest.mark.parametrize(
    ("which", "need"), [(Pool.IO, 256), (Pool.CONSTANTS, 1000), (Pool.PERSISTENT, 0)]
)
def test_other_budgets_are_judged(which: Pool, need: int) -> None:
    """IO, constants and persistent budgets fit at exactly the need; a smaller one names tensors."""
    options = PoolOptions(io=Io.OUTSIDE)
    (enough,) = plan_model(CHAIN, options, budget={which: Bytes(need)}).budgets
    assert (enough.fits, enough.need, enough.blockers) == (True, need, ())
    if need:
        (short,) = plan_model(CHAIN, options, budget={which: Bytes(need - 1)}).budgets
        assert short.fits is False
        assert short.blockers


def test_several_budgets_must_all_hold() -> None:
    """If one of several budgets fails, the plan does not fit."""
    found = plan_model(CHAIN, budget={Pool.SCRATCH: Bytes(384), Pool.CONSTANTS: Bytes(999)})
    assert [v.fits for v in found.budgets] == [True, False]
    assert not found.fits


def test_without_budgets_everything_fits() -> None:
    """Without budgets the plan fits."""
    assert plan_model(CHAIN).fits


def test_an_unproven_miss_is_not_a_no() -> None:
    """A plan above the budget with a bound below it leaves `fits` undecided."""
    from qnnmem.planner.pools import BudgetVerdict

    verdict = BudgetVerdict(Pool.SCRATCH, Bytes(12), Bytes(8), Bytes(10))
    assert verdict.fits is None


@pytest.mark.parametrize("have", [-1, (1 << 60) + 1])
def test_impossible_budgets_are_refused(have: int) -> None:
    """A negative budget or one above 2**60 bytes raises UsageError."""
    with pytest.raises(UsageError):
        plan_model(CHAIN, budget={Pool.IO: Bytes(have)})


# Buffer lists.


def test_a_buffer_list_keeps_the_alignment_of_the_file() -> None:
    """A buffer list keeps each buffer's own alignment and its unrounded size."""
    found = plan_model(listed(("a", 5, 0, 2, 1), ("b", 9, 0, 2, 8), ("c", 3, 1, 2, 4)))
    assert {b.name: b.size for b in found.buffers} == {"a": 5, "b": 9, "c": 3}
    assert found.scratch.offset_of["b"] % 8 == found.scratch.offset_of["c"] % 4 == 0
    assert (verify(found.scratch), found.scratch.optimal) == (None, True)


def test_an_alignment_asked_for_is_combined_with_that_of_the_file() -> None:
    """A requested alignment adds to the file's: starts obey both, sizes only the requested one."""
    found = plan_model(listed(("a", 5, 0, 2, 6), ("b", 9, 0, 2, 1)), PoolOptions(align=Align(4)))
    assert {b.name: (b.size, b.align) for b in found.scratch.problem.buffers} == {
        "a": (8, 12),
        "b": (12, 4),
    }
    assert found.scratch_bytes == 20


def test_a_buffer_list_is_all_scratch() -> None:
    """A buffer list has only scratch: no other pools and no suggested states."""
    found = plan_model(listed(("a", 5, 0, 2, 1)))
    assert (found.scratch_bytes, found.io_bytes, found.persistent_bytes) == (5, 0, 0)
    assert (found.constant_bytes, found.io_sizes, found.likely_states) == (0, (), ())


@pytest.mark.parametrize(("have", "fits"), [(9, False), (10, True), (99, True)])
def test_a_capacity_for_a_buffer_list_is_a_yes_or_no_question(have: int, fits: bool) -> None:
    """A scratch budget for a buffer list fits at exactly the need and not one byte below."""
    found = plan_model(
        listed(("a", 4, 0, 2, 1), ("b", 6, 1, 3, 1), ("c", 1, 5, 6, 1)),
        budget={Pool.SCRATCH: Bytes(have)},
    )
    (verdict,) = found.budgets
    assert (verdict.fits, found.fits) == (fits, fits)
    assert verdict.blockers == (() if fits else ("b", "a"))
    assert verify(found.scratch) is None


def test_offsets_in_the_file_are_not_taken_for_granted() -> None:
    """Offsets in a buffer list are ignored; the planner places the buffers anew."""
    live = Span(Step(0), Step(1))
    m = Model("m", "csv", buffers=(FixedBuffer("a", Bytes(4), live, Align(1), Offset(1000)),))
    assert plan_model(m).scratch_bytes == 4


def test_a_buffer_list_answers_every_budget() -> None:
    """Each budget given for a buffer list gets a verdict."""
    found = plan_model(
        listed(("a", 4, 0, 2, 1)), budget={Pool.SCRATCH: Bytes(4), Pool.IO: Bytes(0)}
    )
    assert [v.pool for v in found.budgets] == [Pool.SCRATCH, Pool.IO]


def test_state_pairs_of_a_buffer_list_are_refused() -> None:
    """State pairs raise UsageError for a buffer list, which has no inputs or outputs."""
    with pytest.raises(UsageError):
        plan_model(listed(("a", 4, 0, 2, 1)), PoolOptions(states=(("a", "b"),)))
