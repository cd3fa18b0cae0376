"""The HTP backend: the real library in a child process, context binaries, the memory bill.

`open` executes a context binary with registered memory in one call. The classes named after QNN's
own objects make the same calls one by one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnmem.htp.qmem.client import (
        HtpBackend,
        HtpClientContext,
        HtpClientGraph,
        HtpComposedContext,
        HtpComposedGraph,
        HtpSession,
    )
    from qnnmem.htp.qmem.memory import (
        RPCMEM_DEFAULT_FLAGS,
        RPCMEM_HEAP_ID_SYSTEM,
        HtpMemDescriptor,
        HtpMemType,
        SharedBuffer,
        rpcmem_alloc,
        rpcmem_free,
        rpcmem_to_fd,
    )

# Importing the folder must stay cheap: names find their module when they are first used.
_OF_CLIENT = (
    *("HtpBackend", "HtpClientContext", "HtpClientGraph", "HtpSession"),
    *("HtpComposedContext", "HtpComposedGraph"),
)

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
    """Return a session that executes a context binary; see `HtpSession` for the options."""
    from qnnmem.htp.qmem.client import HtpSession

    return HtpSession(path, **options)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "client" if name in _OF_CLIENT else "memory"
    return getattr(import_module(f"{__name__}.qmem.{home}"), name)
