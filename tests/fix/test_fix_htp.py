"""`qnnmem fix --backend htp` with a scripted worker and with the real library."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

import jsonschema
import numpy
import onnx
import pytest
from click.testing import Result
from command_line import exit_code, run, sentence
from onnx import TensorProto, helper, numpy_helper
from told_worker import ToldWorker, done, loaded, refused

from qnnmem.cache import ResultCache
from qnnmem.errors import NoCompiler, UsageError
from qnnmem.fix import htp as htp_settings
from qnnmem.fix.htp import REMEDIES, fix_for_htp, repeat_for_htp
from qnnmem.fix.library.trials import HtpSource, LibraryTrials, kept_trial
from qnnmem.fix.parts.chain import run_chain
from qnnmem.fix.recipe import apply_recipe
from qnnmem.fix.remedy import Change, FixCase, Step
from qnnmem.htp import provoke as models
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.compile_cache import to_builtins
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import read_line as log_line
from qnnmem.htp.requests import RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.loader.onnx import read_shaped
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.schema import load_schema
from qnnmem.targets.socs import find_soc

SM8650 = find_soc("SM8650")
HTP = ("--backend", "htp", "--soc", "SM8650")
needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)


def layers(count: int = 6) -> onnx.ModelProto:
    """Return products with 128 KiB of 16-bit weights each."""
    random = numpy.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(size=(256, 256)).astype("float32") / 16, f"w{n}")
        for n in range(count)
    ]
    nodes = [
        helper.make_node("MatMul", [f"t{n}", f"w{n}"], [f"t{n + 1}"], f"layer{n}")
        for n in range(count)
    ]
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 256])
        for name in ("t0", f"t{count}")
    )
    graph = helper.make_graph(nodes, "layers", [next(ends)], [next(ends)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# --- Scripted answers ----------------------------------------------------------------------------


class Told:
    """A scripted library that accepts models up to a number of products."""

    def __init__(self, most: int) -> None:
        self.most, self.compiles = most, 0
        self.worker = ToldWorker(self._answer)

    def _answer(self, verb: str, options: Mapping[str, Any], _limit: int | None) -> RequestOutcome:
        if verb == "load":
            lines = []
            for number in range(1, len(options["binaries"]) + 1):
                lines.append(f"Setting context {number} reserved space to 1000000")
                lines.append(f"PD 0 chosen for context {number}")
            codes = [0 for _ in options["binaries"]]
            return RequestOutcome("done", loaded(*codes), log=tuple(map(log_line, lines)))
        self.compiles += 1
        products = len(onnx.load(options["model"]).graph.node)
        if products <= self.most:
            return done(options)
        need = products * 1_000_000
        text = f"graph requires estimated allocation of {need} KB, limit is 3670016 KB"
        return refused(f"x.cc:1::ERROR:{text}")


@pytest.fixture
def case(tmp_path: Path) -> FixCase:
    """Return a case of six products for HTP."""
    path = tmp_path / "layers.onnx"
    onnx.save(layers(), path)
    return FixCase(path, read_shaped(path), CompileOptions())


def target(told: Told, folder: Path, **more: Any) -> LibraryTrials:
    """Return trials with a scripted library."""
    return LibraryTrials(SM8650, cast("Worker", told.worker), folder, **more)


def test_a_search_goes_on_where_another_was_killed(case: FixCase, tmp_path: Path) -> None:
    """A second search reuses cached trials and compiles only the binaries of the result."""
    memory = ResultCache(tmp_path / "kept", "fix")
    first, again = Told(3), Told(3)
    for told, name in ((first, "one"), (again, "two")):
        (tmp_path / name).mkdir()
        found = fix_for_htp(case, target(told, tmp_path / name, memory=memory))
        assert [one.change.what for one in found.tried] == ["as it is", "2 parts, all resident"]
        assert (found.exit_code, len(found.binaries)) == (0, 2)
    assert first.compiles > again.compiles == 2


def test_what_was_kept_and_damaged_is_asked_again(case: FixCase, tmp_path: Path) -> None:
    """A cached trial reads back equal; a damaged one or one for another SoC counts as missing."""
    told = Told(3)
    trials = LibraryTrials(SM8650, cast("Worker", told.worker), tmp_path)
    source = HtpSource(layers(2).SerializeToString())
    made = trials.trial(source, CompileOptions())
    kept = json.loads(json.dumps(to_builtins(made)))
    assert to_builtins(cast("Any", kept_trial(kept, SM8650))) == to_builtins(made)
    for wrong in ({"fits": 3}, {"checks": [["magic"]]}, {"why": 7}):
        assert kept_trial({**kept, "fit": {**kept["fit"], **wrong}}, SM8650) is None
    assert kept_trial({**kept, "spill_fill": -1}, SM8650) is None
    assert kept_trial(kept, find_soc("SM8550")) is None


def test_a_model_whose_ops_are_not_taken_is_not_cut(case: FixCase, tmp_path: Path) -> None:
    """A model with unsupported ops is not partitioned, and the exit code is 3."""

    def answer(*_all: object) -> RequestOutcome:
        return refused("Unsupported nodes in QNN EP: { name: layer0, type: MatMul }", code=None)

    worker = cast("Worker", ToldWorker(answer))
    found = fix_for_htp(case, LibraryTrials(SM8650, worker, tmp_path))
    assert (found.exit_code, len(found.tried)) == (3, 1)
    assert "does not support a node" in "".join(map(str, found.best.need.why))


def test_no_parts_where_one_file_is_kept_or_time_is_up(case: FixCase, tmp_path: Path) -> None:
    """With --keep one-file or without time left, only the unchanged model is compiled."""
    for number, own in enumerate(
        (replace(case, keep=frozenset(["one-file"])), replace(case, ends_at=monotonic()))
    ):
        (tmp_path / str(number)).mkdir()
        told = Told(3)
        found = fix_for_htp(own, target(told, tmp_path / str(number)))
        assert (found.exit_code, len(found.tried), told.compiles) == (1, 1, 1)
        assert found.obstacle


def test_a_recipe_for_other_contexts_is_refused(case: FixCase, tmp_path: Path) -> None:
    """A recipe that loads unknown contexts is refused."""
    for names in (["other.bin", "model"], ["other.bin"]):
        step = {"remedy": "placement", "rounds": [names]}

        def repeat(own: FixCase, step: Step = step) -> Change:
            return apply_recipe(own, (step,), tmp_path, REMEDIES)

        with pytest.raises(UsageError, match="different loaded contexts"):
            repeat_for_htp(case, target(Told(6), tmp_path), repeat)


def test_sizes_of_vtcm_halve() -> None:
    """The candidate VTCM sizes halve down to 1 MiB."""
    assert list(htp_settings._halves(8)) == [4, 2, 1]


# --- The real library ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the models and of the compiled results."""
    made = tmp_path_factory.mktemp("fixed")
    onnx.save(layers(), made / "layers.onnx")
    (made / "sliced.onnx").write_bytes(models.sliced_inputs(4, 2))
    (made / "softmax.onnx").write_bytes(models.wide_softmax(3 << 20))
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder and use a separate cache."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    # Loader estimates are cached, as they are for a user.
    monkeypatch.setattr("qnnmem.htp.measure.cache_folder", lambda: folder / "cache")
    return folder


def commands(done: Result) -> list[list[str]]:
    """Return the command words of each `next:` line."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    return [shlex.split(line.partition(" qnnmem ")[2]) for line in lines]


@pytest.mark.htp
@needs_library
def test_a_graph_over_the_compile_limit_becomes_parts(here: Path) -> None:
    """Parts of a graph over the compile limit compile, load and compute the same results."""
    done = run("fix", "sliced.onnx", *HTP, "--budget", "compile=5M", "-o", "sliced")
    assert exit_code(done) == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith("fits: graph 4,")
    assert first.endswith("results identical bit for bit")
    assert "2 parts, all resident" in done.stdout
    whole = onnx.load("sliced.onnx")
    inputs = {item.name: numpy.ones((1, 2, 1024, 1024), "uint8") for item in whole.graph.input}
    assert set(run_chain(here / "sliced", inputs)) == {item.name for item in whole.graph.output}
    for command in commands(done):
        assert command[0] == "place"
        assert exit_code(run(*command)) == 0
    assert exit_code(run("fit", "sliced/part1.bin", "--budget", "compile=5M")) == 0


@pytest.mark.htp
@needs_library
def test_a_recipe_cuts_again(here: Path) -> None:
    """A recipe makes the same parts without a search; another model is refused."""
    words = ("fix", "layers.onnx", *HTP, "--budget", "weights=450000")
    assert exit_code(run(*words, "-o", "cut")) == 0
    recipe = json.loads(Path("cut/layers.recipe.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix-recipe/1")).validate(recipe)
    assert exit_code(run(*words, "--apply", "cut/layers.recipe.json", "-o", "again")) == 0
    for name in ("part1.onnx", "part2.onnx", "part1.bin", "part2.bin"):
        assert Path("cut", name).read_bytes() == Path("again", name).read_bytes(), name
    onnx.save(layers(5), "other.onnx")
    other = run("fix", "other.onnx", *HTP, "--apply", "cut/layers.recipe.json", "-o", "never")
    assert exit_code(other) == 2
    assert "for a model with 6 ops" in sentence(other)
    lpai = run("fix", "layers.onnx", "--apply", "cut/layers.recipe.json", "-o", "never")
    assert "the recipe is for --backend htp" in sentence(lpai)


def measured(folder: Path) -> list[dict[str, int]]:
    """Return the parts and the total from the bill of each written binary."""
    found = []
    for path in sorted(folder.glob("part*.bin")):
        bill = json.loads(run("footprint", path, "--soc", "SM8650", "--json").stdout)
        sizes = {name: part["bytes"] for name, part in bill["parts"].items()}
        found.append({**sizes, "all": bill["total"]["bytes"]})
    return found


@pytest.mark.htp
@needs_library
@pytest.mark.parametrize(
    ("budget", "arrangement"),
    [("weights=450000", "in-turn"), ("compile=500000", "resident"), ("ram=9100000", "in-turn")],
)
def test_a_chain_meets_a_budget_with_all_its_parts(
    budget: str, arrangement: str, here: Path
) -> None:
    """A chain meets a budget with all its parts: one VTCM, and each stored weight counts."""
    folder = Path("chain", budget)
    words = ("fix", "layers.onnx", *HTP, "--budget", budget, "--keep", "settings")
    done = run(*words, "-o", folder, "--json")
    told = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix/1")).validate(told)
    assert told["fits"], told["obstacle"]
    found, parts = told["deployment"], measured(folder)
    assert found["arrangement"] == arrangement
    rest = [part["all"] - part["VTCM"] for part in parts]
    vtcm = max(part["VTCM"] for part in parts)
    if arrangement == "in-turn":  # no tensor waits for a later layer
        assert found["total_bytes"] == max(rest) + vtcm
        assert found["pools"]["weights"] == max(part["weights"] for part in parts)
        assert found["load_bytes_per_inference"] > sum(part["weights"] for part in parts)
    else:
        assert found["total_bytes"] == sum(rest) + vtcm
        assert found["pools"]["weights"] == sum(part["weights"] for part in parts)
    pool, _, limit = budget.partition("=")
    assert found["pools"][pool] <= int(limit)
    first = run(*words, "-o", folder, "--force").stdout.splitlines()[0]
    assert f"take {found['total_bytes']:,} bytes in total" in first
    assert f"{told['plain_total_bytes']:,}" in first


@pytest.mark.htp
@needs_library
def test_parts_that_are_over_a_budget_together_are_no_fix(here: Path) -> None:
    """Parts that each meet a budget but exceed it together are not a fix."""
    words = ("fix", "layers.onnx", *HTP, "--keep", "settings", "-o", "together")
    plain = json.loads(run(*words, "--budget", "weights=450000", "--json", "--force").stdout)
    done = run(*words, "--budget", f"io={plain['deployment']['pools']['io'] - 1}", "--force")
    assert exit_code(done) == 1


@pytest.mark.htp
@needs_library
def test_a_context_over_the_process_domain_gets_less_vtcm(here: Path) -> None:
    """For the process domain, `fix` picks the largest VTCM that fits, and its command works."""
    done = run("fix", "layers.onnx", *HTP, "--budget", "pd=6M", "-o", "domain", "--json")
    told = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix/1")).validate(told)
    assert [one["change"] for one in told["tried"]] == ["as it is", "VTCM 2 MiB"]
    files = ["layers.bin", "layers.report.md", "layers.recipe.json"]
    assert told["files"] == [f"domain/{name}" for name in files]
    made = Path("domain/layers.bin").read_bytes()
    assert exit_code(run(*shlex.split(told["next"])[1:])) == 0
    assert Path("domain/layers.bin").read_bytes() == made


@pytest.mark.htp
@needs_library
def test_an_op_over_vtcm_gets_all_that_the_soc_has(here: Path) -> None:
    """An op over 2 MiB of VTCM compiles with 8 MiB; with --keep settings `fix` exits with 1."""
    words = ("fix", "softmax.onnx", *HTP, "--vtcm-mb", "2")
    done = run(*words, "-o", "softmax")
    assert exit_code(done) == 0
    assert "VTCM 8 MiB" in done.stdout
    kept = run(*words, "--keep", "settings", "-o", "never")
    assert exit_code(kept) == 1
    less = run("fix", "layers.onnx", *HTP, "--budget", "vtcm=1M", "--keep", "settings", "-o", "x")
    assert (exit_code(less), "use all of VTCM" in less.stdout) == (1, True)
    assert "the model can be cut into parts that fit only up to Softmax 'softmax'" in kept.stdout
    assert not Path("never").exists()


@pytest.mark.htp
@needs_library
def test_a_budget_below_one_op_is_refused_with_the_reason(here: Path) -> None:
    """A budget below the need of one op exits with 1, and the obstacle names the op."""
    words = ("--budget", "weights=50000", "-o", "never", "--json")
    done = run("fix", "layers.onnx", *HTP, *words)
    told = json.loads(done.stdout)
    assert (exit_code(done), told["fits"], told["files"]) == (1, False, [])
    assert "MatMul 'layer0'; for this op alone, weights budget: " in told["obstacle"]


@pytest.mark.htp
@needs_library
def test_contexts_that_stay_loaded_give_way(here: Path) -> None:
    """If not all resident contexts fit, `fix` frees as few of them as possible at a time."""
    assert exit_code(run("fix", "layers.onnx", *HTP, "--budget", "pd=6M", "-o", "small")) == 0
    others = [word for _ in range(4) for word in ("--with", "small/layers.bin")]
    words = ("fix", "layers.onnx", *HTP, "--budget", "pd=11M", *others, *others)
    done = run(*words, "--keep", "settings", "-o", "beside")
    assert exit_code(done) == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[3:6]] == [
        *("none", "placement", "placement")
    ]
    first, second = commands(done)
    assert (first.count("small/layers.bin"), second.count("small/layers.bin")) == (8, 6)
    for command in (first, second):
        assert exit_code(run(*command)) == 0


# --- Refused before any compile ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backend", "htp"), "needs --soc"),
        (("--soc", "SM8650"), "--soc is for --backend htp"),
        ((*HTP, "--io", "outside"), "--io is for --backend lpai"),
        ((*HTP, "--budget", "scratch=1K"), "'scratch' is not a pool of HTP"),
        ((*HTP, "--budget", "pd=1K,PD=2K"), "two budgets"),
        ((*HTP, "--vtcm-mb", "64"), "but SM8650 has 8"),
    ],
)
def test_wrong_words_are_one_sentence(folder: Path, words: tuple[str, ...], said: str) -> None:
    """Wrong options exit with 2 and one sentence, and leave no folder."""
    done = run("fix", folder / "layers.onnx", *words, "-o", folder / "wrong")
    assert exit_code(done) == 2
    assert said in sentence(done)
    assert not (folder / "wrong").exists()


def test_without_the_library_it_says_what_is_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library `fix` exits with 3, like the other verbs that compile."""

    def missing() -> None:
        raise NoCompiler("the HTP library is not here")

    monkeypatch.setattr("qnnmem.htp.library.find_library", missing)
    done = run("fix", folder / "layers.onnx", *HTP, "-o", folder / "missing")
    assert exit_code(done) == 3
    assert "the HTP library is not here" in sentence(done)


def test_budgets_are_held_against_what_was_measured(tmp_path: Path) -> None:
    """One compile answers different budgets."""
    told = Told(6)
    budget = {"weights": Sourced(1, Origin.GIVEN, "test")}
    trials = LibraryTrials(SM8650, cast("Worker", told.worker), tmp_path)
    source = HtpSource(layers(2).SerializeToString())
    assert trials.trial(source, CompileOptions()).fit.fits
    tight = replace(trials, budgets=budget).trial(source, CompileOptions()).fit
    assert (tight.fits, told.compiles) == (False, 1)
    assert "weights budget: " in "".join(map(str, tight.why))


@pytest.mark.htp
@needs_library
@pytest.mark.parametrize(
    ("word", "pool", "least"), [("batch", "io", 0.6), ("int8", "weights", 0.75)]
)
def test_what_changes_results_is_judged_by_the_library(
    here: Path, word: str, pool: str, least: float
) -> None:
    """A smaller batch or fewer bits are tried only if allowed; the library compiles the result."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32, 16, 16]) for name in "xy"
    ]
    kernel = numpy.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype("float32")
    node = helper.make_node("Conv", ["x", "k"], ["y"], pads=[1] * 4)
    graph = helper.make_graph(
        [node], "g", values[:1], values[1:], [numpy_helper.from_array(kernel, "k")]
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "four.onnx")
    given = ("fix", "four.onnx", *HTP, "--keep", "one-file", "--keep", "settings", "--json")
    refused = run(*given, "--budget", f"{pool}=1", "-o", f"not-{word}")
    assert exit_code(refused) == 1
    budget = int(json.loads(refused.stdout)["before_bytes"] * least)
    done = run(*given, "--budget", f"{pool}={budget}", "--allow", word, "-o", f"with-{word}")
    told = json.loads(done.stdout)
    assert exit_code(done) == 0
    assert told["tried"][told["best"]]["lossy"]
    assert told["after_bytes"] <= budget
    assert Path(f"with-{word}", "four.bin").exists()
