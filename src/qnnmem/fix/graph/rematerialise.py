"""Remedy that recomputes cheap tensors shortly before a late use.

The search repeats these steps until nothing improves:

    find the step with the most live bytes, and the tensors that are live there but used later
    choose a tensor that a few cheap ops can recompute from live inputs or smaller tensors
    keep the recomputation if it lowers the peak of live bytes, or the number of steps at the peak

Copies of the nodes get new names, and later readers read the copies. Quantize and dequantize nodes
move with their op. The planner judges the whole model, and results are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Step,
    check_node_count,
    recipe_flag,
)
from qnnmem.fix.tiling.bands import Bander
from qnnmem.fix.tiling.cost import RegionCosts
from qnnmem.fix.tiling.needed_rows import NodeFacts, multiply_adds, rows_of
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.ir import Model, Op
from qnnmem.ir.lifetime import Lifetime, Role, lifetimes
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, all_names, bodies, unused_name
from qnnmem.loader.onnx.passes.build import ELEMENTWISE, build
from qnnmem.loader.onnx.scope import is_deterministic
from qnnmem.planner.pools import PoolOptions
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.tensor import OnnxType


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Positions of the ops to run again, and of the op before which they run again."""

    ops: tuple[int, ...]
    before: int


@dataclass(frozen=True)
class SteppedGraph:
    """A graph with its nodes grouped into ops."""

    graph: TiledGraph

    @cached_property
    def model(self) -> Model:
        """The graph as ops; the `sources` of an op are the positions of its nodes."""
        return build(self.graph.model)

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """For each node, by its position, the positions of the ops that it belongs to."""
        users: dict[int, list[int]] = {}
        for index, op in enumerate(self.model.ops):
            for source in op.sources:
                users.setdefault(source, []).append(index)
        return users

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """All nodes; nodes that compute constants come first."""
        return self.graph.model.scope.graph.node

    @property
    def is_whole(self) -> bool:
        """True if every node that runs belongs to an op."""
        return self.users.keys() >= set(range(len(self.graph.fixed), len(self.nodes)))


def recomputed(graph: SteppedGraph, recomputation: Recomputation) -> SteppedGraph:
    """Return the graph with the recomputation written into it."""
    writer = _RecomputeWriter(graph, recomputation)
    for index, op in enumerate(graph.model.ops):
        if index == recomputation.before:
            writer.repeat()
        writer.emit(index, op)
    model = graph.graph.with_nodes(tuple(writer.written), writer.types, ())
    return SteppedGraph(TiledGraph.of(model))


@dataclass
class _RecomputeWriter:
    """Writes the nodes of a graph op by op, with recomputed copies."""

    graph: SteppedGraph
    recomputation: Recomputation
    written: list[onnx.NodeProto] = field(default_factory=list)
    types: dict[str, OnnxType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._taken = set(all_names(self.graph.graph.model.scope.graph))
        self._taken |= {node.name for node in self.graph.nodes}
        self._fixed = len(self.graph.graph.fixed)
        self._done: set[int] = set()
        self._new: dict[str, str] = {}  # new names of recomputed tensors
        outputs = (self.graph.model.ops[index].outputs for index in self.recomputation.ops)
        self._again = {name for names in outputs for name in names}

    def repeat(self) -> None:
        """Write copies of all recomputed ops in their order."""
        ops = (self.graph.model.ops[index] for index in self.recomputation.ops)
        for source in sorted({source for op in ops for source in op.sources}):
            if source >= self._fixed:
                self._copy(source, self._new)

    def emit(self, index: int, op: Op) -> None:
        """Write the nodes of an op; nodes after the recomputation read the copies."""
        if index < self.recomputation.before or self._again.isdisjoint(op.inputs):
            for source in op.sources:
                self._once(source)
            return
        # Rename reads of this op only: other ops keep the original names.
        names = {name: self._new[name] for name in op.inputs if name in self._again}
        for source in op.sources:
            node = self.graph.nodes[source]
            if source < self._fixed or names.keys().isdisjoint(node.input):
                self._once(source)
            elif len(self.graph.users[source]) > 1:
                self._copy(source, names)  # other ops read the original node
            else:
                self._write(node, [names.get(name, name) for name in node.input], node.output)

    def _once(self, source: int) -> None:
        if source >= self._fixed and source not in self._done:
            self._done.add(source)
            self.written.append(self.graph.nodes[source])

    def _copy(self, source: int, names: dict[str, str]) -> None:
        """Write a copy of a node with inputs renamed by `names`; add its outputs to `names`."""
        node = self.graph.nodes[source]
        inputs = [names.get(name, name) for name in node.input]
        outputs = [self._free(name) if name else "" for name in node.output]
        names.update((old, new) for old, new in zip(node.output, outputs, strict=True) if old)
        self._write(node, inputs, outputs, self._free(node.name) if node.name else "")

    def _write(
        self, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str], name: str = ""
    ) -> None:
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = name or node.name
        copy.input[:], copy.output[:] = inputs, outputs
        self.written.append(copy)

    def _free(self, original: str) -> str:
        """Return an unused name for a copy of a tensor, and record the tensor's type for it."""
        name = unused_name(f"{original}/again", self._taken)
        if original in self.graph.graph.types:
            self.types[name] = self.graph.graph.types[original]
        return name


_MOST_RECOMPUTED = 40  # recomputations in one model
_MOST_OPS = 8  # ops recomputed for one tensor
_MOST_TRIED = 8  # tensors tried at a step, the largest first
_MOST_MACS = 0.01  # share of the model's multiply-adds that a recomputed op may have
# Ops that move, copy, convert or read each element only a few times.
_LIGHT = frozenset(ELEMENTWISE) | frozenset(
    (
        *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Cast", "Transpose"),
        *("Slice", "Gather", "Expand", "Tile", "Concat", "Split", "Pad", "Resize", "Upsample"),
        *("DepthToSpace", "SpaceToDepth", "QuantizeLinear", "DequantizeLinear", "MaxPool"),
        *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "Softmax"),
        *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"),
    )
)
_MULTIPLYING = frozenset(("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "MatMul"))


@dataclass(frozen=True, slots=True)
class RecomputeRemedy:
    """Remedy that recomputes cheap tensors."""

    name: str = "recompute"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield one change with all recomputations that lower the peak."""
        start = base.change
        graph = SteppedGraph(TiledGraph.of(start.model))
        if not graph.is_whole:
            return
        done: list[dict[str, Any]] = []
        work = 0
        limit = bench.case.limit
        while len(done) < _MOST_RECOMPUTED and bench.case.seconds_left:
            search = _RecomputeSearch(graph, start.pool_options)
            if limit is not None and search.score[0] <= limit:
                break
            recomputation = search.best()
            if recomputation is None:
                break
            done.append(_as_json(graph, recomputation))
            work += sum(map(search.work, recomputation.ops))
            graph = recomputed(graph, recomputation)
        if done:
            yield bench.judged(self._change(start, graph, done, work))

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's recomputations; raise UsageError if the model differs."""
        graph = SteppedGraph(TiledGraph.of(base.model))
        check_node_count(step, len(graph.graph.nodes))
        if not graph.is_whole:
            raise UsageError(
                "the recipe recomputes ops, but this model has nodes that belong to no op"
            )
        done, work = list(step["redos"])[:_MOST_RECOMPUTED], 0
        for values in done:
            recomputation = _read_recomputation(graph, values)
            search = _RecomputeSearch(graph, base.pool_options)
            work += sum(map(search.work, recomputation.ops))
            graph = recomputed(graph, recomputation)
        options = replace(base.pool_options, inplace=recipe_flag(step["inplace"]))
        return replace(self._change(base, graph, done, work), options=options)

    def _change(
        self, base: Change, graph: SteppedGraph, done: list[dict[str, Any]], work: int
    ) -> Change:
        before = TiledGraph.of(base.model)
        ops = sum(len(values["ops"]) for values in done)
        step = {
            "nodes": len(before.nodes),
            "redos": done,
            "inplace": base.pool_options.inplace,
        }
        return base.then(
            self.name,
            f"{counted(ops, 'op')} recomputed",
            step,
            model=graph.graph.model,
            macs=base.macs or Bander(before).macs(),
            extra_macs=base.extra_macs + work,
        )


class _RecomputeSearch:
    """Search for tensors of one graph that are worth recomputing."""

    def __init__(self, graph: SteppedGraph, options: PoolOptions) -> None:
        self.graph, self.options = graph, options
        self.model = graph.model
        self._maker = {name: i for i, op in enumerate(self.model.ops) for name in op.outputs}

    @cached_property
    def _alive(self) -> list[int]:
        """Live bytes at each step."""
        return RegionCosts(self.graph.graph, self.options).at_step

    @property
    def score(self) -> tuple[int, int]:
        """Peak of live bytes, and the number of steps at the peak; lower is better."""
        return max(self._alive), self._alive.count(max(self._alive))

    @cached_property
    def _lives(self) -> dict[str, Lifetime]:
        """Lifetime of each tensor, by tensor name."""
        lives = lifetimes(self.model, bits=self.options.bits, inplace=self.options.inplace)
        return {name: life for life in lives for name in (life.name, *life.aliases)}

    def best(self) -> Recomputation | None:
        """Return the recomputation that gives the lowest score; None if none lowers the score."""
        least, best = self.score, None
        for recomputation in self._possible():
            score = _RecomputeSearch(recomputed(self.graph, recomputation), self.options).score
            if score < least:
                least, best = score, recomputation
        return best

    def _possible(self) -> Iterator[Recomputation]:
        hot = self._alive.index(self.score[0])
        if hot >= len(self.model.ops):
            return
        busy = {*self.model.ops[hot].inputs, *self.model.ops[hot].outputs}
        lives = {life.name: life for life in self._lives.values() if life.live.covers(hot)}
        tried = 0
        for life in sorted(lives.values(), key=lambda life: (-life.size, life.name)):
            names = {life.name, *life.aliases}
            if life.roles != {Role.TEMPORARY} or not busy.isdisjoint(names):
                continue
            recomputation = self._recomputation(life, names, hot)
            if recomputation is not None:
                yield recomputation
                tried += 1
            if tried >= _MOST_TRIED:
                return

    def _recomputation(self, life: Lifetime, names: set[str], hot: int) -> Recomputation | None:
        """Return the recomputation of a tensor for all later readers; None if it costs too much."""
        late = [
            (reader, name)
            for reader, op in enumerate(self.model.ops)
            if reader > hot
            for name in op.inputs
            if name in names and self._maker.get(name, reader) < hot
        ]
        if not late:
            return None
        before = late[0][0]
        ops: set[int] = set()
        cost = sum(self._cost(name, hot, names, ops) for name in {name for _, name in late})
        if cost >= life.size or len(ops) > _MOST_OPS:
            return None
        return Recomputation(tuple(sorted(ops)), before)

    def _cost(self, name: str, hot: int, own: set[str], ops: set[int], depth: int = 0) -> float:
        """Return the extra bytes that recomputing a tensor keeps live.

        The ops to run again are added to `ops`.
        """
        maker = self._maker.get(name)
        if maker is None or depth >= _MOST_OPS or not self.is_cheap(maker):
            return math.inf
        if maker in ops:
            return 0
        total, chosen = 0.0, {maker}
        for source in self.model.ops[maker].inputs:
            life = self._lives.get(source)
            if life is None:
                continue  # a constant or a state
            if source not in own and life.live.covers(hot):
                continue  # live at the peak anyway
            keeping = math.inf if source in own else float(life.size)
            inner: set[int] = set()
            recomputing = self._cost(source, hot, own, inner, depth + 1)
            if recomputing < keeping:
                chosen |= inner
            total += min(recomputing, keeping)
        ops |= chosen
        return total

    def is_cheap(self, index: int) -> bool:
        """Return True if an op is cheap enough to recompute."""
        op = self.model.ops[index]
        nodes = [self.graph.nodes[source] for source in op.sources]
        if op.bodies or not op.inputs or not all(map(is_deterministic, nodes)):
            return False
        if any(node.domain not in ONNX_DOMAINS or any(bodies(node)) for node in nodes):
            return False
        kinds = {node.op_type for node in nodes}
        if kinds <= _LIGHT:
            return True
        return kinds <= _LIGHT | _MULTIPLYING and self.work(index) <= _MOST_MACS * self._macs

    @cached_property
    def _macs(self) -> int:
        return Bander(self.graph.graph).macs()

    def work(self, index: int) -> int:
        """Return the multiply-adds of an op; ops without multiplications count one per element."""
        return sum(map(self._node_work, self.model.ops[index].sources))

    def _node_work(self, source: int) -> int:
        facts = NodeFacts(self.graph.graph, self.graph.nodes[source], -2)
        rows = max(rows_of(facts.result, -2), 1)
        return multiply_adds(facts) * rows or math.prod(facts.result)


def _as_json(graph: SteppedGraph, recomputation: Recomputation) -> dict[str, Any]:
    """Return a recomputation as JSON values; output names identify the ops."""
    ops = graph.model.ops
    return {
        "ops": [ops[index].outputs[0] for index in recomputation.ops],
        "before": ops[recomputation.before].outputs[0],
    }


def _read_recomputation(graph: SteppedGraph, values: Mapping[str, Any]) -> Recomputation:
    """Read a recomputation from a recipe; raise UsageError if the recipe is for another model."""
    makers = {op.outputs[0]: index for index, op in enumerate(graph.model.ops) if op.outputs}
    names = [*map(str, values["ops"]), str(values["before"])]
    unknown = next((name for name in names if name not in makers), None)
    if unknown is not None:
        raise UsageError(f"the recipe is for another model: no op produces {quote(unknown)}")
    *ops, before = (makers[name] for name in names)
    if not ops or len(ops) > _MOST_OPS or max(ops) >= before:
        raise UsageError(
            "the recipe recomputes no ops, too many ops, or an op before its first run"
        )
    return Recomputation(tuple(sorted(ops)), before)
