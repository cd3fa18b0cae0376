"""Plans of several models match naive runs and an exhaustive search over sets of models."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import exit_code, run, sentence
from judge.generated import write_model
from judge.naive import TCM_SLOTS, pools, read_run, rounded

ALIGN = 64


def together(*words: str | Path, code: int = 0) -> Any:
    """Return the JSON of `plan --together`."""
    done = run("plan", *words, "--together", "--json")
    assert done.exception is None, sentence(done)
    assert exit_code(done) == code
    return json.loads(done.stdout)


def heaviest(sizes: dict[str, int], pairs: set[frozenset[str]]) -> int:
    """Return the most bytes of a set of models that can all run at once, by trying all sets."""
    every = (
        chosen for count in range(len(sizes) + 1) for chosen in combinations(sorted(sizes), count)
    )
    return max(
        sum(sizes[name] for name in chosen)
        for chosen in every
        if all(frozenset(pair) in pairs for pair in combinations(chosen, 2))
    )


@pytest.mark.parametrize("seed", range(6))
def test_pools_of_several_models_are_those_of_their_runs(seed: int, tmp_path: Path) -> None:
    """Scratch, persistent, IO, constants and TCM of several models match their naive runs."""
    random = Random(seed)  # noqa: S311
    samples = [write_model(tmp_path / f"m{n}.onnx", 100 * seed + n) for n in range(4)]
    runs = {f"m{n}": read_run(sample.path) for n, sample in enumerate(samples)}
    names = sorted(runs)
    sets = [tuple(random.sample(names, random.choice((2, 3)))) for _ in range(random.randrange(3))]
    words = [word for one in sets for word in ("--concurrent", ",".join(one))]
    found = together(*(sample.path for sample in samples), *words)
    alone = {name: pools(ran, align=ALIGN, io="inside", states={}) for name, ran in runs.items()}
    rows = {row["name"]: row for row in found["models"]}
    assert sorted(rows) == names
    for key in ("persistent", "io"):
        assert found[f"{key}_bytes"] == sum(getattr(one, key) for one in alone.values())
    assert found["constant_bytes"] == sum(one.constants for one in alone.values())
    # One allocation holds the constants of all models.
    slots = 1 + sum(one.tcm_slots - 1 for one in alone.values())
    constants = sum(one.constants for one in alone.values())
    io = sum(one.tcm - rounded(one.constants, ALIGN) for one in alone.values())
    tcm = found["tcm"]
    assert (tcm["buffers"], tcm["need_bytes"]) == (slots, rounded(constants, ALIGN) + io)
    assert tcm["max_buffers"] == TCM_SLOTS
    pairs = {frozenset(pair) for one in sets for pair in combinations(one, 2)}
    sizes = {name: row["scratch_bytes"] for name, row in rows.items()}
    for name, one in alone.items():
        assert runs[name].has_bodies or sizes[name] >= one.scratch
    assert found["lower_bound_bytes"] == heaviest(sizes, pairs)
    assert found["scratch_bytes"] >= found["lower_bound_bytes"]
    judge_places(rows, pairs, found["scratch_bytes"])


def test_finished_binaries_are_arranged_as_their_models_are(tmp_path: Path) -> None:
    """`place` gives LPAI binaries the same arrangement as `plan --together` gives their models."""
    files, binaries = [], []
    for at in range(3):
        files.append(tmp_path / f"m{at}.csv")
        text = f"id,lower,upper,size\na,0,2,{320 * (at + 1)}\nb,1,3,{128 * at + 64}\n"
        files[-1].write_text(text, "utf-8")
        binaries.append(tmp_path / f"m{at}.bin")
    for models, binary in ((files[:1], binaries[0]), (files[1:], binaries[1])):
        assert exit_code(run("prepare", *models, "-o", binary)) == 0
    both = ("--concurrent", "m0,m2")
    wanted = together(*files, *both)
    done = run("place", *binaries[:2], *both, "--json")
    assert exit_code(done) == 0, sentence(done)
    found = json.loads(done.stdout)
    same = ("models", "concurrent", "busiest", "scratch_bytes", "persistent_bytes")
    assert {key: found[key] for key in same} == {key: wanted[key] for key in same}
    assert found["tcm"]["buffers"] == 2
    sizes = [rounded(binary.stat().st_size, 256) for binary in binaries[:2]]
    assert found["tcm"]["need_bytes"] >= sum(sizes)
    assert "assumed, not checked" in run("place", *binaries[:2], *both).stdout
    assert "cannot be placed together" in sentence(
        run("place", binaries[0], Path("examples/small_htp.bin").resolve())
    )
    assert "--concurrent is only for" in sentence(run("place", "examples/small_htp.bin", *both))


def judge_places(rows: dict[str, Any], pairs: set[frozenset[str]], scratch: int) -> None:
    """Fail if two models that may run at once share a byte, or if a model exceeds scratch."""
    for left, right in combinations(rows, 2):
        spans = [
            (
                rows[name]["scratch_offset"],
                rows[name]["scratch_offset"] + rows[name]["scratch_bytes"],
            )
            for name in (left, right)
        ]
        apart = spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]
        assert apart or frozenset((left, right)) not in pairs or 0 in (s[1] - s[0] for s in spans)
    ends = [row["scratch_offset"] + row["scratch_bytes"] for row in rows.values()]
    assert max(ends) == scratch


def test_a_budget_is_for_all_models_together(tmp_path: Path) -> None:
    """A budget covers all models: each fits alone, two at once do not, and `plan` says so."""
    files = []
    for at in range(2):
        files.append(tmp_path / f"m{at}.csv")
        files[-1].write_text("id,lower,upper,size\na,0,3,640\nb,1,2,384\n", "utf-8")
    apart = together(*files, "--budget", "scratch=1K")
    assert (apart["fits"], apart["scratch_bytes"], apart["tcm"]) == (True, 1024, None)
    both = together(*files, "--budget", "scratch=1K", "--concurrent", "m0,m1", code=1)
    assert (both["fits"], both["scratch_bytes"], both["busiest"]) == (False, 2048, ["m0", "m1"])
    said = run("plan", *files, "--together").stdout
    assert "assumed, not checked: no two models execute at the same time" in said
    said = run("plan", *files, "--together", "--concurrent", "m0,m1").stdout
    assert "assumed, not checked: only these execute at the same time: m0 + m1" in said


def test_a_ring_of_models_needs_more_than_its_heaviest_set(tmp_path: Path) -> None:
    """A ring of five concurrent neighbours needs 192 bytes, above its lower bound of 128."""
    files = []
    for at in range(5):
        files.append(tmp_path / f"m{at}.csv")
        files[-1].write_text("id,lower,upper,size\na,0,1,64\n", "utf-8")
    ring = [word for at in range(5) for word in ("--concurrent", f"m{at},m{(at + 1) % 5}")]
    found = together(*files, *ring)
    assert (found["lower_bound_bytes"], found["scratch_bytes"]) == (128, 192)
    assert "the proven lower bound is 128 bytes" in run("plan", *files, "--together", *ring).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--together", "--concurrent", "m0,other"), "--concurrent names 'other'; the models are"),
        (("--together", "--concurrent", "m0"), "names fewer than two models"),
        (("--concurrent", "m0,m1"), "--concurrent needs --together"),
        (
            ("--together", "--format", "perfetto"),
            "is for one model and cannot be combined with --together",
        ),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """`plan` refuses wrong --together options with one sentence and exit code 2."""
    files = [tmp_path / "m0.csv", tmp_path / "m1.csv"]
    for file in files:
        file.write_text("id,lower,upper,size\na,0,1,64\n", "utf-8")
    done = run("plan", *files, *words)
    assert exit_code(done) == 2
    assert said in sentence(done)


def test_pages_pictures_headers_and_comparisons_know_arrangements(tmp_path: Path) -> None:
    """Pages, pictures and headers name each model; `diff` reports changed concurrency."""
    files = [tmp_path / "wake.csv", tmp_path / "vad.csv"]
    for file in files:
        file.write_text("id,lower,upper,size\na,0,1,640\n", "utf-8")
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    both = ("--concurrent", "wake,vad")
    assert exit_code(run("plan", *files, "--together", "--json", "-o", before)) == 0
    assert exit_code(run("plan", *files, "--together", *both, "--json", "-o", after)) == 0
    done = run("diff", before, after)
    assert exit_code(done) == 1
    assert "scratch" in done.stdout
    assert exit_code(run("report", after, "-o", tmp_path / "page.html")) == 0
    texts = [(tmp_path / "page.html").read_text("utf-8")]
    texts += [run("plan", *files, "--together", "--format", form).stdout for form in ("svg", "c")]
    assert all("wake" in text.lower() and "vad" in text.lower() for text in texts)
    assert "#define TOGETHER_SCRATCH_BYTES 640ULL" in texts[-1]
