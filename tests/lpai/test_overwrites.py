"""Collisions are found by name in wrong plans, and never in right ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import few

from qnnmem.ir import DType, Effect, Model, Op, Span, Tensor
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.runtime.sanitizer import Collision, collisions, last_uses
from qnnmem.planner import Io, PlacedBuffer, Pool, PoolOptions, plan_model
from qnnmem.units import Align, Bytes, Offset, Step

Place = tuple[Pool, int]


def random_model(rng: random.Random) -> Model:
    """Return up to nine random ops with views, two results and an unused input."""
    size = {"x": 8, "h": 8, "idle": 8}
    known, ops = ["x", "h"], []
    for k in range(rng.randint(2, 9)):
        reads = tuple(rng.sample(known, min(len(known), rng.randint(1, 3))))
        effect = rng.choice(list(Effect))
        made = [f"t{k}"] if effect is not Effect.COMPUTE else [f"t{k}", f"u{k}"]
        for name in made:
            size[name] = size[reads[0]] if effect is Effect.VIEW else rng.choice((8, 8, 12, 3))
        ops.append(Op(f"op{k}", "any", reads, tuple(made), effect))
        known += made
    outputs = tuple(rng.sample(known[2:], rng.randint(1, min(3, len(known) - 2))))
    tensors = {name: Tensor(name, DType.UINT8, (n,)) for name, n in size.items()}
    return Model("m", "onnx", tensors, tuple(ops), ("x", "h", "idle"), outputs)


def random_graph(rng: random.Random) -> CompiledGraph:
    """Return a random model planned with random options."""
    model = random_model(rng)
    seen = {n for o in model.ops if o.effect is Effect.VIEW for n in (o.inputs[0], o.outputs[0])}
    fit = [n for n in model.outputs if model.tensors[n].shape == (8,) and n not in seen]
    pair = (("h", rng.choice(fit)),) if fit and rng.random() < 0.7 else ()
    io, align = rng.choice(list(Io)), Align(rng.choice((1, 4, 8)))
    options = PoolOptions(io, align, states=pair, inplace=rng.random() < 0.5)
    plan = plan_model(model, options, time_limit=1.0)
    return CompiledGraph(
        "g",
        plan.model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        io,
        states=pair,
    )


class Machine:
    """A memory that records which value each byte holds."""

    def __init__(self, graph: CompiledGraph) -> None:
        self.graph, self.tensors = graph, graph.model.tensors
        self.places = {n: (b.pool, b.offset) for n, b in graph.buffer_of.items()}
        self.buffer = {n: b.name for n, b in graph.buffer_of.items()}
        self.held: dict[Place, str] = {}
        self.value = {name: name for name in self.tensors}
        self.lost: set[str] = set()

    def bytes_of(self, name: str) -> list[Place]:
        """Return the bytes of a tensor."""
        pool, offset = self.places[name]
        return [(pool, offset + k) for k in range(self.tensors[name].nbytes)]

    def check(self, names: Iterable[str]) -> None:
        """Record every tensor whose bytes hold another value."""
        for name in names:
            if {self.held.get(place) for place in self.bytes_of(name)} != {self.value[name]}:
                self.lost.add(name)

    def write(self, name: str) -> None:
        """Write a tensor's value to its bytes."""
        self.held.update(dict.fromkeys(self.bytes_of(name), self.value[name]))

    def step(self, op: Op) -> None:
        """Run one op and check its inputs and outputs."""
        self.check(op.inputs)
        for out in op.outputs:
            if op.effect is Effect.VIEW:
                self.value[out] = self.value[op.inputs[0]]
            for name in op.inputs:
                same = self.places[name] == self.places[out] and op.effect is not Effect.COMPUTE
                if not same and set(self.bytes_of(name)) & set(self.bytes_of(out)):
                    self.lost.add(name)
            self.write(out)
        self.check(op.outputs)

    def run(self) -> set[str]:
        """Run all ops and return the tensors that were lost too early."""
        for name in self.graph.model.inputs:
            self.write(name)
        self.check(self.graph.model.inputs)
        for op in self.graph.model.ops:
            self.step(op)
        self.check(self.graph.model.outputs)
        for old, new in self.graph.states:
            if self.buffer[old] != self.buffer[new]:
                self.check([old])  # the old state must survive until the new state replaces it
        return self.lost


@settings(max_examples=few(300))
@given(st.integers(0, 10**9))
def test_plans_have_no_collisions(seed: int) -> None:
    """A plan by qnnmem has no collisions, which a byte-by-byte simulation confirms."""
    graph = random_graph(random.Random(seed))  # noqa: S311 - reproducible, not secret
    assert list(collisions(graph)) == []
    assert Machine(graph).run() == set()


@settings(max_examples=few(300))
@given(st.integers(0, 10**9))
def test_moved_buffers_are_judged_like_the_byte_machine_does(seed: int) -> None:
    """A plan with one moved buffer collides exactly if the simulation loses a byte."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    graph = random_graph(rng)
    inside = [b for b in graph.buffers if b.pool is Pool.SCRATCH]
    if inside:
        chosen = rng.choice(inside)
        moved = replace(chosen, offset=Offset(rng.randrange(0, graph.scratch_bytes + 8)))
        buffers = tuple(moved if b is chosen else b for b in graph.buffers)
        graph = replace(graph, buffers=buffers)
    assert bool(list(collisions(graph))) == bool(Machine(graph).run())


def build(
    ops: list[Op],
    places: dict[str, int],
    outputs: tuple[str, ...],
    aliases: dict[str, tuple[str, ...]] | None = None,
    **more: Any,
) -> CompiledGraph:
    """Return a graph of eight-byte tensors at these offsets."""
    names = dict.fromkeys(["x", *(n for op in ops for n in (*op.inputs, *op.outputs))])
    tensors = {name: Tensor(name, DType.UINT8, (8,)) for name in names}
    made = {n for op in ops for n in op.outputs}
    inputs = tuple(name for name in names if name not in made)
    live = Span(Step(-1), Step(len(ops)))
    buffers = tuple(
        PlacedBuffer(
            n, Bytes(8), live, (aliases or {}).get(n, ()), pool=Pool.SCRATCH, offset=Offset(at)
        )
        for n, at in places.items()
    )
    model = Model("m", "onnx", tensors, tuple(ops), inputs, outputs)
    return CompiledGraph("g", model, buffers, Bytes(64), Bytes(0), Align(1), **more)


def op(inputs: str, outputs: str, effect: Effect = Effect.COMPUTE) -> Op:
    """Return an op named after its outputs."""
    return Op(f"make {outputs}", "any", tuple(inputs), tuple(outputs), effect)


CASES = {
    "a compute op over its input": (
        build([op("x", "a")], {"x": 0, "a": 0}, ("a",)),
        Collision("x", "a", "make a", Pool.SCRATCH, 0, 8),
    ),
    "a partial overlap": (
        build([op("x", "a"), op("xa", "y")], {"x": 0, "a": 5, "y": 20}, ("y",)),
        Collision("x", "a", "make a", Pool.SCRATCH, 5, 3),
    ),
    "two results of one op": (
        build([op("x", "ab"), op("ab", "y")], {"x": 0, "a": 8, "b": 12, "y": 30}, ("y",)),
        Collision("a", "b", "make ab", Pool.SCRATCH, 12, 4),
    ),
    "an early output": (
        build([op("x", "a"), op("a", "b")], {"x": 0, "a": 8, "b": 15}, ("a", "b")),
        Collision("a", "b", "make b", Pool.SCRATCH, 15, 1),
    ),
    "an element-wise op over what is read later": (
        build([op("x", "a", Effect.ELEMENTWISE), op("xa", "y")], {"x": 0, "a": 0, "y": 20}, ("y",)),
        Collision("x", "a", "make a", Pool.SCRATCH, 0, 8),
    ),
    "an element-wise op shifted by one": (
        build([op("x", "a", Effect.ELEMENTWISE)], {"x": 0, "a": 1}, ("a",)),
        Collision("x", "a", "make a", Pool.SCRATCH, 1, 7),
    ),
    "a view's root while the view is read": (
        build(
            [op("x", "v", Effect.VIEW), op("x", "a"), op("va", "y")],
            {"x": 0, "a": 0, "y": 30},
            ("y",),
            {"x": ("v",)},
        ),
        Collision("x", "a", "make a", Pool.SCRATCH, 0, 8),
    ),
    "two inputs": (
        build([op("xz", "y")], {"x": 0, "z": 4, "y": 30}, ("y",)),
        Collision("x", "z", "the application", Pool.SCRATCH, 4, 4),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_may_not_share_is_found(case: str) -> None:
    """Each way to lose needed bytes is found, with its writer, victim and size."""
    graph, expected = CASES[case]
    assert next(iter(collisions(graph))) == expected


SHARED = {
    "a dead tensor's place": build(
        [op("x", "a"), op("a", "b"), op("b", "y")], {"x": 0, "a": 8, "b": 0, "y": 8}, ("y",)
    ),
    "an element-wise op over its dying input": build(
        [op("x", "a", Effect.ELEMENTWISE)], {"x": 0, "a": 0}, ("a",)
    ),
    "a view": build(
        [op("x", "v", Effect.VIEW), op("xv", "y")], {"x": 0, "y": 8}, ("y",), {"x": ("v",)}
    ),
    "an element-wise op over a dying view": build(
        [op("x", "v", Effect.VIEW), op("v", "a", Effect.ELEMENTWISE)],
        {"x": 0},
        ("a",),
        {"x": ("v", "a")},
    ),
    "an input that nobody reads": build(
        [op("x", "a"), op("a", "y")], {"x": 0, "a": 8, "y": 0}, ("y",)
    ),
    "a new state over the old one": build(
        [op("hx", "a"), op("a", "n")],
        {"x": 16, "h": 0, "a": 8},
        ("n",),
        {"h": ("n",)},
        states=(("h", "n"),),
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_what_may_share_is_left_alone(case: str) -> None:
    """Each allowed way to share bytes has no collision."""
    assert list(collisions(SHARED[case])) == []


def test_a_new_state_must_wait_for_the_last_reader_of_the_old() -> None:
    """A new state that overwrites the old state before its last reader collides."""
    graph = build(
        [op("x", "n"), op("hn", "y")],
        {"x": 16, "h": 0, "y": 8},
        ("n", "y"),
        {"h": ("n",)},
        states=(("h", "n"),),
    )
    found = list(collisions(graph))
    assert [(c.victim, c.writer) for c in found] == [("h", "n")]


def test_state_and_outputs_are_needed_after_the_end() -> None:
    """A tensor's last use is its last reader, or the end for states and outputs."""
    graph = build(
        [op("hx", "a"), op("a", "n")],
        {"x": 16, "h": 0, "a": 8, "n": 24},
        ("n",),
        states=(("h", "n"),),
    )
    assert last_uses(graph) == {"x": 0, "h": 2, "a": 1, "n": 2}
