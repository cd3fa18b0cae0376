"""The remedy that computes a cheap tensor again instead of keeping it while the most is alive.

    at the fullest step    what is kept there and only read later
    can it be made again   by a few cheap ops, from what is there anyway or is smaller
    is less alive then     the same count as the planner's, over all steps; else the next

until nothing gets better. The planner is the judge of the whole, and results are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.fix.graph.redo import Redo, SteppedGraph, redone
from qnnmem.fix.graph.settings import flag
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.bands import Bander
from qnnmem.fix.tiling.cost import RegionCosts
from qnnmem.fix.tiling.facts import NodeFacts, rows_of
from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.fix.tiling.remedy import count
from qnnmem.fix.tiling.windows import multiply_adds
from qnnmem.ir.lifetime import Lifetime, Role, lifetimes
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, bodies
from qnnmem.loader.onnx.passes.build import ELEMENTWISE
from qnnmem.loader.onnx.scope import is_deterministic
from qnnmem.planner.pools import PoolOptions
from qnnmem.text import counted, quote

_MOST_REDOS = 40  # in one model
_MOST_OPS = 8  # that are done again for one tensor
_MOST_TRIED = 8  # tensors at a step, the largest first
_MOST_MACS = 0.01  # of the whole model, for an op that multiplies
# Ops that move, copy, convert or look at each element a few times.
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
    """Cheap tensors computed again."""

    name: str = "recompute"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """As many as bring something, with the options of the best so far."""
        start = base.change
        graph = SteppedGraph(TiledGraph.of(start.model))
        if not graph.is_whole:
            return
        redos: list[dict[str, Any]] = []
        work = 0
        limit = bench.case.limit
        while len(redos) < _MOST_REDOS and bench.case.seconds_left:
            search = _RedoSearch(graph, start.pool_options)
            if limit is not None and search.score[0] <= limit:
                break
            found = search.best()
            if found is None:
                break
            redos.append(_as_json(graph, found))
            work += sum(search.work(at) for at in found.ops)
            graph = redone(graph, found)
        if redos:
            yield bench.judged(self._change(start, graph, redos, work))

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """The same ops before the same readers."""
        graph = SteppedGraph(TiledGraph.of(base.model))
        nodes = count(step["nodes"])
        if len(graph.graph.nodes) != nodes or not graph.is_whole:
            found = len(graph.graph.nodes)
            raise UsageError(f"the recipe is for a model of {nodes} nodes, this one has {found}")
        redos, work = list(step["redos"])[:_MOST_REDOS], 0
        for one in redos:
            redo = _read_redo(graph, one)
            search = _RedoSearch(graph, base.pool_options)
            work += sum(search.work(at) for at in redo.ops)
            graph = redone(graph, redo)
        options = replace(base.pool_options, inplace=flag(step["inplace"]))
        return replace(self._change(base, graph, redos, work), options=options)

    def _change(
        self, base: Change, graph: SteppedGraph, redos: list[dict[str, Any]], work: int
    ) -> Change:
        before = TiledGraph.of(base.model)
        ops = sum(len(one["ops"]) for one in redos)
        step = {
            "nodes": len(before.nodes),
            "redos": redos,
            "inplace": base.pool_options.inplace,
        }
        return base.then(
            self.name,
            f"{counted(ops, 'op')} computed again",
            step,
            model=graph.graph.model,
            macs=base.macs or Bander(before).macs(),
            extra_macs=base.extra_macs + work,
        )


class _RedoSearch:
    """Looks for what is worth being done again in one graph."""

    def __init__(self, graph: SteppedGraph, options: PoolOptions) -> None:
        self.graph, self.options = graph, options
        self.model = graph.model
        self._maker = {name: at for at, op in enumerate(self.model.ops) for name in op.outputs}

    @cached_property
    def score(self) -> tuple[int, int]:
        """Most bytes alive, and at how many steps; less is better."""
        alive = RegionCosts(self.graph.graph, self.options).at_step
        return max(alive), alive.count(max(alive))

    @cached_property
    def _lives(self) -> dict[str, Lifetime]:
        """Stretches of memory by every name in them."""
        options = self.options
        found = lifetimes(self.model, bits=options.bits, inplace=options.inplace)
        return {name: life for life in found for name in (life.name, *life.aliases)}

    def best(self) -> Redo | None:
        """What brings the most at the fullest step; None where nothing does."""
        least, found = self.score, None
        for redo in self._possible():
            score = _RedoSearch(redone(self.graph, redo), self.options).score
            if score < least:
                least, found = score, redo
        return found

    def _possible(self) -> Iterator[Redo]:
        alive = RegionCosts(self.graph.graph, self.options).at_step
        hot = alive.index(max(alive))
        if hot >= len(self.model.ops):
            return
        busy = {*self.model.ops[hot].inputs, *self.model.ops[hot].outputs}
        lives = {life.name: life for life in self._lives.values() if life.live.covers(hot)}
        tried = 0
        for life in sorted(lives.values(), key=lambda one: (-one.size, one.name)):
            names = {life.name, *life.aliases}
            if life.roles != {Role.TEMPORARY} or not busy.isdisjoint(names):
                continue
            redo = self._redo(life, names, hot)
            if redo is not None:
                yield redo
                tried += 1
            if tried >= _MOST_TRIED:
                return

    def _redo(self, life: Lifetime, names: set[str], hot: int) -> Redo | None:
        """How what lies in a stretch of memory is made again for all that read it later."""
        late = [
            (at, name)
            for at, op in enumerate(self.model.ops)
            if at > hot
            for name in op.inputs
            if name in names and self._maker.get(name, at) < hot
        ]
        if not late:
            return None
        before = late[0][0]
        ops: set[int] = set()
        cost = sum(self._cost(name, hot, names, ops) for name in {name for _, name in late})
        if cost >= life.size or len(ops) > _MOST_OPS:
            return None
        return Redo(tuple(sorted(ops)), before)

    def _cost(self, name: str, hot: int, own: set[str], ops: set[int], depth: int = 0) -> float:
        """Bytes that must be kept at a step so that a tensor can be made again; adds the ops."""
        at = self._maker.get(name)
        if at is None or depth >= _MOST_OPS or not self.is_cheap(at):
            return math.inf
        if at in ops:
            return 0
        total, chosen = 0.0, {at}
        for source in self.model.ops[at].inputs:
            life = self._lives.get(source)
            if life is None:
                continue  # a constant, or state
            if source not in own and life.live.covers(hot):
                continue  # there anyway
            kept = math.inf if source in own else float(life.size)
            inner: set[int] = set()
            made = self._cost(source, hot, own, inner, depth + 1)
            if made < kept:
                chosen |= inner
            total += min(made, kept)
        ops |= chosen
        return total

    def is_cheap(self, at: int) -> bool:
        """Whether an op may be done again."""
        op = self.model.ops[at]
        nodes = [self.graph.nodes[source] for source in op.sources]
        if op.bodies or not op.inputs or not all(map(is_deterministic, nodes)):
            return False
        if any(node.domain not in ONNX_DOMAINS or any(bodies(node)) for node in nodes):
            return False
        kinds = {node.op_type for node in nodes}
        if kinds <= _LIGHT:
            return True
        return kinds <= _LIGHT | _MULTIPLYING and self.work(at) <= _MOST_MACS * self._macs

    @cached_property
    def _macs(self) -> int:
        return Bander(self.graph.graph).macs()

    def work(self, at: int) -> int:
        """Multiply-adds of an op; one for each element of an op that does not multiply."""
        return sum(self._node_work(source) for source in self.model.ops[at].sources)

    def _node_work(self, source: int) -> int:
        facts = NodeFacts(self.graph.graph, self.graph.nodes[source], -2)
        rows = max(rows_of(facts.result, -2), 1)
        return multiply_adds(facts) * rows or math.prod(facts.result)


def _as_json(graph: SteppedGraph, redo: Redo) -> dict[str, Any]:
    """Ops by what they make."""
    ops = graph.model.ops
    return {"ops": [ops[at].outputs[0] for at in redo.ops], "before": ops[redo.before].outputs[0]}


def _read_redo(graph: SteppedGraph, values: Mapping[str, Any]) -> Redo:
    """What a recipe says; refused where the model is another one."""
    place = {op.outputs[0]: at for at, op in enumerate(graph.model.ops) if op.outputs}
    names = [*map(str, values["ops"]), str(values["before"])]
    unknown = next((name for name in names if name not in place), None)
    if unknown is not None:
        raise UsageError(f"the recipe is for another model: nothing makes {quote(unknown)}")
    *ops, before = (place[name] for name in names)
    if not ops or len(ops) > _MOST_OPS or max(ops) >= before:
        raise UsageError("the recipe does ops again before they are done")
    return Redo(tuple(sorted(ops)), before)
