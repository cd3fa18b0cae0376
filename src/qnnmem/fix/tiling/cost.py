"""Live bytes while a region runs in bands, compared with the original model.

The live bytes during a region do not depend on other regions, because between two regions every
tensor is whole. So each region is judged alone, and the maximum decides. The whole model is judged
by its plan once it is finished. The counting follows `qnnmem.ir.lifetime`, but uses numbers instead
of names and skips checks, because the search counts many short trials. A test compares the two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from qnnmem.fix.tiling.bands import WHOLE, BandedRegion, Cut, NodeRun, Part, schedule
from qnnmem.fix.tiling.needed_rows import Rows, rows_of
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.ir import Effect
from qnnmem.ir.lifetime import Lifetime, lifetimes, stored_bytes
from qnnmem.loader.onnx.graph import is_quant, reads
from qnnmem.loader.onnx.graph import live as live_nodes
from qnnmem.loader.onnx.passes.build import Group, build, group
from qnnmem.loader.onnx.tensor import DTYPES
from qnnmem.planner.model_plan import DEFAULT_ALIGN
from qnnmem.planner.pools import Io, PoolOptions
from qnnmem.units import round_up

if TYPE_CHECKING:
    from qnnmem.ir import Model


class Liveness:
    """Buffers and the steps that use them; None stands for a tensor outside of scratch."""

    def __init__(self, *, inplace: bool) -> None:
        self._inplace = inplace
        self._numbers: dict[Hashable, int] = {}
        self._sizes: list[int] = []
        self._born: list[int] = []
        self._last: list[int] = []
        self._joined: list[tuple[Effect, list[int], int, int]] = []
        self._steps = 0

    def number(self, key: Hashable, size: int) -> int:
        """Return the number of a buffer; if the key is new, add a buffer of this size."""
        number = self._numbers.setdefault(key, len(self._sizes))
        if number == len(self._sizes):
            self._sizes.append(size)
            self._born.append(-1)
            self._last.append(-1)
        return number

    def rename(self, old: Hashable, new: Hashable) -> None:
        """Give a buffer a second name."""
        self._numbers[new] = self._numbers[old]

    def run(
        self,
        inputs: Iterable[int | None],
        outputs: Iterable[int | None],
        effect: Effect = Effect.COMPUTE,
    ) -> None:
        """Add a step that reads the buffers `inputs` and writes the buffers `outputs`."""
        step = self._steps
        self._steps += 1
        read = [buffer for buffer in inputs if buffer is not None]
        written = [buffer for buffer in outputs if buffer is not None]
        for buffer in read:
            self._last[buffer] = step
        for buffer in written:
            self._born[buffer] = self._last[buffer] = step
        if written and (effect is Effect.VIEW or (self._inplace and effect is Effect.ELEMENTWISE)):
            self._joined.append((effect, read, written[0], step))

    def keep(self, buffer: int | None) -> None:
        """Keep a buffer live after the last step."""
        if buffer is not None:
            self._last[buffer] = self._steps

    def peak(self) -> int:
        """Return the peak of live bytes."""
        root = list(range(len(self._sizes)))
        size, last = list(self._sizes), list(self._last)

        def find(buffer: int) -> int:
            while root[buffer] != buffer:
                root[buffer] = root[root[buffer]]
                buffer = root[buffer]
            return buffer

        for effect, read, written, step in self._joined:
            own = find(written)
            for buffer in read:
                group = find(buffer)
                may_share = effect is Effect.VIEW or (
                    last[group] == step
                    and self._born[group] >= 0
                    and self._sizes[buffer] == size[group] == size[own]
                )
                if group != own and may_share:
                    root[own] = group
                    last[group] = max(last[group], last[own])
                    size[group] = max(size[group], size[own])
                    break
                if effect is Effect.VIEW:
                    break
        changes = [0] * (self._steps + 3)
        for buffer in range(len(size)):
            if root[buffer] == buffer:
                changes[self._born[buffer] + 1] += size[buffer]
                changes[last[buffer] + 2] -= size[buffer]
        return max(itertools.accumulate(changes))


@dataclass(frozen=True)
class RegionCosts:
    """Live bytes of a model, and of its regions computed in bands."""

    graph: TiledGraph
    options: PoolOptions
    _bits: dict[tuple[str, int], int] = field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        """The unchanged model."""
        return build(self.graph.model)

    @cached_property
    def _outside(self) -> frozenset[str]:
        """Names of tensors that are not in scratch."""
        kept = {name for pair in self.options.states for name in pair}
        io = {*self.model.inputs, *self.model.outputs} if self.options.io is Io.OUTSIDE else set()
        return frozenset(kept | io)

    @cached_property
    def _lives(self) -> tuple[Lifetime, ...]:
        lives = lifetimes(self.model, bits=self.options.bits, inplace=self.options.inplace)
        return tuple(life for life in lives if self._outside.isdisjoint((life.name, *life.aliases)))

    def _round(self, size: int) -> int:
        return round_up(size, self.options.align or DEFAULT_ALIGN)

    @cached_property
    def _steps(self) -> list[int]:
        """Step of each node; a folded quantize node has the step of its op."""
        fixed = len(self.graph.fixed)
        known = {
            index - fixed: step for step, op in enumerate(self.model.ops) for index in op.sources
        }
        steps = (known.get(index, 0) for index in range(len(self.graph.nodes)))
        return list(itertools.accumulate(steps, max))

    @cached_property
    def _effects(self) -> dict[int, Effect]:
        """Memory effect of each node, by position of the node."""
        fixed = len(self.graph.fixed)
        return {index - fixed: op.effect for op in self.model.ops for index in op.sources}

    @cached_property
    def at_step(self) -> list[int]:
        """Live bytes at each step of the model, and after the last step."""
        changes = [0] * (len(self.model.ops) + 3)
        for life in self._lives:
            changes[life.live.lower + 1] += self._round(life.size)
            changes[life.live.upper + 1] -= self._round(life.size)
        return list(itertools.accumulate(changes))[1:]

    @cached_property
    def at_node(self) -> list[int]:
        """Live bytes while each node runs."""
        return [self.at_step[step] for step in self._steps]

    @cached_property
    def before_node(self) -> list[int]:
        """Live bytes before each node, and after the last node."""
        changes = [0] * (len(self.model.ops) + 3)
        for life in self._lives:  # live on both sides of the boundary
            changes[life.live.lower + 1] += self._round(life.size)
            changes[life.live.upper] -= self._round(life.size)
        sums = list(itertools.accumulate(changes))
        return [sums[start] for start in (*self._steps, len(self.model.ops))]

    def exit_bytes(self, first: int, end: int) -> int:
        """Return the bytes of a region's results that are still needed after the region."""
        results = (name for node in self.graph.nodes[first:end] for name in node.output)
        tensors = self.model.tensors
        return sum(
            self._round(stored_bytes(tensors[name], self.options.bits))
            for name in results
            if name in tensors and self.graph.last_read.get(name, -1) >= end
        )

    def of(self, banded: BandedRegion) -> int:
        """Return the peak of live bytes while a region runs in bands."""
        graph, region = self.graph, banded.region
        results = {name for index in region.nodes for name in graph.nodes[index].output if name}
        read = {name for index in region.nodes for name in reads(graph.nodes[index])}
        entries = sorted(read - results - graph.const)
        touched = {*entries, *banded.exits}
        first, last = self._steps[region.first], self._steps[region.end - 1]
        through = sum(
            self._round(life.size)
            for life in self._lives
            if life.live.lower < first
            and life.live.upper > last + 1
            and touched.isdisjoint((life.name, *life.aliases))
        )
        kept = [name for name in entries if graph.last_read.get(name, -1) >= region.end]
        return through + self._simulated(banded, entries, kept)

    def _simulated(self, banded: BandedRegion, entries: Sequence[str], kept: Sequence[str]) -> int:
        """Return the peak of live bytes in a simulated run of the region."""
        live, axis = Liveness(inplace=self.options.inplace), banded.region.axis

        def key(part: Part) -> Part:
            return part._replace(tensor=self._written_as.get(part.tensor, part.tensor))

        def number(part: Part) -> int | None:
            own = key(part)
            if own.tensor in self._outside or own.tensor in self.graph.const:
                return None
            size = -(-self._row_bits(own.tensor, axis) * own.rows.height // 8)
            return live.number(own, self._round(size))

        def whole(name: str) -> int | None:
            rows = rows_of(self.graph.shape(name) or (), axis)
            return number(Part(name, WHOLE, Rows(0, rows)))

        for name in entries:
            whole(name)
        for work in schedule(self.graph, banded):
            if not isinstance(work, NodeRun):
                sources = (work.source,) if isinstance(work, Cut) else work.parts
                live.run([*map(number, sources)], [number(work.result)])
                continue
            inputs = [part for part in work.inputs if part is not None]
            outputs = [part for part in work.outputs if part is not None]
            if work.at in self._dequantizing and number(inputs[0]) is not None:
                live.rename(key(inputs[0]), key(outputs[0]))
            elif work.at not in self._folded:
                names = zip(self.graph.nodes[work.at].input, work.inputs, strict=True)
                plain = [whole(name) for name, part in names if name and part is None]
                effect = self._effects.get(work.at, Effect.COMPUTE)
                live.run([*map(number, inputs), *plain], [*map(number, outputs)], effect)
        for name in (*banded.exits, *kept):
            live.keep(whole(name))
        return live.peak()

    @cached_property
    def _groups(self) -> list[Group]:
        """Nodes grouped with the quantize and dequantize nodes folded into them."""
        graph = self.graph.model.scope.graph
        return group(graph, live_nodes(graph), self.graph.const)

    @cached_property
    def _folded(self) -> frozenset[int]:
        """Positions of nodes that are folded into another node's step."""
        fixed = len(self.graph.fixed)
        folded = (index - fixed for item in self._groups for index in (*item.before, *item.after))
        return frozenset(index for index in folded if index >= 0)

    @cached_property
    def _dequantizing(self) -> frozenset[int]:
        """Folded dequantize nodes; their readers read the integers directly."""
        nodes = self.graph.nodes
        return frozenset(
            index for index in self._folded if is_quant(nodes[index], "DequantizeLinear")
        )

    @cached_property
    def _written_as(self) -> dict[str, str]:
        """For each float tensor that a quantized tensor replaces, the quantized tensor's name."""
        nodes = (self.graph.nodes[index] for index in self._folded - self._dequantizing)
        return {node.input[0]: node.output[0] for node in nodes}

    def _row_bits(self, name: str, axis: int) -> int:
        """Return the number of bits in one row of a tensor."""
        known = self._bits.get((name, axis))
        if known is None:
            kind = self.graph.types[name]
            dtype, shape = DTYPES[kind.elem], kind.shape or ()
            bits = self.options.bits if dtype.is_float else None
            known = math.prod(shape) // max(rows_of(shape, axis), 1) * (bits or dtype.bits)
            self._bits[name, axis] = known
        return known
