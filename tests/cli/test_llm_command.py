"""`qnnmem llm`: verdict, tables, changes and refusals on the command line."""

from __future__ import annotations

import json

import jsonschema
import pytest
from command_line import exit_code, sentence, verb

from qnnmem.results.schema import load_schema

run = verb("llm")


def test_the_first_line_is_the_verdict() -> None:
    """The first line has the verdict, the shards, the process domains and the deciding limit."""
    done = run("llama-3.2-3b", "--soc", "SM8650")
    assert exit_code(done) == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith("fits: llama-3.2-3b, 4,096 tokens, SM8650: 2 shards in 2 process")
    assert "; process domain: layers 0-27 + head needs at most" in first
    assert "the RAM of the device is not checked" in done.stdout


def test_what_does_not_fit_comes_with_computed_changes() -> None:
    """A model that does not fit gives exit code 1 and a list of changes, fitting ones first."""
    done = run("llama-3.1-8b", "--soc", "SM8650", "--shards", "1", "--json")
    assert exit_code(done) == 1
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.llm/1"))
    assert values["answer"] == "does-not-fit"
    answers = [row["answer"] for row in values["changes"]]
    assert answers[0] == "fits"
    assert values["changes"][0]["setting"] == {"shards": 2}
    assert answers == sorted(answers, key=["fits", "cannot-tell", "does-not-fit"].index)


def test_a_table_over_contexts_doubles() -> None:
    """`--vary context=A..B` doubles the context from row to row, each with its own KV size."""
    done = run("qwen3-4b", "--soc", "SM8750", "--vary", "context=1024..5000", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["setting"] for row in rows] == [{"context": n} for n in (1024, 2048, 4096, 5000)]
    assert [row["kv_bytes"] for row in rows] == [73_728 * n for n in (1024, 2048, 4096, 5000)]


def test_a_table_over_socs_needs_no_soc() -> None:
    """`--all-socs` needs no --soc; SM8450 needs more shards than SM8650."""
    done = run("llama-3.2-3b", "--all-socs", "--json")
    rows = {row["setting"]["soc"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["SM8450"]["shards"] > rows["SM8650"]["shards"]
    assert exit_code(done) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["llama-3.2-3b"], "--soc"),
        (["lama-3.2-3b", "--soc", "SM8650"], "did you mean llama-3.2-3b?"),
        (["no/such.json", "--soc", "SM8650"], "no such file"),
        (["llama-3.2-3b", "--soc", "SM8650", "--shards", "9,9"], "18 layers, but the model has 28"),
        (["llama-3.2-3b", "--soc", "SM8650", "--shards", "99"], "more than the model's 28 layers"),
        (["llama-3.2-3b", "--soc", "SM8650", "--shards", "0"], "at least one layer"),
        (["llama-3.2-3b", "--soc", "SM8650", "--bits", "nose=4"], "not a part of a recipe"),
        (["llama-3.2-3b", "--soc", "SM8650", "--bits", "kv=4"], "choose one of 8, 16"),
        (["llama-3.2-3b", "--soc", "SM8650", "--context", "100"], "leaves no room"),
        (["llama-3.2-3b", "--soc", "SM8650", "--vary", "nose=1,2"], "cannot be varied"),
        (["llama-3.2-3b", "--soc", "SM8650", "--vary", "context=0..9"], "context"),
        (["llama-3.2-3b", "--soc", "SM8650", "--ar", "0"], "at least one token"),
    ],
)
def test_a_wrong_word_is_one_sentence(words: list[str], said: str) -> None:
    """An invalid argument gives exit code 2 and one sentence that names the fault."""
    done = run(*words)
    assert exit_code(done) == 2
    assert said in sentence(done)
