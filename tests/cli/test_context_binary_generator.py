"""`qnnmem context-binary-generator`: the flags of the SDK's generator and the files it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, sentence, verb

from qnnmem.errors import NoCompiler, OutputError, QnnMemError
from qnnmem.htp import installed, library
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.provoke import small_convolution, wide_softmax
from qnnmem.lpai.binary import map_file, unpack
from qnnmem.qnn.enums import TensorMemType

run = verb("context-binary-generator")
needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)
HTP = ("--backend", "libQnnHtp.so", "--model", "small.onnx")
LPAI = ("--backend", "lib/x86_64-linux-clang/libQnnLpai.so", "--model", "small.onnx")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with an 8-bit model."""
    monkeypatch.chdir(tmp_path)
    Path("small.onnx").write_bytes(small_convolution())
    return tmp_path


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a platform for which there is no HTP compiler."""
    monkeypatch.setattr(
        library, "find_library", lambda: installed.check_platform("linux", "aarch64")
    )
    monkeypatch.setattr("platform.machine", lambda: "aarch64")


def config(**backend: Any) -> str:
    """Write the backend and tool config files; return the name of the tool config."""
    Path("htp.conf").write_text(json.dumps(backend), "utf-8")
    named = {"shared_library_path": "libQnnHtpNetRunExtensions.so", "config_file_path": "htp.conf"}
    Path("tool.json").write_text(json.dumps({"backend_extensions": named}), "utf-8")
    return "tool.json"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--backend is missing"),
        (("--backend", "libQnnHtp.so"), "--model is missing"),
        (HTP, "--binary_file is missing"),
        ((*HTP, "--binary_file", "/abs"), "name of a file in the folder of --output_dir"),
        ((*HTP, "--binary_file", "../up"), "name of a file in the folder of --output_dir"),
        (
            ("--backend", "libQnnCpu.so", *HTP[2:], "--binary_file", "x"),
            "not 'libQnnCpu.so'",
        ),
        (
            ("--backend", "libQnnHtp.so.1", *HTP[2:], "--binary_file", "x"),
            "not 'libQnnHtp.so.1'",
        ),
        ((*HTP[:3], "libmodel.so", "--binary_file", "x"), "libmodel.so: no such file"),
        ((*HTP[:3], "nowhere.onnx", "--binary_file", "x"), "nowhere.onnx: no such file"),
        (
            (*HTP[:3], "small.onnx,small.onnx", "--binary_file", "x"),
            "--model takes only one file for HTP",
        ),
        (
            (*HTP, "--binary_file", "x", "--dlc_path", "a.dlc"),
            "--model and --dlc_path cannot be combined",
        ),
        ((*HTP, "--binary_file", "x", "--backend_binary", "y"), "--backend_binary asks"),
        ((*HTP, "--binary_file", "x", "--op_packages", "y"), "--op_packages needs"),
        ((*HTP, "--binary_file", "x", "--set_output_tensors", "y"), "--set_output_tensors would"),
        ((*HTP, "--binary_file", "x", "--profiling_level", "basic"), "--profiling_level asks"),
        ((*HTP, "--binary_file", "x", "--profiling_option", "optrace"), "--profiling_option asks"),
        ((*HTP, "--binary_file", "x", "--data_format_config", "y"), "--data_format_config would"),
        ((*HTP, "--binary_file", "x", "--htp_socs", "sm8750"), "--htp_socs changes the file name"),
        ((*HTP, "--binary_file", "x", "--enable_intermediate_outputs"), "every tensor an output"),
        ((*HTP, "--binary_file", "x", "--quantize", "int8"), "--quantize is for LPAI"),
        ((*HTP, "--binary_file", "x", "--unheard_of", "1"), "--unheard_of"),
        ((*HTP, "--binary_file", "x", "--config_file", "no.json"), "no.json: no such file"),
        ((*LPAI, "--binary_file", "x", "--vtcm_override", "4"), "--vtcm_override is for HTP"),
        (
            (*LPAI, "--binary_file", "x", "--input_output_tensor_mem_type", "memhandle"),
            "memhandle is for HTP",
        ),
        ((*HTP, "--binary_file", "x", "--input_output_tensor_mem_type", "ion"), "memhandle"),
    ],
)
def test_what_cannot_be_done_is_refused(words: tuple[str, ...], said: str) -> None:
    """A missing or wrong flag ends with one sentence, exit code 2 and no output folder."""
    done = run(*words)
    assert exit_code(done) == 2
    assert said in sentence(done)
    assert not Path("output").exists()


def test_the_version_is_the_tools_line() -> None:
    """`--version` prints the version line of the SDK's tool and exits with 0."""
    done = run("--version")
    assert done.stdout.startswith("qnn-context-binary-generator build version: qnnmem-")
    assert exit_code(done) == 0


@pytest.mark.usefixtures("elsewhere")
def test_without_the_compiler_everything_else_is_checked_first() -> None:
    """Without the compiler, valid settings give exit code 3; invalid settings still give 2."""
    done = run(*HTP, "--binary_file", "x")
    assert isinstance(done.exception, NoCompiler)
    assert exit_code(done) == 3
    assert not Path("output").exists()
    graphs = [{"graph_names": ["small"], "vtcm_mb": 64}]
    words = ("--config_file", config(graphs=graphs, devices=[{"soc_model": 57}]))
    done = run(*HTP, "--binary_file", "x", *words)
    assert (exit_code(done), "64 MiB of VTCM were requested" in sentence(done)) == (2, True)


def test_lpai_gets_a_graph_for_each_model() -> None:
    """The LPAI binary holds one graph per model; a second run replaces it without --force."""
    Path("other.onnx").write_bytes(wide_softmax(100))
    words = ("--binary_file", "both.serialized", "--output_dir", "made/here")
    for _ in range(2):
        done = run(*LPAI[:3], "small.onnx,other.onnx", *words)
        assert exit_code(done) == 0, sentence(done)
    assert done.stdout.splitlines()[0].startswith("qnn-context-binary-generator pid:")
    assert "Wrote made/here/both.serialized.bin" in done.stderr
    (path,) = Path("made/here").iterdir()
    names = [graph.name for graph in unpack(map_file(path)).graphs]
    assert names == ["small", "other"]


def test_a_name_that_ends_with_bin_stays() -> None:
    """A binary name that ends in .bin keeps its suffix, and a chosen log level is printed."""
    done = run(*LPAI, "--binary_file", "a.bin", "--log_level", "info")
    assert Path("output/a.bin").is_file()
    assert "log level is : QNN_LOG_LEVEL_INFO" in done.stdout


def test_what_is_not_an_ordinary_file_is_not_replaced() -> None:
    """A folder with the binary's name is not replaced."""
    Path("output/x.bin").mkdir(parents=True)
    done = run(*LPAI, "--binary_file", "x")
    assert isinstance(done.exception, OutputError)
    assert Path("output/x.bin").is_dir()


def test_flags_without_effect_are_named() -> None:
    """Ignored flags are warned about on standard error, not in the tool's transcript."""
    done = run(*LPAI, "--binary_file", "x", "--model_prefix", "QnnModel")
    assert exit_code(done) == 0
    assert "warning: --model_prefix is ignored" in done.stderr
    assert "warning" not in done.stdout


@pytest.mark.htp
@needs_library
@pytest.mark.parametrize("mem_type", ["raw", "memhandle"])
def test_the_hint_is_in_the_binary(mem_type: str) -> None:
    """The memory hint of the command line is in the binary, and `inspect` shows it."""
    words = ("--binary_file", "small_qmem", "--input_output_tensor_mem_type", mem_type)
    done = run(*HTP, *words)
    assert exit_code(done) == 0, done.stderr
    (path,) = Path("output").iterdir()
    assert path.name == "small_qmem.bin"
    found = read_context(path)
    assert found.soc_model == 30  # SM8350, as without a config file
    kinds = {tensor.mem_type for graph in found.graphs for tensor in graph.tensors}
    assert kinds == {TensorMemType[mem_type.upper()]}
    assert mem_type in verb("inspect")(path).stdout


@pytest.mark.htp
@needs_library
def test_config_and_overrides_reach_the_compiler() -> None:
    """SoC, VTCM and optimisation level come from the config files unless flags override them."""
    graphs = [{"graph_names": ["small"], "vtcm_mb": 2, "O": 3}]
    words = ("--config_file", config(graphs=graphs, devices=[{"soc_model": 69}]))
    assert exit_code(run(*HTP, "--binary_file", "a", *words)) == 0
    more = ("--vtcm_override", "4", "--optimization_level_override", "1")
    assert exit_code(run(*HTP, "--binary_file", "b", *words, *more)) == 0
    made = [read_context(Path(f"output/{name}.bin")) for name in "ab"]
    found = [(one.soc_model, g.vtcm, g.optimization_level) for one in made for g in one.graphs]
    assert found == [(69, 2 << 20, 3), (69, 4 << 20, 1)]


@pytest.mark.htp
@needs_library
def test_a_refused_model_is_explained() -> None:
    """A refused model gives exit code 1, the tool's error line, and the reason on stderr."""
    Path("small.onnx").write_bytes(wide_softmax(10_000_000))
    done = run(*HTP, "--binary_file", "x")
    assert exit_code(done) == 1
    assert "Finalize Graph for Idx = 0 failed with error = 1002" in done.stdout
    assert "No binary: operator" in done.stderr
    assert "\n  code 1002" in done.stderr  # each part of the reason is on its own line
    assert not Path("output").exists()


def test_errors_are_of_the_one_tree() -> None:
    """An invalid model raises a QnnMemError."""
    Path("small.onnx").write_bytes(b"no model")
    assert isinstance(run(*HTP, "--binary_file", "x").exception, QnnMemError)


@pytest.mark.htp
@needs_library
def test_the_log_of_the_library_is_shown_to_the_level_asked_for() -> None:
    """The library's log appears only with --log_level, and without lines of qnnmem itself."""
    quiet = run(*HTP, "--binary_file", "x").stdout.splitlines()
    assert len(quiet) == 1
    text = run(*HTP, "--binary_file", "x", "--log_level", "verbose").stdout
    assert re.search(r"^\d+\.\dms \[\w+\] ", text, re.MULTILINE)
    assert "[qnnmem]" not in text
