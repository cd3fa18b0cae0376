"""`qnnmem qmem`: the four-row table of a binary, without a library."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_line
import jsonschema
import pytest
from command_line import verb
from context_writer import example_context, pack_context
from msgspec import structs

from qnnmem.contract.rules import QMEM, rules
from qnnmem.errors import LoadError, OutputError, UsageError
from qnnmem.flags import flag
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.provoke import small_convolution
from qnnmem.htp.qmem.misuse import MISUSES
from qnnmem.report import qmem as report
from qnnmem.results.schema import load_schema

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "onnx", "onnxruntime", "onnxruntime_qnn", "rich", "tflite", "ctypes"}
needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Write a context binary for SM8650 with two tensors of 8,000 bytes."""
    path = tmp_path / "model.bin"
    path.write_bytes(pack_context(example_context()))
    return path


run = verb("qmem")


def test_the_first_line_is_the_recommendation(binary: Path) -> None:
    """The first line states the recommendation and its saving; the four rows follow."""
    done = run(binary)
    assert done.return_value == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("prepare and execute with memhandle: this saves 16,384 bytes")
    rows = [line.split()[:5] for line in lines if line.startswith(("raw ", "memhandle "))]
    assert [row[:2] for row in rows] == [
        [prepared, executed]
        for prepared in ("raw", "memhandle")
        for executed in ("raw", "memhandle")
    ]
    assert rows[0][2:] == ["16,384", "0", "16,000"]
    assert rows[2][2:] == ["0", "16,384", "16,000"]
    assert "the IO layer is emulated" in done.stdout


def test_flags_of_every_tool_are_shown(binary: Path) -> None:
    """The text has flags to paste for every tool."""
    text = run(binary).stdout
    for words in (
        "--input_output_tensor_mem_type memhandle",
        "--shared_buffer",
        "enable_htp_shared_memory_allocator=1",
        "shared_buffer=True",
        "--qualcomm_graph_io_tensor_mem_type=memhandle",
    ):
        assert words in text


def test_json_satisfies_its_schema(binary: Path) -> None:
    """The JSON follows its schema, with exact and stored bytes."""
    values = json.loads(run(binary, "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.qmem/1"))
    assert (values["io_exact"]["bytes"], values["io_stored"]["bytes"]) == (16_000, 16_384)
    assert values["recommended"] == {"prepared": "memhandle", "executed": "memhandle"}


def test_the_page_states_every_rule() -> None:
    """The reference page lists every rule of shared memory with its code and title."""
    page = (ROOT / "docs" / "reference" / "commands" / "qmem.md").read_text("utf-8")
    for name, rule in rules(QMEM).items():
        code = str(rule.codes[0]) if rule.codes else "reported"
        assert f"| {name} | {code} | {rule.title}" in page


def test_nothing_heavy_is_imported_for_a_binary(binary: Path) -> None:
    """The table of a binary imports neither a compiler nor an array library."""
    code = (
        "import sys; from qnnmem.cli.verbs import qnnmem\n"
        f"qnnmem.main(['qmem', {str(binary)!r}], standalone_mode=False)\n"
        f"sys.exit(','.join({HEAVY!r} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_damaged_file_is_refused(binary: Path) -> None:
    """A truncated file is refused."""
    binary.write_bytes(binary.read_bytes()[:-1])
    assert isinstance(run(binary).exception, LoadError)


def test_a_model_needs_a_soc(tmp_path: Path) -> None:
    """An ONNX model without --soc is refused, since it must be compiled first."""
    path = tmp_path / "model.onnx"
    path.write_bytes(small_convolution())
    done = run(path)
    assert isinstance(done.exception, UsageError)
    assert "must be compiled first; choose a SoC, e.g. --soc SM8650" in done.exception.sentence(
        flag
    )


def test_an_output_file_is_kept_unless_forced(binary: Path, tmp_path: Path) -> None:
    """`-o` writes the table and replaces an existing file only with --force."""
    target = tmp_path / "table.txt"
    assert run(binary, "-o", target).return_value == 0
    assert isinstance(run(binary, "-o", target).exception, OutputError)
    assert run(binary, "--json", "-o", target, "--force").return_value == 0
    assert json.loads(target.read_text("utf-8"))["schema"] == "qnnmem.qmem/1"


def test_names_from_files_cannot_reach_the_terminal(binary: Path) -> None:
    """An escape sequence in a file name does not reach the output."""
    assert "\x1b" not in run(binary.rename(binary.with_name("\x1b[31m.bin"))).stdout


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (2_000_000, "2.00 ms"), (10**9, "1.00 s")],
)
def test_times_are_shown_in_their_unit(nanoseconds: int, text: str) -> None:
    """A time is shown in the largest unit that keeps it at least 1."""
    assert report.duration(nanoseconds) == text


def test_mistakes_are_made_without_the_library(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--misuse` lists every mistake with the contract's answer, even without the library."""
    monkeypatch.setattr("qnnmem.htp.qmem.table.has_library", lambda: False)
    text = run(binary, "--misuse", "-v").stdout
    assert (
        f"{len(MISUSES)} deliberate mistakes, each with the answer of the emulated IO layer" in text
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["deregistered", "a", "handle", "twice", "Q5", "8001"] in rows
    assert "call QnnMem_deRegister, then rpcmem_free" in text
    values = json.loads(run(binary, "--misuse", "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.qmem/1"))
    assert {row["library"] for row in values["misuses"]} == {None}


def test_mistakes_need_a_graph_that_allows_them(binary: Path, tmp_path: Path) -> None:
    """`--misuse` refuses an EPContext model and tensors under 128 bytes."""
    model = tmp_path / "model_ctx.onnx"
    model.write_bytes(epcontext("model.bin"))
    done = run(model, "--misuse")
    assert (command_line.exit_code(done), "--misuse needs the context binary itself") == (
        2,
        command_line.sentence(done).partition(": ")[2].partition(",")[0],
    )
    (graph,) = example_context().graphs
    short = structs.replace(graph.inputs[0], dimensions=(1,))
    context = example_context(structs.replace(graph, inputs=(short, *graph.inputs[1:])))
    binary.write_bytes(pack_context(context))
    assert "less than 128 bytes" in command_line.sentence(run(binary, "--misuse"))


@pytest.mark.htp
@needs_library
def test_the_answers_of_the_library_are_shown(tmp_path: Path) -> None:
    """`--misuse` on a model shows the library's codes, undetected mistakes and crashes."""
    model = tmp_path / "small.onnx"
    model.write_bytes(small_convolution())
    text = run(model, "--soc", "SM8650", "--misuse").stdout
    for words in ("killed by SIGSEGV", "0, not detected", "6004, the same", "8002      1000"):
        assert words in text


@pytest.mark.htp
@needs_library
def test_a_model_is_compiled_and_a_binary_carried_out(tmp_path: Path) -> None:
    """With `--run`, the four combinations of a real binary agree bit for bit."""
    model, binary = tmp_path / "small.onnx", tmp_path / "small.bin"
    model.write_bytes(small_convolution())
    assert run(model, "--soc", "SM8750").stdout.splitlines()[1].endswith("2 inputs and outputs")
    words = ["prepare", str(model), "--backend", "htp", "--soc", "SM8650", "-o", str(binary)]
    words += ["--io-mem-type", "memhandle"]
    assert command_line.run(*words).exception is None
    done = run(binary, "--run", "--json")
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.qmem/1"))
    assert (values["memhandle_tensors"], values["run"]["binaries"]) == (2, 1)
    assert values["run"]["agrees"] is True
    text = run(binary, "--run").stdout
    assert text.startswith(
        "IO layer emulated, results by the real library: all four combinations give the same"
    )
    assert "QnnGraph_execute on x86, measured: first call after loading" in text
    assert "is noise. Only a device shows what a mode costs or saves" in text
    assert "the same results, bit for bit, in all four combinations; IO layer emulated" in text


def recommended(*words: str | Path) -> tuple[list[str], str]:
    """Return the words of the recommended command and the notes."""
    lines = run(*words).stdout.splitlines()
    (command,) = (line for line in lines if line.startswith("next: "))
    notes = [line for line in lines if line.startswith("note: ") and "emulated" not in line]
    return shlex.split(command.rpartition(": ")[2])[1:], "".join(notes)


@pytest.mark.parametrize("here", [True, False])
def test_rows_are_carried_out_only_where_the_library_is(
    binary: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """`--run` is recommended only where the library exists; elsewhere a note names the platform."""
    monkeypatch.setattr("qnnmem.htp.qmem.table.has_library", lambda: here)
    words, note = recommended(binary)
    assert ("--run" in words) is here
    assert ("--run executes the four combinations" in note and "Linux x86-64" in note) is not here
    if not here:
        assert command_line.exit_code(command_line.run(*words)) == 0


def epcontext(binary: str) -> bytes:
    """Return the EPContext model that refers to a binary beside it."""
    from onnx import helper

    settings: dict[str, Any] = {"main_context": 1, "embed_mode": 0, "ep_cache_context": binary}
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **settings)
    values = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph([node], "graph", values[:1], values[1:])
    blob: bytes = helper.make_model(made, opset_imports=opsets).SerializeToString()
    return blob


@pytest.mark.parametrize("case", ["two graphs", "no SoC", "a model of it"])
def test_rows_that_cannot_be_carried_out_are_not_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """If `--run` is impossible for the file, a note says why and `footprint` is recommended."""
    monkeypatch.setattr("qnnmem.htp.qmem.table.has_library", lambda: True)
    context, path = example_context(), tmp_path / "model.bin"
    if case == "two graphs":
        (graph,) = context.graphs
        context = structs.replace(context, graphs=(graph, structs.replace(graph, name="other")))
    if case == "no SoC":
        context = structs.replace(context, soc_model=None)
    path.write_bytes(pack_context(context))
    if case == "a model of it":
        path = tmp_path / "model_ctx.onnx"
        path.write_bytes(epcontext("model.bin"))
    words, note = recommended(path)
    assert words[0] == "footprint"
    said = {"two graphs": "2 graphs", "no SoC": "--soc", "a model of it": "binary itself"}
    assert said[case] in note
    assert command_line.exit_code(command_line.run(*words)) in (0, 3)


def test_a_range_is_not_sent_to_a_library_that_is_not_here(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an undecided range, `fit` suggests --load; without the library it names the platform."""
    for here in (True, False):
        monkeypatch.setattr("qnnmem.htp.fit.has_library", lambda here=here: here)
        text = command_line.run("fit", binary, "--budget", "pd=12690000").stdout
        assert "--load gets the exact size from the library" in text
        assert ("from the library, on Linux x86-64" in text) is not here
