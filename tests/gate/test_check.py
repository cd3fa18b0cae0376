from __future__ import annotations

import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

import command_line
import jsonschema
import numpy
import onnx.parser
import pytest
from budget_project import CONFIG, EXAMPLES, buffers, grow, make_project

from qnnmem.errors import NoCompiler
from qnnmem.htp import library
from qnnmem.results.schema import load_schema

check = command_line.verb("check")
BASELINE = "qnnmem-baseline.json"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a project with three models."""
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(make_project(tmp_path / "project"))
    return tmp_path / "project"


def code(*words: str | Path) -> int:
    """Return the exit code of `qnnmem check`."""
    return command_line.exit_code(check(*words))


def values(*words: str) -> dict[str, Any]:
    """Return the JSON result, validated by its schema."""
    found: dict[str, Any] = json.loads(check("--json", *words).stdout)
    jsonschema.validate(found, load_schema("qnnmem.check/1"))
    return found


def test_from_the_first_run_to_an_accepted_baseline(project: Path) -> None:
    """A first run passes, a regression against its baseline fails, and accepting it passes."""
    first = check()
    assert command_line.exit_code(first) == 0
    assert first.stdout.startswith("fits: 3 of 3 models\n")
    assert "--update-baseline" in first.stdout
    assert code("--update-baseline") == 0
    kept = (project / BASELINE).read_bytes()
    jsonschema.validate(json.loads(kept), load_schema("qnnmem.baseline/1"))
    assert check().stdout.startswith("fits: 3 of 3 models, none worse than the baseline\n")

    grow(project)
    worse = check()
    assert command_line.exit_code(worse) == 1
    assert worse.stdout.startswith("worse than the baseline: 1 of 3 (models/spotter.csv (LPAI))\n")
    assert "15,000         16,000       +1,000         16,384" in worse.stdout
    assert "grew      t2" in worse.stdout
    assert (project / BASELINE).read_bytes() == kept  # a check does not change the baseline

    assert code("--update-baseline") == 0
    assert code() == 0
    changed = (project / BASELINE).read_text("utf-8").splitlines()
    lines = [
        new for old, new in zip(kept.decode().splitlines(), changed, strict=True) if old != new
    ]
    assert len(lines) == 2  # one line for the pool and one for the tensor


@pytest.mark.parametrize("budget", ["", "budget = { tcm = '1M' }\n"])
def test_more_allocations_than_tcm_serves_break_a_limit(project: Path, budget: str) -> None:
    """More than 32 TCM allocations fail, with and without a budget for TCM."""
    names = [f"x{number}" for number in range(40)]
    inputs = ", ".join(f"uint8[4] {name}" for name in names)
    text = f"g ({inputs}) => (uint8[160] y) {{ y = Concat <axis = 0> ({', '.join(names)}) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    (project / "many.onnx").write_bytes(model.SerializeToString())
    config = f"[[model]]\npath = 'many.onnx'\n{budget}"
    (project / "qnnmem.toml").write_text(config, "utf-8")
    done = check("--config", "qnnmem.toml")
    assert command_line.exit_code(done) == 1
    assert "42 allocations, 32 possible" in done.stdout
    (found,) = values("--config", "qnnmem.toml")["models"]
    assert found["fits"] is False
    assert found["reasons"] == [
        "tcm: 42 allocations, but TCM allows only 32, which is fatal on the device"
    ]


def test_a_broken_budget_fails_whatever_the_baseline_says(project: Path) -> None:
    """A broken budget fails even if the baseline accepts its number."""
    grow(project, 9000)
    assert code("--update-baseline") == 1
    done = check()
    assert command_line.exit_code(done) == 1
    assert done.stdout.startswith("does not fit: 1 of 3 (models/spotter.csv (LPAI))\n")
    assert "616 over" in done.stdout
    assert "cannot fit in scratch: t2, t1" in done.stdout


def test_the_numbers_are_those_of_plan_and_fit(project: Path) -> None:
    """The pools of check equal those of `plan` and `fit`."""
    found = {one["file"]: one["pools"] for one in values()["models"]}
    plan = json.loads(command_line.run("plan", "models/tiny.eaix", "--json").stdout)
    assert found["models/tiny.eaix"]["scratch"] == plan["scratch_bytes"]
    assert found["models/tiny.eaix"]["constants"] == plan["constant_bytes"]
    assert found["models/tiny.eaix"]["tcm"] == plan["tcm"]["need_bytes"]
    words = ("--budget", "ram=64M", "--budget", "spill-fill=0", "--json")
    fit = json.loads(command_line.run("fit", "models/small_htp.bin", *words).stdout)
    needs = {one["pool"]: one["need_high"]["bytes"] for one in fit["socs"][0]["checks"]}
    assert {pool: found["models/small_htp.bin"][pool] for pool in needs} == needs


def test_a_list_of_buffers_is_planned_to_the_end(project: Path) -> None:
    """The planned size of a buffer list does not depend on the budget."""
    (project / "models" / "spotter.csv").write_text(buffers(*range(100, 3000, 300)), "utf-8")
    small = values()["models"][-1]["pools"]["scratch"]
    text = CONFIG.replace('scratch = "16K"', 'scratch = "1M"')
    (project / "pyproject.toml").write_text(text, "utf-8")
    assert values()["models"][-1]["pools"]["scratch"] == small


def test_growth_within_the_tolerance_is_accepted(project: Path) -> None:
    """Growth within the configured tolerance is accepted."""
    text = CONFIG.replace("baseline =", 'tolerance = "10%"\nbaseline =')
    (project / "pyproject.toml").write_text(text, "utf-8")
    assert code("--update-baseline") == 0
    grow(project, 8000)
    assert code() == 0
    text = text.replace("10%", "5%")
    (project / "pyproject.toml").write_text(text, "utf-8")
    assert code() == 1


def test_models_that_come_and_go_are_named(project: Path) -> None:
    """New and removed models are listed and do not fail."""
    check("--update-baseline")
    (project / "models" / "tiny.eaix").rename(project / "models" / "other.eaix")
    text = CONFIG.replace("models/tiny.eaix", "models/other.eaix")
    (project / "pyproject.toml").write_text(text, "utf-8")
    found = values()
    assert found["exit_code"] == 0
    assert found["baseline"]["new"] == ["models/other.eaix (LPAI)"]
    assert found["baseline"]["gone"] == ["models/tiny.eaix (LPAI)"]


def test_a_file_that_cannot_be_read_is_exit_code_2_and_keeps_its_baseline(project: Path) -> None:
    """An unreadable file gives exit code 2 and keeps its baseline entry; others are checked."""
    check("--update-baseline")
    kept = json.loads((project / BASELINE).read_text("utf-8"))
    (project / "models" / "tiny.eaix").write_bytes(b"")
    found = values()
    assert (found["exit_code"], found["counts"]["good"]) == (2, 2)
    assert found["models"][0]["answer"] == "not checked: the file is empty"
    assert code("--update-baseline") == 2
    assert json.loads((project / BASELINE).read_text("utf-8")) == kept


def test_htp_without_a_library_cannot_tell(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that must be compiled gives exit code 3 if the HTP library is missing."""

    def missing() -> None:
        raise NoCompiler("the HTP library is not there")

    monkeypatch.setattr(library, "find_library", missing)
    (project / "models" / "small.onnx").write_bytes((EXAMPLES / "small.onnx").read_bytes())
    table = '\n[[tool.qnnmem.model]]\npath = "models/small.onnx"\nsocs = "SM8650"\n'
    (project / "pyproject.toml").write_text(f"{CONFIG}{table}dims = {{ N = 1 }}\n", "utf-8")
    found = values()
    assert (found["exit_code"], found["counts"]["cannot_tell"]) == (3, 1)
    assert found["models"][2]["name"] == "models/small.onnx (SM8650)"
    assert "not there" in found["models"][2]["answer"]


@pytest.mark.htp
def test_a_model_is_compiled_for_a_soc(project: Path) -> None:
    """With the HTP library, a model is compiled for its SoC and judged."""
    if not library.has_library():
        pytest.skip("the real HTP library is not installed")
    (project / "models" / "small.onnx").write_bytes((EXAMPLES / "small.onnx").read_bytes())
    text = """
        [[model]]
        path = "models/small.onnx"
        socs = ["SM8650"]
        dims = { N = 1 }
        budget = { weights = "1K" }
    """
    (project / "qnnmem.toml").write_text(text, "utf-8")
    found = values()
    assert [one["target"] for one in found["models"]] == ["SM8650"]
    assert {one["fits"] for one in found["models"]} == {False}  # the weights have 8 KiB


def test_settings_of_a_model_are_those_of_plan(project: Path) -> None:
    """Settings of a model apply as in `plan`, and the suggested command repeats them."""
    (project / "models" / "small.onnx").write_bytes((EXAMPLES / "small.onnx").read_bytes())
    text = """
        align = 128
        [[model]]
        path = "models/small.onnx"
        shapes = { x = "2x4x8x8" }
        bits = 8
        io = "outside"
        budget = { scratch = 100, io = "1K" }
    """
    (project / "qnnmem.toml").write_text(text, "utf-8")
    words = "--shape x=2x4x8x8 --io outside --align 128 --bits 8"
    done = check()
    fix = "qnnmem fix models/small.onnx --budget scratch=100 --budget io=1024"
    assert f"{fix} {words} -o fixed" in done.stdout
    plan = command_line.run("plan", "models/small.onnx", *words.split(), "--json")
    pools = values()["models"][0]["pools"]
    assert pools["scratch"] == json.loads(plan.stdout)["scratch_bytes"]
    assert pools["io"] == json.loads(plan.stdout)["io_bytes"] > 0


def test_what_a_model_leaves_open_is_said_as_the_config_writes_it(project: Path) -> None:
    """The refusal of an open dimension names the config line that fixes it."""
    (project / "models" / "small.onnx").write_bytes((EXAMPLES / "small.onnx").read_bytes())
    (project / "qnnmem.toml").write_text('models = ["models/small.onnx"]\n', "utf-8")
    assert "dims = { N = " in values()["models"][0]["answer"]


def test_socs_for_all_are_for_models_that_can_be_compiled(project: Path) -> None:
    """Top-level `socs` apply to binaries, but not to buffer lists."""
    text = 'models = ["models"]\nsocs = ["SM8650", "SM8750"]\n'
    (project / "qnnmem.toml").write_text(text, "utf-8")
    targets = {(one["file"], one["target"]) for one in values()["models"]}
    assert targets == {
        ("models/small_htp.bin", "SM8650"),
        ("models/small_htp.bin", "SM8750"),
        ("models/spotter.csv", "LPAI"),
        ("models/tiny.eaix", "LPAI"),
    }


def test_an_lpai_binary_is_read_by_graph(project: Path) -> None:
    """An LPAI binary is judged by its graph's pools."""
    (project / "models" / "a.bin").write_bytes((EXAMPLES / "small_lpai.bin").read_bytes())
    table = '\n[[tool.qnnmem.model]]\npath = "models/a.bin"\nbudget = { scratch = 767 }\n'
    (project / "pyproject.toml").write_text(CONFIG + table, "utf-8")
    model = next(one for one in values()["models"] if one["file"] == "models/a.bin")
    assert (model["fits"], model["pools"]["scratch"]) == (False, 768)


def test_what_is_accepted_can_be_compared_by_diff(project: Path) -> None:
    """Two baselines, or a baseline and a result, can be compared by `diff`."""
    check("--update-baseline")
    old = (project / BASELINE).rename(project / "old.json")
    grow(project)
    check("--update-baseline")
    done = command_line.run("diff", old, BASELINE)
    assert command_line.exit_code(done) == 1
    assert done.stdout.startswith("worse: scratch 1,000 bytes more")
    check("--json", "-o", "now.json")
    assert command_line.exit_code(command_line.run("diff", BASELINE, "now.json")) == 0


def test_budgets_are_found_from_a_folder_below(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config is found from a subfolder, and model names stay relative to the config."""
    (project / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "src" / "deep")
    assert values()["models"][0]["name"] == "models/tiny.eaix (LPAI)"


def test_maps_are_drawn_to_a_folder(project: Path) -> None:
    """`--maps` draws one SVG per planned model, with portable file names."""
    assert code("--maps", "maps") == 0
    assert sorted(one.name for one in (project / "maps").iterdir()) == [
        "models_spotter.csv_LPAI.svg",
        "models_tiny.eaix_LPAI.svg",
    ]
    assert (project / "maps" / "models_tiny.eaix_LPAI.svg").read_text("utf-8").startswith("<svg")


def test_a_baseline_that_is_none_is_refused(project: Path) -> None:
    """An invalid baseline is refused with exit code 2 and not overwritten."""
    for text in ("", "{", "[]", '{"schema": "qnnmem.plan/1"}', '{"schema": "qnnmem.baseline/1"}'):
        (project / BASELINE).write_text(text, "utf-8")
        done = check("--update-baseline")
        assert command_line.exit_code(done) == 2
        assert BASELINE in command_line.sentence(done)
        assert (project / BASELINE).read_text("utf-8") == text


def test_a_baseline_without_a_name_cannot_be_updated(project: Path) -> None:
    """`--update-baseline` without a baseline name is refused with a hint to --baseline."""
    config = CONFIG.replace(f'baseline = "{BASELINE}"\n', "")
    (project / "pyproject.toml").write_text(config, "utf-8")
    assert "--baseline FILE" in command_line.sentence(check("--update-baseline"))
    assert code("--baseline", "b.json", "--update-baseline") == 0
    assert (project / "b.json").exists()


def test_without_budgets_nothing_fails_and_one_is_offered(project: Path) -> None:
    """Without budgets, the exit code is 0, and the suggested line adds a budget."""
    config = project / "qnnmem.toml"
    config.write_text('models = ["models/spotter.csv"]\n', "utf-8")
    done = check("--config", config)
    assert command_line.exit_code(done) == 0
    assert done.stdout.startswith("no budgets: 1 model planned")
    line = next(
        one for one in done.stdout.splitlines() if one.startswith("add a budget at the top of")
    )
    config.write_text(f"{line.partition(': ')[2]}\n{config.read_text('utf-8')}", "utf-8")
    assert check("--config", config).stdout.startswith("fits: 1 of 1 model")


def test_a_model_that_leaves_the_baseline_is_named(project: Path) -> None:
    """`--update-baseline` names models that leave the baseline."""
    check("--update-baseline")
    (project / "models" / "spotter.csv").unlink()
    done = check("--update-baseline")
    assert "no longer in the baseline: models/spotter.csv (LPAI)" in done.stdout


def test_two_results_for_one_file_are_refused_before_the_work(project: Path) -> None:
    """One output file for two results is refused before any work."""
    for words in (("--also", "a.xml", "--also", "a.xml"), ("-o", "a.xml", "--also", "a.xml")):
        done = check(*words)
        assert command_line.exit_code(done) == 2
        assert "two results would be written to 'a.xml'" in command_line.sentence(done)
    assert not (project / "a.xml").exists()


def test_a_broken_budget_is_followed_by_what_says_more_not_by_a_new_baseline(project: Path) -> None:
    """An exceeded budget suggests a command that shows the limit, not --update-baseline."""
    own = 'models = ["models/tiny.eaix"]\nbaseline = "b.json"\n'
    (project / "qnnmem.toml").write_text(own, "utf-8")
    assert code("--update-baseline") == 0
    table = '[[model]]\npath = "models/small_htp.bin"\nbudget = { pd = "1K" }\n'
    (project / "qnnmem.toml").write_text(own + table, "utf-8")
    done = check()
    assert command_line.exit_code(done) == 1
    assert "not in the baseline: models/small_htp.bin" in done.stdout
    assert "--update-baseline" not in done.stdout
    (line,) = (one for one in done.stdout.splitlines() if one.startswith("next: "))
    _, why, command = line.split(": ", 2)
    assert why == "show the broken limit"
    again = command_line.run(*shlex.split(command)[1:])
    assert again.stdout.startswith("does not fit")


def test_socs_of_a_dlc_are_refused_with_the_line_to_write(project: Path) -> None:
    """A DLC entry with `socs` but no target is refused with the line to add."""
    table = '[[model]]\npath = "models/{}"\nsocs = ["SM8650"]\n'
    with zipfile.ZipFile(project / "models" / "image.dlc", "w") as archive:
        archive.writestr("dlc.metadata", "")
    (project / "qnnmem.toml").write_text(table.format("image.dlc"), "utf-8")
    assert 'but target is lpai; write target = "htp"' in check().stdout
    (project / "qnnmem.toml").write_text(table.format("tiny.eaix"), "utf-8")
    assert "write target" not in check().stdout  # this file cannot be compiled for HTP


@pytest.fixture
def outside(project: Path) -> Path:
    """Return a folder outside the project, linked from inside."""
    folder = project.parent / "elsewhere"
    folder.mkdir()
    (folder / "big.csv").write_text(buffers(64), "utf-8")
    numpy.save(folder / "mask.npy", numpy.ones(1))
    (project / "linked").symlink_to(folder)
    (project / "models" / "linked.csv").symlink_to(folder / "big.csv")
    return folder


@pytest.mark.parametrize(
    "place",
    ["../elsewhere/{}", "models/../../elsewhere/{}", "{outside}/{}", "linked/{}", "linked/../{}"],
)
@pytest.mark.parametrize(
    ("line", "file"),
    [
        ('models = ["NAME"]', "big.csv"),
        ('models = ["NAME"]', "*.csv"),
        ('models = ["NAME"]', ""),
        ('[[model]]\npath = "NAME"', "big.csv"),
        ('models = ["models/tiny.eaix"]\nbaseline = "NAME"', "new.json"),
        ('models = ["models/tiny.eaix"]\nvalues = { x = "@NAME" }', "mask.npy"),
        ('[[model]]\npath = "models/tiny.eaix"\nvalues = { x = "@NAME" }', "mask.npy"),
    ],
)
def test_no_path_leads_out_of_the_project(
    project: Path, outside: Path, place: str, line: str, file: str
) -> None:
    """Models, baseline and value files must be inside the project, with links followed."""
    name = place.format(file, outside=outside.as_posix())
    (project / "qnnmem.toml").write_text(line.replace("NAME", name), "utf-8")
    before = sorted(project.parent.rglob("*"))
    done = check("--update-baseline") if "baseline" in line else check()
    assert "is outside the project" in command_line.sentence(done)
    assert sorted(project.parent.rglob("*")) == before


def test_a_link_out_of_the_project_is_no_model(project: Path, outside: Path) -> None:
    """A link out of the project is refused in a pattern; a link inside is accepted."""
    (project / "qnnmem.toml").write_text('models = ["models/*.csv"]\n', "utf-8")
    assert "linked.csv' is outside the project" in command_line.sentence(check())
    (project / "models" / "linked.csv").unlink()
    (project / "models" / "linked.csv").symlink_to(project / "models" / "spotter.csv")
    assert code() == 0


def test_a_whole_path_into_the_project_is_fine(project: Path) -> None:
    """An absolute path into the project is accepted."""
    models, kept = (project / "models").as_posix(), (project / "kept.json").as_posix()
    text = f'models = ["{models}/*.csv"]\nbaseline = "{kept}"\n'
    (project / "qnnmem.toml").write_text(text, "utf-8")
    assert code("--update-baseline") == 0
    assert (project / "kept.json").exists()


def test_a_config_beside_the_models_may_name_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config in a subfolder may name models in the repository or the working directory."""
    (project / "ci").mkdir()
    (project / "ci" / "qnnmem.toml").write_text('models = ["../models/*.csv"]\n', "utf-8")
    assert code("--config", "ci/qnnmem.toml") == 0
    monkeypatch.chdir(project / "ci")
    assert code() == 2
    (project / ".git").mkdir()
    assert code() == 0


def test_a_config_file_has_a_size(project: Path) -> None:
    """A config file over the size limit is refused."""
    (project / "qnnmem.toml").write_text("[[model]]\npath = 'a'\n" * 20_000, "utf-8")
    assert "over the limit" in command_line.sentence(check())


def test_a_budget_of_a_float_model_with_fewer_bits_holds_by_an_estimate(project: Path) -> None:
    """A budget for a float model with `bits` is answered as an estimate."""
    text = "g (float[1,64] x) => (float[1,64] y) { h = Exp(x) y = Neg(h) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    (project / "float.onnx").write_bytes(model.SerializeToString())
    for budget, word in (("1M", "fits"), ("1", "does not fit")):
        config = f"[[model]]\npath = 'float.onnx'\nbits = 8\nbudget = {{ scratch = '{budget}' }}\n"
        (project / "qnnmem.toml").write_text(config, "utf-8")
        (found,) = values("--config", "qnnmem.toml")["models"]
        assert found["answer"] == f"{word} by an estimate before quantization"
