"""Verbs that compile, without a compiler: mistakes and known numbers come first."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import onnx
import pytest
from command_line import exit_code, run, sentence
from context_writer import example_context, pack_context
from onnx import TensorProto, helper, numpy_helper

from qnnmem.cli import outcome
from qnnmem.errors import NoCompiler
from qnnmem.htp import installed, library
from qnnmem.installation import sources

SOC = ("--soc", "SM8650")
VERBS = {
    "fit": ("fit", *SOC),
    "footprint": ("footprint", *SOC),
    "qmem": ("qmem", *SOC),
    "sweep": ("sweep", *SOC, "--vary", "precision=fp16"),
    "prepare": ("prepare", "--backend", "htp", *SOC),
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a platform for which there is no HTP compiler."""

    def missing() -> None:
        installed.check_platform("linux", "aarch64")

    monkeypatch.setattr(library, "find_library", missing)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model with 400 weights and a free batch of 10 floats."""
    weights = numpy_helper.from_array(numpy.zeros((10, 40), numpy.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 40])],
        [weights],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    return Path("m.onnx")


def words(verb: str, model: Path, *more: str) -> list[str | Path]:
    """Return the words of a valid command that lacks only the compiler, with extra options."""
    name, *rest = VERBS[verb]
    output = ("-o", "out.bin") if verb == "prepare" else ()
    return [name, model, *rest, *output, *more]


@pytest.mark.parametrize(
    ("verb", "wrong", "said"),
    [
        *((verb, ("--dim", "bacth=1"), "bacth") for verb in VERBS),
        ("fit", ("--shape", "nope=1x10"), "nope"),
        ("sweep", ("--dim", "batch=1", "--value", "sr=16000"), "'sr'"),
        ("prepare", (), "these dimensions are open: batch"),
        ("qmem", (), "these dimensions are open: batch"),
    ],
)
def test_a_mistake_is_said_before_the_compiler_is_missed(
    model: Path, verb: str, wrong: tuple[str, ...], said: str
) -> None:
    """A wrong option gives exit code 2 even where the compiler is missing."""
    done = run(*words(verb, model, *wrong))
    assert exit_code(done) == 2
    assert said in sentence(done)


@pytest.mark.parametrize("verb", VERBS)
def test_a_soc_that_is_none_is_said_before_the_compiler_is_missed(model: Path, verb: str) -> None:
    """An unknown SoC gives exit code 2 even where the compiler is missing."""
    given = [
        "SM8999" if word == "SM8650" else word for word in words(verb, model, "--dim", "batch=1")
    ]
    done = run(*given)
    assert exit_code(done) == 2
    assert "SM8999" in sentence(done)


@pytest.mark.parametrize(
    ("verb", "wrong", "said"),
    [
        ("fit", ("--budget", "nothing=1"), "'nothing' is not a pool"),
        ("fit", ("--vtcm-mb", "64"), "64 MiB of VTCM were requested but SM8650 has 8"),
        ("sweep", ("--vary", "nope=1,2"), "nope"),
        ("prepare", ("--precision", "int8", "--calibration", "nowhere"), "nowhere"),
        ("prepare", ("--calibration", "nowhere"), "calibration data is only for precision"),
    ],
)
def test_options_of_one_verb_are_checked_too(
    model: Path, verb: str, wrong: tuple[str, ...], said: str
) -> None:
    """Budgets, sweep axes, VTCM and calibration folders are checked without the compiler."""
    done = run(*words(verb, model, "--dim", "batch=1", *wrong))
    assert exit_code(done) == 2
    assert said in sentence(done)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_known_and_where_to_go_is_said(
    model: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes list known sizes and limits with their origin, then three commands to paste."""
    typed = list(map(str, words(verb, model, "--dim", "batch=3")))
    monkeypatch.setattr(sys, "argv", ["qnnmem", *typed])
    done = run(*typed)
    assert exit_code(done) == 3
    assert isinstance(done.exception, NoCompiler)
    notes = done.exception.__notes__
    rows = {" ".join(row[:-4]): row[-4:] for row in map(str.split, notes) if len(row) > 4}
    assert rows["weights in the file"] == ["1,600", "1.56", "KiB", "computed"]
    assert rows["weights as fp16"] == ["800", "800", "B", "computed"]
    assert rows["inputs"] == ["120", "120", "B", "computed"]
    assert rows["outputs"] == ["480", "480", "B", "computed"]
    assert rows["compile limit of SM8650"][-1] == "measured"
    assert rows["largest VTCM of SM8650"][0] == "8,388,608"
    assert "process domain budget" in rows
    ways = [line for line in notes if "htp-worker" in line]
    assert [way.split()[0] for way in ways] == ["ssh", "docker", "qemu-x86_64"]
    assert "QNNMEM_HTP_WORKER" in notes[notes.index(ways[0]) - 1]
    run_line = next(line for line in notes if "docker run --rm" in line)
    assert "--platform linux/amd64" in run_line
    assert run_line.endswith(f"qnnmem {' '.join(typed)}")
    assert any(f"--platform linux/amd64 -t qnnmem {sources()}" in line for line in notes)
    assert "on any machine" in notes[-1]
    assert not Path("out.bin").exists()


def test_numbers_of_a_sweep_name_their_setting(model: Path) -> None:
    """The known numbers of a sweep are those of the last setting, which is named."""
    done = run("sweep", model, *SOC, "--vary", "batch=1,2,4")
    assert isinstance(done.exception, NoCompiler)
    assert done.exception.__notes__[0] == "known without compiling at batch=4, in bytes:"
    done = run("sweep", model, *SOC, "--dim", "batch=1", "--vary", "vtcm_mb=2,64")
    assert isinstance(done.exception, NoCompiler)
    assert done.exception.__notes__[0] == "known without compiling, in bytes:"


def test_a_model_outside_of_the_folder_is_not_promised_to_a_container(model: Path) -> None:
    """For a model outside the current folder, no container command with its path is offered."""
    done = run(*words("fit", model.absolute(), "--dim", "batch=1"))
    assert isinstance(done.exception, NoCompiler)
    assert [line for line in done.exception.__notes__ if line.endswith(" qnnmem --help")]


def test_notes_come_after_the_sentence(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes follow the sentence on standard error, at most 80 columns wide."""
    typed = list(map(str, words("fit", model, "--dim", "batch=1")))
    monkeypatch.setattr(sys, "argv", ["qnnmem", *typed])
    assert outcome.outcome(lambda: False) == 3
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("qnnmem: the HTP compiler exists for Linux on x86-64 only")
    assert lines[1] == "known without compiling, in bytes:"
    assert max(map(len, lines[1:9])) <= 80


@pytest.mark.parametrize(
    ("typed", "way"),
    [
        (("footprint", "b.bin", "--load"), "without --load"),
        (("fit", "b.bin", "--load"), "without --load"),
        (("qmem", "b.bin", "--run"), "without --run"),
        (("place", "b.bin", "--verify"), "without --verify"),
    ],
)
def test_for_a_binary_the_way_without_the_library_is_named(
    typed: tuple[str, ...], way: str
) -> None:
    """The message names the option that needs the library; without it the verb works."""
    Path("b.bin").write_bytes(pack_context(example_context()))
    done = run(*typed)
    assert exit_code(done) == 3
    assert way in sentence(done)
    assert ".bin file" not in sentence(done)
    assert exit_code(run(*typed[:-1])) == 0
