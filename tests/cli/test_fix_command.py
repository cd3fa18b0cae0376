"""`qnnmem fix`: its changes, its files and its refusals."""

from __future__ import annotations

import json
import shlex
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import jsonschema
import numpy
import onnx
import pytest
from command_line import exit_code, run, sentence
from onnx import TensorProto, helper, numpy_helper

from qnnmem.cli.progress import ProgressBar
from qnnmem.fix.parts.chain import run_chain
from qnnmem.fix.proof.prove import prove
from qnnmem.htp.compile import CompileOptions
from qnnmem.loader.onnx import other_backend_note
from qnnmem.results.schema import load_schema
from qnnmem.verbs.compiler import warn


def pictures(width: int = 12) -> onnx.ModelProto:
    """Return a model with a widening convolution, a narrowing convolution and a mean."""
    random = numpy.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype("float32"), name)

    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c1"], pads=[1] * 4, name="widen"),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "k2"], ["c2"], strides=[2, 2], name="narrow"),
        helper.make_node("GlobalAveragePool", ["c2"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 32, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [weights("k1", width, 3, 3, 3), weights("k2", 4, width, 3, 3)]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TILING = {"nodes": 4, "regions": [], "inplace": False, "reorder": False}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a model whose two convolutions need 98,304 bytes between them."""
    monkeypatch.chdir(tmp_path)
    onnx.save(pictures(), "pictures.onnx")
    return "pictures.onnx"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a recipe for the same model, made once per module."""
    folder = tmp_path_factory.mktemp("made")
    onnx.save(pictures(), folder / "pictures.onnx")
    enough = ("--dim", "batch=1", "--budget", "scratch=48K")
    done = run("fix", folder / "pictures.onnx", *enough, "-o", folder / "out")
    assert exit_code(done) == 0
    return (folder / "out" / "pictures.recipe.json").read_text("utf-8")


def test_a_model_twice_too_large_is_made_to_fit(model: str) -> None:
    """The written model fits when it is planned again, and its results are identical."""
    done = run("fix", model, "--dim", "batch=1", "--budget", "scratch=48K", "-o", "out")
    assert exit_code(done) == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith("fits: scratch ")
    assert first.endswith("results identical bit for bit")
    command = shlex.split(done.stdout.splitlines()[-1].partition("qnnmem ")[2])
    planned = run("plan", "out/pictures.onnx", "--budget", "scratch=48K", *options(command))
    assert exit_code(planned) == 0
    before = onnx.load(model)
    before.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert prove(before, onnx.load("out/pictures.onnx")).identical
    assert exit_code(run(*command)) == 0


def options(command: list[str]) -> list[str]:
    """Return the options of a command that `plan` accepts, too."""
    return [word for word in command if word in ("--inplace", "--reorder")]


def test_a_recipe_repeats_it(model: str) -> None:
    """A recipe reproduces the fixed model byte for byte, without a search and without options."""
    run("fix", model, "--dim", "batch=1", "--budget", "scratch=48K", "-o", "out")
    recipe = json.loads(Path("out/pictures.recipe.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix-recipe/1")).validate(recipe)
    done = run("fix", model, "--apply", "out/pictures.recipe.json", "-o", "again")
    assert exit_code(done) == 0
    made = [Path(folder, "pictures.onnx").read_bytes() for folder in ("out", "again")]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": [{"remedy": "tiling", **TILING, "nodes": 99}]}, "for a model with 99 nodes"),
        ({"schema": "other/1"}, "is not a recipe"),
        (
            {"steps": [{"remedy": "tiling", **TILING, "inplace": 3}]},
            "inplace and reorder must be true",
        ),
        ({"steps": [{"remedy": "tiling", **TILING, "regions": [{}]}]}, "'first' is missing"),
        ({"steps": [{"remedy": "magic"}]}, "has a step 'magic'"),
        ({"steps": [7]}, "got `int` - at `$.steps[0]`"),
        (
            {"steps": [{"remedy": "tiling", **TILING}]},
            ("a list is too short, or a number is too large"),
        ),
        ({"shapes": {"x": [1, 3, -4, 4]}}, "damaged recipe (Expected `int` >= 0 - at `$.shapes"),
    ],
)
def test_a_wrong_recipe_is_refused(
    model: str, recipe: str, change: dict[str, object], said: str
) -> None:
    """A recipe for another model, or a damaged recipe, is refused with one sentence."""
    Path("wrong.json").write_text(json.dumps({**json.loads(recipe), **change}), "utf-8")
    done = run("fix", model, "--apply", "wrong.json", "-o", "again")
    assert exit_code(done) == 2
    assert said in sentence(done)
    assert not Path("again").exists()


def test_a_recipe_for_other_tensors_is_refused(model: str, recipe: str) -> None:
    """A recipe for a model with the same number of nodes but other tensors is refused."""
    Path("recipe.json").write_text(recipe, "utf-8")
    other = onnx.load(model)
    other.graph.node[0].output[0] = other.graph.node[1].input[0] = "other"
    onnx.save(other, "other.onnx")
    done = run("fix", "other.onnx", "--apply", "recipe.json", "-o", "again")
    assert exit_code(done) == 2
    assert "another model" in sentence(done)


def test_what_cannot_be_made_to_fit_says_what_is_in_the_way(model: str) -> None:
    """If the budget cannot be met, fix exits with 1 and reports the best size and the obstacle."""
    done = run("fix", model, "--dim", "batch=1", "--budget", "scratch=1K", "-o", "out", "--json")
    assert exit_code(done) == 1
    told = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix/1")).validate(told)
    assert told["fits"] is False
    assert told["after_bytes"] < told["before_bytes"]
    assert "'y' needs" in told["obstacle"]


def test_what_fits_already_stays_as_it_is(model: str) -> None:
    """Fix writes nothing for a model that already fits."""
    done = run("fix", model, "--dim", "batch=1", "--budget", "scratch=1M,tcm=1M", "-o", "out")
    assert exit_code(done) == 0
    assert done.stdout.startswith("fits unchanged")
    assert not Path("out").exists()


def test_another_pool_cannot_be_helped(model: str) -> None:
    """A budget for constants is not met by tiling, which reduces only scratch."""
    done = run("fix", model, "--dim", "batch=1", "--budget", "constants=16", "-o", "out")
    assert exit_code(done) == 1
    assert "constants cannot be reduced" in done.stdout


def test_constants_over_a_budget_become_parts(tmp_path: Path) -> None:
    """Constants over their budget are cut into parts that are loaded in turn."""
    random = numpy.random.default_rng(0)
    stored = [
        numpy_helper.from_array(random.standard_normal((32, 32)).astype("float32"), f"w{n}")
        for n in range(4)
    ]
    nodes = [helper.make_node("MatMul", [f"t{n}", f"w{n}"], [f"t{n + 1}"]) for n in range(4)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32]) for name in ("t0", "t4")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    words = ("fix", path, "--budget", "constants=9K")
    kept = run(*words, "--keep", "one-file", "-o", tmp_path / "never")
    assert exit_code(kept) == 1
    done = run(*words, "-o", tmp_path / "out")
    assert exit_code(done) == 0
    assert "2 parts, loaded in turn" in done.stdout
    first = done.stdout.splitlines()[0]
    assert (
        "2 parts loaded in turn take 8,448 bytes in total (the original model takes 16,640)"
        in first
    )
    assert "each inference loads 16,512 bytes" in first
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("partition"))
    assert "reloads" in row
    given = {"t0": numpy.ones((1, 32), "float32")}
    assert run_chain(tmp_path / "out", given)["t4"].shape == (1, 32)
    lines = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    assert len(lines) == 2
    for line in lines:
        assert "--float" not in line  # LPAI cannot run floats
        assert exit_code(run(*shlex.split(line.partition(" qnnmem ")[2]))) == 0
    recipe = tmp_path / "out" / "layers.recipe.json"
    assert exit_code(run(*words, "--apply", recipe, "-o", tmp_path / "again")) == 0
    for name in ("part1.onnx", "part2.onnx", "chain.json"):
        made = [(tmp_path / folder / name).read_bytes() for folder in ("out", "again")]
        assert made[0] == made[1], name


def test_a_result_is_for_its_backend(model: str) -> None:
    """Output, JSON, recipe and model name their backend; use on another backend gives a warning."""
    words = ("fix", model, "--dim", "batch=1", "--budget", "scratch=48K", "-o", "out")
    done = run(*words)
    assert "for LPAI only: this is not a fix for HTP" in done.stdout.splitlines()[1]
    assert json.loads(run(*words, "--force", "--json").stdout)["backend"] == "lpai"
    assert json.loads(Path("out/pictures.recipe.json").read_text())["backend"] == "lpai"
    made = Path("out/pictures.onnx")
    said = "'pictures.onnx' was made by qnnmem fix for LPAI; it may need more memory on HTP"
    assert other_backend_note(made, "htp").startswith(said)
    assert not other_backend_note(made, "lpai")
    assert not other_backend_note(Path(model), "htp")
    options = CompileOptions()
    with redirect_stderr(StringIO()) as told:
        warn(made, options, ProgressBar(""))
        warn(Path(model), options, ProgressBar(""))
    assert told.getvalue().count(said) == 1


def test_the_proof_names_optimisation_levels(model: str) -> None:
    """Fix compares results at several onnxruntime optimisation levels and lists the levels."""
    words = ("fix", model, "--dim", "batch=1", "--budget", "scratch=48K", "-o", "out")
    done = run(*words)
    assert "equal bit for bit at these onnxruntime optimisation levels: disabled" in done.stdout
    assert "optimisation levels: disabled" in Path("out/pictures.report.md").read_text()
    told = json.loads(run(*words, "--force", "--json").stdout)
    levels = told["tried"][told["best"]]["optimisation_levels"]
    assert [one["level"] for one in levels] == ["basic", "extended", "all"]


def test_earlier_files_are_kept(model: str) -> None:
    """Existing files are not replaced without --force, and fix refuses before its search."""
    Path("out").mkdir()
    Path("out/pictures.onnx").write_bytes(b"mine")
    done = run("fix", model, "--dim", "batch=1", "-o", "out")
    assert exit_code(done) == 2
    assert "--force replaces it" in sentence(done)
    assert Path("out/pictures.onnx").read_bytes() == b"mine"


def test_own_data_are_compared(model: str) -> None:
    """With --data, results are compared on the given samples."""
    Path("data").mkdir()
    for number in range(2):
        numpy.save(f"data/{number}.npy", numpy.ones((1, 3, 32, 32), "float32") * number)
    done = run("fix", model, "--dim", "batch=1", "--data", "data", "-o", "out", "--json")
    assert {one["samples"] for one in json.loads(done.stdout)["tried"]} == {0, 2}


def test_the_next_command_has_every_option_once(model: str) -> None:
    """The suggested next command repeats each option once, except those the new model contains."""
    words = ("--align", "128", "--time-limit", "60", "--io", "outside")
    done = run("fix", model, "--dim", "batch=1", *words, "-o", "out")
    command = shlex.split(done.stdout.splitlines()[-1].partition("qnnmem ")[2])
    assert command[:2] == ["prepare", "out/pictures.onnx"]
    assert [command.count(word) for word in ("--align", "--io", "--dim", "--time-limit")] == [
        *(1, 1, 0, 0)
    ]


def test_a_search_without_time_says_so(model: str) -> None:
    """With a time limit of 0, only remedies without a search are tried, and a note says so."""
    words = ("--dim", "batch=1", "--time-limit", "0", "--cache", "own")  # its own cache is empty
    done = run("fix", model, *words, "-o", "out", "--json")
    told = json.loads(done.stdout)
    assert [one["remedy"] for one in told["tried"]] == ["none", "plan"]
    assert "time limit" in told["notes"][0]


def test_only_onnx_and_tflite_can_be_changed() -> None:
    """Fix refuses a buffer list, which has no ops to tile."""
    examples = Path(__file__).parents[2] / "examples"
    done = run("fix", examples / "keyword_spotting.csv", "-o", "never")
    assert exit_code(done) == 2
    assert "is not an ONNX or TFLite model" in sentence(done)
    assert not Path("never").exists()


def test_nothing_is_lost_without_leave(model: str) -> None:
    """Lossy remedies need --allow; the answer names one that fits, and its command works."""
    given = ("fix", model, "--dim", "batch=1", "--budget", "scratch=16K", "--keep", "one-file")
    done = run(*given, "-o", "out", "--json")
    assert exit_code(done) == 1
    told = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.fix/1")).validate(told)
    assert not any(one["lossy"] for one in told["tried"])
    assert [one["allow"] for one in told["would_fit"]][:2] == ["int16", "int8"]
    command = shlex.split(told["next"])
    assert command[:2] == ["qnnmem", "fix"]
    assert "--allow" in command
    done = run(*command[1:])
    assert exit_code(done) == 0
    assert "results differ by at most" in done.stdout.splitlines()[0]
    assert "signal to noise" in done.stdout
    assert "note: WARNING: ranges of int16" in done.stdout
    refused = run("fix", model, "--apply", "out/pictures.recipe.json", "-o", "again")
    assert exit_code(refused) == 2
    assert "to permit this, add --allow int16" in sentence(refused)
    prepare = shlex.split(done.stdout.splitlines()[-1].partition("qnnmem ")[2])
    assert "--float" not in prepare
    assert exit_code(run(*prepare)) == 0


@pytest.mark.parametrize("word", ["int4", "fp16", "", "int8,bach"])
def test_what_cannot_be_allowed_is_refused(model: str, word: str) -> None:
    """`--allow` with an unknown word is refused and lists the words for LPAI."""
    done = run("fix", model, "--dim", "batch=1", "--allow", word, "-o", "out")
    assert exit_code(done) == 2
    assert "batch, int16, w8a16, int8, resolution or all for lpai" in sentence(done)


def test_the_model_itself_is_never_replaced(model: str) -> None:
    """Fix never overwrites the input model, even with --force."""
    before = Path(model).read_bytes()
    done = run("fix", model, "--dim", "batch=1", "-o", ".", "--force")
    assert exit_code(done) == 2
    assert "would be overwritten" in sentence(done)
    assert Path(model).read_bytes() == before


def test_damaged_samples_are_said_before_the_work(model: str) -> None:
    """A damaged sample is refused before the search."""
    Path("data").mkdir()
    Path("data/a.npy").write_bytes(b"\x93NUMPY")
    done = run("fix", model, "--dim", "batch=1", "--data", "data", "-o", "out")
    assert exit_code(done) == 2
    assert "not a readable .npy file" in sentence(done)
