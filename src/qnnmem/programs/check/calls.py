"""Dispatch: the handler of each function in QNN's tables."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError, QnnMemError
from qnnmem.programs.check import calls_backend as backend
from qnnmem.programs.check import calls_context as context
from qnnmem.programs.check import calls_graph as graph
from qnnmem.programs.check.buffers import TooMuchMemory
from qnnmem.programs.check.client_session import EARLY_TERMINATION, ClientCall, Failure, library_of
from qnnmem.programs.functions import MAKES, NUMBERS
from qnnmem.programs.layout import TooLong
from qnnmem.programs.process_memory import Unreadable
from qnnmem.qnn.codes import qnn_error

Handler = Callable[[ClientCall], int]

_BY_NAME: dict[str, Handler] = {
    "QnnProperty_hasCapability": backend.has_capability,
    "QnnBackend_create": backend.create,
    "QnnBackend_getApiVersion": backend.api_version,
    "QnnBackend_getBuildId": backend.build_id,
    "QnnBackend_getProperty": backend.get_property,
    "QnnBackend_free": backend.free,
    "QnnLog_create": backend.log_create,
    "QnnLog_setLogLevel": backend.log_level,
    "QnnLog_free": backend.log_free,
    "QnnSystemLog_create": backend.log_create,
    "QnnSystemLog_setLogLevel": backend.log_level,
    "QnnSystemLog_free": backend.log_free,
    "QnnSignal_create": backend.signal_create,
    "QnnSignal_setConfig": backend.nothing,
    "QnnSignal_free": backend.signal_free,
    "QnnProfile_create": backend.profile_create,
    "QnnProfile_setConfig": backend.nothing,
    "QnnProfile_getEvents": backend.profile_events,
    "QnnProfile_free": backend.profile_free,
    "QnnError_getMessage": backend.error_message,
    "QnnError_getVerboseMessage": backend.error_message,
    "QnnError_freeVerboseMessage": backend.nothing,
    "QnnDevice_create": backend.no_device,
    "QnnDevice_free": backend.no_device,
    "QnnContext_createFromBinary": context.create_from_binary,
    "QnnContext_createFromBinaryWithSignal": context.create_from_binary,
    "QnnContext_validateBinary": context.validate_binary,
    "QnnContext_getBinarySize": context.get_binary,
    "QnnContext_getBinary": context.get_binary,
    "QnnContext_free": context.free,
    "QnnGraph_create": context.graph_create,
    "QnnGraph_addNode": context.no_additions,
    "QnnTensor_createContextTensor": context.no_additions,
    "QnnTensor_createGraphTensor": context.no_additions,
    "QnnMem_register": context.mem_register,
    "QnnMem_deRegister": context.mem_deregister,
    "QnnSystemContext_create": context.system_create,
    "QnnSystemContext_getBinaryInfo": context.binary_info,
    "QnnSystemContext_getMetadata": context.binary_info,
    "QnnSystemContext_free": context.system_free,
    "QnnSystemTensor_getMemoryFootprint": context.footprint,
    "QnnGraph_retrieve": graph.retrieve,
    "QnnGraph_getProperty": graph.get_property,
    "QnnGraph_setConfig": graph.set_config,
    "QnnGraph_finalize": graph.finalize,
    "QnnGraph_execute": graph.execute,
    "QnnGraph_executeAsync": graph.execute_async,
}
HANDLERS = {NUMBERS[name]: handler for name, handler in _BY_NAME.items()}
# Calls that change what the program holds.
_CHANGES = frozenset(
    {
        *("QnnContext_createFromBinary", "QnnContext_createFromBinaryWithSignal"),
        *("QnnContext_free", "QnnGraph_setConfig", "QnnMem_register", "QnnMem_deRegister"),
    }
)
# Answers to a query for something that is not there; no program gives up for these.
_HARMLESS = frozenset({1000, 2000, 14000})
# Shortages of this machine, which are not the fault of the program.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC})
# Calls whose failure is remembered: if the missing handle is used anyway, the code was ignored.
_REMEMBERED = frozenset(
    {
        *("QnnBackend_create", "QnnContext_createFromBinary", "QnnGraph_retrieve"),
        *("QnnContext_createFromBinaryWithSignal", "QnnSystemContext_create"),
        *("QnnMem_register", "QnnSignal_create"),
    }
)


def answer(call: ClientCall) -> int:
    """Handle one call and return its code."""
    handler = HANDLERS.get(call.message.function, backend.not_supported)
    session = call.session
    with session.lock:
        session.counts[call.name] = session.counts.get(call.name, 0) + 1
        session.last = call.name
        session.calls += 1
        number = session.calls
    if call.message.words[:1] == (1,):
        library = library_of(call.message.function)
        sentence = f"{call.name} was called after {library} was closed"
        call.note(finding("C2", sentence, call.name))
    code = call.serve(lambda one: _translated(handler, one))
    if call.name in _CHANGES:
        session.note_moment(number, call.name)
    if code not in (0, EARLY_TERMINATION):
        with session.lock:
            if code not in _HARMLESS:
                session.failed.add(call.process.pid)
            session.codes[call.name] = session.codes.get(call.name, 0) + 1
        _remember(call, code)
    return code


def _translated(handler: Handler, call: ClientCall) -> int:
    """Run a handler; turn every error that a client can cause into a code of QNN."""
    try:
        return handler(call)
    except QnnError:
        raise
    except Unreadable as exc:
        what = "NULL" if not exc.address else f"{exc.address:#x}, which points to no memory"
        found = finding("C4", f"an argument is {what}", call.name, address=exc.address)
        raise qnn_error(1004, found) from exc
    except TooMuchMemory as exc:
        raise qnn_error(1002, finding("H1", str(exc), call=call.name)) from exc
    except MemoryError as exc:
        found = finding("H1", "this machine has no memory left", call=call.name)
        raise qnn_error(1002, found) from exc
    except (TooLong, QnnMemError) as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in _SHORTAGES:
            raise qnn_error(1002, finding("H1", str(exc), call=call.name)) from exc
        raise qnn_error(1004, finding("C4", str(exc), call.name)) from exc


def _remember(call: ClientCall, code: int) -> None:
    if call.name not in _REMEMBERED:
        return
    with contextlib.suppress(OSError):
        failure = Failure(call.name, code, call.trace)
        call.session.failures[MAKES[call.name], 0] = failure
