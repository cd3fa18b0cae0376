"""The programs `qnn-net-run` and `qnn-context-binary-generator`, and net-run on HTP."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from command_line import exit_code, run, sentence

from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library

ROOT = Path(__file__).parents[2]
NEEDS_LIBRARY = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)


def started(name: str, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program as its installed script does."""
    code = f"import sys; sys.argv[0] = {name!r}; from qnnmem.cli import {name} as f; f()"
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_package_installs_the_programs_of_the_sdk() -> None:
    """Each script entry of the package names an existing function."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {name: place.partition(":") for name, place in project["scripts"].items()}
    assert {"qnnmem", "qnn-net-run", "qnn-context-binary-generator"} == set(found)
    for module, _, function in found.values():
        assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("net_run", "qnn-net-run"),
        ("context_binary_generator", "qnn-context-binary-generator"),
    ],
)
def test_a_program_says_whose_it_is(name: str, tool: str, tmp_path: Path) -> None:
    """Version and help state that the program is qnnmem's; a script on PATH is not the SDK's."""
    (tmp_path / tool).write_text("#!/bin/sh\necho of a script\n")
    (tmp_path / tool).chmod(0o755)
    done = started(name, "--version", path=str(tmp_path))
    assert done.stdout.startswith(f"{tool} build version: qnnmem-")
    text = "".join(started(name, "--help-all", path=str(tmp_path)).stdout.split())
    assert f"alsoinstalledas`{tool}`" in text  # a name may wrap at a hyphen
    assert "thisnamestartstheSDK'sprogram" in text
    assert f"Totype`./{tool}`,makealinktoqnnmem'sprograminthecurrentfolder" in text


@pytest.mark.skipif(sys.platform != "linux", reason="needs a program of Linux to stand for the SDK")
def test_the_own_program_of_the_sdk_wins(tmp_path: Path) -> None:
    """A compiled program of the same name on PATH, such as the SDK's, gets the arguments."""
    (tmp_path / "qnn-net-run").symlink_to(str(shutil.which("echo")))
    done = started("net_run", "--backend", "libQnnHtp.so", path=str(tmp_path))
    if (tmp_path / "qnn-net-run").read_bytes()[:4] != b"\x7fELF":
        pytest.skip("echo is no compiled program here")
    assert done.stdout == "--backend libQnnHtp.so\n"


@pytest.mark.htp
@NEEDS_LIBRARY
def test_net_run_runs_a_context_binary_of_htp(tmp_path: Path) -> None:
    """The real library runs the binary; raw and memhandle agree; the first run is timed apart."""
    binary = ROOT / "examples" / "small_htp.bin"
    values = np.linspace(-1, 1, 256, dtype="<f4")
    (tmp_path / "x.raw").write_bytes(values.tobytes())
    listed = tmp_path / "list.txt"
    listed.write_text(f"x:={tmp_path}/x.raw\nx:={tmp_path}/x.raw\n")
    results = []
    for more in ((), ("--shared_buffer",)):
        folder = tmp_path / f"out{len(more)}"
        words = ("--backend", "/vendor/lib64/libQnnHtp.so", "--input_list", listed, *more)
        done = run("net-run", binary, *words, "--output_dir", folder, "--num_inferences", "3")
        assert exit_code(done) == 0
        assert re.search(
            r"3 executions after 1 load, first inference after loading [\d.]+ ms, "
            r"later inferences \d",
            done.stdout,
        )
        metadata = (folder / "execution_metadata.yaml").read_text()
        assert metadata.startswith("inferences_completed: 3\n")
        assert (folder / "Result_2" / "y.raw").exists()
        assert "emulated" in done.stderr
        results.append((folder / "Result_0" / "y.raw").read_bytes())
        assert (folder / "Result_1" / "y.raw").read_bytes() == results[-1]
    assert results[0] == results[1]
    assert len(results[0]) == 1024


def test_net_run_on_htp_refuses_what_is_lpais_and_what_is_no_binary(tmp_path: Path) -> None:
    """LPAI flags, missing inputs and other files are refused with exit code 2."""
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(range(256)) * 8)
    words = ("--backend", "libQnnHtp.so", "--output_dir", tmp_path / "out")
    for more, said in (
        (("--random-inputs", "1", "--hw_ver", "v6"), "--hw_ver is for LPAI"),
        ((), "--input_list or --random-inputs"),
        (("--random-inputs", "1"), "is not a QNN context binary"),
    ):
        done = run("net-run", other, *words, *more)
        assert exit_code(done) == 2
        assert said in sentence(done)
