"""A model library of the vendor's tools: native code that composes graphs when it is asked to."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_uint32, c_void_p
from pathlib import Path

from qnnmem.errors import Refused
from qnnmem.qnn.abi import WholeInterface

_COMPOSE = "QnnModel_composeGraphs"
# Functions that compose are the first 25. The others are left out: a library that was built when
# the table was shorter finds its last arguments among them, and none of them may be taken for one.
_FIRST = 25


class _BareTable(Structure):
    """The functions of an interface without its head, by value."""

    _fields_ = (("table", c_void_p * 75),)


def compose_library(
    path: Path, interface: WholeInterface, backend: c_void_p, context: c_void_p
) -> int:
    """What `QnnModel_composeGraphs` of a library answers; 0 is success."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as exc:
        raise Refused("read", f"cannot be loaded: {exc}") from exc
    try:
        compose = library[_COMPOSE]
    except AttributeError:
        raise Refused("read", f"has no {_COMPOSE}, so it is no model library") from None
    compose.restype = c_uint32
    compose.argtypes = (
        *(c_void_p, _BareTable, c_void_p, c_void_p, c_uint32),
        *(POINTER(c_void_p), POINTER(c_uint32), c_bool, c_void_p, c_uint32),
    )
    infos, count = c_void_p(), c_uint32()
    table = _BareTable()
    table.table[:_FIRST] = interface.table[:_FIRST]
    return int(
        compose(backend, table, context, None, 0, byref(infos), byref(count), False, None, 1)
    )
