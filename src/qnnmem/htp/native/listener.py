"""Listens to ONNX Runtime composing a model for libQnnHtp, and keeps it from compiling.

The functions of the real library are called as they always are: it says which operators it takes,
and gives tensors their ids. Only its last step, which compiles, is left out.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from qnnmem.errors import Refused
from qnnmem.htp.native.session import assignment, session_of, session_options
from qnnmem.htp.requests import ListenReply, ListenRequest
from qnnmem.loader.dlc.recorder import (
    ADD_NODE,
    CONTEXT_TENSOR,
    GRAPH_CREATE,
    GRAPH_TENSOR,
    OK,
    Composition,
    FunctionTable,
)
from qnnmem.qnn.abi import WholeInterface, first_provider

_CODE = 0xFFFF
_FINALIZE = (19, (c_void_p, c_void_p, c_void_p))


def listen(folder: Path, request: ListenRequest) -> ListenReply:
    """What ONNX Runtime composes of a model, and the nodes that it keeps for itself.

    With an `output`, the bytes of constants are written there.
    """
    target = request.output
    listener = Listener(folder, with_data=target is not None)
    settings = session_options(folder, request.settings)
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = session_of(request.model, request.folder, settings)
    seen = listener.seen
    if seen.failure:
        raise Refused("listen", seen.failure)
    on_cpu, on_htp = assignment(session)
    if target is not None:
        target.write_bytes(seen.data)
    return ListenReply(seen.graphs, seen.shared, on_cpu, on_htp, target)


class Listener:
    """The library's own table with some functions of ours before its own.

    A library is loaded once: whoever opens it after us finds the same table.
    """

    def __init__(self, folder: Path, *, with_data: bool) -> None:
        self.seen = Composition(with_data=with_data)
        library = ctypes.CDLL(str(folder / "libQnnHtp.so"))
        table = first_provider(library, "QnnInterface_getProviders", WholeInterface).table
        self._functions = FunctionTable(table, self.seen)
        real = {
            place: CFUNCTYPE(c_uint64, *kinds)(table[place])
            for place, kinds in (GRAPH_CREATE, ADD_NODE, CONTEXT_TENSOR, GRAPH_TENSOR)
        }
        self._put(GRAPH_CREATE, real, lambda _c, name, _g, out: self.seen.add_graph(out[0], name))
        self._put(ADD_NODE, real, self.seen.add_op)
        self._put(CONTEXT_TENSOR, real, lambda _c, made: self.seen.add_tensor(None, made.contents))
        self._put(GRAPH_TENSOR, real, lambda g, made: self.seen.add_tensor(g, made.contents))
        self._functions.put(*_FINALIZE, lambda *_: OK)

    def _put(self, entry: tuple[int, tuple[Any, ...]], real: dict[int, Any], note: Any) -> None:
        place, kinds = entry

        def call(*arguments: Any) -> int:
            code = int(real[place](*arguments))
            if not code & _CODE:
                note(*arguments)
            return code

        self._functions.put(place, kinds, call)
