"""Files from `fix` need the promised bytes when they run as deployed."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pytest
from command_line import exit_code, run, sentence
from judge import naive
from judge.chain import check_manifest, least_scratch, most_scratch, read_chain, run_chain
from judge.generated import write_model
from judge.judged_plan import numbers
from judge.naive import Run, feeds_of, read_run, session
from judge.situations import write_convolution

# Seeds and fractions of the plain need: fixed in place, in bands, in parts or not at all.
MODELS = int(os.environ.get("QNNMEM_JUDGED_FIXES", "10"))
FIRST = int(os.environ.get("QNNMEM_JUDGED_FIRST", "0"))


def fixed(path: Path, folder: Path, *words: str, shown: bool = True) -> tuple[int, Any]:
    """Return the exit code and JSON of `fix`; with `shown`, check the first line of text too."""
    options = ("--time-limit", "10", "--cache", str(folder / "cache"), "-o", str(folder / "out"))
    done = run("fix", path, *options, *words, "--json")
    assert done.exception is None, sentence(done)
    answer = json.loads(done.stdout)
    assert exit_code(done) == (0 if answer["fits"] else 1)
    if shown:
        text = run("fix", path, *options, *words, "--force")
        first = text.stdout.splitlines()[0]
        assert first.startswith("fits" if answer["fits"] else "does not fit"), first
        assert answer["tried"][answer["best"]]["bytes"] in numbers(first), first
        assert exit_code(text) == exit_code(done)
    return exit_code(done), answer


@pytest.mark.parametrize("seed", range(FIRST, FIRST + MODELS))
def test_what_fix_wrote_needs_what_it_says(seed: int, tmp_path: Path) -> None:
    """The total of `fix` is at least the live bytes of the run, and results are bit-identical."""
    random = Random(seed)  # noqa: S311
    sample = write_model(tmp_path / "model.onnx", seed)
    original = read_run(sample.path)
    plain = naive.pools(original).scratch
    limit = int(plain * random.choice((0.9, 0.75, 0.55)))
    budget = ("--budget", f"scratch={limit}")
    _, answer = fixed(sample.path, tmp_path, *budget, shown=seed % 3 == 0)
    best = answer["tried"][answer["best"]]
    assert answer["fits"] == (best["bytes"] <= limit)
    assert answer["after_bytes"] == best["bytes"] <= answer["before_bytes"]
    least = naive.pools(original, bodies=naive.Bodies.LEAST).scratch
    assert least <= answer["before_bytes"]
    judge_files(tmp_path / "out", sample.path, original, answer)


def judge_files(folder: Path, source: Path, original: Run, answer: Any) -> None:
    """Fail if the written models need more than promised or compute different results."""
    best = answer["tried"][answer["best"]]
    inplace = any(step.get("inplace") for step in best["steps"])
    if not folder.exists():  # `fix` wrote no model: only the plan changed
        plan = {**answer["plans"]["after"], "align_bytes": 64, "reorder": True}
        naive.execute_in(original, plan, inplace=inplace)
        assert max(b["offset_bytes"] + b["size_bytes"] for b in plan["buffers"]) == best["bytes"]
        return
    chain = read_chain(folder, original, {})
    if any(part.has_bodies for part in chain.parts):
        return  # the layout of bodies is not unique
    order = answer["plans"]["after"]["ops"] if len(chain.parts) == 1 else None
    if order is not None:
        chain = type(chain)(
            (naive.in_order(chain.parts[0], order),), chain.paths, chain.inputs, chain.outputs
        )
    assert least_scratch(chain, 64, inplace=inplace) <= best["bytes"] <= most_scratch(chain, 64)
    if (folder / "chain.json").exists():
        check_manifest(folder, chain)
    if best["identical"]:
        judge_results(source, folder, original)


def judge_results(source: Path, folder: Path, original: Run) -> None:
    """Fail if an output of the written models differs in one bit."""
    model = onnx.load(source)
    for seed in (1, 2):
        feeds = feeds_of(model.graph, seed)
        names = list(original.outputs)
        want = dict(zip(names, session(model).run(names, feeds), strict=True))
        got = run_chain(read_chain(folder, original, {}), feeds)
        for name, value in want.items():
            assert value.tobytes() == got[name].tobytes(), f"{name} differs"


def test_what_comes_next_runs(tmp_path: Path) -> None:
    """Each command that `fix` prints as `next:` runs on the written files."""
    sample = write_model(tmp_path / "model.onnx", 2)
    need = naive.pools(read_run(sample.path)).scratch
    options = ("--budget", f"scratch={need * 3 // 4}", "-o", str(tmp_path / "out"))
    done = run("fix", sample.path, *options, "--cache", str(tmp_path / "cache"))
    lines = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    assert lines
    for line in lines:
        program, *words = shlex.split(line[line.index("qnnmem ") :])
        assert program == "qnnmem"
        assert exit_code(run(*words)) in (0, 1), line


@pytest.mark.htp
@pytest.mark.parametrize("budget", ["weights=24576", "ram=8435000"])
def test_parts_for_htp_are_judged_together(budget: str, tmp_path: Path) -> None:
    """The bills of the written binaries, loaded as promised, add up to the claimed total."""
    pytest.importorskip("onnxruntime_qnn")
    path = write_convolution(tmp_path / "conv.onnx")
    pool, limit = budget.split("=")
    words = ("--backend", "htp", "--soc", "SM8650", "--keep", "settings", "--budget", budget)
    code, answer = fixed(path, tmp_path, *words)
    best = answer["tried"][answer["best"]]
    bills = [bill_of(file) for file in sorted((tmp_path / "out").glob("*.bin"))]
    assert bills
    together = "in turn" not in best["change"]
    kept = [sum(bill.values()) - bill["VTCM"] for bill in bills]
    if pool == "weights":
        each = [bill["weights"] for bill in bills]
        need = sum(each) if together else max(each)
    else:  # the parts run in sequence and share one VTCM
        held = max(bill["VTCM"] for bill in bills)
        need = held + (sum(kept) if together else max(kept))
    assert best["bytes"] >= need, best["change"]
    assert answer["fits"] == (need <= int(limit)) == (code == 0), best["change"]


def bill_of(path: Path) -> dict[str, int]:
    """Return the bytes of each part of a binary."""
    done = run("footprint", path, "--soc", "SM8650", "--json")
    parts = json.loads(done.stdout)["parts"]
    return {name: part["bytes"] for name, part in parts.items() if part is not None}
