"""The child program in which the vendor's DLC reader runs: native code on untrusted bytes."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_uint32, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from msgspec import field

from qnnmem.child import serve
from qnnmem.errors import Refused
from qnnmem.loader.dlc.recorder import Recorder, compose_library, origins
from qnnmem.qnn.abi import SYSTEM_CALLS, COpMapping, SystemInterface, bind, first_provider
from qnnmem.qnn.graph import ComposedGraph, ComposedTensor
from qnnmem.wire import ChildFailure, Frame, WireMessage

_BACKEND, _CONTEXT = c_void_p(1), c_void_p(2)  # none of our functions uses them
_CODE = 0xFFFF  # the bits of a return value that hold the error code


class ComposeDlc(WireMessage, frozen=True):
    """A request to read a DLC with the library in a folder.

    `with_data` requests the bytes of constants.
    """

    doing: ClassVar[str] = "the vendor's reader"
    library: Path
    path: Path
    with_data: bool


class ComposeLibrary(WireMessage, frozen=True):
    """A request to run a model library (native code) of the vendor's tools."""

    doing: ClassVar[str] = "the model library's code"
    path: Path


class Composed(WireMessage, frozen=True):
    """The recorded graphs and shared tensors, or the code of the failed call.

    The payload holds the bytes of constants. `origins` has the names of each operator's source
    nodes.
    """

    graphs: list[ComposedGraph] = field(default_factory=list)
    shared: list[ComposedTensor] = field(default_factory=list)
    origins: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    call: str = ""  # the refused call
    code: int = 0
    why: str = ""


def compose(request: ComposeDlc, _payload: bytes) -> Composed | Frame[Composed]:
    """Return the graphs of a DLC, recorded while the vendor's library composes them."""
    library = ctypes.CDLL(str(request.library / "libQnnSystem.so"))
    interface = first_provider(library, "QnnSystemInterface_getProviders", SystemInterface)
    calls = bind(interface.table, SYSTEM_CALLS)
    recorder = Recorder(with_data=request.with_data)
    dlc, graphs, count = c_void_p(), c_void_p(), c_uint32()
    code = calls["dlc_create_from_file"](None, os.fsencode(request.path), byref(dlc)) & _CODE
    if code:
        return Composed(call="systemDlcCreateFromFile", code=code)
    table = recorder.interface
    code = _CODE & calls["dlc_compose_graphs"](
        *(dlc, None, 0, _BACKEND, _CONTEXT, table, 1, byref(graphs), byref(count))
    )
    seen = recorder.seen
    if code or seen.failure:
        return Composed(call="systemDlcComposeGraphs", code=code, why=seen.failure)
    reply = Composed(seen.graphs, seen.shared, _origins(calls, dlc))
    calls["dlc_free"](dlc)
    return reply, bytes(seen.data)


def _origins(calls: dict[str, Any], dlc: c_void_p) -> dict[str, dict[str, list[str]]]:
    """Return the names of each operator's source nodes; empty if the converter stored none."""
    mappings, count = POINTER(COpMapping)(), c_uint32()
    code = calls["dlc_get_op_mappings"](dlc, byref(mappings), byref(count)) & _CODE
    return {} if code or not mappings else origins(mappings, count.value)


def compose_trusted(
    request: ComposeLibrary, _payload: bytes
) -> ChildFailure | Composed | Frame[Composed]:
    """Return the graphs of a model library, recorded while it composes them."""
    recorder = Recorder(with_data=True)
    try:
        code = compose_library(request.path, recorder.interface, _BACKEND, _CONTEXT)
    except Refused as exc:
        return ChildFailure(str(exc))
    seen = recorder.seen
    if (code or not seen.graphs) and _is_out_of_memory():
        return ChildFailure("the model library's code ran out of memory")
    if code or seen.failure:
        return Composed(call="QnnModel_composeGraphs", code=code, why=seen.failure)
    return Composed(seen.graphs, seen.shared), bytes(seen.data)


def _is_out_of_memory() -> bool:
    """Return whether the process came near its memory limit; libraries hide failed allocations."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/status").read_text("ascii", "replace")
    peak = next((line for line in status.splitlines() if line.startswith("VmPeak:")), "")
    return limit != resource.RLIM_INFINITY and int(peak.split()[1]) * 1024 > limit // 10 * 9


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    return serve({ComposeDlc: compose, ComposeLibrary: compose_trusted})


if __name__ == "__main__":
    sys.exit(main())
