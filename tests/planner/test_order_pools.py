"""Operator order when tensors lie in several pools: only scratch bytes count."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.ir.lifetime import lifetimes
from qnnmem.planner import PoolOptions, plan_model
from qnnmem.results.proof import ProofScope
from qnnmem.units import Bytes, Offset


class Graph:
    """Collects the tensors and ops of a model."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []

    def tensor(self, name: str, *shape: int) -> str:
        """Add a float32 tensor and return its name."""
        self.tensors[name] = Tensor(name, DType.FLOAT32, shape)
        return name

    def op(self, kind: str, inputs: list[str], output: str, *shape: int) -> str:
        """Add an op with one result of the same name and return that name."""
        self.ops.append(Op(output, kind, tuple(inputs), (self.tensor(output, *shape),)))
        return output


def decoder(layers: int, past: int, heads: int = 4, width: int = 24) -> Model:
    """Return a decoder with past keys and values whose file lists all transposes of keys first."""
    graph = Graph()
    token = graph.tensor("token", 1)
    keys = [graph.tensor(f"key{i}", heads, past, width) for i in range(layers)]
    values = [graph.tensor(f"value{i}", heads, past, width) for i in range(layers)]
    turned = [graph.op("Transpose", [key], f"{key}_turned", heads, width, past) for key in keys]
    table = graph.op("Gather", [token], "table", 64, heads * width)
    state = graph.op("ReduceSum", [table], "embedded", heads, width)
    for i in range(layers):
        query = graph.op("MatMul", [state], f"query{i}", heads, 1, width)
        scores = graph.op("MatMul", [query, turned[i]], f"scores{i}", heads, 1, past)
        weights = graph.op("Softmax", [scores], f"weights{i}", heads, 1, past)
        read = graph.op("MatMul", [weights, values[i]], f"read{i}", heads, width)
        state = graph.op("Add", [read, state], f"state{i}", heads, width)
    return Model(
        "decoder", "onnx", graph.tensors, tuple(graph.ops), (token, *keys, *values), (state,)
    )


def live(model: Model, scratch: set[str]) -> int:
    """Return the peak of live scratch bytes, added up step by step."""
    lives = [one for one in lifetimes(model) if one.name in scratch]
    steps = range(-1, len(model.ops) + 1)
    return max(sum(-(-one.size // 64) * 64 for one in lives if one.live.covers(s)) for s in steps)


@pytest.mark.parametrize(("layers", "past"), [(6, 64), (6, 300), (24, 64)])
def test_transposes_of_past_keys_move_to_their_use(layers: int, past: int) -> None:
    """With IO outside, the new order keeps one transposed key alive at a time, proven minimal."""
    model = decoder(layers, past)
    given = plan_model(model, PoolOptions(io="outside"))
    plan = plan_model(model, PoolOptions(io="outside", reorder=True))
    key = 4 * past * 24 * 4
    assert given.scratch_bytes > layers * key
    assert given.proof is ProofScope.THIS_ORDER
    assert plan.scratch_bytes < max(2 * key, 4 * 64 * 24 * 4 + 2 * 4 * 24 * 4)
    assert plan.proof is ProofScope.ANY_ORDER
    places = {op.name: at for at, op in enumerate(plan.model.ops)}
    assert all(places[f"scores{i}"] - places[f"key{i}_turned"] <= 2 for i in range(layers))
    border = {*model.inputs, *model.outputs}
    assert plan.scratch_bytes == live(plan.model, set(model.tensors) - border)


def lookups_first(count: int) -> Model:
    """Return a long tangled chain whose file lists all its lookups first."""
    rng = random.Random(1)  # noqa: S311 - reproducible, not secret
    graph = Graph()
    given = [graph.tensor(f"given{i}", 16) for i in range(count // 6)]
    looked = [
        graph.op("Gather", [name], f"{name}_wide", rng.choice((160, 800, 1600))) for name in given
    ]
    rng.shuffle(looked)
    chain = [graph.tensor("start", 16)]
    for i in range(count - len(given)):
        reads = [rng.choice(chain[-6:])]
        if looked and rng.random() < 0.4:
            reads.append(looked[-1])
        if looked and rng.random() < 0.3:
            looked.pop()
        if rng.random() < 0.3:
            reads.append(rng.choice(chain[-20:]))
        width = rng.choice((16, 16, 160, 800))
        chain.append(graph.op("Add", list(dict.fromkeys(reads)), f"sum{i}", width))
    return Model("m", "onnx", graph.tensors, tuple(graph.ops), (*given, "start"), (chain[-1],))


@pytest.mark.slow
def test_large_files_have_their_lookups_delayed() -> None:
    """In a graph too large for a full search, the lookups still move next to their uses."""
    model = lookups_first(600)
    given = plan_model(model, PoolOptions(io="outside"))
    plan = plan_model(model, PoolOptions(io="outside", reorder=True))
    assert given.scratch_bytes > 100_000
    assert plan.scratch_bytes < 20_000


def test_old_state_is_not_counted_as_scratch() -> None:
    """An op that copies an old state into scratch runs just before the copy is used."""
    graph = Graph()
    x, old = graph.tensor("x", 16), graph.tensor("old", 4000)
    copy = graph.op("Transpose", [old], "copy", 4000)
    wide = graph.op("Gather", [x], "wide", 3000)
    small = graph.op("ReduceSum", [wide], "small", 16)
    graph.op("Mul", [copy, small], "new", 4000)
    graph.op("ReduceSum", ["new"], "y", 16)
    model = Model("m", "onnx", graph.tensors, tuple(graph.ops), (x, old), ("y", "new"))
    plan = plan_model(model, PoolOptions(states={"old": "new"}, reorder=True))
    assert [op.name for op in plan.model.ops][:3] == ["wide", "small", "copy"]
    assert plan.scratch_bytes == 16_000 + 64
    assert plan.proof is ProofScope.ANY_ORDER


def test_fragmentation_limits_the_claim_to_this_order() -> None:
    """If scratch exceeds the live bytes, the proof holds for this order only.

    Another order may pack better.
    """
    plan = plan_model(decoder(2, 8), PoolOptions(io="outside", reorder=True))
    reordered = plan.reordered
    assert reordered is not None
    assert reordered.proven
    # The same plan with 64 unusable bytes at the start.
    moved = tuple(Offset(offset + 64) for offset in plan.scratch.offsets)
    bound = Bytes(plan.scratch.lower_bound + 64)
    loose = replace(plan.scratch, offsets=moved, lower_bound=bound)
    assert replace(plan, scratch=loose).proof is ProofScope.THIS_ORDER
