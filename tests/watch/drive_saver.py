"""Call the functions in the table of a QNN library, as any language with an FFI does."""

from __future__ import annotations

import sys
from ctypes import CDLL, CFUNCTYPE, POINTER, byref, c_uint32, c_uint64, c_void_p, cast  # noqa: TID251  # a program that is watched

library = CDLL(sys.argv[1])
providers, count = POINTER(c_void_p)(), c_uint32()
library.QnnInterface_getProviders(byref(providers), byref(count))
functions = cast(providers[0] + 40, POINTER(c_void_p))


def call(number: int, *words: c_void_p | None) -> int:
    """Return the code of a call."""
    kind = CFUNCTYPE(c_uint64, *[c_void_p] * len(words))
    return int(kind(functions[number])(*words)) & 0xFFFF


backend, contexts = c_void_p(), [c_void_p() for _ in range(3)]
call(1, None, None, cast(byref(backend), c_void_p))
codes = [call(9, backend, None, None, cast(byref(one), c_void_p)) for one in contexts]
print(codes)
call(14, contexts[0], None)
call(8, backend)
