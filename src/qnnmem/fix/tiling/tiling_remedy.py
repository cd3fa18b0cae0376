"""Remedy that computes regions in bands: search, rewrite, plan, compare.

Covers of a model by regions are cached, so a killed search resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from qnnmem.errors import ChildFailed, UsageError
from qnnmem.fix.graph.plan_settings import reordered, unplanned
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Step,
    check_node_count,
    recipe_count,
    recipe_flag,
)
from qnnmem.fix.tiling.bands import (
    WHOLE,
    BandedRegion,
    Bander,
    Cut,
    Join,
    NodeRun,
    Part,
    TileRegion,
    schedule,
)
from qnnmem.fix.tiling.needed_rows import Rows
from qnnmem.fix.tiling.region_search import RegionSearch, RememberedCovers, TileCover
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.graph import all_names
from qnnmem.loader.onnx.tensor import OnnxType
from qnnmem.planner.pools import PoolOptions
from qnnmem.text import by_sizes, counted, quote

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.loader.onnx.passes.shape import ShapedModel

_SLICE_BY_INPUTS = 10  # operator set; before it, Slice took attributes


class _Writer:
    """Writes the nodes that compute regions in bands."""

    def __init__(self, graph: TiledGraph) -> None:
        self.graph = graph
        self.taken = {*all_names(graph.model.scope.graph), *(node.name for node in graph.nodes)}
        self.names: dict[Part, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.types: dict[str, OnnxType] = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        self.axis = 0

    def write(self, banded: BandedRegion) -> None:
        """Write the nodes of a region in bands."""
        self.names, self.axis = {}, banded.region.axis
        for work in schedule(self.graph, banded):
            if isinstance(work, NodeRun):
                self._run(work)
            elif isinstance(work, Cut):
                self._cut(work)
            else:
                self._join(work)

    def _run(self, work: NodeRun) -> None:
        """Write a node for one band."""
        import onnx

        old, step = self.graph.nodes[work.at], work.step
        node = onnx.NodeProto(op_type=old.op_type, domain=old.domain)
        band = next(part.band for part in work.outputs if part is not None)
        node.name = self._free(f"{old.name or old.output[0]}/band{band}")
        for slot, name in enumerate(old.input):
            part = work.inputs[slot]
            if slot in step.values:
                value = step.values[slot]
                node.input.append("" if value is None else self._constant(value))
            else:
                node.input.append(name if part is None else self._name(part))
        while node.input and not node.input[-1]:
            node.input.pop()
        node.output.extend("" if part is None else self._new(part) for part in work.outputs)
        node.attribute.extend(item for item in old.attribute if item.name not in step.attributes)
        for name, value in step.attributes.items():
            if value is not None:
                node.attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=value)
        self.nodes.append(node)

    def _cut(self, work: Cut) -> None:
        import numpy
        import onnx

        source, rows = self._name(work.source), work.result.rows
        start = rows.first - work.source.rows.first
        axis = len(self.graph.shape(work.result.tensor) or ()) + self.axis
        result = self._new(work.result)
        node = onnx.NodeProto(op_type="Slice", name=result, input=[source], output=[result])
        ends = Rows(start, start + rows.height)
        if self.graph.opset >= _SLICE_BY_INPUTS:
            for number in (*ends, axis):
                node.input.append(self._constant(numpy.array([number], numpy.int64)))
        else:
            for name, number in (("starts", ends.first), ("ends", ends.end), ("axes", axis)):
                node.attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=[number])
        self.nodes.append(node)

    def _join(self, work: Join) -> None:
        import onnx

        name = work.result.tensor
        node = onnx.NodeProto(op_type="Concat", name=self._free(f"{name}/bands"), output=[name])
        node.input.extend(map(self._name, work.parts))
        axis = len(self.graph.shape(name) or ()) + self.axis
        node.attribute.add(name="axis", type=onnx.AttributeProto.INT, i=axis)
        self.nodes.append(node)

    def _name(self, part: Part) -> str:
        return part.tensor if part.band == WHOLE else self.names[part]

    def _new(self, part: Part) -> str:
        """Return a new name for a part, and store the part's type and name."""
        rows = f"/{part.rows.first}:{part.rows.end}" if part.is_cut else ""
        name = self._free(f"{part.tensor}/band{part.band}{rows}")
        kind = self.graph.types[part.tensor]
        shape = [*(kind.shape or ())]
        shape[self.axis] = part.rows.height
        self.types[name] = OnnxType(kind.elem, tuple(shape))
        self.names[part] = name
        return name

    def _constant(self, value: NDArray[Any]) -> str:
        """Return the name of a constant with this value; equal values share a constant."""
        from onnx import numpy_helper

        key = f"qnnmem/{value.dtype.name}/{by_sizes(value.tolist(), '')}"
        if key not in self.constants:
            # Use an unused name: a model that an earlier step changed already has such constants.
            self.constants[key] = numpy_helper.from_array(value, self._free(key))
        return self.constants[key].name

    def _free(self, preferred: str) -> str:
        """Return the preferred name, or a similar name if the preferred name is already used."""
        name, number = preferred, 1
        while name in self.taken:
            number += 1
            name = f"{preferred}#{number}"
        self.taken.add(name)
        return name


def rewrite(graph: TiledGraph, regions: Sequence[BandedRegion]) -> ShapedModel:
    """Return the model with disjoint regions computed in bands."""
    writer = _Writer(graph)
    done = 0
    for banded in sorted(regions, key=lambda banded: banded.region.first):
        writer.nodes += graph.nodes[done : banded.region.first]
        writer.write(banded)
        done = banded.region.end
    writer.nodes += graph.nodes[done:]
    constants = tuple(writer.constants.values())
    return graph.with_nodes(tuple(writer.nodes), writer.types, constants)


_ROUNDS = 6  # searches after regions with different results, or after plans with gaps
_TIGHTER = 0.98  # factor on the limit if a plan exceeds the live bytes
_AXES = {"rows": -2, "columns": -1}


@dataclass(frozen=True, slots=True)
class TilingRemedy:
    """Remedy that computes regions in bands of rows or columns."""

    name: str = "tiling"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield changes with the current options, then with in-place ops."""
        if base.need.over and "scratch" not in base.need.over:
            return  # bands reduce only scratch
        start = unplanned(base.change)
        options = start.pool_options
        choices = list(dict.fromkeys((options, replace(options, inplace=True))))
        graph = TiledGraph.of(start.model)
        for left, own in zip(range(len(choices), 0, -1), choices, strict=True):
            kept = RememberedCovers(bench, start, own)
            seconds = bench.case.seconds_left / left
            search = RegionSearch(graph, own, seconds=seconds, kept=kept)
            yield from self._with(bench, start, search, is_last=left == 1)

    def _with(
        self, bench: FixBench, base: Change, search: RegionSearch, *, is_last: bool
    ) -> Iterator[JudgedChange]:
        """Yield changes under one set of options; retry without regions whose results differ."""
        limit = bench.case.limit
        for _ in range(_ROUNDS):
            begin = monotonic()
            cover = _cover(search, limit, is_last=is_last)
            if cover is None or not cover.regions:
                return
            change = self._best_order(bench, base, search, cover)
            judged = bench.judged(change)
            yield replace(judged, seconds=monotonic() - begin)
            if not judged.holds:
                search.banned.update(_differing(bench, base, search, cover))
            elif limit is not None and cover.peak <= limit < (judged.need.size or 0):
                limit = int(limit * _TIGHTER)
            else:
                return

    def _best_order(
        self, bench: FixBench, base: Change, search: RegionSearch, cover: TileCover
    ) -> Change:
        """Return the change, with its nodes reordered if that is allowed and saves memory."""
        options = search.costs.options
        plain = self._change(base, search.graph, cover.regions, options)
        need = bench.judge(plain)
        limit = bench.case.limit
        is_enough = limit is not None and (need.size or 0) <= limit
        if is_enough or "order" in bench.case.keep:
            return plain
        other = reordered(bench.case, plain.model, options)
        if other is None:
            return plain
        moved = _in_other_order(plain, other)
        return moved if bench.judge(moved).rank < need.rank else plain

    def _change(
        self,
        base: Change,
        graph: TiledGraph,
        regions: Sequence[BandedRegion],
        options: PoolOptions,
    ) -> Change:
        step: dict[str, Any] = {
            "nodes": len(graph.nodes),
            "regions": [_as_json(graph, banded.region) for banded in regions],
            "inplace": options.inplace,
            "reorder": False,
        }
        return base.then(
            self.name,
            _words(regions),
            step,
            model=rewrite(graph, regions),
            options=options,
            macs=base.macs or Bander(graph).macs(),
            extra_macs=base.extra_macs + sum(banded.extra_macs for banded in regions),
        )

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Apply a recipe step to `base`; raise UsageError if the step does not match the model."""
        graph = TiledGraph.of(base.model)
        options = replace(base.pool_options, inplace=recipe_flag(step["inplace"]))
        change = self._change(base, graph, _banded(graph, step), options)
        if not recipe_flag(step["reorder"]):
            return change
        other = reordered(case, change.model, options)
        return change if other is None else _in_other_order(change, other)


def _in_other_order(change: Change, model: Any) -> Change:
    last = {**change.steps[-1], "reorder": True}
    return replace(change, model=model, steps=(*change.steps[:-1], last))


def _cover(search: RegionSearch, limit: int | None, *, is_last: bool) -> TileCover | None:
    """Return the cheapest cover within the limit; without a limit, the cover with the lowest peak.

    If no cover is within the limit, the last attempt returns the cover with the lowest peak, and
    earlier attempts return None.
    """
    if limit is None:
        return search.fewest()
    cover = search.cheapest(limit)
    return search.fewest() if cover is None and is_last else cover


def _differing(
    bench: FixBench, base: Change, search: RegionSearch, cover: TileCover
) -> set[TileRegion]:
    """Return the regions that each change results on their own; all regions if none does."""
    differing = set()
    for banded in cover.regions:
        try:
            same = bench.prove(replace(base, model=rewrite(search.graph, [banded]))).identical
        except ChildFailed:
            same = False
        if not same:
            differing.add(banded.region)
    return differing or {banded.region for banded in cover.regions}


def _words(regions: Sequence[BandedRegion]) -> str:
    """Return a short description of the regions."""
    bands = sorted({banded.region.bands for banded in regions})
    if len(regions) > 1:
        spread = f"{bands[0]}" if len(bands) == 1 else f"{bands[0]} to {bands[-1]}"
        return f"{len(regions)} regions in {spread} bands"
    region = regions[0].region
    nodes = counted(region.end - region.first, "node")
    return f"{nodes} in {region.bands} bands of {_axis_name(region)}"


def _axis_name(region: TileRegion) -> str:
    return next(word for word, axis in _AXES.items() if axis == region.axis)


def _as_json(graph: TiledGraph, region: TileRegion) -> dict[str, Any]:
    """Return a region as JSON values: positions, and the tensors at its ends."""
    return {
        "first": region.first,
        "end": region.end,
        "first_tensor": graph.nodes[region.first].output[0],
        "last_tensor": graph.nodes[region.end - 1].output[0],
        "bands": region.bands,
        "axis": _axis_name(region),
    }


def _banded(graph: TiledGraph, step: Step) -> Sequence[BandedRegion]:
    """Return the regions of a recipe; raise UsageError if the regions do not match the model."""
    check_node_count(step, len(graph.nodes))
    bander = Bander(graph)
    regions, done = [], 0
    for values in step["regions"]:
        first, end, bands = (recipe_count(values[name]) for name in ("first", "end", "bands"))
        region = TileRegion(first, end, bands, _AXES[values["axis"]])
        if not done <= region.first < region.end <= len(graph.nodes) or region.bands < 2:
            raise UsageError("the recipe has regions that overlap or are not in the model")
        ends = (graph.nodes[region.first].output[0], graph.nodes[region.end - 1].output[0])
        names = (str(values["first_tensor"]), str(values["last_tensor"]))
        if ends != names:
            raise UsageError(
                f"the recipe is for another model: {quote(names[0])} is not an output of node "
                f"{first}, or {quote(names[1])} is not an output of node {end - 1}"
            )
        banded = bander.bands(region)
        if isinstance(banded, str):
            raise UsageError(f"a region of the recipe cannot be computed in bands: {banded}")
        regions.append(banded)
        done = region.end
    return regions
