"""Output formats: every verb has `--format` and `--json`, and its JSON names the version."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest
from command_line import every_verb, exit_code, run, sentence

from qnnmem.results.schema import load_schema
from qnnmem.version import __version__

ROOT = Path(__file__).resolve().parents[2]
# Verbs that return files (a binary, output folders, a script, a page) or nothing.
WITHOUT = {"net-run", "context-binary-generator", "completion", "report", "serve", "htp-worker"}
VERBS = {
    words: verb
    for words, verb in every_verb().items()
    if not isinstance(verb, click.Group) and words not in WITHOUT
}
DETAILED = ("fit", "footprint", "qmem", "sweep", "place", "doctor", "explain")


@pytest.mark.parametrize("words", VERBS)
def test_every_verb_has_both_spellings(words: str) -> None:
    """Every verb has `--json` and `--format json`, under the same parameter names."""
    options = {option.opts[-1]: option for option in VERBS[words].params}
    assert "json" in getattr(options["--format"].type, "choices", ())
    assert (options["--format"].name, options["--json"].name) == ("form", "as_json")


@pytest.mark.parametrize("verb", DETAILED)
def test_details_have_one_option(verb: str) -> None:
    """Every verb with details accepts both `-v` and `--verbose`."""
    (option,) = [one for one in VERBS[verb].params if one.name == "verbose"]
    assert option.opts == ["-v", "--verbose"]


COMMANDS = {
    "config": "config --backend lpai -o made --force",
    "kb new": "kb new my-entry -o my-entry.md --force",
    "kb show": "kb show graph-over-limit",
    "kb list": "kb list --stage graph",
    "kb find": "kb find spill fill",
    "lpai rules": "lpai rules R3",
    "lpai choices": "lpai choices",
    "socs": "socs SM8650",
    "explain": "explain 1002",
    "doctor": "doctor examples/graph_limit.log",
    "inspect": "inspect examples/small_lpai.bin",
    "inspect htp": "inspect examples/small_htp.bin",
    "lint": "lint examples/lint/eaiParams_direct.json",
    "fit": "fit examples/small_htp.bin",
    "footprint": "footprint examples/small_htp.bin",
    "place": "place examples/small_htp.bin",
    "plan": "plan examples/keyword_spotting.csv",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_both_spellings_give_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--json` and `--format json` give equal, valid JSON and the same exit code."""
    monkeypatch.chdir(tmp_path)
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in COMMANDS[name].split()]
    short, long = run(*words, "--json"), run(*words, "--format", "json")
    values, same = json.loads(short.stdout), json.loads(long.stdout)
    ours = values.get("qnnmem", values)
    assert ours["tool"] == f"qnnmem {__version__}"
    jsonschema.Draft202012Validator(load_schema(ours["schema"])).validate(values)
    for one in (values, same):  # the time differs between runs
        one.get("stats", one).pop("seconds", None)
    assert values == same
    assert exit_code(short) == exit_code(long) == exit_code(run(*words))


def test_what_was_written_is_named(tmp_path: Path) -> None:
    """The JSON of `config` lists the written files with their sizes, and the next command."""
    folder = tmp_path / "run"
    values = json.loads(run("config", "--backend", "lpai", "-o", folder, "--json").stdout)
    sizes = {str(file): file.stat().st_size for file in folder.iterdir()}
    assert {one["file"]: one["bytes"] for one in values["files"]} == sizes
    assert values["next"].startswith("qnn-net-run ")


def test_two_forms_are_one_too_many() -> None:
    """`--json` with any other format is refused."""
    said = sentence(run("plan", "x.csv", "--json", "--format", "csv"))
    assert said == "--json and --format csv cannot be combined"
    assert exit_code(run("socs", "SM8650", "--json", "--format", "json")) == 0
