"""A type that several threads decode for the first time is built by only one of them."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest

from qnnmem.wire import ready

# Without `ready`, a few of these rounds end with a segmentation fault.
_ROUNDS = """
import sys, threading, msgspec
from qnnmem.wire import ready
sys.setswitchinterval(1e-6)
TEXT = '''
class Inner(msgspec.Struct, frozen=True):
    x: "int" = 0
class Outer(msgspec.Struct, frozen=True):
    inner: "Inner"
    several: "tuple[Inner, ...]" = ()
'''
for _ in range(100):
    exec(TEXT)
    barrier = threading.Barrier(4)
    def work():
        barrier.wait()
        msgspec.json.decode(b'{"inner":{"x":1},"several":[{"x":2}]}', type=ready(Outer))
    threads = [threading.Thread(target=work) for _ in range(4)]
    [one.start() for one in threads]
    [one.join() for one in threads]
print("done")
"""


class Point(msgspec.Struct, frozen=True):
    """A type that only this file uses."""

    x: int


def test_one_thread_builds_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight threads, one builds the type and the others wait."""
    built = []
    real = msgspec.json.Decoder

    def build(kind: type[Point]) -> object:
        built.append(kind)
        return real(kind)

    monkeypatch.setattr(msgspec.json, "Decoder", build)
    threads = [threading.Thread(target=ready, args=(Point,)) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert built == [Point]
    assert ready(Point) is Point


def test_threads_decode_a_new_type_at_once() -> None:
    """Threads that decode a new type at once do not crash the process."""
    done = subprocess.run([sys.executable, "-c", _ROUNDS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-300:]
