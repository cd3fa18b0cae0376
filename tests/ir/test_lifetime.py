from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
import small_models
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import few
from small_models import op

from qnnmem.ir import DType, Effect, Lifetime, Model, Op, Role, lifetimes

VIEW, ELEMENTWISE = Effect.VIEW, Effect.ELEMENTWISE


model = partial(small_models.model, elements=10)


def table(lives: Sequence[Lifetime]) -> dict[str, tuple[int, int]]:
    """Return the span of each lifetime by name."""
    return {life.name: (life.live.lower, life.live.upper) for life in lives}


def groups(lives: Sequence[Lifetime]) -> dict[str, set[str]]:
    """Return the aliases of each lifetime that has some, by name."""
    return {life.name: set(life.aliases) for life in lives if life.aliases}


def test_a_tensor_lives_from_producer_to_last_consumer_inclusive() -> None:
    """A tensor written at step 0 and last read at step 2 has the half-open span [0, 3)."""
    m = model([op("x", "a"), op("a", "b"), op("a b", "c"), op("c", "y")])
    assert table(lifetimes(m))["a"] == (0, 3)


def test_inputs_and_outputs_of_one_op_are_alive_together() -> None:
    """An op's operand and its result overlap, even if the operand dies at that op."""
    x, a, y = lifetimes(model([op("x", "a"), op("a", "y")]))
    assert x.live.overlaps(a.live)
    assert a.live.overlaps(y.live)
    assert not x.live.overlaps(y.live)


def test_inputs_live_from_before_the_first_op() -> None:
    """An input lives from step -1, when the application writes it."""
    assert table(lifetimes(model([op("x", "a"), op("a", "y")])))["x"] == (-1, 1)


def test_an_input_nobody_reads_is_still_written() -> None:
    """An unused input lives at step -1 only."""
    assert table(lifetimes(model([op("x", "y")], inputs="x unused")))["unused"] == (-1, 0)


def test_outputs_live_until_the_application_read_them() -> None:
    """An output lives one step past the last op, when the application reads it."""
    m = model([op("x", "y"), op("x", "a"), op("a", "b")])
    assert table(lifetimes(m))["y"] == (0, 4)


def test_a_result_nobody_reads_lives_for_its_own_step() -> None:
    """A result that no op reads lives at the step of its op only."""
    assert table(lifetimes(model([op("x", "y dead"), op("y", "z")])))["dead"] == (0, 1)


def test_an_input_that_is_an_output_lives_all_along() -> None:
    """An input that is also an output lives from step -1 to the end."""
    m = model([op("x", "y")], outputs="x y")
    (x,) = (life for life in lifetimes(m) if life.name == "x")
    assert (x.live.lower, x.live.upper) == (-1, 2)


def test_a_model_without_ops_keeps_inputs_until_they_are_read() -> None:
    """In a model without ops, an input that is also the output lives at steps -1 and 0."""
    assert table(lifetimes(model([], outputs="x"))) == {"x": (-1, 1)}


def test_constants_and_state_have_no_lifetime() -> None:
    """Constants and states have no lifetime; they are not in scratch."""
    m = model([op("x w s", "y"), op("y", "s")], constants="w", states="s")
    assert set(table(lifetimes(m))) == {"x", "y"}


def test_a_view_shares_the_bytes_of_its_source() -> None:
    """A view has no lifetime of its own; its source lives until the view's last use."""
    m = model([op("x", "a"), op("a", "v", VIEW), op("x", "b"), op("v b", "y")])
    lives = lifetimes(m)
    assert groups(lives) == {"a": {"v"}}
    assert table(lives)["a"] == (0, 4)


def test_a_view_of_a_view_shares_too() -> None:
    """Chained views and several views of one tensor all share its bytes."""
    m = model(
        [op("x", "a"), op("a", "v", VIEW), op("v", "w", VIEW), op("a", "u", VIEW), op("w u", "y")]
    )
    assert groups(lifetimes(m)) == {"a": {"v", "w", "u"}}


def test_a_view_of_an_input_as_output_lives_all_along() -> None:
    """An output that is a view of an input keeps the input's bytes to the end, in both roles."""
    (life,) = lifetimes(model([op("x", "y", VIEW)]))
    assert (life.live.lower, life.live.upper) == (-1, 2)
    assert life.roles == {Role.INPUT, Role.OUTPUT}


@pytest.mark.parametrize("kind", ["constants", "states"])
def test_a_view_of_a_constant_or_state_is_a_copy(kind: str) -> None:
    """A view of a constant or a state has its own bytes, since its source is not in scratch."""
    m = (
        model([op("k", "v", VIEW), op("v x", "y")], constants="k")
        if kind == "constants"
        else model([op("k", "v", VIEW), op("v x", "y")], states="k")
    )
    lives = lifetimes(m)
    assert not groups(lives)
    assert table(lives)["v"] == (0, 2)


def test_a_group_is_as_large_as_its_largest_member() -> None:
    """A lifetime is as large as its largest member: a small view does not shrink its source."""
    m = model([op("x", "a"), op("a", "v", VIEW), op("v", "y")], sizes={"a": 100, "v": 30})
    assert {life.name: life.size for life in lifetimes(m)}["a"] == 100


def test_roles_say_why_a_tensor_is_there() -> None:
    """Each lifetime has its role: input, temporary or output."""
    lives = lifetimes(model([op("x", "a"), op("a", "y")]))
    assert {life.name: life.roles for life in lives} == {
        "x": {Role.INPUT},
        "a": {Role.TEMPORARY},
        "y": {Role.OUTPUT},
    }


def test_lifetimes_come_in_order_of_birth() -> None:
    """Lifetimes are ordered by birth: inputs first, then results step by step."""
    m = model([op("x", "a"), op("a", "b"), op("b", "y")], inputs="x z")
    assert [life.name for life in lifetimes(m)] == ["x", "z", "a", "b", "y"]


def test_nothing_is_written_in_place_unless_asked() -> None:
    """By default an element-wise op keeps its operand and its result separate."""
    m = model([op("x", "a"), op("a", "b", ELEMENTWISE), op("b", "y")])
    assert not groups(lifetimes(m))


def test_an_elementwise_op_overwrites_a_dying_temporary() -> None:
    """With in-place ops, the result takes the bytes of the operand that dies."""
    m = model([op("x", "a"), op("a", "b", ELEMENTWISE), op("b", "y")])
    lives = lifetimes(m, inplace=True)
    assert groups(lives) == {"a": {"b"}}
    assert table(lives)["a"] == (0, 3)


def test_an_output_may_be_written_over_a_dying_temporary() -> None:
    """With in-place ops, an output may overwrite a dying temporary, whose bytes live to the end."""
    lives = lifetimes(model([op("x", "a"), op("a", "y", ELEMENTWISE)]), inplace=True)
    assert groups(lives) == {"a": {"y"}}
    assert table(lives)["a"] == (0, 3)


def test_in_place_chains_go_on() -> None:
    """With in-place ops, a result written in place may itself be overwritten."""
    m = model([op("x", "a"), *(op(p, q, ELEMENTWISE) for p, q in ("ab", "bc", "cy"))])
    assert groups(lifetimes(m, inplace=True)) == {"a": {"b", "c", "y"}}


@pytest.mark.parametrize(
    ("ops", "outputs", "sizes"),
    [
        ([op("x", "a"), op("a", "b", ELEMENTWISE), op("a b", "y")], "y", {}),  # read later
        ([op("x", "a"), op("a", "b", ELEMENTWISE), op("b", "y")], "a y", {}),  # an output
        ([op("x", "a"), op("a", "b", ELEMENTWISE), op("b", "y")], "y", {"a": 4}),  # another size
        ([op("x", "b", ELEMENTWISE), op("b", "y")], "y", {}),  # a graph input
        ([op("x", "a"), op("a", "b"), op("b", "y")], "y", {}),  # not element-wise
        (
            [op("x", "a"), op("a", "v", VIEW), op("a", "b", ELEMENTWISE), op("v b", "y")],
            "y",
            {},
        ),  # a view is read later
        (
            [op("x", "v", VIEW), op("v", "b", ELEMENTWISE), op("b", "y")],
            "y",
            {},
        ),  # a view of a graph input
    ],
)
def test_only_a_dying_temporary_of_the_same_size_is_overwritten(
    ops: list[Op], outputs: str, sizes: dict[str, int]
) -> None:
    """In-place ops never overwrite an operand that is needed, belongs to IO, or differs in size."""
    lives = lifetimes(model(ops, outputs=outputs, sizes=sizes), inplace=True)
    holders = [{life.name, *life.aliases} for life in lives]
    assert not any("b" in names and names & {"a", "x"} for names in holders)


def test_the_second_operand_may_be_the_one_overwritten() -> None:
    """If the first operand is still needed, the op overwrites the second one that dies."""
    m = model([op("x", "a"), op("x", "c"), op("a c", "b", ELEMENTWISE), op("a b", "y")])
    assert groups(lifetimes(m, inplace=True)) == {"c": {"b"}}


def test_state_written_by_an_elementwise_op_is_left_alone() -> None:
    """In-place ops leave states alone, since states are not in scratch."""
    m = model([op("x", "y"), op("y", "s", ELEMENTWISE)], states="s")
    assert set(table(lifetimes(m, inplace=True))) == {"x", "y"}


def test_a_part_of_a_tensor_is_not_overwritten_by_a_whole_one() -> None:
    """A result never overwrites a smaller view, even if the source has the size of the result."""
    m = model(
        [op("x", "a"), op("a", "v", VIEW), op("v", "b", ELEMENTWISE), op("b", "y")],
        sizes={"a": 100, "v": 10, "b": 100},
    )
    assert groups(lifetimes(m, inplace=True)) == {"a": {"v"}}


@pytest.mark.parametrize(
    ("dtype", "bits", "size"),
    [
        (DType.FLOAT32, None, 40),
        (DType.FLOAT32, 8, 10),
        (DType.FLOAT16, 8, 10),
        (DType.FLOAT32, 16, 20),
        (DType.INT32, 8, 40),
        (DType.BOOL, 16, 10),
        (DType.INT4, 8, 5),
    ],
)
def test_another_width_applies_to_floats_only(dtype: DType, bits: int | None, size: int) -> None:
    """A bit width applies to floats only; integers, booleans and packed types keep theirs."""
    lives = lifetimes(model([op("x", "y")], dtype=dtype), bits=bits)
    assert {life.size for life in lives} == {size}


def random_model(seed: int) -> Model:
    """Return a model of up to ten ops with random operands, effects and outputs."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    known, ops = ["x", "z"], []
    for k in range(rng.randint(1, 10)):
        reads = rng.sample(known, min(len(known), rng.randint(1, 3)))
        ops.append(op(" ".join(reads), f"t{k}", rng.choice(list(Effect))))
        known.append(f"t{k}")
    outputs = " ".join(rng.sample(known, rng.randint(1, min(3, len(known)))))
    return model(ops, "x z", outputs, sizes={f"t{k}": rng.choice((10, 20)) for k in range(10)})


def overwritten(m: Model, lives: Sequence[Lifetime]) -> list[str]:
    """Run the model on value names in shared bytes; return every read of a lost value."""
    holder = {name: life.name for life in lives for name in (life.name, *life.aliases)}
    value = {name: name for name in m.tensors}  # the computed value of each name
    held = {holder[name]: name for name in m.inputs}
    wrong = []
    for o in m.ops:
        wrong += [name for name in o.inputs if held[holder[name]] != value[name]]
        if o.effect is VIEW:
            value[o.outputs[0]] = value[o.inputs[0]]
        held[holder[o.outputs[0]]] = value[o.outputs[0]]
    return wrong + [name for name in m.outputs if held[holder[name]] != value[name]]


@settings(max_examples=few(300))
@given(st.integers(0, 10**9), st.booleans())
def test_sharing_never_loses_a_value(seed: int, inplace: bool) -> None:
    """With shared bytes, every op and output still reads the value written for it."""
    m = random_model(seed)
    assert overwritten(m, lifetimes(m, inplace=inplace)) == []


@settings(max_examples=few(200))
@given(st.integers(0, 10**9), st.booleans())
def test_every_tensor_is_in_exactly_one_lifetime(seed: int, inplace: bool) -> None:
    """Every tensor belongs to exactly one lifetime, which covers each of its uses."""
    m = random_model(seed)
    lives = lifetimes(m, inplace=inplace)
    names = [name for life in lives for name in (life.name, *life.aliases)]
    assert sorted(names) == sorted({*m.inputs, *(o.outputs[0] for o in m.ops)})
    for life in lives:
        for step, o in enumerate(m.ops):
            if {life.name, *life.aliases} & {*o.inputs, *o.outputs}:
                assert life.live.covers(step)
