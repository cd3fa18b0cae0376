"""Model libraries of the vendor's tools run only when trusted, and in a child process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import exit_code, run, sentence

from qnnmem import lpai
from qnnmem.errors import LoadError
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.loader.dlc import compose_trusted
from qnnmem.lpai.binary import map_file, unpack
from qnnmem.qnn.enums import DataType, TensorMemType

SOURCE = Path(__file__).parents[1] / "c_api" / "model_library.c"
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs a C compiler on Linux"
)


def built(folder: Path, *defined: str) -> Path:
    """Build the library and return its path."""
    made = folder / "libmodel.so"
    words = [str(COMPILER), "-shared", "-fPIC", "-O1", *(f"-D{one}" for one in defined)]
    subprocess.run([*words, "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.mark.parametrize("entries", [75, 72, 60])
def test_a_library_composes_its_graphs(entries: int, tmp_path: Path) -> None:
    """A model library composes its graphs, even one built for a shorter function table."""
    (graph,) = compose_trusted(built(tmp_path, f"ENTRIES={entries}"))
    assert graph.name == "library_net"
    assert [(one.name, one.data_type) for one in graph.tensors] == [
        ("x", DataType.UFIXED_POINT_8),
        ("y", DataType.UFIXED_POINT_8),
    ]
    assert [one.type for one in graph.ops] == ["Relu"]


def test_a_library_that_crashes_is_a_sentence(tmp_path: Path) -> None:
    """A crash in a model library ends the child process and becomes LoadError."""
    with pytest.raises(LoadError, match="the model library's code crashed"):
        compose_trusted(built(tmp_path, "CRASH"))


def test_a_library_that_loops_is_named_as_the_culprit(tmp_path: Path) -> None:
    """A model library that loops past the time limit is named in the error."""
    with pytest.raises(LoadError, match=r"the model library's code took longer than 2 s"):
        compose_trusted(other_code(tmp_path, "for (;;) ;"), time_limit_s=2)


def test_a_library_that_takes_all_memory_is_told_from_one_without_graphs(tmp_path: Path) -> None:
    """A library that runs out of memory is reported as such, not as one without a graph."""
    with pytest.raises(LoadError, match="the model library's code ran out of memory"):
        compose_trusted(other_code(tmp_path, "while (malloc(1 << 28)) ;"))
    with pytest.raises(LoadError, match="contains no graph"):
        compose_trusted(other_code(tmp_path, ";"))


def other_code(folder: Path, body: str) -> Path:
    """Build a library that composes no graph and return its path."""
    source, made = folder / "other.c", folder / "libother.so"
    text = f"#include <stdlib.h>\nint QnnModel_composeGraphs(void) {{ {body} return 0; }}\n"
    source.write_text(text, "ascii")
    words = [str(COMPILER), "-shared", "-fPIC", "-O0", str(source), "-o", str(made)]
    subprocess.run(words, check=True)
    return made


def test_a_library_without_graphs_is_told(tmp_path: Path) -> None:
    """A shared library without QnnModel_composeGraphs is refused."""
    other = tmp_path / "libother.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-xc", "/dev/null", "-o", str(other)]
    subprocess.run(command, check=True)
    with pytest.raises(LoadError, match="has no QnnModel_composeGraphs"):
        compose_trusted(other)


def test_the_generator_executes_a_library_that_the_user_names(tmp_path: Path) -> None:
    """The context binary generator runs a model library with a note.

    A file not named like a library needs `--trust`.
    """
    model = built(tmp_path)
    named = ("--binary_file", "x", "--output_dir", tmp_path)
    words = ("--backend", "libQnnLpai.so", "--model", model, *named)
    done = run("context-binary-generator", *words)
    assert (exit_code(done), "native code" in done.stderr) == (0, True)
    other = model.rename(tmp_path / "model")
    words = ("--backend", "libQnnLpai.so", "--model", other, *named)
    done = run("context-binary-generator", *words)
    assert (exit_code(done), "executed only with --trust" in sentence(done)) == (2, True)
    assert exit_code(run("context-binary-generator", *words, "--trust")) == 0
    with map_file(tmp_path / "x.bin") as content:
        assert [graph.name for graph in unpack(content).graphs] == ["library_net"]


def test_a_plan_executes_a_library_only_if_it_is_trusted(tmp_path: Path) -> None:
    """`plan` runs a model library only with `--trust`; otherwise it names that option."""
    model = built(tmp_path)
    done = run("plan", model)
    assert (exit_code(done), "executed only with --trust" in sentence(done)) == (2, True)
    done = run("plan", model, "--trust", "--format", "json")
    assert exit_code(done) == 0
    assert json.loads(done.stdout)["scratch_bytes"] == 128
    assert exit_code(run("plan", model, "--trust", "--graph", "library_net")) == 0
    assert "has no graph 'other'" in sentence(run("plan", model, "--trust", "--graph", "other"))
    assert "--as qnn is only for ONNX models" in sentence(
        run("plan", model, "--trust", "--as", "qnn")
    )
    assert "fixed shapes" in sentence(run("plan", model, "--trust", "--dim", "n=1"))


def test_a_library_is_prepared_only_if_it_is_trusted(tmp_path: Path) -> None:
    """`prepare` runs a model library only with `--trust`; the LPAI binary then computes."""
    model, target = built(tmp_path), tmp_path / "net.bin"
    for backend in ((), ("--backend", "htp", "--soc", "SM8650")):
        done = run("prepare", model, "-o", target, *backend)
        assert (exit_code(done), "executed only with --trust" in sentence(done)) == (2, True)
        assert not target.exists()
    assert exit_code(run("prepare", model, "-o", target, "--trust")) == 0
    given = np.arange(70, 134, dtype="u1").reshape(1, 64)
    with lpai.open(target, native=True) as running:
        assert (
            running.run({"x": given})["y"].tolist() == np.maximum(given, 100).tolist()
        )  # the zero point


def test_trust_changes_nothing_for_a_model(tmp_path: Path) -> None:
    """`--trust` changes nothing for a file without native code."""
    model = Path(__file__).parents[2] / "examples" / "small.onnx"
    assert exit_code(run("plan", model, "--trust", "--dim", "N=1")) == 0
    text = tmp_path / "libx.so"
    text.write_text("no library")
    assert exit_code(run("plan", text, "--trust")) == 2


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_a_library_is_compiled_for_htp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor's command for a model library compiles for HTP as printed in the manual.

    A config file addresses the graph by its name.
    """
    monkeypatch.chdir(tmp_path)
    built(tmp_path).rename("libqnn_model.so")
    line = (
        "--model libqnn_model.so --backend libQnnHtp.so --binary_file qnngraph.serialized "
        "--output_dir output --input_output_tensor_mem_type memhandle"
    )
    done = run("context-binary-generator", *line.split())
    assert exit_code(done) == 0
    assert "native code" in done.stderr
    (graph,) = read_context(tmp_path / "output" / "qnngraph.serialized.bin").graphs
    assert graph.name == "library_net"
    assert {one.mem_type for one in graph.tensors} == {TensorMemType.MEMHANDLE}
    # The request for memhandle tensors is part of the library itself.
    built(tmp_path, "MEMHANDLE").rename("libqnn_model.so")
    done = run("context-binary-generator", *line.split()[:-2])
    assert (exit_code(done), "requests memhandle" in done.stderr) == (0, True)
    (graph,) = read_context(tmp_path / "output" / "qnngraph.serialized.bin").graphs
    assert {one.mem_type for one in graph.tensors} == {TensorMemType.MEMHANDLE}
    Path("tool.json").write_text('{"backend_extensions": {"config_file_path": "htp.json"}}')
    Path("htp.json").write_text(
        '{"devices": [{"soc_model": 57}], '
        '"graphs": [{"graph_names": ["library_net"], "vtcm_mb": 2}]}'
    )
    done = run("context-binary-generator", *line.split(), "--config_file", "tool.json")
    assert (exit_code(done), "graphs has no section" in done.stderr) == (0, False)
    (graph,) = read_context(tmp_path / "output" / "qnngraph.serialized.bin").graphs
    assert graph.vtcm == 2 << 20
    words = ("libqnn_model.so", "--backend", "htp", "--soc", "SM8650", "--trust")
    assert exit_code(run("prepare", *words, "-o", "y.bin")) == 0
    assert [graph.name for graph in read_context(tmp_path / "y.bin").graphs] == ["library_net"]
    assert "is a model library" in sentence(run("prepare", *words, "-o", "z", "--partition"))
