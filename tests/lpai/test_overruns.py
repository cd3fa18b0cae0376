"""Writes past the end of a heap block that a graph uses."""

from __future__ import annotations

import ctypes  # noqa: TID251 - the client passes ctypes values
from collections.abc import Callable
from typing import Any

import pytest

from qnnmem.lpai.selftest.client import Client

BLOCKS: dict[str, Callable[[Client, list[Any], list[Any]], Any]] = {
    "scratch": lambda client, _inputs, _outputs: client.scratch,
    "input 'x'": lambda _client, inputs, _outputs: inputs[0].client_buf,
    "output 'y'": lambda _client, _inputs, outputs: outputs[0].client_buf,
    "the binary": lambda client, _inputs, _outputs: client.binary,
}


@pytest.mark.parametrize("what", BLOCKS)
@pytest.mark.parametrize("past", [0, 1])
def test_a_byte_past_the_end_is_found(what: str, past: int) -> None:
    """A byte written past a pool, input, output or binary gives one X2; the last byte is fine."""
    client = Client("plain").ready()
    inputs, outputs = client.tensors()
    block = BLOCKS[what](client, inputs, outputs)
    at = block.address + block.size - 1 + past
    ctypes.memset(at, ctypes.c_ubyte.from_address(at).value ^ (0xFF if past else 0), 1)
    client.graph.execute(inputs, outputs)
    found = [one for one in client.backend.findings if one.rule == "X2"]
    assert len(found) == past
    assert all("behind" in one.sentence and what in one.sentence for one in found)
