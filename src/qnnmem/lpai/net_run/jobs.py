"""Which graphs of a binary run, with which inputs, and where their results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qnnmem.errors import UsageError
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.inputs import InputList
from qnnmem.lpai.net_run.io import IoBuffers
from qnnmem.lpai.net_run.log import Line
from qnnmem.lpai.net_run.loop import Files
from qnnmem.lpai.net_run.names import file_stems, native_tensors
from qnnmem.lpai.net_run.options import SKIP, RunOptions
from qnnmem.lpai.net_run.outputs import OutputTree, ResultWriter
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.text import quote


@dataclass(slots=True)
class Job:
    """One graph that runs."""

    index: int
    compiled: CompiledGraph
    lines: Sequence[Files]
    writer: ResultWriter
    native: frozenset[str]  # inputs whose files hold the tensor's own type
    buffers: list[IoBuffers] = field(default_factory=list)
    graph: Graph | None = None


def make_jobs(
    context: Context,
    lists: Sequence[InputList | None],
    tree: OutputTree,
    options: RunOptions,
    warn: Line,
) -> list[Job]:
    """The graphs that have an input list; one list belongs to each graph, None skips it."""
    graphs = [graph for graph in context.compiled.graphs if context.config.enables(graph.name)]
    if len(graphs) != len(lists):
        raise UsageError(_wrong_count(graphs, len(lists)))
    natives = native_tensors(options.native_names, {g.name: g.inputs for g in graphs})
    stems = file_stems(graph.name for graph in graphs)
    jobs = []
    for index, (graph, inputs) in enumerate(zip(graphs, lists, strict=True)):
        if inputs is None:
            continue
        _warn_of_float(graph, warn)
        folder = tree.graph_folder(stems[graph.name] if len(graphs) > 1 else None)
        writer = ResultWriter(folder, graph, tree.form, options.keep_num_outputs)
        native = frozenset(graph.inputs) if options.native_inputs else natives[graph.name]
        lines = inputs.assigned(graph.inputs, warn)
        jobs.append(Job(index, graph, lines, writer, native))
    return jobs


def _warn_of_float(graph: CompiledGraph, warn: Line) -> None:
    if graph.float_ops:
        warn(
            f"results of graph {quote(graph.name)} come from floating point (float ops: "
            f"{graph.float_ops}); LPAI itself runs 8- and 16-bit models only"
        )


def _wrong_count(graphs: Sequence[CompiledGraph], lists: int) -> str:
    names = ", ".join(quote(graph.name) for graph in graphs[:8])
    return (
        f"--input_list names {lists} list{'' if lists == 1 else 's'} for {len(graphs)} "
        f"graph{'' if len(graphs) == 1 else 's'} ({names}); name one for each, separated by "
        f"commas, {SKIP} for one that shall not run"
    )
