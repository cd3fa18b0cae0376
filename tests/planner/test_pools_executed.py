"""Plans of random models, checked by simulating every write and read of every byte."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import few

from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.planner import Io, MemoryPlan, Pool, PoolOptions, plan_model, verify
from qnnmem.units import Align

Place = tuple[Pool, int]


def random_model(rng: random.Random) -> Model:
    """Return a model of up to ten ops with views, element-wise ops, a state and a constant."""
    size = {"x": 8, "h": 8, "s": 8, "w": 8}
    known, ops = ["x", "h"], []
    for k in range(rng.randint(2, 10)):
        reads = rng.sample(known, min(len(known), rng.randint(1, 3)))
        effect = rng.choice(list(Effect))
        size[f"t{k}"] = size[reads[0]] if effect is Effect.VIEW else rng.choice((8, 8, 12, 3))
        extra = rng.choice(((), ("w",), ("s",)))
        ops.append(Op(f"op{k}", "any", (*reads, *extra), (f"t{k}",), effect))
        known.append(f"t{k}")
    made = known[2:]
    outputs = tuple(rng.sample(made, rng.randint(1, min(3, len(made)))))
    tensors = {name: Tensor(name, DType.UINT8, (n,)) for name, n in size.items()}
    return Model("m", "onnx", tensors, tuple(ops), ("x", "h"), outputs, ("w",), ("s",))


def random_options(rng: random.Random, model: Model) -> PoolOptions:
    """Return random options: place of IO, in-place ops, alignment, and a valid state pair."""
    fit = [
        name
        for name in model.outputs
        if model.tensors[name].shape == (8,) and not _is_view(model, name)
    ]
    pair = (("h", rng.choice(fit)),) if fit and rng.random() < 0.7 else ()
    io, align = rng.choice(list(Io)), Align(rng.choice((1, 4, 8)))
    return PoolOptions(io, align, states=pair, inplace=rng.random() < 0.5)


def _is_view(model: Model, name: str) -> bool:
    return any(o.effect is Effect.VIEW and name in (o.inputs[0], o.outputs[0]) for o in model.ops)


class Machine:
    """A memory that records which value each byte holds."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.model = plan.model
        self.start: dict[str, Place] = {}
        for buffer in plan.buffers:
            for name in (buffer.name, *buffer.aliases):
                # With IO outside, an alias may have its own buffer; that buffer counts.
                if name == buffer.name or name not in self.start:
                    self.start[name] = (buffer.pool, buffer.offset)
        self.held: dict[Place, str] = {}
        self.value = {name: name for name in self.model.tensors}

    def places(self, name: str) -> list[Place]:
        """Return the bytes of a tensor."""
        pool, offset = self.start[name]
        return [(pool, offset + k) for k in range(self.model.tensors[name].nbytes)]

    def write(self, names: Iterable[str]) -> None:
        """Write the values of these tensors to their bytes."""
        for name in names:
            self.held.update(dict.fromkeys(self.places(name), self.value[name]))

    def check(self, names: Iterable[str]) -> None:
        """Fail unless every byte of these tensors still holds the tensor's value."""
        for name in names:
            if name not in self.model.constants:
                assert {self.held[p] for p in self.places(name)} == {self.value[name]}, name

    def run(self) -> None:
        """Execute the ops in order, reading before writing."""
        self.write((*self.model.inputs, *self.model.states))
        for op in self.model.ops:
            self.check(op.inputs)
            out = op.outputs[0]
            if op.effect is Effect.VIEW:
                self.value[out] = self.value[op.inputs[0]]
            for name in set(op.inputs) - set(self.model.constants):
                if self.start[name] != self.start[out] or op.effect is Effect.COMPUTE:
                    assert not set(self.places(name)) & set(self.places(out))
            self.write(op.outputs)
        self.check((*self.model.outputs, *self.model.states))


@settings(max_examples=few(120))
@given(st.integers(0, 10**9))
def test_every_value_is_still_there_when_it_is_read(seed: int) -> None:
    """With any options, every tensor, state and output still holds its value when it is read."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    model = random_model(rng)
    plan = plan_model(model, random_options(rng, model), time_limit=1.0)
    assert verify(plan.scratch) is None
    Machine(plan).run()


@settings(max_examples=few(80))
@given(st.integers(0, 10**9))
def test_buffers_stay_inside_their_pools(seed: int) -> None:
    """Every buffer is aligned, holds all its tensors and ends within its pool."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    model = random_model(rng)
    plan = plan_model(model, random_options(rng, model), time_limit=1.0)
    for buffer in plan.buffers:
        assert buffer.offset % plan.align == buffer.size % plan.align == 0
        assert 0 <= buffer.offset <= plan.pool_bytes(buffer.pool) - buffer.size
        for name in (buffer.name, *buffer.aliases):
            assert model.tensors[name].nbytes <= buffer.size
    named = {name for b in plan.buffers for name in (b.name, *b.aliases)}
    assert named == set(model.tensors) - set(model.constants)
