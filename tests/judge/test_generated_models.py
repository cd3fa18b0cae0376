"""For generated models, each number of `plan` matches a step-by-step simulation."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from command_line import run
from judge.generated import write_model
from judge.judged_plan import Case, judge_plan, judge_proof
from judge.naive import read_run

MODELS = int(os.environ.get("QNNMEM_JUDGED_MODELS", "30"))
FIRST = int(os.environ.get("QNNMEM_JUDGED_FIRST", "0"))


def case_of(folder: Path, seed: int) -> Case:
    """Return the model of a seed with the options of that seed."""
    random = Random(seed)  # noqa: S311
    sample = write_model(folder / f"model_{seed}.onnx", seed)
    return Case(
        sample.path,
        read_run(sample.path),
        states=sample.states if random.random() < 0.7 else {},
        align=random.choice((64, 64, 64, 1, 8, 48, 4096)),
        io=random.choice(("inside", "inside", "outside")),
        inplace=random.random() < 0.2,
        reorder=random.random() < 0.2,
    )


@pytest.mark.parametrize("seed", range(FIRST, FIRST + MODELS))
def test_every_number_is_that_of_the_run(seed: int, tmp_path: Path) -> None:
    """Offsets lose no byte; pools, peak, bound, TCM and budgets match the naive run."""
    case = case_of(tmp_path, seed)
    plan = judge_plan(case, Random(seed))  # noqa: S311
    if case.run.has_bodies and not case.inplace and not case.reorder:
        judge_proof(case, run("plan", case.path, *case.words).stdout, plan)
