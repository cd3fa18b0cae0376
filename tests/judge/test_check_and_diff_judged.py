"""Verdicts and numbers of `check` and `diff` match a naive run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from command_line import exit_code, run, sentence
from judge.generated import write_model
from judge.judged_plan import Case, numbers
from judge.naive import Pools, read_run

SEEDS = (0, 3, 6, 8, 12, 14, 15, 18, 19, 22, 24, 27)  # none with a branch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the models."""
    return tmp_path_factory.mktemp("judged")


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[Case]:
    """Return models with their states, with inputs and outputs inside and outside scratch."""
    found = []
    for seed in SEEDS:
        sample = write_model(folder / f"m{seed}.onnx", seed)
        io = "outside" if seed % 2 else "inside"
        found.append(Case(sample.path, read_run(sample.path), states=sample.states, io=io))
    return found


def sizes(pools: Pools) -> dict[str, int]:
    """Return the bytes of each pool and their total."""
    each = {
        "scratch": pools.scratch,
        "persistent": pools.persistent,
        "io": pools.io,
        "constants": pools.constants,
    }
    return {**each, "total": sum(each.values()), "tcm": pools.tcm}


def test_check_agrees_with_the_runs(cases: list[Case], folder: Path) -> None:
    """With budgets within a byte of the run, `check` gives the right verdict, excess and code."""
    random = Random(30)  # noqa: S311
    tables, limits = [], []
    for case in cases:
        need = sizes(case.pools())
        limit = {
            name: max(0, size + random.choice((-1, 0, 0, 0, 1))) for name, size in need.items()
        }
        limits.append(limit)
        budget = ", ".join(f"{name} = {size}" for name, size in limit.items())
        states = ", ".join(f'{old} = "{new}"' for old, new in case.states.items())
        tables.append(
            f'[[model]]\npath = "{case.path.name}"\nio = "{case.io}"\n'
            f"states = {{ {states} }}\nbudget = {{ {budget} }}\n"
        )
    config = folder / "qnnmem.toml"
    config.write_text("\n".join(tables))
    done = run("check", "--config", config, "--json")
    assert done.exception is None, sentence(done)
    answer = json.loads(done.stdout)
    fitting = []
    for case, limit, model in zip(cases, limits, answer["models"], strict=True):
        need = sizes(case.pools())
        assert model["pools"] == need
        over = {name: max(0, need[name] - size) for name, size in limit.items()}
        assert {c["pool"]: c["over_bytes"] for c in model["checks"]} == over
        assert {c["pool"]: c["have_bytes"] for c in model["checks"]} == limit
        fitting.append(not any(over.values()))
        assert (model["fits"], model["exit_code"]) == (fitting[-1], 0 if fitting[-1] else 1)
    assert exit_code(done) == answer["exit_code"] == (0 if all(fitting) else 1)
    assert answer["counts"]["good"] == sum(fitting)
    assert 0 < sum(fitting) < len(fitting)
    first = run("check", "--config", config).stdout.splitlines()[0]
    assert first.startswith("does not fit: ")
    assert len(fitting) - sum(fitting) in numbers(first)


def test_a_baseline_turns_with_the_runs(cases: list[Case], folder: Path) -> None:
    """A baseline holds for an unchanged model; a model with a larger run has grown."""
    by_need = sorted(cases[:6], key=lambda case: case.pools().scratch)
    small, large = by_need[0], by_need[-1]
    target = folder / "changing.onnx"
    config = folder / "one.toml"
    config.write_text('baseline = "accepted.json"\nmodels = ["changing.onnx"]\n')
    target.write_bytes(small.path.read_bytes())
    assert exit_code(run("check", "--config", config, "--update-baseline")) == 0
    assert exit_code(run("check", "--config", config)) == 0
    target.write_bytes(large.path.read_bytes())
    done = run("check", "--config", config)
    assert exit_code(done) == 1
    grown = (
        Case(large.path, large.run).pools().scratch - Case(small.path, small.run).pools().scratch
    )
    assert f"{grown:,}" in done.stdout


@pytest.mark.parametrize("tolerance", ["", "512", "40%"])
def test_diff_agrees_with_the_runs(cases: list[Case], folder: Path, tolerance: str) -> None:
    """`diff` reports the pools before and after, growth beyond the tolerance and the exit code."""
    results = []
    for case in cases:
        path = folder / f"{case.path.stem}.json"
        if not path.exists():
            plain = Case(case.path, case.run)
            path.write_text(run("plan", plain.path, *plain.words, "--json").stdout)
        results.append((path, sizes(Case(case.path, case.run).pools())))
    options = ("--tolerance", tolerance) if tolerance else ()
    turned = set()
    for (a, before), (b, after) in pairwise(results):
        done = run("diff", a, b, *options, "--json")
        assert done.exception is None, sentence(done)
        answer = json.loads(done.stdout)
        (subject,) = answer["subjects"]
        worse = False
        for pool in subject["pools"]:
            name = pool["pool"]
            assert (pool["before_bytes"], pool["after_bytes"]) == (before[name], after[name])
            assert pool["change_bytes"] == after[name] - before[name]
            allowed = 512 if tolerance == "512" else 0.4 * before[name] if tolerance else 0
            assert pool["worse"] == (pool["change_bytes"] > allowed)
            worse |= pool["worse"]
        assert answer["worse"] == worse
        assert exit_code(done) == int(worse)
        turned.add(worse)
        first = run("diff", a, b, *options).stdout.splitlines()[0]
        delta = {name: after[name] - before[name] for name in before}
        assert first.partition(":")[0] in words_for(delta.values(), worse=worse), first
        for name, size, way in re.findall(r"(\w+) ([\d,]+) bytes? (more|less)", first):
            change = delta["total" if name == "together" else name]
            assert f"{abs(change):,}" == size, first
            assert way == ("more" if change > 0 else "less"), first
    assert turned == {True, False}


def words_for(deltas: Iterable[int], *, worse: bool) -> set[str]:
    """Return the words that may describe a comparison: worse, not worse, better or mixed."""
    known = list(deltas)
    fell, grew = min(known) < 0, max(known) > 0
    found = {"worse"} if worse else {"not worse"}
    found |= {"better"} if fell and not worse else set()
    return found | ({"mixed"} if fell and grew else set())


def test_diff_of_two_models_plans_both(cases: list[Case]) -> None:
    """`diff` plans two models with the given options and matches their naive runs."""
    for a, b in ((cases[0], cases[1]), (cases[4], cases[5])):
        done = run("diff", a.path, b.path, "--io", "outside", "--align", "32", "--json")
        (subject,) = json.loads(done.stdout)["subjects"]
        before, after = (
            sizes(Case(case.path, case.run, io="outside", align=32).pools()) for case in (a, b)
        )
        for pool in subject["pools"]:
            assert pool["before_bytes"] == before[pool["pool"]]
            assert pool["after_bytes"] == after[pool["pool"]]
