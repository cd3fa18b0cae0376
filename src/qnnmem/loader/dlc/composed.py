"""Read a DLC as QNN graphs: run the vendor's reader in a child process and check its reply."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO

from qnnmem.bounded_file import regular_size
from qnnmem.child import MEMORY_LIMIT, ChildProcess
from qnnmem.errors import CannotTell, ChildFailed, ChildLost, LoadError
from qnnmem.installation import PACKAGE, command_for, package_folder
from qnnmem.loader.dlc.program import Composed, ComposeDlc, ComposeLibrary
from qnnmem.qnn.graph import ComposedGraph, ComposedTensor, whole_graphs
from qnnmem.text import MAX_NAME, printable, quote, shorten

if TYPE_CHECKING:
    from qnnmem.results.inspect import DlcGraph, DlcResult, DlcTensor

_TIME_LIMIT_S = 60.0
_OPENING = "systemDlcCreateFromFile"
_TAIL_BYTES = 1 << 14  # of the reader's output
_NAMED = 5  # graphs named in a sentence
# Last message of the C++ runtime at an abort: from LLVM, or from GNU if that was loaded first.
_THROWN = re.compile(
    r"terminating with uncaught exception of type [^:\n]*(?:::[^:\n]*)*: (.+)"
    r"|^[ \t]*what\(\): +(.+)",
    re.MULTILINE,
)


def compose(
    path: Path, *, with_data: bool = False, time_limit_s: float = _TIME_LIMIT_S
) -> tuple[ComposedGraph, ...]:
    """Return the graphs of a DLC in file order; `with_data` adds the bytes of constants."""
    regular_size(path)
    folder = package_folder(["libQnnSystem.so"])
    if folder is None:
        raise CannotTell(
            f"reading a DLC needs libQnnSystem of {PACKAGE}, which is not installed here",
            where=path,
            cure=f"{command_for('htp')} installs it on Linux",
        )
    return _asked(path, ComposeDlc(folder, path.resolve(), with_data), time_limit_s)


def compose_trusted(
    path: Path, *, time_limit_s: float = _TIME_LIMIT_S
) -> tuple[ComposedGraph, ...]:
    """Return the graphs of a model library, whose native code is executed."""
    regular_size(path)
    return _asked(path, ComposeLibrary(path.resolve()), time_limit_s)


def _asked(
    path: Path, request: ComposeDlc | ComposeLibrary, time_limit_s: float
) -> tuple[ComposedGraph, ...]:
    with (
        TemporaryFile() as printed,
        ChildProcess("qnnmem.loader.dlc.program", time_limit_s, errors=printed) as child,
    ):
        try:
            reply, data = child.ask(request, Composed, limit=MEMORY_LIMIT)
        except ChildLost as lost:
            raise LoadError(path, _why_lost(child, request, printed)) from lost
        except ChildFailed as exc:
            raise LoadError(path, f"cannot be read: {exc}") from exc
    if reply.call:
        raise LoadError(path, _refusal(reply))
    graphs = as_graphs(path, reply.graphs, reply.shared, data, reply.origins)
    if not graphs:
        raise LoadError(path, "contains no graph")
    return graphs


def named_graph(path: Path, graphs: Sequence[ComposedGraph], name: str) -> ComposedGraph:
    """Return the graph with this name; raise LoadError with the known names if no graph has it."""
    for graph in graphs:
        if graph.name == name:
            return graph
    known = ", ".join(f"'{shorten(graph.name, MAX_NAME)}'" for graph in graphs[:_NAMED])
    more = ", …" if len(graphs) > _NAMED else ""
    raise LoadError(path, f"has no graph {quote(name)}; its graphs are {known}{more}")


def _why_lost(child: ChildProcess, request: ComposeDlc | ComposeLibrary, printed: BinaryIO) -> str:
    if child.expired:
        return f"{request.doing} took longer than {child.deadline.limit_s:g} s"
    if isinstance(request, ComposeLibrary):
        return "the model library's code crashed"
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return abort_reason(printed.read().decode("utf-8", "replace"))


def abort_reason(printed: str) -> str:
    """Return why the vendor's reader aborted, with its message if it printed one."""
    messages = _THROWN.findall(printed)
    if messages:
        message = "".join(messages[-1]).strip()
        return f"the vendor's reader rejected the file: {shorten(printable(message), 300)}"
    return "the vendor's reader crashed on the file, which usually means that the file is damaged"


def as_graphs(
    path: Path,
    graphs: Sequence[ComposedGraph],
    shared: Sequence[ComposedTensor],
    data: bytes,
    origins: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> tuple[ComposedGraph, ...]:
    """Return the graphs that a child recorded; `data` holds the bytes of constants."""
    try:
        return whole_graphs(graphs, shared, data, origins or {})
    except ValueError as exc:
        raise LoadError(path, f"cannot be read: {exc}") from exc


def _refusal(reply: Composed) -> str:
    """Return why the vendor's reader failed; the reader returns code 1002 for any damage."""
    if reply.why:
        return f"cannot be read: {reply.why}"
    doing = "open it" if reply.call == _OPENING else "read its graphs"
    return f"is damaged: the vendor's reader cannot {doing} (code {reply.code})"


def dlc_result(graphs: Sequence[ComposedGraph], path: str) -> DlcResult:
    """Return the graphs of a DLC as a `DlcResult`."""
    from qnnmem.results.inspect import DlcResult

    return DlcResult(file=path, graphs=tuple(map(_dlc_graph, graphs)))


def _dlc_graph(graph: ComposedGraph) -> DlcGraph:
    from qnnmem.results.inspect import DlcGraph, DlcOp

    return DlcGraph(
        name=graph.name,
        tensors=tuple(map(_dlc_tensor, graph.tensors)),
        ops=tuple(
            DlcOp(
                *(op.name, op.package, op.type, op.inputs, op.outputs, op.scalars),
                {name: _dlc_tensor(array) for name, array in op.arrays.items()},
                origins=op.origins,
            )
            for op in graph.ops
        ),
    )


def _dlc_tensor(tensor: ComposedTensor) -> DlcTensor:
    from qnnmem.results.inspect import DlcTensor

    return DlcTensor(
        *(tensor.id, tensor.name, tensor.type.c_name, tensor.data_type.c_name, tensor.dimensions),
        bytes=tensor.nbytes,
        stored_bytes=tensor.stored_bytes,
        quantization=tensor.quantization,
    )
