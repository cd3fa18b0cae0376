"""Child program in which the vendor's reader of DLC files runs: native code on untrusted bytes."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from qnnmem.child import serve
from qnnmem.errors import Refused
from qnnmem.loader.dlc.model_library import compose_library
from qnnmem.loader.dlc.recorder import Recorder, origins
from qnnmem.qnn.abi import SYSTEM_CALLS, COpMapping, SystemInterface, bind, first_provider

_BACKEND, _CONTEXT = c_void_p(1), c_void_p(2)  # no function of ours looks at them
_CODE = 0xFFFF


def compose(options: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Have the library compose the graphs of a file into a recorder."""
    library = ctypes.CDLL(str(Path(options["library"], "libQnnSystem.so")))
    interface = first_provider(library, "QnnSystemInterface_getProviders", SystemInterface)
    calls = bind(interface.table, SYSTEM_CALLS)
    recorder = Recorder(with_data=bool(options["with_data"]))
    dlc, graphs, count = c_void_p(), c_void_p(), c_uint32()
    code = calls["dlc_create_from_file"](None, options["path"].encode(), byref(dlc)) & _CODE
    if code:
        return {"refused": code, "call": "systemDlcCreateFromFile"}, b""
    table = recorder.interface
    found = calls["dlc_compose_graphs"](
        *(dlc, None, 0, _BACKEND, _CONTEXT, table, 1, byref(graphs), byref(count))
    )
    seen = recorder.seen
    if found & _CODE or seen.failure:
        return {
            "refused": found & _CODE,
            "call": "systemDlcComposeGraphs",
            "why": seen.failure,
        }, b""
    reply = {"graphs": seen.graphs, "shared": seen.shared, "origins": _origins(calls, dlc)}
    calls["dlc_free"](dlc)
    return reply, bytes(seen.data)


def _origins(calls: dict[str, Any], dlc: c_void_p) -> dict[str, dict[str, list[str]]]:
    """Names of the source, if the converter has kept them."""
    mappings, count = POINTER(COpMapping)(), c_uint32()
    code = calls["dlc_get_op_mappings"](dlc, byref(mappings), byref(count)) & _CODE
    return {} if code or not mappings else origins(mappings, count.value)


def compose_trusted(options: dict[str, Any], _payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Have a model library compose its graphs into a recorder."""
    recorder = Recorder(with_data=True)
    try:
        code = compose_library(Path(options["path"]), recorder.interface, _BACKEND, _CONTEXT)
    except Refused as exc:
        return {"error": str(exc)}, b""
    seen = recorder.seen
    if (code or not seen.graphs) and _is_out_of_memory():
        return {"error": "its code ran out of memory"}, b""
    if code or seen.failure:
        return {"refused": code, "call": "QnnModel_composeGraphs", "why": seen.failure}, b""
    return {"graphs": seen.graphs, "shared": seen.shared}, bytes(seen.data)


def _is_out_of_memory() -> bool:
    """Whether this process has come close to its limit: code that is told no may go on quietly."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/status").read_text("ascii", "replace")
    peak = next((line for line in status.splitlines() if line.startswith("VmPeak:")), "")
    return limit != resource.RLIM_INFINITY and int(peak.split()[1]) * 1024 > limit // 10 * 9


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({"compose": compose, "compose_trusted": compose_trusted})


if __name__ == "__main__":
    sys.exit(main())
