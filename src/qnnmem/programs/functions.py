"""QNN's functions, numbered as in the shared objects, and the handles they create or free."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag

from qnnmem.errors import UsageError
from qnnmem.text import nearest, quote

FUNCTIONS = 128  # rows of the tables shared with the program
_BACKEND = (
    "QnnProperty_hasCapability QnnBackend_create QnnBackend_setConfig QnnBackend_getApiVersion "
    "QnnBackend_getBuildId QnnBackend_registerOpPackage QnnBackend_getSupportedOperations "
    "QnnBackend_validateOpConfig QnnBackend_free QnnContext_create QnnContext_setConfig "
    "QnnContext_getBinarySize QnnContext_getBinary QnnContext_createFromBinary QnnContext_free "
    "QnnGraph_create QnnGraph_createSubgraph QnnGraph_setConfig QnnGraph_addNode "
    "QnnGraph_finalize QnnGraph_retrieve QnnGraph_execute QnnGraph_executeAsync "
    "QnnTensor_createContextTensor QnnTensor_createGraphTensor QnnLog_create QnnLog_setLogLevel "
    "QnnLog_free QnnProfile_create QnnProfile_setConfig QnnProfile_getEvents "
    "QnnProfile_getSubEvents QnnProfile_getEventData QnnProfile_getExtendedEventData "
    "QnnProfile_free QnnMem_register QnnMem_deRegister QnnDevice_getPlatformInfo "
    "QnnDevice_freePlatformInfo QnnDevice_getInfrastructure QnnDevice_create QnnDevice_setConfig "
    "QnnDevice_getInfo QnnDevice_free QnnSignal_create QnnSignal_setConfig QnnSignal_trigger "
    "QnnSignal_free QnnError_getMessage QnnError_getVerboseMessage QnnError_freeVerboseMessage "
    "QnnGraph_prepareExecutionEnvironment QnnGraph_releaseExecutionEnvironment "
    "QnnGraph_getProperty QnnContext_validateBinary QnnContext_createFromBinaryWithSignal "
    "QnnContext_createFromBinaryListAsync QnnTensor_updateGraphTensors "
    "QnnTensor_updateContextTensors QnnContext_getBinarySectionSize QnnContext_getBinarySection "
    "QnnContext_applyBinarySection QnnBackend_getProperty QnnContext_getProperty "
    "QnnContext_getIncrementalBinary QnnContext_releaseIncrementalBinary QnnContext_finalize "
    "QnnGlobalConfig_set QnnContext_createFromBinaryWithCallback "
    "QnnContext_getBinarySectionUpdate QnnContext_freeBinarySectionUpdate QnnContext_addToDlc"
)
_SYSTEM = (
    "QnnSystemContext_create QnnSystemContext_getBinaryInfo QnnSystemContext_getMetadata "
    "QnnSystemContext_free QnnSystemTensor_getMemoryFootprint QnnSystemLog_create "
    "QnnSystemLog_setLogLevel QnnSystemLog_free"
)
FIRST_SYSTEM = 100
NAMES = {
    **dict(enumerate(_BACKEND.split())),
    **dict(enumerate(_SYSTEM.split(), FIRST_SYSTEM)),
}
NUMBERS = {name: number for number, name in NAMES.items()}


def name_of(number: int) -> str:
    """Return the name of a function; a function without a public name gets its number."""
    return NAMES.get(number, f"QNN function {number}")


REGISTER = NUMBERS["QnnMem_register"]
DEREGISTER = NUMBERS["QnnMem_deRegister"]
GRAPH_TENSOR = NUMBERS["QnnTensor_createGraphTensor"]
EXECUTES = (NUMBERS["QnnGraph_execute"], NUMBERS["QnnGraph_executeAsync"])


class WatchMode(IntFlag):
    """What the observer does around a call; with no flag set, it only counts calls and failures."""

    ASKS = 1
    TELLS = 2
    STACK = 4
    WAITS = 8
    TURN = 16  # no other call runs meanwhile
    FIRST = 32  # asks only at the first call on each handle
    IO = 64  # reports only input and output tensors


# By kind of handle: the functions that create it, and the index of their output argument.
_MAKERS = {
    "backend": {"QnnBackend_create": 2},
    "device": {"QnnDevice_create": 2},
    "log": {"QnnLog_create": 2, "QnnSystemLog_create": 2},
    "context": {
        "QnnContext_create": 3,
        "QnnContext_createFromBinary": 5,
        "QnnContext_createFromBinaryWithSignal": 5,
        "QnnContext_createFromBinaryWithCallback": 6,
    },
    "graph": {"QnnGraph_create": 3, "QnnGraph_createSubgraph": 2, "QnnGraph_retrieve": 2},
    "memory": {"QnnMem_register": 3},
    "profile": {"QnnProfile_create": 2},
    "signal": {"QnnSignal_create": 2},
    "system context": {"QnnSystemContext_create": 0},
}
MAKES = {name: kind for kind, makers in _MAKERS.items() for name in makers}
_OUT = {name: at for makers in _MAKERS.values() for name, at in makers.items()}
# Queries about a binary; if a query fails, ONNX Runtime does not create a session from the binary.
# The other functions start a session; if such a call fails, no session exists.
READS_BINARY = frozenset({"QnnSystemContext_getBinaryInfo", "QnnSystemContext_getMetadata"})
BEGINS = READS_BINARY | {n for n, kind in MAKES.items() if kind in ("backend", "device", "context")}
FREES = {
    "QnnBackend_free": "backend",
    "QnnDevice_free": "device",
    "QnnLog_free": "log",
    "QnnSystemLog_free": "log",
    "QnnContext_free": "context",
    "QnnMem_deRegister": "memory",
    "QnnProfile_free": "profile",
    "QnnSignal_free": "signal",
    "QnnSystemContext_free": "system context",
}
# Index of the argument with a size in bytes.
SIZES = {
    NUMBERS["QnnContext_createFromBinary"]: 4,
    NUMBERS["QnnContext_createFromBinaryWithSignal"]: 4,
    NUMBERS["QnnContext_createFromBinaryWithCallback"]: 5,
}
# Index of the argument with the name of the new handle.
NAMED = {
    NUMBERS["QnnGraph_create"]: 1,
    NUMBERS["QnnGraph_createSubgraph"]: 1,
    NUMBERS["QnnGraph_retrieve"]: 1,
}
_COUNTED = frozenset(
    (
        *("QnnGraph_addNode", "QnnTensor_createContextTensor", "QnnTensor_createGraphTensor"),
        *("QnnError_freeVerboseMessage", "QnnDevice_freePlatformInfo"),
        "QnnSystemTensor_getMemoryFootprint",
    )
)
_ASKING = ("_get", "_has", "_validate")


# Functions that do not wait for their turn: a signal must reach a running call, and the others
# return immediately.
_NEVER_WAITING = ("QnnSignal_", "QnnLog_", "QnnError_", "QnnProperty_")


def is_question(name: str) -> bool:
    """Return True if a function is a query, whose nonzero code is an answer, not a failure."""
    return any(word in name for word in _ASKING)


def plan(asked: Iterable[int] = (), *, one_at_a_time: bool = False) -> bytes:
    """Return a table with two bytes per function: the mode, and the output argument's index + 1."""
    rows = bytearray(2 * FUNCTIONS)
    chosen = set(asked)
    for number, name in NAMES.items():
        is_silent = name in _COUNTED or (is_question(name) and name not in READS_BINARY)
        mode = WatchMode(0) if is_silent else WatchMode.TELLS
        if name in MAKES:
            mode |= WatchMode.TELLS | WatchMode.STACK
        if number in NAMED or number in (REGISTER, DEREGISTER):
            mode |= WatchMode.ASKS
        if number == REGISTER:  # read the list before the call changes it
            mode |= WatchMode.WAITS
        if number in EXECUTES:
            mode |= WatchMode.ASKS | (WatchMode.FIRST if number not in chosen else 0)
        if number == GRAPH_TENSOR:
            mode |= WatchMode.TELLS | WatchMode.WAITS | WatchMode.IO
        if number in chosen:
            mode |= WatchMode.ASKS
        if one_at_a_time and number < FIRST_SYSTEM and not name.startswith(_NEVER_WAITING):
            mode |= WatchMode.TURN
        out = _OUT.get(name, -1) + 1 if number != REGISTER else 0
        rows[2 * number : 2 * number + 2] = bytes((mode, out))
    return bytes(rows)


def in_table(name: str) -> str:
    """Return the name in QNN's function table: `memRegister` for `QnnMem_register`."""
    component, _, verb = name.removeprefix("Qnn").partition("_")
    return f"{component[:1].lower()}{component[1:]}{verb[:1].upper()}{verb[1:]}"


_BY_WORD = {
    word.lower(): number for number, name in NAMES.items() for word in (name, in_table(name))
}


def number_of(word: str) -> int:
    """Return the number of a function by its name or its table name."""
    found = _BY_WORD.get(word.lower())
    if found is None:
        known = [in_table(name) for name in NAMES.values()]
        close = nearest(word, known)
        cure = f"did you mean {close}?" if close else "write a name such as memRegister"
        raise UsageError(f"{quote(word)} is not a QNN function that qnnmem watches", cure=cure)
    return found
