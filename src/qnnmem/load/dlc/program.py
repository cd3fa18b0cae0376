"""Child program in which the vendor's reader of DLC files runs: native code on untrusted bytes."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from qnnmem.child import serve
from qnnmem.load.dlc.recorder import Recorder
from qnnmem.qnn.abi import SYSTEM_CALLS, SystemInterface, bind, first_provider

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
    if found & _CODE or recorder.failure:
        return {
            "refused": found & _CODE,
            "call": "systemDlcComposeGraphs",
            "why": recorder.failure,
        }, b""
    calls["dlc_free"](dlc)
    return {"graphs": recorder.graphs, "shared": recorder.shared}, bytes(recorder.data)


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({"compose": compose})


if __name__ == "__main__":
    sys.exit(main())
