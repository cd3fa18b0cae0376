"""Planning pauses Python's garbage collector and always restores its state."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from qnnmem.errors import UsageError
from qnnmem.ir import FixedBuffer, Model, Span
from qnnmem.planner import Pool, Progress, plan_model
from qnnmem.units import Bytes, Step

LIST = Model(
    "list", "csv", buffers=tuple(FixedBuffer(n, Bytes(8), Span(Step(0), Step(1))) for n in "ab")
)


@pytest.fixture(params=[True, False], ids=["on", "off"])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Turn the garbage collector on or off for the test and restore it afterwards."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_it_is_paused_while_planning_and_then_as_before(enabled: bool) -> None:
    """Planning runs with the garbage collector off and restores the caller's setting."""
    seen: list[bool] = []

    def watch(_: Progress) -> None:
        seen.append(gc.isenabled())

    plan_model(LIST, watch=watch)
    assert seen
    assert not any(seen)
    assert gc.isenabled() is enabled


def test_it_is_as_before_after_a_refusal(enabled: bool) -> None:
    """A UsageError during planning leaves the garbage collector as the caller had it."""
    with pytest.raises(UsageError):
        plan_model(LIST, budget={Pool.SCRATCH: Bytes(-1)})
    assert gc.isenabled() is enabled


def test_it_is_as_before_after_an_interrupt(enabled: bool) -> None:
    """An interrupt during planning leaves the garbage collector as the caller had it."""

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_model(LIST, watch=stop)
    assert gc.isenabled() is enabled
