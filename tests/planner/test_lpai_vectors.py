"""Real LPAI models whose scratch size is known from the vendor's compiler."""

from __future__ import annotations

import pytest

from qnnmem.ir import DType, Effect, Model, Op, Span, Tensor
from qnnmem.planner import Buffer, Io, Plan, PoolOptions, Problem, plan_model, plan_problem
from qnnmem.units import Align, Bytes, Step, round_up

Row = tuple[str, int, int, int]  # name, bytes, first step, last step

AUTOENCODER: list[Row] = [
    ("in", 640, -1, 0),
    *((f"t{21 + k}", 16 if k == 4 else 128, k, k + 1) for k in range(9)),
    ("out", 640, 9, 10),
]
KEYWORDS: list[Row] = [
    ("in", 490, -1, 0),
    ("t22", 490, 0, 1),
    ("t23", 560, 1, 3),
    *((f"t{k}", 8000, k - 22, k - 21) for k in range(25, 34)),
    ("t34", 64, 12, 14),
    ("t36", 64, 14, 16),
    ("helper", 48, 16, 16),
    ("out", 12, 16, 17),
]


def problem(rows: list[Row]) -> Problem:
    """Return a problem whose starts and sizes are aligned to 64 bytes."""
    return Problem(
        tuple(
            Buffer(name, Bytes(round_up(size, 64)), Span(Step(first), Step(last + 1)), Align(64))
            for name, size, first, last in rows
        )
    )


def autoencoder() -> Model:
    """Return the anomaly detector as a chain of ten layers."""
    sizes = {name: size for name, size, _, _ in AUTOENCODER}
    names = list(sizes)
    return Model(
        "ad",
        "eaix",
        {name: Tensor(name, DType.INT8, (size,)) for name, size in sizes.items()},
        tuple(
            Op(f"fc{k}", "SUPER_GEMM_EAI", (names[k],), (names[k + 1],))
            for k in range(len(names) - 1)
        ),
        ("in",),
        ("out",),
    )


@pytest.mark.parametrize(("rows", "need"), [(KEYWORDS, 16_000), (AUTOENCODER, 768)])
def test_the_planner_reaches_the_compilers_number(rows: list[Row], need: int) -> None:
    """The keyword spotter needs 16,000 bytes and the anomaly detector 768, both proven minimal."""
    plan = plan_problem(problem(rows))
    assert isinstance(plan, Plan)
    assert (plan.peak, plan.optimal) == (need, True)


def test_the_lifetimes_of_the_chain_are_those_of_the_vector() -> None:
    """The model itself needs 768 bytes with IO in scratch, and its lifetimes are the known ones."""
    plan = plan_model(autoencoder())
    assert (plan.scratch_bytes, plan.scratch.optimal) == (768, True)
    spans = {b.name: (b.live.lower, b.live.upper - 1) for b in plan.buffers}
    expected = {name: (first, last) for name, _, first, last in AUTOENCODER}
    # Step 9 is the last layer; the output lives one step longer, to step 10.
    assert spans == expected


def test_without_io_the_chain_needs_less_scratch() -> None:
    """With IO outside, scratch holds just two hidden layers of 128 bytes at a time."""
    plan = plan_model(autoencoder(), PoolOptions(io=Io.OUTSIDE))
    assert (plan.scratch_bytes, plan.io_bytes) == (256, 1280)


def test_a_view_in_the_chain_costs_nothing() -> None:
    """A reshape at the end of the chain shares the bytes of its source and adds none."""
    model = autoencoder()
    view = Op("nop", "NOP", ("out",), ("flat",), Effect.VIEW)
    viewed = Model(
        "ad",
        "eaix",
        {**model.tensors, "flat": Tensor("flat", DType.INT8, (640,))},
        (*model.ops, view),
        ("in",),
        ("flat",),
    )
    assert plan_model(viewed).scratch_bytes == 768
