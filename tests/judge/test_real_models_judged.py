"""For real models, each number of `plan` matches a step-by-step simulation."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fetched import ENTRIES, TOOL
from judge.judged_plan import Case, judge_plan
from judge.naive import read_run
from seeds import EVERY, share

pytestmark = pytest.mark.models

# Twenty models by default; the slow models run only on request.
LONG = {"layout", "ocr4_det", "dnsmos", "nudenet", "ocr4_rec", "smartturn", "light_densenet121"}
REAL = [
    entry.id
    for entry in ENTRIES.values()
    if entry.test and entry.suffix == ".onnx"
    if entry.id not in LONG or EVERY
]


def case_of(name: str, random: Random) -> Case:
    """Return a real model with its listed sizes and randomly drawn options."""
    entry = ENTRIES[name]
    if not TOOL.is_present(entry):
        pytest.skip(f"model {name} is not here; fetch it with: python tools/models.py {name}")
    path = Path(entry.target(TOOL.CACHE))
    shapes = [
        word
        for tensor, shape in entry.shapes.items()
        for word in ("--shape", f"{tensor}={'x'.join(map(str, shape))}")
    ]
    values = [word for pair in entry.values.items() for word in ("--value", "{}={}".format(*pair))]
    return Case(
        path,
        read_run(path, entry.shapes, entry.values),
        (*shapes, *values),
        states=entry.states if random.random() < 0.5 else {},
        align=random.choice((64, 64, 1, 256)),
        io=random.choice(("inside", "outside")),
    )


@pytest.mark.parametrize("name", share(REAL, 2))
def test_every_number_is_that_of_the_run(name: str) -> None:
    """Offsets lose no byte; pools, peak, bound, TCM and budgets match the naive run."""
    random = Random(name)  # noqa: S311
    judge_plan(case_of(name, random), random)
