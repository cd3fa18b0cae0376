"""Checks each claim about operator order against an independent search of every order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from seeds import few

from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.planner import PoolOptions, plan_model
from qnnmem.results.proof import ProofScope

SEEDS = few(500, 2)
_NEVER = 1 << 60


@dataclass
class Case:
    """A graph as plain data: nodes read and write names; some results are views."""

    reads: list[list[str]] = field(default_factory=list)
    writes: list[list[str]] = field(default_factory=list)
    view: list[bool] = field(default_factory=list)
    shape: dict[str, tuple[DType, int]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    io: str = "inside"
    align: int = 64
    bits: int | None = None
    inplace: bool = False
    states: list[tuple[str, str]] = field(default_factory=list)


def make_case(seed: int) -> Case:
    """Return a random graph of up to 12 nodes with random options."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    case = Case(inputs=[f"in{i}" for i in range(rng.randint(1, 4))])
    sizes = (16, 16, 40, 160, 250, 1000)

    def tensor(name: str) -> None:
        case.shape[name] = rng.choice((DType.FLOAT32, DType.UINT8)), rng.choice(sizes)

    for name in case.inputs:
        tensor(name)
    if rng.random() < 0.2:
        case.variables.append("kept")
        tensor("kept")
    known = list(case.inputs)
    for node in range(rng.randint(1, 12)):
        reads = rng.sample(known, min(len(known), rng.choice((0, 1, 1, 1, 2, 2, 3))))
        writes = [f"t{node}.{i}" for i in range(rng.choice((1, 1, 1, 1, 2)))]
        is_view = bool(reads) and rng.random() < 0.2
        for name in writes:
            tensor(name)
        if is_view:
            case.shape[writes[0]] = case.shape[reads[0]]
        case.view.append(is_view)
        case.writes.append(writes)
        case.reads.append(reads + case.variables * (rng.random() < 0.3))
        known += writes
    made = [name for names in case.writes for name in names]
    case.outputs = rng.sample(made, min(len(made), rng.randint(1, 3)))
    case.io = rng.choice(("inside", "outside"))
    case.align = rng.choice((1, 32, 64, 256))
    case.bits = rng.choice((None, None, 8, 16))
    case.inplace = rng.random() < 0.15
    if rng.random() < 0.4:
        old, new = rng.choice(case.inputs), rng.choice(case.outputs)
        case.shape[new] = case.shape[old]
        case.states.append((old, new))
    return case


def as_model(case: Case, rng: random.Random) -> Model:
    """Return the case as a qnnmem model."""
    effects = (Effect.COMPUTE, Effect.ELEMENTWISE)
    return Model(
        "m",
        "onnx",
        {name: Tensor(name, kind, (count,)) for name, (kind, count) in case.shape.items()},
        tuple(
            Op(
                f"op{node}",
                "any",
                tuple(reads),
                tuple(case.writes[node]),
                Effect.VIEW if case.view[node] else rng.choice(effects),
            )
            for node, reads in enumerate(case.reads)
        ),
        tuple(case.inputs),
        tuple(case.outputs),
        (),
        tuple(case.variables),
    )


class Oracle:
    """Finds the true minimum over every order, using the sets of nodes that have run."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.count = len(case.reads)
        self.owner = {name: name for name in case.shape if name not in case.variables}
        for node in range(self.count):
            if case.view[node]:
                self.owner[case.writes[node][0]] = self.owner[case.reads[node][0]]
        self.members: dict[str, set[str]] = {}
        for name, owner in self.owner.items():
            self.members.setdefault(owner, set()).add(name)
        self.users = {
            owner: [
                node
                for node in range(self.count)
                if names & {*case.reads[node], *case.writes[node]}
            ]
            for owner, names in self.members.items()
        }

    def size(self, owner: str) -> int:
        """Return the padded bytes that a tensor and its views share."""

        def stored(name: str) -> int:
            kind, count = self.case.shape[name]
            wide = kind is DType.FLOAT32
            return count * ((self.case.bits or 32) // 8 if wide else 1)

        most = max(stored(name) for name in self.members[owner])
        return -(-most // self.case.align) * self.case.align

    def first(self, node: int) -> set[int]:
        """Return the nodes that must run before this node."""
        case = self.case
        earlier = set()
        for other in range(node):
            feeds = set(case.writes[other]) & set(case.reads[node])
            tied = set(case.variables) & set(case.reads[other]) & set(case.reads[node])
            if feeds or tied:
                earlier.add(other)
        return earlier

    def away(self) -> set[str]:
        """Return the owners that are never in scratch; new states depend on the order."""
        case = self.case
        state = {name for pair in case.states for name in pair}
        border = {*case.inputs, *case.outputs}
        found = {self.owner[old] for old, _ in case.states}
        if case.io == "outside":
            found |= {owner for owner, names in self.members.items() if names & border - state}
        return found

    def movable(self) -> dict[str, str]:
        """Map each new state that may overwrite its old state to that old state."""
        case = self.case
        found = {}
        for old, new in case.states:
            owner, names = self.owner[new], self.members[self.owner[new]]
            shown = names & {*case.inputs, *case.outputs} - {old, new}
            if owner != self.owner[old] and not shown and not names & set(case.inputs):
                found[owner] = self.owner[old]
        return found

    def fewest(self) -> int:
        """Return the peak of live bytes in the best order."""
        owners = [owner for owner in self.members if owner not in self.away()]
        movable = self.movable()
        early = {name for name in owners if self.members[name] & set(self.case.inputs)}
        late = {name for name in owners if self.members[name] & set(self.case.outputs)}
        first = [self.first(node) for node in range(self.count)]
        size = {owner: self.size(owner) for owner in owners}

        def alive(done: frozenset[int], node: int, moved: frozenset[str]) -> int:
            after = done | {node}
            return sum(
                size[owner]
                for owner in owners
                if owner not in moved
                and (owner in early or after.intersection(self.users[owner]))
                and (owner in late or not done.issuperset(self.users[owner]))
            )

        # Inputs are alive before the first op, outputs after the last one.
        start = sum(size[owner] for owner in early)
        states = {(frozenset[int](), frozenset[str]()): start}
        for _ in range(self.count):
            following: dict[tuple[frozenset[int], frozenset[str]], int] = {}
            for (done, moved), most in states.items():
                for node in range(self.count):
                    if node in done or not done >= first[node]:
                        continue
                    now = set(moved)
                    for owner, old in movable.items():
                        born = owner in self.case.writes[node]
                        if born and done.issuperset(self.users[old]):
                            now.add(owner)
                    key = done | {node}, frozenset(now)
                    need = max(most, alive(done, node, frozenset(now)))
                    following[key] = min(following.get(key, _NEVER), need)
            states = following
        ends = []
        for (_, moved), most in states.items():
            ends.append(max(most, sum(size[owner] for owner in late if owner not in moved)))
        return min(ends)


def options_of(case: Case) -> PoolOptions:
    """Return the options of a case, with reordering on."""
    return PoolOptions(
        io=case.io,
        align=case.align,
        bits=case.bits,
        states=case.states,
        inplace=case.inplace,
        reorder=True,
    )


def is_valid(case: Case, order: list[int]) -> bool:
    """True if every node runs after its dependencies."""
    place = {node: at for at, node in enumerate(order)}
    oracle = Oracle(case)
    return sorted(order) == list(range(len(case.reads))) and all(
        place[earlier] < place[node] for node in order for earlier in oracle.first(node)
    )


class Judged(NamedTuple):
    """A random graph, the planner's claim about it, and the true minimum."""

    seed: int
    case: Case
    claim: ProofScope
    scratch: int
    least: int


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    """Return every random graph with its planned scratch and its true minimum."""
    found = []
    for seed in range(SEEDS):
        case = make_case(seed)
        model = as_model(case, random.Random(seed))  # noqa: S311 - reproducible, not secret
        plan = plan_model(model, options_of(case))
        order = [int(op.name[2:]) for op in plan.model.ops]
        assert is_valid(case, order), seed
        found.append(Judged(seed, case, plan.proof, plan.scratch_bytes, Oracle(case).fewest()))
    return found


def test_minimal_for_any_order_is_the_true_minimum(judged: list[Judged]) -> None:
    """A plan that claims the minimum for any order has the true minimum over all orders."""
    claimed = [one for one in judged if one.claim is ProofScope.ANY_ORDER]
    assert not [one.seed for one in claimed if one.scratch != one.least]


def test_no_plan_is_below_the_true_minimum(judged: list[Judged]) -> None:
    """Without in-place ops, no plan is smaller than the true minimum."""
    plain = [one for one in judged if not one.case.inplace]
    assert not [one.seed for one in plain if one.scratch < one.least]


def test_the_best_order_of_small_graphs_is_found_and_proven(judged: list[Judged]) -> None:
    """Up to 12 nodes, every best order is found and proven; with states, nearly every one.

    Whether a new state waits in scratch depends on the order, so the search can only bound it.
    """
    plain = [one for one in judged if not one.case.inplace]
    missed = [one for one in plain if one.scratch > one.least]
    # A narrower bit width makes the plan an estimate, which never claims a proof.
    exact = [one for one in plain if one.claim is not ProofScope.ESTIMATE]
    unproven = [one for one in exact if one.claim is not ProofScope.ANY_ORDER]
    assert not [one.seed for one in (*missed, *unproven) if not one.case.states]
    assert len(missed) <= 0.03 * len(plain)
    assert len(unproven) <= 0.1 * len(exact)
    assert all(one.case.bits for one in plain if one not in exact)


def test_a_model_with_bodies_has_an_upper_bound() -> None:
    """With control-flow bodies the plan is an upper bound, since bodies are planned separately."""
    body = Model(
        "b", "onnx", {"p": Tensor("p", DType.UINT8, (100,))}, (Op("o", "any", (), ("p",)),)
    )
    for seed in range(50):
        case = make_case(seed)
        model = as_model(case, random.Random(seed))  # noqa: S311 - reproducible, not secret
        ops = (replace(model.ops[0], effect=Effect.COMPUTE, bodies=(body,)), *model.ops[1:])
        plan = plan_model(replace(model, ops=ops), options_of(case))
        assert plan.proof in (ProofScope.UPPER_BOUND, ProofScope.ESTIMATE)
        assert (plan.proof is ProofScope.ESTIMATE) == plan.is_estimate
        assert plan.reordered is not None
        assert not plan.reordered.proven


def test_in_place_ops_are_never_called_minimal_for_any_order(
    judged: list[Judged],
) -> None:
    """With in-place ops no plan claims a minimum for any order.

    Which input an op overwrites depends on the order, and the bound ignores that.
    """
    claims = {one.claim for one in judged if one.case.inplace and one.scratch}
    assert claims <= {ProofScope.IN_PLACE, ProofScope.NONE, ProofScope.ESTIMATE}
