"""The HTP backend: the real library in a child process, context binaries, the memory bill.

`open` is the short way to execute a context binary with registered memory. The classes named after
QNN's own objects are the long one, call by call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnmem.htp.qmem.client import HtpBackend, HtpClientContext, HtpClientGraph
    from qnnmem.htp.qmem.composed import HtpComposedContext, HtpComposedGraph
    from qnnmem.htp.qmem.memory import HtpMemDescriptor, HtpMemType, SharedBuffer
    from qnnmem.htp.qmem.rpcmem import (
        RPCMEM_DEFAULT_FLAGS,
        RPCMEM_HEAP_ID_SYSTEM,
        rpcmem_alloc,
        rpcmem_free,
        rpcmem_to_fd,
    )
    from qnnmem.htp.qmem.session import HtpSession

# Importing the folder must stay cheap: names find their module when they are first used.
_HOMES = {
    **dict.fromkeys(("HtpBackend", "HtpClientContext", "HtpClientGraph"), "qmem.client"),
    **dict.fromkeys(("HtpComposedContext", "HtpComposedGraph"), "qmem.composed"),
    **dict.fromkeys(("HtpMemDescriptor", "HtpMemType", "SharedBuffer"), "qmem.memory"),
    **dict.fromkeys(
        (
            *("RPCMEM_DEFAULT_FLAGS", "RPCMEM_HEAP_ID_SYSTEM"),
            *("rpcmem_alloc", "rpcmem_free", "rpcmem_to_fd"),
        ),
        "qmem.rpcmem",
    ),
    "HtpSession": "qmem.session",
}

__all__ = [
    "RPCMEM_DEFAULT_FLAGS",
    "RPCMEM_HEAP_ID_SYSTEM",
    "HtpBackend",
    "HtpClientContext",
    "HtpClientGraph",
    "HtpComposedContext",
    "HtpComposedGraph",
    "HtpMemDescriptor",
    "HtpMemType",
    "HtpSession",
    "SharedBuffer",
    "open",
    "rpcmem_alloc",
    "rpcmem_free",
    "rpcmem_to_fd",
]


def open(path: Any, **options: Any) -> HtpSession:
    """A context binary, ready to run; see `HtpSession` for the options."""
    from qnnmem.htp.qmem.session import HtpSession

    return HtpSession(path, **options)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
