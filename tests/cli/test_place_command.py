"""`qnnmem place`: verdict first, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import jsonschema
import pytest
from command_line import verb
from context_writer import example_context, example_graph, old_context, pack_context
from msgspec import structs
from sliced_model import sliced

from qnnmem.errors import CannotTell, UsageError
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.results.schema import load_schema

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def binary(folder: Path, name: str, mib: int) -> Path:
    """Write a context binary for SM8650 with this many MiB of weights."""
    path = folder / name
    made = structs.replace(example_context(), graphs=(example_graph(const=mib * MIB),))
    path.write_bytes(pack_context(made))
    return path


run = verb("place")


def test_contexts_share_a_domain(tmp_path: Path) -> None:
    """The first line counts contexts and domains; shared spill/fill memory is suggested."""
    done = run(binary(tmp_path, "a.bin", 1000), binary(tmp_path, "b.bin", 2000))
    assert done.stdout.startswith("fits: 2 contexts in 1 process domain, ")
    assert "spill/fill: one buffer for all contexts of a domain saves up to 65,536" in done.stdout
    assert done.return_value == 0


def test_a_better_order_is_named(tmp_path: Path) -> None:
    """When small contexts come first, `place` recommends an order that needs fewer domains."""
    small, large = binary(tmp_path, "s.bin", 1350), binary(tmp_path, "l.bin", 2050)
    done = run(small, small, large, large)
    assert done.stdout.startswith("fits: 4 contexts in 3 process domains")
    better = next(line for line in done.stdout.splitlines() if line.startswith("better order"))
    assert "2 domains (no order needs fewer domains)" in better


def test_too_many_do_not_fit(tmp_path: Path) -> None:
    """Four contexts of 3,000 MiB fit the four domains of a process; five do not."""
    one = binary(tmp_path, "a.bin", 3000)
    assert run(one, one, one, one).return_value == 0
    done = run(one, one, one, one, one)
    assert (done.return_value, done.stdout.startswith("does not fit: 5 contexts")) == (1, True)


def test_a_budget_can_be_given(tmp_path: Path) -> None:
    """`--budget` lowers the size of a process domain, as on older phones."""
    done = run(binary(tmp_path, "a.bin", 2100), "--budget", "2G")
    assert done.return_value == 1
    assert "larger than a whole process domain" in done.stdout.splitlines()[0]


def test_the_json_obeys_its_schema(tmp_path: Path) -> None:
    """The JSON for two contexts follows its schema."""
    one = binary(tmp_path, "a.bin", 3000)
    jsonschema.validate(json.loads(run(one, one, "--json").stdout), load_schema("qnnmem.place/1"))


def test_a_file_without_sizes_cannot_be_placed(tmp_path: Path) -> None:
    """A binary of an old SDK without sizes cannot be placed."""
    path = tmp_path / "old.bin"
    path.write_bytes(pack_context(old_context()))
    assert isinstance(run(path).exception, CannotTell)


@pytest.mark.parametrize("words", [["--verify", "--budget", "1G"], ["--soc", "nonsense"]])
def test_wrong_words_are_refused(tmp_path: Path, words: list[str]) -> None:
    """`--verify` together with --budget is refused, and so is an unknown SoC."""
    assert isinstance(run(binary(tmp_path, "a.bin", 1), *words).exception, UsageError)


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_the_real_library_is_asked(tmp_path: Path) -> None:
    """`--verify` shows the library's answers and whether they agree with the prediction."""
    model, made = sliced(tmp_path / "m.onnx", 1741), tmp_path / "m.bin"
    words = ["prepare", str(model), "--backend", "htp", "--soc", "SM8350", "-o", str(made)]
    command_line.run(*words)
    done = run(made, made, "--verify", "--json")
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.place/1"))
    assert [one["code"] for one in values["verified"]] == [0, 1002]
    assert all(one["predicted"] == one["admitted"] for one in values["verified"])
    assert (values["answer"], done.return_value) == ("fits", 0)
    assert "the real library confirms the predictions" in run(made, "--verify").stdout
