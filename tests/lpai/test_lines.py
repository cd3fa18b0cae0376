"""Every finding has the line of the client's Python code that made the call."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from qnnmem import lpai
from qnnmem.contract.leaks import separate
from qnnmem.errors import QnnError
from qnnmem.lpai.selftest.client import SCRATCH, Client
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import MemType

HERE = Path(__file__).name


def test_a_refused_call_is_named() -> None:
    """A refused call has its source line in the error and in the backend's findings."""
    client = Client("plain")
    mem = lpai.custom(SCRATCH, lpai.Mem(MemType.DDR, 64, client.buffer(512).view[1:65]))
    with pytest.raises(QnnError) as caught:
        client.graph.set_config([mem, None])
    line = caught.value.finding.line
    assert line.startswith(f"{HERE}:")
    assert line.endswith("client.graph.set_config([mem, None])")
    assert client.backend.findings[-1].line == line


def test_a_note_is_named() -> None:
    """A finding of a successful call has its source line too."""
    client = Client("plain").ready()
    client.scratch.free()
    client.context.free()
    assert [(f.rule, f.line.split(": ")[1]) for f in client.backend.findings] == [
        ("R7", "client.context.free()")
    ]


def test_an_execution_of_the_queue_is_named_by_the_line_that_asked_for_it() -> None:
    """A finding of a queued execution has the line that queued it."""
    client, over = Client("plain").ready(), Event()
    client.scratch.free()
    client.graph.execute_async(notify=lambda _: over.set())
    assert over.wait(60)
    found = client.backend.findings[-1]
    assert found.rule == "R7"
    assert found.line.endswith("client.graph.execute_async(notify=lambda _: over.set())")


def test_what_is_left_is_named_by_the_line_that_made_it() -> None:
    """A leak has the line that created the handle."""
    with separate():
        kept = lpai.Context.create_from_binary(lpai.Backend.create(), binary(), trusted=True)
        lines = [found.line for found in lpai.leaks()]
        kept.free()
    assert len(lines) == 2
    assert all("kept = lpai.Context.create_from_binary" in line for line in lines)
