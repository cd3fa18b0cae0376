"""`qnnmem prepare`: options, config files, output, refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import onnx.parser
import pytest
from command_line import sentence, verb

from qnnmem.errors import FloatModel, Setting
from qnnmem.lpai.binary import unpack
from qnnmem.lpai.compiled import CompiledContext
from qnnmem.planner import Io

ROWS = "id,lower,upper,size\na,0,3,4\nb,2,6,4\n"
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,50] x, float[3] h_in) => (float[2,50] y, float[3] h_out) <float[50] w>
{ a = Add(x, w) b = Relu(a) y = Mul(a, b) h_out = Tanh(h_in) }"""


run = verb("prepare")


def rows(folder: Path, name: str = "rows.csv") -> Path:
    """Write a list of buffers."""
    path = folder / name
    path.write_text(ROWS, "utf-8")
    return path


def model(folder: Path) -> Path:
    """Write a small float model."""
    path = folder / "net.onnx"
    proto = onnx.parser.parse_model(MODEL.replace("<float[50] w>", ""))
    weights = onnx.helper.make_tensor("w", 1, [50], range(50))
    proto.graph.initializer.append(weights)
    path.write_bytes(proto.SerializeToString())
    return path


def read(path: Path) -> CompiledContext:
    """Return the context of a written file."""
    return unpack(path.read_bytes())


def test_a_model_is_prepared(tmp_path: Path) -> None:
    """The first line is the verdict, then come the pools and two commands that name the file."""
    target = tmp_path / "out.bin"
    options = ("--float", "--state", "h_in=h_out", "--graph-name", "net work", "--hw-ver", "v7")
    result = run(model(tmp_path), "-o", target, *options)
    assert result.return_value == 0
    lines = result.output.splitlines()
    size = target.stat().st_size
    assert lines[0].startswith(f"prepared {target}: 1 graph for LPAI v7, {size:,} bytes")
    assert "floating point" in lines[1]
    context = read(target)
    graph = context.graphs[0]
    assert (context.hw_version, graph.name, graph.states) == (
        "v7",
        "net work",
        (("h_in", "h_out"),),
    )
    assert f"scratch    {graph.scratch_bytes:>12,} bytes" in result.output
    assert f"persistent {graph.persistent_bytes:>12,} bytes, 1 state pair" in result.output
    commands = [line for line in lines if "qnnmem inspect" in line or "qnnmem net-run" in line]
    assert len(commands) == 2
    assert all(str(target) in shlex.split(command) for command in commands)


def test_a_float_model_is_refused(tmp_path: Path) -> None:
    """A float model is refused, and the sentence suggests --quantize."""
    path, target = model(tmp_path), tmp_path / "out.bin"
    done = run(path, "-o", target, "--state", "h_in=h_out")
    assert sentence(done) == (
        f"{path}: LPAI runs only 8- and 16-bit models; 4 of 4 ops compute in floating point; "
        "--quantize int8 quantizes it first, or add --float for an experiment on the host"
    )
    assert isinstance(done.exception, FloatModel)
    assert done.exception.settings == (Setting("quantize", "int8"),)
    assert not target.exists()


def test_likely_state_is_a_note(tmp_path: Path) -> None:
    """A likely state pair is noted with the option that keeps the state."""
    result = run(model(tmp_path), "-o", tmp_path / "out.bin", "--float")
    note = "h_in and h_out look like state; --state=h_in=h_out keeps it in persistent memory"
    assert f"note: {note}\n" in result.output


def test_a_config_file_is_honoured(tmp_path: Path) -> None:
    """exclude_io and the hardware version come from the config; ineffective keys are noted."""
    config = tmp_path / "lpaiParams.conf"
    settings = {
        "lpai_backend": {"target_env": "adsp", "enable_hw_ver": "v5"},
        "lpai_graph": {"prepare": {"exclude_io": True, "enable_layer_fusion": False}},
    }
    config.write_text(json.dumps(settings), "utf-8")
    path, target = model(tmp_path), tmp_path / "out.bin"
    result = run(path, "-o", target, "--float", "--config", config)
    assert result.return_value == 0
    context = read(target)
    assert (context.hw_version, context.graphs[0].io) == ("v5", Io.OUTSIDE)
    assert "in the application's buffers" in result.output
    assert "note: enable_layer_fusion in the config file has no effect" in result.output
    options = ("--io", "inside", "--hw-ver", "v6", "--force")
    run(path, "-o", target, "--float", "--config", config, *options)
    context = read(target)
    assert (context.hw_version, context.graphs[0].io) == ("v6", Io.INSIDE)


def test_several_files_make_several_graphs(tmp_path: Path) -> None:
    """Each file becomes a graph named after the file, and layouts are marked."""
    files = [rows(tmp_path, "one.csv"), rows(tmp_path, "two.csv")]
    result = run(*files, "-o", tmp_path / "out.bin")
    assert [graph.name for graph in read(tmp_path / "out.bin").graphs] == ["one", "two"]
    assert result.output.count("layout only") == 2
    assert "net-run" not in result.output


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    """An existing output file is replaced only with --force."""
    target = tmp_path / "out.bin"
    target.write_bytes(b"mine")
    assert "--force" in sentence(run(rows(tmp_path), "-o", target))
    assert target.read_bytes() == b"mine"
    assert run(rows(tmp_path), "-o", target, "--force").return_value == 0
    assert read(target).graphs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--graph-name", "a", "--graph-name", "b"), "1 files need 1 --graph-name options, not 2"),
        (("--calibration", "somewhere"), "--calibration is for --quantize int8 or int16"),
        (("--quantize", "int8"), "rows.csv: --quantize is for ONNX models"),
        (("--quantize", "int7"), "int7"),
        (("--backend", "htp"), "htp"),
        (("--hw-ver", "v9"), "v9"),
        (("--align", "0"), "0"),
        (("--state", "nothing"), "nothing"),
        (("--config", "missing.conf"), "missing.conf"),
    ],
)
def test_wrong_options_are_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    """An invalid option is refused with one sentence, and no file is written."""
    target = tmp_path / "out.bin"
    assert words in sentence(run(rows(tmp_path), "-o", target, *arguments))
    assert not target.exists()


def test_two_graphs_of_one_name_are_refused(tmp_path: Path) -> None:
    """Two files of the same name need --graph-name."""
    (tmp_path / "other").mkdir()
    files = [rows(tmp_path), rows(tmp_path / "other")]
    assert "--graph-name" in sentence(run(*files, "-o", tmp_path / "out.bin"))


def test_an_output_is_needed(tmp_path: Path) -> None:
    """`--output` is required, as no default name is safe."""
    assert "--output" in sentence(run(rows(tmp_path)))
