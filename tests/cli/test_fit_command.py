"""`qnnmem fit`: verdict first, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import verb
from context_writer import example_context, example_graph, pack_context
from msgspec import structs
from sliced_model import sliced

from qnnmem.errors import CannotTell, OutputError, UsageError
from qnnmem.flags import flag
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.results.schema import load_schema

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def binary(folder: Path, **graph: Any) -> Path:
    """Write a context binary of one graph for SM8650."""
    path = folder / "model.bin"
    made = structs.replace(example_context(), graphs=(example_graph(**graph),))
    path.write_bytes(pack_context(made))
    return path


run = verb("fit")


def test_a_binary_that_fits(tmp_path: Path) -> None:
    """The first line of a fit names the tightest limit, the next one and the bytes to spare."""
    done = run(binary(tmp_path))
    first = done.stdout.splitlines()[0]
    assert first.startswith("fits SM8650: 0 bytes to spare in the VTCM, all of it used; ")
    assert "next tightest limit: 3,6" in first
    assert first.endswith("in the process domain")
    assert done.return_value == 0


def test_a_binary_that_does_not(tmp_path: Path) -> None:
    """A binary over a limit gives exit code 1, the excess and the largest parts."""
    done = run(binary(tmp_path, const=3600 * MIB))
    assert done.stdout.startswith("does not fit SM8650: ")
    assert "more than the process domain allows" in done.stdout.splitlines()[0]
    assert "  weights\n" in done.stdout
    assert done.return_value == 1


def test_a_range_across_the_limit_cannot_be_told(tmp_path: Path) -> None:
    """A range of bytes that spans the limit gives exit code 3 and suggests --load."""
    done = run(binary(tmp_path, const=0, op_data=2300 * MIB, io=0, ddr_tensors=0))
    assert (done.return_value, "--load" in done.stdout.splitlines()[0]) == (3, True)


def test_every_soc_is_one_line(tmp_path: Path) -> None:
    """`--all-socs` prints one line per SoC and gives exit code 1 if the model fits only some."""
    done = run(binary(tmp_path), "--all-socs")
    assert done.stdout.splitlines()[0].startswith("fits ")
    assert "SM8750      fits" in done.stdout
    assert "SM8350      does not fit" in done.stdout
    assert done.return_value == 1


def test_the_json_obeys_its_schema(tmp_path: Path) -> None:
    """The JSON follows its schema for one SoC, for several, and with a budget."""
    for words in ([], ["--all-socs"], ["--soc", "SM8350", "--soc", "57"], ["--budget", "ram=1K"]):
        values = json.loads(run(binary(tmp_path), "--json", *words).stdout)
        jsonschema.validate(values, load_schema("qnnmem.fit/1"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--soc", "nonsense"], UsageError),
        (["--soc", "SM8250"], CannotTell),
        (["--all-socs", "--soc", "SM8650"], UsageError),
        (["--budget", "tcm=1"], UsageError),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: list[str], error: type) -> None:
    """An unknown SoC, a SoC without HTP or a wrong budget is refused."""
    assert isinstance(run(binary(tmp_path), *words).exception, error)


def test_a_model_needs_a_soc(tmp_path: Path) -> None:
    """An ONNX model without --soc is refused, since it must be compiled first."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x09\x3a\x00")
    error = run(path).exception
    assert isinstance(error, UsageError)
    assert "must be compiled first; choose a SoC, e.g. --soc SM8650" in error.sentence(flag)


def test_an_output_file_is_kept_unless_forced(tmp_path: Path) -> None:
    """`-o` writes the answer and replaces an existing file only with --force."""
    path, target = binary(tmp_path), tmp_path / "fit.json"
    assert run(path, "-o", target).return_value == 0
    assert isinstance(run(path, "-o", target).exception, OutputError)
    assert run(path, "-o", target, "--force").return_value == 0


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
class TestRealLibrary:
    """Fit of models that compile quickly."""

    def test_smaller_sizes_are_verified(self, tmp_path: Path) -> None:
        """`--try 2` compiles two smaller sizes to verify them and only suggests the others."""
        path = sliced(tmp_path / "m.onnx", "batch")
        done = run(path, "--soc", "SM8350", "--dim", "batch=3000", "--try", "2")
        assert done.return_value == 1
        assert done.stdout.startswith("does not fit SM8350: 998,260,736 bytes more than the comp")
        assert "verified  --dim batch=2047: compiled, 1,032,192 bytes to spare" in done.stdout
        assert "verified  --dim batch=1500" in done.stdout
        assert "suggested --soc SM8550" in done.stdout

    def test_several_socs_are_compiled_for(self, tmp_path: Path) -> None:
        """Each SoC is compiled for; the same model is over the limit of SM8350 and fits SM8550."""
        path = sliced(tmp_path / "m.onnx", 2100)
        done = run(path, "--soc", "SM8350", "--soc", "SM8550", "--json")
        values = json.loads(done.stdout)
        jsonschema.validate(values, load_schema("qnnmem.fit/1"))
        assert [one["answer"] for one in values["socs"]] == ["does-not-fit", "fits"]
        assert values["socs"][0]["code"] == 1002
