from __future__ import annotations

import json
from pathlib import Path

import command_line
import jsonschema
import onnx.parser
import pytest

from qnnmem.results.schema import load_schema

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL, LARGE = EXAMPLES / "anomaly_detection.csv", EXAMPLES / "keyword_spotting.csv"
diff = command_line.verb("diff")


def test_growth_is_exit_code_1_and_its_opposite_0() -> None:
    """`diff` compares two plans: growth gives exit code 1, shrinkage 0."""
    worse, better = diff(SMALL, LARGE), diff(LARGE, SMALL)
    assert command_line.exit_code(worse) == 1
    assert worse.stdout.startswith("worse: scratch 15,232 bytes more")
    assert command_line.exit_code(better) == 0
    assert better.stdout.startswith("better: scratch 15,232 bytes less")


def test_a_kept_result_against_a_model(tmp_path: Path) -> None:
    """A saved plan in JSON can be compared with a model, and the result follows its schema."""
    kept = tmp_path / "kept.json"
    assert command_line.run("plan", SMALL, "-o", kept).exception is None
    done = diff(kept, LARGE, "--json")
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.diff/1"))
    assert (command_line.exit_code(done), values["worse"]) == (1, True)
    assert values["subjects"][0]["pools"][0]["change_bytes"] == 15_232


def test_a_size_that_one_model_leaves_open_is_given_to_that_one(tmp_path: Path) -> None:
    """`--dim` and `--shape` apply to the model with that dimension; unknown names are refused."""
    head = '<ir_version: 8, opset_import: ["" : 18]> '
    texts = {
        "fixed": "g (float[2,8] x) => (float[2,8] y) { y = Relu(x) }",
        "open": "g (float[n,8] z) => (float[n,8] y) { y = Relu(z) }",
    }
    for name, text in texts.items():
        model = onnx.parser.parse_model(head + text)
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    files = tmp_path / "fixed.onnx", tmp_path / "open.onnx"
    for words in (("--dim", "n=2"), ("--shape", "z=2x8")):
        done = diff(*files, *words)
        assert command_line.exit_code(done) == 0, command_line.sentence(done)
        assert command_line.exit_code(diff(*reversed(files), *words)) == 0
    assert "no dimension 'm'" in command_line.sentence(diff(*files, "--dim", "m=2"))


def test_binaries_are_read_and_not_compiled() -> None:
    """HTP and LPAI binaries are compared from their files, without compilation."""
    for name in ("small_htp.bin", "small_lpai.bin"):
        done = diff(EXAMPLES / name, EXAMPLES / name, "-v")
        assert command_line.exit_code(done) == 0
        assert "pool" in done.stdout


def test_sizes_that_a_model_leaves_open_are_given_for_both() -> None:
    """`--dim` applies to both models; the same model twice shows no change."""
    model = EXAMPLES / "small.onnx"
    assert command_line.exit_code(diff(model, model, "--dim", "N=1")) == 0


def test_tolerance_and_pools_decide_what_is_worse() -> None:
    """Growth within --tolerance or outside --pool gives exit code 0, an invalid value 2."""
    assert command_line.exit_code(diff(SMALL, LARGE, "--tolerance", "16K")) == 0
    assert command_line.exit_code(diff(SMALL, LARGE, "--pool", "persistent")) == 0
    assert command_line.exit_code(diff(SMALL, LARGE, "--tolerance", "lots")) == 2
    assert "'heap' is not a pool" in command_line.sentence(diff(SMALL, LARGE, "--pool", "heap"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"schema": "qnnmem.plan/1", ', "is truncated"),
        (b'{"schema": "qnnmem.socs/1"}', "'qnnmem.socs/1' cannot be compared"),
        (b"\x7fELF", "which qnnmem diff does not compare"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    content: bytes, words: str, tmp_path: Path
) -> None:
    """A file that cannot be compared ends with exit code 2 and one sentence that names the file."""
    path = tmp_path / "b.json"
    path.write_bytes(content)
    done = diff(SMALL, path)
    assert command_line.exit_code(done) == 2
    assert words in command_line.sentence(done)
    assert "b.json" in command_line.sentence(done)


def test_models_are_planned_as_plan_does(tmp_path: Path) -> None:
    """Every option of `plan` that changes the numbers applies to both files of `diff`."""
    planned = command_line.run("plan", SMALL, "--align", "4096", "--json")
    done = diff(SMALL, SMALL, "--align", "4096", "--budget", "scratch=1K", "--json", "-v")
    subject = json.loads(done.stdout)["subjects"][0]
    assert subject["pools"][0]["before_bytes"] == json.loads(planned.stdout)["scratch_bytes"]
    own = {spelling for one in command_line.every_verb()["diff"].params for spelling in one.opts}
    assert {"--bits", "--align", "--io", "--state", "--reorder", "--inplace", "--seed"} <= own


def test_options_of_a_plan_are_refused_where_nothing_is_planned(tmp_path: Path) -> None:
    """Plan options are refused when both files are saved results, as they have no effect."""
    kept = tmp_path / "kept.json"
    assert command_line.run("plan", SMALL, "-o", kept).exception is None
    done = diff(kept, kept, "--align", "128")
    assert command_line.exit_code(done) == 2
    assert "--align applies only to models" in command_line.sentence(done)
