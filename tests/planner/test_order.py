from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seeds import few

from qnnmem.ir import DType, Effect, Model, Op, Tensor, lifetimes
from qnnmem.ir.lifetime import reordered
from qnnmem.planner.order import live_peak, reorder
from qnnmem.planner.order_graph import ScratchRule


def op(name: str, inputs: str = "", outputs: str = "", effect: Effect = Effect.COMPUTE) -> Op:
    """Return an op; spaces separate the names."""
    return Op(name, "any", tuple(inputs.split()), tuple(outputs.split()), effect)


def model(
    sizes: Mapping[str, int],
    ops: Sequence[Op],
    *,
    inputs: str = "",
    outputs: str = "",
    states: str = "",
) -> Model:
    """Return a model of byte tensors and ops; spaces separate the names."""
    return Model(
        "m",
        "onnx",
        {name: Tensor(name, DType.UINT8, (size,)) for name, size in sizes.items()},
        tuple(ops),
        tuple(inputs.split()),
        tuple(outputs.split()),
        (),
        tuple(states.split()),
    )


def random_model(seed: int, ops: int, views: float = 0.2, states: int = 0) -> Model:
    """Return a model with random operands, results, effects, states and sizes."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    inputs = [f"in{i}" for i in range(rng.randint(1, 2))]
    state = [f"state{i}" for i in range(states)]
    known, made = list(inputs), []
    sizes = {name: rng.choice((1, 64, 100, 640, 1000)) for name in (*inputs, *state)}
    for number in range(ops):
        reads = rng.sample(known, min(len(known), rng.choice((0, 1, 1, 1, 2, 3))))
        results = [f"t{number}.{i}" for i in range(rng.choice((0, 1, 1, 1, 1, 2)))]
        view = bool(reads and results) and rng.random() < views
        effect = Effect.VIEW if view else rng.choice((Effect.COMPUTE, Effect.ELEMENTWISE))
        for result in results:
            sizes[result] = sizes[reads[0]] if view else rng.choice((0, 1, 64, 100, 640, 1000))
        if state and rng.random() < 0.3:
            reads.append(rng.choice(state))
        made.append(op(f"op{number}", " ".join(reads), " ".join(results), effect))
        known += results
    outputs = rng.sample(known, min(len(known), rng.randint(1, 3)))
    return model(
        sizes, made, inputs=" ".join(inputs), outputs=" ".join(outputs), states=" ".join(state)
    )


def must_precede(m: Model) -> set[tuple[int, int]]:
    """Return the pairs of ops whose order is fixed, by the plainest definition."""
    pairs = set()
    for late, second in enumerate(m.ops):
        for early, first in enumerate(m.ops[:late]):
            feeds = set(first.outputs) & set(second.inputs)
            touched = {*first.inputs, *first.outputs} & {*second.inputs, *second.outputs}
            if feeds or touched & set(m.states):
                pairs.add((early, late))
    return pairs


def every_order(m: Model) -> Iterator[list[int]]:
    """Yield all orders that respect the dependencies."""
    pairs = must_precede(m)

    def extend(done: list[int]) -> Iterator[list[int]]:
        if len(done) == len(m.ops):
            yield list(done)
        for node in range(len(m.ops)):
            if node not in done and all(a in done for a, b in pairs if b == node):
                yield from extend([*done, node])

    return extend([])


def fewest(m: Model, align: int = 64) -> int:
    """Return the least peak over all orders."""
    return min(live_peak(reordered(m, order), ScratchRule(align=align)) for order in every_order(m))


def wide_model(seed: int) -> Model:
    """Return a model of 9 to 13 ops with odd sizes; the last op reads every unused result."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    sizes, made, used = {"x": rng.randint(1, 20)}, [], set()
    for number in range(8 + seed % 5):
        reads = set(rng.choices(list(sizes), k=rng.choice((1, 1, 2))))
        used |= reads
        made.append(op(f"op{number}", " ".join(sorted(reads)), f"t{number}"))
        sizes[f"t{number}"] = rng.randint(1, 30) if rng.random() < 0.7 else rng.randint(1, 4)
    made.append(op("join", " ".join(name for name in sizes if name not in used), "y"))
    return model({**sizes, "y": 3}, made, inputs="x", outputs="y")


def fewest_over_sets(m: Model) -> int:
    """Return the least peak over all orders, computed over all sets of finished ops."""
    pairs = must_precede(m)
    names = [{*o.inputs, *o.outputs} for o in m.ops]
    lives = [({x.name, *x.aliases}, x.size) for x in lifetimes(m)]
    users = [sum(1 << i for i, n in enumerate(names) if n & own) for own, _ in lives]
    present = [bool(own & set(m.inputs)) for own, _ in lives]
    kept = [bool(own & set(m.outputs)) for own, _ in lives]
    first = [sum(1 << a for a, b in pairs if b == node) for node in range(len(names))]
    best: dict[int, int] = {
        0: sum(size for (_, size), early in zip(lives, present, strict=True) if early)
    }
    for done in range(1 << len(names)):
        for node in range(len(names)):
            after = done | 1 << node
            if done in best and after != done and not first[node] & ~done:
                need = sum(
                    size
                    for (_, size), use, early, late in zip(lives, users, present, kept, strict=True)
                    if (early or use & after) and (late or use & ~done)
                )
                best[after] = min(best.get(after, 1 << 60), max(best[done], need))
    return best[(1 << len(names)) - 1]


def respects(m: Model, changed: Model) -> bool:
    """True if `changed` holds the same ops, each after the ops that must precede it."""
    place = {o.name: i for i, o in enumerate(changed.ops)}
    names = [o.name for o in m.ops]
    return sorted(place) == sorted(names) and all(
        place[names[a]] < place[names[b]] for a, b in must_precede(m)
    )


def two_branches() -> Model:
    """Return two branches that are wide inside; the given order opens both before closing one."""
    return model(
        {"x": 64, "a": 6400, "b": 6400, "c": 64, "d": 64, "y": 64},
        [
            op("wide-a", "x", "a"),
            op("wide-b", "x", "b"),
            op("end-a", "a", "c"),
            op("end-b", "b", "d"),
            op("join", "c d", "y"),
        ],
        inputs="x",
        outputs="y",
    )


def test_branches_run_one_after_the_other() -> None:
    """The new order finishes one wide branch before the other starts, which halves the peak."""
    found = reorder(two_branches())
    assert (found.before, found.after) == (12864, 6528)
    assert found.proven
    assert live_peak(found.model) == found.after


def test_model_without_gain_is_returned_as_it_is() -> None:
    """Reordering a chain returns the same model object with equal peaks."""
    chain = model(
        {"x": 10, "a": 20, "y": 30},
        [op("f", "x", "a"), op("g", "a", "y")],
        inputs="x",
        outputs="y",
    )
    found = reorder(chain)
    assert found.model is chain
    assert (found.before, found.after, found.proven) == (128, 128, True)


def test_model_without_ops() -> None:
    """A model without ops keeps its input alive, since the input is also the output."""
    found = reorder(model({"x": 65}, [], inputs="x", outputs="x"))
    assert (found.before, found.after, found.proven) == (128, 128, True)


def test_alignment_rounds_every_size() -> None:
    """Each size is rounded up to a multiple of the alignment."""
    tiny = model({"x": 1, "y": 1}, [op("f", "x", "y")], inputs="x", outputs="y")
    assert reorder(tiny, ScratchRule(align=1)).after == 2
    assert reorder(tiny, ScratchRule(align=256)).after == 512


def test_element_width_counts() -> None:
    """With a bit width of 8, float32 tensors count at a quarter of their size."""
    m = Model(
        "m",
        "onnx",
        {name: Tensor(name, DType.FLOAT32, (64,)) for name in "xy"},
        (op("f", "x", "y"),),
        ("x",),
        ("y",),
    )
    assert reorder(m).after == 512
    assert reorder(m, ScratchRule(bits=8)).after == 128


def test_ops_on_one_state_keep_their_order() -> None:
    """Ops on one state keep their order, even if another order would save bytes."""
    sizes = {"x": 64, "s": 64, "a": 6400, "b": 6400, "c": 64, "d": 64, "y": 64}
    plain = list(two_branches().ops)
    tied = [op("wide-a", "x s", "a"), op("wide-b", "x s", "b"), op("end-a", "a s", "c"), *plain[3:]]
    found = reorder(model(sizes, tied, inputs="x", outputs="y", states="s"))
    assert found.after == found.before
    assert found.proven


def test_view_keeps_its_source_alive() -> None:
    """A view keeps its source alive, so the search avoids reading the view late."""
    sizes = {"x": 64, "a": 6400, "v": 6400, "b": 6400, "c": 64, "d": 64, "y": 64}
    ops = [
        op("wide-a", "x", "a"),
        op("view", "a", "v", Effect.VIEW),
        op("wide-b", "x", "b"),
        op("end-b", "b", "d"),
        op("end-a", "v", "c"),
        op("join", "c d", "y"),
    ]
    found = reorder(model(sizes, ops, inputs="x", outputs="y"))
    assert (found.before, found.after, found.proven) == (12864, 6528, True)


def test_inplace_peaks_are_those_of_lifetimes() -> None:
    """With in-place ops, a result that overwrites its dying operand counts once."""
    ops = [
        op("wide", "x", "a"),
        op("relu", "a", "b", Effect.ELEMENTWISE),
        op("end", "b", "y"),
    ]
    m = model({"x": 64, "a": 6400, "b": 6400, "y": 64}, ops, inputs="x", outputs="y")
    assert reorder(m).after == 12800
    inplace = ScratchRule(inplace=True)
    found = reorder(m, inplace)
    assert found.after == live_peak(m, inplace) == 6464


def test_name_written_twice_keeps_the_presentorder() -> None:
    """If two ops write one name, all ops that use the name keep their order."""
    ops = [
        op("first", "x", "a"),
        op("use", "a", "b"),
        op("second", "x", "a"),
        op("end", "a b", "y"),
    ]
    m = model(dict.fromkeys("xaby", 64), ops, inputs="x", outputs="y")
    assert [o.name for o in reorder(m).model.ops] == ["first", "use", "second", "end"]


def test_no_effort_keeps_the_peak() -> None:
    """With zero effort the order is valid, no worse than the given one, and not called proven."""
    found = reorder(two_branches(), effort=0)
    assert found.after <= found.before
    assert respects(two_branches(), found.model)
    assert not found.proven


def test_same_answer_every_time() -> None:
    """The same model gets the same order in every run."""
    first, second = (reorder(random_model(7, 60)).model.ops for _ in range(2))
    assert first == second


@pytest.mark.parametrize("states", [0, 2])
@settings(max_examples=few(120))
@given(seed=st.integers(0, 1 << 32), ops=st.integers(0, 7), align=st.sampled_from((1, 64)))
def test_small_models_reach_the_least_of_all_orders(
    states: int, seed: int, ops: int, align: int
) -> None:
    """On models small enough to try every order, the result is the best order, with proof."""
    m = random_model(seed, ops, states=states)
    found = reorder(m, ScratchRule(align=align))
    assert respects(m, found.model)
    assert found.proven
    assert found.after == fewest(m, align)


# Regression seeds: their peaks were called proven but were above the least.
@settings(max_examples=few(100))
@example(seed=627)
@example(seed=1684)
@example(seed=4444)
@example(seed=4797)
@given(seed=st.integers(0, 1 << 32))
def test_wide_models_reach_the_least_of_all_orders(seed: int) -> None:
    """On wide models the peak equals the least over all sets of finished ops."""
    m = wide_model(seed)
    found = reorder(m, ScratchRule(align=1))
    assert respects(m, found.model)
    assert found.proven
    assert found.after == fewest_over_sets(m)


@settings(max_examples=few(100))
@given(seed=st.integers(0, 1 << 32), effort=st.integers(0, 300))
def test_little_effort_never_proves_too_much(seed: int, effort: int) -> None:
    """A search cut short calls its peak proven only if that peak is the least."""
    m = wide_model(seed - seed % 5)
    found = reorder(m, ScratchRule(align=1), effort=effort)
    assert respects(m, found.model)
    assert not found.proven or found.after == fewest_over_sets(m)


@settings(max_examples=few(60))
@given(seed=st.integers(0, 1 << 32), ops=st.integers(10, 80), inplace=st.booleans())
def test_larger_models_are_never_worse(seed: int, ops: int, inplace: bool) -> None:
    """On large models the order is valid and its peak is as stated, at most the given peak."""
    m = random_model(seed, ops, states=seed % 3)
    rule = ScratchRule(inplace=inplace)
    found = reorder(m, rule, effort=5_000)
    assert respects(m, found.model)
    assert found.before == live_peak(m, rule)
    assert found.after == live_peak(found.model, rule) <= found.before
    assert (found.model is m) == (found.after == found.before)


def test_live_peak_is_the_largest_sum_over_steps() -> None:
    """The peak is the largest sum, over all steps, of the lifetimes that cover the step."""
    m = random_model(3, 40)
    steps = range(-1, len(m.ops) + 1)
    sums = [sum(-(-x.size // 64) * 64 for x in lifetimes(m) if x.live.covers(s)) for s in steps]
    assert live_peak(m) == max(sums)
