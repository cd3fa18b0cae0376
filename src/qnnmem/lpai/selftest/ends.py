"""Cases about what has to be freed in the end: L1 to L4."""

from __future__ import annotations

import tempfile

from qnnmem.contract.leaks import leaks
from qnnmem.lpai.runtime.descriptors import MemDescriptor, MemInfoCustom
from qnnmem.lpai.runtime.queue import Signal
from qnnmem.lpai.selftest.case import FINDING, Trial, breaks, keeps
from qnnmem.qnn.enums import DataType


def _left(t: Trial, *wanted: str) -> None:
    """What is not freed now, each with the line that made it."""
    found = leaks()
    rules = [one.rule for one in found]
    t.check(rules == list(wanted), f"not freed: {rules} instead of {list(wanted)}")
    t.check(all(" at " in one.sentence for one in found), "a line is missing")


def _in_order(t: Trial) -> None:
    t.client().ready().executed().freed("context", "backend").no_findings()
    _left(t)


def _never(t: Trial) -> None:
    client = t.client().ready()
    _left(t, "L1", "L2", "L2")  # the backend, its context, and the graph of that
    client.context.free()
    _left(t, "L1")
    client.backend.free()
    _left(t)


def _registered(t: Trial, *, deregister: bool) -> None:
    client = t.client("plain")
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        info = MemInfoCustom(file.fileno(), 0)
        handles = client.context.mem_register(
            [MemDescriptor((1, 25), DataType.INT_32, custom_info=info)]
        )
        if deregister:
            client.context.mem_deregister(handles)
            client.freed("context").no_findings()
        else:
            client.noted(lambda c: c.context.free())


def _signals(t: Trial) -> None:
    client = t.client("plain").ready()
    for signal in (Signal(), Signal(client.backend)):
        client.graph.execute(signal=signal)
        signal.free()
    client.freed("context", "backend").no_findings()
    _left(t)


def _signals_left(t: Trial) -> None:
    client = t.client("plain").ready()
    Signal()
    signal = Signal(client.backend)
    with client.held():
        client.graph.execute_async(signal=signal)
        t.refused(signal.free, code=9000)
    signal.free()
    t.refused(signal.free, code=9003)
    t.refused(client.graph.execute, signal=signal, code=9003)
    client.freed("context", "backend")
    _left(t, "L4")


# fmt: off
ENDS = (
    keeps("L1", "context, then backend", _in_order),
    breaks("L1", "the backend before its context", FINDING,
           lambda t: t.client().ready().noted(lambda c: c.backend.free())),
    keeps("L2", "a context freed after its last execution", _in_order),
    breaks("L2", "a context and its graph never freed", FINDING, _never),
    keeps("L3", "memory deregistered, then the context freed",
          lambda t: _registered(t, deregister=True)),
    breaks("L3", "memory still registered when the context is freed", FINDING,
           lambda t: _registered(t, deregister=False)),
    keeps("L4", "every signal freed", _signals),
    breaks("L4", "signals freed in use, twice, never, or used later", (9000, 9003), _signals_left),
)
