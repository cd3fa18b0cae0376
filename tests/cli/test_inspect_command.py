"""`qnnmem inspect`: its output, its files and its refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import exit_code, sentence, verb
from command_line import run as command
from context_writer import example_context, pack_context

from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.binary import unpack, write
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.lpai.inspect import binary_info
from qnnmem.planner import PoolOptions, plan_model
from qnnmem.results.inspect import FrameWindow
from qnnmem.results.schema import encode
from qnnmem.units import Bytes, Offset

run = verb("inspect")


def graph(name: str = "speech", inputs: int = 1) -> CompiledGraph:
    """Return a compiled graph with a state, a window and this many inputs."""
    names = [f"x{n}" for n in range(inputs)]
    tensors = {n: Tensor(n, DType.UINT8, (8, 4)) for n in (*names, "y", "h", "n")}
    ops = (Op("a", "A", (*names, "h"), ("y",)), Op("b", "B", ("y",), ("n",)))
    model = Model("m", "onnx", tensors, ops, (*names, "h"), ("y", "n"))
    states = (("h", "n"),)
    plan = plan_model(model, PoolOptions(states=states))
    return CompiledGraph(
        name,
        model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        states=states,
        windows=(FrameWindow("win", "h", "n", 2, 8, 4, True, 1, "x0"),),
        quants={"x0": Quant(0.125, 128)},
        program=b"program",
    )


def binary(folder: Path, *graphs: CompiledGraph) -> Path:
    """Write a binary of these graphs, or of a default graph."""
    path = folder / "model.bin"
    write(CompiledContext(graphs or (graph(),), "v6", "qnnmem 0.1.0"), path)
    return path


def test_more_allocations_than_tcm_serves_are_fatal(tmp_path: Path) -> None:
    """More than 32 TCM allocations are fatal: the first line says so and the exit code is 1."""
    path = binary(tmp_path, graph(inputs=40))
    done = run(path)
    assert exit_code(done) == 1
    assert done.output.splitlines()[0] == (
        "does not fit TCM (aDSP direct mode): "
        "42 allocations, but TCM allows only 32, which is fatal on the device"
    )
    assert exit_code(run(path, "--json")) == 1


def test_the_first_line_is_the_verdict(tmp_path: Path) -> None:
    """The first line names the file type, the graph count, the hardware and the checksum result."""
    result = run(binary(tmp_path, graph("a"), graph("b")))
    first = result.output.splitlines()[0]
    assert first == "qnnmem context binary: 2 graphs for LPAI v6, checksums correct"
    assert exit_code(result) == 0


@pytest.mark.parametrize(
    "words",
    [
        "made by qnnmem 0.1.0",
        "graph speech: 2 ops, program of 7 bytes, alignment 64",
        "x0  UFIXED_POINT_8 8x4, 32 bytes, scale 0.125 zero point 128, at scratch + 0",
        "y  UINT_8 8x4, 32 bytes, at scratch + ",
        "h  UINT_8 8x4, 32 bytes, at persistent + 0, new value n, ",
        "win: 2 of 8 frames arrive per execution, moves by 4, blocks until full, "
        "starts with 1 zero frames, reset by x0",
    ],
)
def test_the_text_has_what_matters(tmp_path: Path, words: str) -> None:
    """The text lists tensors with type, shape, quantization and place, and states and windows."""
    assert words in run(binary(tmp_path)).output


def test_pools_are_shown(tmp_path: Path) -> None:
    """Each pool has a line with its size in bytes."""
    made = graph()
    rows = [line.split() for line in run(binary(tmp_path, made)).output.splitlines()]
    assert ["scratch", f"{made.scratch_bytes:,}"] in [row[:2] for row in rows]
    assert ["persistent", f"{made.persistent_bytes:,}"] in [row[:2] for row in rows]


def test_floating_point_is_said_at_once(tmp_path: Path) -> None:
    """A float binary is marked as an experiment for the host, since LPAI computes with integers."""
    output = run(binary(tmp_path, replace(graph(), float_ops=3))).output
    assert (
        "computes in floating point (3 ops): only for experiments on the host"
        in output.splitlines()[1]
    )
    assert "floating point" not in run(binary(tmp_path)).output


def test_a_layout_is_called_one(tmp_path: Path) -> None:
    """A binary without a program is reported as having no program to run."""
    output = run(binary(tmp_path, replace(graph(), program=b""))).output
    assert "no program to run" in output
    assert "no program to run" not in run(binary(tmp_path)).output


def test_long_lists_are_cut(tmp_path: Path) -> None:
    """Text shows at most 20 tensors and notes; the JSON lists all."""
    path = binary(tmp_path, replace(graph(inputs=30), notes=("note",) * 25))
    output = run(path).output
    assert "… and 10 more; --json lists all" in output
    assert "… and 5 more notes" in output
    info = json.loads(run(path, "--json").output)
    assert info["info"]["graphs"][0]["info"]["numGraphInputs"] == 30


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Control characters in names and notes do not reach the output."""
    nasty = replace(graph("\x1b[31mred\n"), notes=("\x07bell\r",))
    output = run(binary(tmp_path, nasty)).output
    assert output.replace("\n", "").isprintable()
    assert "[31mred" in output


def test_json_is_the_binary_info(tmp_path: Path) -> None:
    """The JSON equals the library's binary info for the file."""
    path = binary(tmp_path)
    data = path.read_bytes()
    values = json.loads(run(path, "--json").output)
    assert values["qnnmem"]["tool"].startswith("qnnmem ")
    assert values == json.loads(encode(binary_info(unpack(data), len(data))))


def test_the_result_can_go_to_a_file(tmp_path: Path) -> None:
    """`-o` writes the result and replaces an existing file only with --force."""
    path, target = binary(tmp_path), tmp_path / "info.json"
    assert exit_code(run(path, "--json", "-o", target)) == 0
    before = target.read_text("utf-8")
    refused = run(path, "-o", target)
    assert (exit_code(refused), target.read_text("utf-8")) == (2, before)
    assert exit_code(run(path, "--format", "text", "-o", target, "--force")) == 0
    assert target.read_text("utf-8").startswith("qnnmem context binary: ")


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 2, "no such file"),
        (b"", 2, "is empty"),
        (
            b"\x08\x08\x12\x00",
            2,
            "is an ONNX model, which qnnmem inspect does not read",
        ),
        (b"\x89QMEM\r\n\x1a", 2, "(30010) [B1]: the file ends after 8 bytes"),
        (b"\x89QMEM\r\n\x1a\x09" + bytes(99), 2, "(5004) [R19]: the context binary has format"),
    ],
    ids=["missing", "empty", "onnx", "short", "newer"],
)
def test_what_is_no_binary_is_refused(
    tmp_path: Path, content: bytes | None, code: int, words: str
) -> None:
    """An invalid binary gives exit code 2 and one sentence; format errors carry a QNN code."""
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    result = run(path)
    assert (exit_code(result), result.output) == (code, "")
    assert words in str(result.exception)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_in_the_file_adds_up(tmp_path: Path, count: int) -> None:
    """Constants in the table match the size line, and the parts add up to the file size."""
    fourth = Constant("c", 2, (4,), Offset(0), Bytes(4), folded=False)
    later = replace(fourth, name="d", offset=Offset(256), size=Bytes(60), shape=(60,))
    one = replace(graph("first"), constants=(fourth, later))
    other = replace(one, name="second", constants=(replace(fourth, offset=Offset(512)),))
    path = tmp_path / "model.bin"
    constants = memoryview(bytes(600))
    write(CompiledContext((one, other)[:count], "v6", "qnnmem 0.1.0", constants), path)
    text = run(path).output
    line = re.search(r"^in the file: (.*) = ([\d,]+) bytes$", text, re.MULTILINE)
    assert line
    parts = {
        words.rpartition(" ")[0]: int(words.rpartition(" ")[2].replace(",", ""))
        for words in line[1].split(" + ")
    }
    held = [64, 4][:count]
    assert [int(size) for size in re.findall(r"constants +(\d+) .* in the file", text)] == held
    assert parts["constants"] == sum(held)
    assert parts["constants"] + parts["gaps for alignment"] == 600
    assert parts["programs"] == count * len(b"program")
    assert sum(parts.values()) == int(line[2].replace(",", "")) == path.stat().st_size


def test_what_is_public_of_the_vendors_lpai_binary_is_shown(tmp_path: Path) -> None:
    """The vendor's LPAI binary is shown as far as its format is public; other verbs refuse it."""
    path = tmp_path / "vendor.serialized.bin"
    path.write_bytes(pack_context(example_context(), backend=12))
    done = run(path)
    assert exit_code(done) == 0
    assert done.stdout.startswith("QNN context binary: 1 graph for LPAI, soc_model 57")
    assert "  inputs:\n" in done.stdout
    assert "weights" not in done.stdout
    assert "are in an undocumented format" in done.stdout.splitlines()[-1]
    info = json.loads(run(path, "--json").stdout)["info"]
    assert info["backendId"] == 12
    assert "graphBlobInfo" not in info["graphs"][0]["info"]
    for word in ("footprint", "plan", "net-run"):
        refused = command(word, path)
        assert exit_code(refused) == 2
        assert "qnnmem inspect" in sentence(refused)
    refused = command("net-run", path, "--random-inputs", "1")
    assert "is a QNN context binary for LPAI, whose code has no public format" in sentence(refused)
    assert "footprint" not in sentence(refused)
