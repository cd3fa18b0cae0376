"""The calls that make each mistake with the real library, as the child process takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from qnnmem.htp.binary.context import HtpGraph, HtpTensor
from qnnmem.htp.qmem.memory import ALIGNMENT, PAGE, HtpMemType
from qnnmem.qnn.enums import MemRegisterType, TensorMemType
from qnnmem.units import round_up

Call = dict[str, Any]
_FREE = {"call": "free"}
_STRANGE = 7  # a handle that is not 0 and that nobody gave: on x86 there are no others


def _total(graph: HtpGraph) -> int:
    return round_up(sum(round_up(one.nbytes, ALIGNMENT) for one in graph.tensors), PAGE)


def _register(graph: HtpGraph, **changes: Any) -> list[Call]:
    tensor, total = graph.tensors[0], _total(graph)
    described = {
        "call": "register",
        "memory": "buffer",
        "as": "handle",
        "dimensions": list(tensor.dimensions) or [1],
        "data_type": int(tensor.data_type),
        "mem_type": int(MemRegisterType.CUSTOM),
        "htp_type": int(HtpMemType.SHARED_BUFFER),
        "total_size": total,
        "offset": 0,
    }
    return [{"call": "allocate", "size": total, "as": "buffer"}, described | changes]


def _raw(tensor: HtpTensor, **changes: Any) -> dict[str, Any]:
    given = {"mem_type": int(TensorMemType.RAW), "size": tensor.nbytes, "says": tensor.nbytes}
    return given | changes


def _handle(number: int | str) -> dict[str, Any]:
    return {"mem_type": int(TensorMemType.MEMHANDLE), "handle": number}


def _execute(graph: HtpGraph, first: dict[str, Any] | None = None) -> list[Call]:
    tensors = {str(tensor.id): _raw(tensor) for tensor in graph.tensors}
    if first is not None:
        tensors[str(graph.tensors[0].id)] = first
    return [{"call": "execute", "graph": graph.name, "tensors": tensors}]


def _changed(graph: HtpGraph, **changes: Any) -> list[Call]:
    """Execute with something else said of the first tensor."""
    return _execute(graph, _raw(graph.tensors[0], **changes))


def _short_size(graph: HtpGraph) -> list[Call]:
    return _changed(graph, says=graph.tensors[0].nbytes - 1)


def _short_raw(graph: HtpGraph) -> list[Call]:
    """Of an output: a graph may leave a part of an input unread."""
    (call,), last = _execute(graph), graph.tensors[-1]
    call["tensors"][str(last.id)] = _raw(last, size=last.nbytes - 1)
    return [call]


def _retrieve(graph: HtpGraph) -> list[Call]:
    return [{"call": "retrieve", "graph": graph.name}]


# A mistake that needs a handle ends with its registration, which the library for x86 refuses.
CALLS: Mapping[str, Callable[[HtpGraph], list[Call]]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("registered-twice", "deregistered-executed", "other-context"),
                *("freed-registered", "leak", "short-handle", "overlap"),
            ),
            _register,
        ),
        "closed-fd": lambda graph: _register(graph, memory="none"),
        "wrong-offset": lambda graph: _register(graph, offset=_total(graph)),
        "unaligned-offset": lambda graph: _register(graph, offset=4),
        "wrong-size": lambda graph: _register(graph, total_size=_total(graph) + PAGE),
        "wrong-type": lambda graph: _register(graph, mem_type=int(MemRegisterType.DMA_BUF)),
        "dead-context": lambda graph: [_FREE, *_register(graph)],
        "deregistered-twice": lambda _graph: [{"call": "deregister", "handle": _STRANGE}],
        "short-raw": _short_raw,
        "short-size": _short_size,
        "no-buffer": lambda graph: _changed(graph, size=None),
        "no-handle": lambda graph: _execute(graph, _handle(0)),
        "unknown-handle": lambda graph: _execute(graph, _handle(_STRANGE)),
        "no-memory-type": lambda graph: _changed(graph, mem_type=int(TensorMemType.UNDEFINED)),
        "dead-graph": lambda graph: [*_retrieve(graph), _FREE, *_execute(graph)],
        "freed-twice": lambda _graph: [_FREE, _FREE],
    }
)
