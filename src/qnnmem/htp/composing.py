"""An ONNX model as QNN is given it: ONNX Runtime composes it for the real library, which listens.

What is composed is what would be compiled; compiling it is left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import LoadError
from qnnmem.htp.compile.compiled import CompileOptions
from qnnmem.htp.compile.model import model_source
from qnnmem.htp.requests import HtpSettings, ListenReply, ListenRequest
from qnnmem.htp.start import check_started
from qnnmem.htp.worker import Worker
from qnnmem.loader.dlc.composed import as_graphs
from qnnmem.loader.onnx.inputs import InputValue
from qnnmem.qnn.graph import ComposedGraph
from qnnmem.results.footprint import OnnxNode
from qnnmem.targets.socs import Soc
from qnnmem.text import counted


@dataclass(frozen=True, slots=True)
class ComposedModel:
    """The graphs that QNN is given of a model, and what is left of it."""

    graphs: tuple[ComposedGraph, ...]
    on_cpu: tuple[OnnxNode, ...]
    on_htp: int  # nodes, as ONNX Runtime counts them after its own optimisations
    library: str  # package and version


def compose_onnx(
    path: Path,
    soc: Soc,
    *,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, InputValue],
    with_data: bool = False,
    time_limit_s: float = 120.0,
) -> ComposedModel:
    """Have ONNX Runtime's QNN provider compose a model; `with_data` brings bytes of constants."""
    options = CompileOptions(dims=dims, shapes=shapes, values=values, time_limit_s=time_limit_s)
    with Worker() as worker, tempfile.TemporaryDirectory(".qnnmem") as folder:
        scratch = Path(folder)
        source = model_source(path, options, scratch).fixed()
        request = ListenRequest(
            source.model.absolute(),
            source.folder,
            HtpSettings(soc.model_id, log="error"),
            scratch / "constants" if with_data else None,
        )
        outcome = worker.ask(request, time_limit_s=time_limit_s)
        check_started(outcome)
        if not outcome.is_done:
            raise LoadError(path, f"cannot be composed for QNN: {outcome.sentence}")
        reply = outcome.result(ListenReply)
        data = b"" if reply.data is None else reply.data.read_bytes()
        library = worker.library.name
    return composed_model(path, reply, data, library)


def composed_model(path: Path, reply: ListenReply, data: bytes, library: str) -> ComposedModel:
    """What a worker has heard; LoadError where that does not hold together."""
    on_cpu = tuple(OnnxNode(name, operator) for name, operator in reply.on_cpu)
    if not reply.graphs:
        kinds = ", ".join(sorted({node.operator for node in on_cpu})[:5])
        raise LoadError(path, f"QNN takes none of its {counted(len(on_cpu), 'node')} ({kinds})")
    graphs = as_graphs(path, reply.graphs, reply.shared, data)
    return ComposedModel(graphs, on_cpu, reply.on_htp, library)
