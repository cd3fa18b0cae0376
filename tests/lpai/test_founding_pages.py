"""Statements of the vendor's LPAI pages: versions, binary info size, printed command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence

from qnnmem import lpai
from qnnmem.lpai.profiles import choices, profile
from qnnmem.qnn.abi import BINARY_INFO_BYTES

ROOT = Path(__file__).parents[2]
PERSISTENT = {"context_configs": {"is_persistent_binary": True}}


# The command of the page, with its line breaks.
PRINTED = """\
./qnn-net-run \\
        --input_list model/input_list.txt \\
        --backend /data/local/tmp/libQnnLpai.so \\
        --direct_mode adsp \\
        --config_file model/eaiParams_direct.json \\
        --retrieve_context model/tmp.bin
"""


def tcm_files(current: Path, device: str, folder: str) -> None:
    """Write the page's files: model/ with its tool file, and the .conf in this folder."""
    model = current / "model"
    model.mkdir()
    shutil.copy(ROOT / "examples" / "small_lpai.bin", model / "tmp.bin")
    (model / "x.raw").write_bytes(bytes(4 * 256))
    (model / "input_list.txt").write_text("model/x.raw\n")
    extensions = {
        "shared_library_path": f"{device}/libQnnLpaiNetRunExtensions.so",
        "config_file_path": f"{device}/eaiParams_direct.conf",
    }
    tool = {"backend_extensions": extensions, **PERSISTENT}
    (model / "eaiParams_direct.json").write_text(json.dumps(tool))
    pools = {"lpai_graph": {"execute": {"mem_type": "tcm"}}}
    (current / folder / "eaiParams_direct.conf").write_text(json.dumps(pools))


@pytest.mark.parametrize(("version", "has_tcm"), [("v5_1", False), ("v6", True)])
def test_version_v6_is_that_of_the_hardware(version: str, has_tcm: bool) -> None:
    """TCM needs LPAI hardware v6, as the choice states and the profile follows."""
    assert profile("adsp", version).tcm_allowed is has_tcm
    choice = choices()["tcm-version"]
    assert "LPAI hardware v6" in choice.what
    assert "SDK" in choice.why


def test_the_size_of_the_binary_info_is_given() -> None:
    """The binary info size is 144, the value of getBinaryInfo's fifth argument in C."""
    system = lpai.SystemContext.create()
    assert system.binary_info_size == BINARY_INFO_BYTES == 144
    assert "144 bytes" in choices()["binary-info-size"].what
    system.free()


@pytest.mark.parametrize("folder", ["model", ".", "here"])
def test_the_command_of_the_tcm_page_works_as_printed(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's command runs with the .conf beside the tool file or in the current folder."""
    monkeypatch.chdir(tmp_path)
    device = str(tmp_path) if folder == "here" else "/data/local/tmp"
    tcm_files(tmp_path, device, "model" if folder == "model" else ".")
    words = PRINTED.replace("\\\n", "").partition(" ")[2].replace("/data/local/tmp", device)
    done = run("net-run", *words.split(), "--log_level", "debug")
    assert exit_code(done) == 0
    assert ("eaiParams_direct.conf is read instead" in done.stderr) is (folder != "here")
    lines = re.findall(r"\[INFO\] (.*tcm pool.*|TCM pool.*)", done.stdout)
    assert lines == [
        "TCM pool current size: 0 max_size: 2035712",
        *(f"Allocate size {size} from tcm pool 0" for size in (6464, 256, 256)),
    ]
    assert Path("output/Result_0/y.raw").stat().st_size == 4 * 256


@pytest.mark.skipif(os.name != "posix", reason="the page is for a shell of Linux")
def test_the_printed_line_works_with_a_link_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./qnn-net-run` runs as printed after the one link that the choices give."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shutil.which("qnn-net-run") is None:
        pytest.skip("the programs are not installed")
    tcm_files(tmp_path, "/data/local/tmp", "model")
    Path("page.sh").write_text(f"{choices()['runner-path'].override}\n{PRINTED}")
    done = subprocess.run(["/bin/sh", "page.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, Path("output/Result_0/y.raw").exists()) == (0, True), done.stderr


def test_tcm_is_not_on_arm_and_x86(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TCM without direct mode is refused; `--direct_mode` overrides target_env with a note."""
    monkeypatch.chdir(tmp_path)
    binary = ROOT / "examples" / "small_lpai.bin"
    tool = {"backend_extensions": {"config_file_path": "lpai.conf"}}
    Path("tool.json").write_text(json.dumps({**tool, **PERSISTENT}))
    for target in ("x86", "arm"):
        pools = {"lpai_graph": {"execute": {"mem_type": "tcm"}}}
        Path("lpai.conf").write_text(json.dumps({**pools, "lpai_backend": {"target_env": target}}))
        words = ("net-run", binary, "--random-inputs", "1", "--config_file", "tool.json")
        done = run(*words, "--output_dir", f"without-{target}")
        assert (exit_code(done), "[T3] TCM is for aDSP direct mode" in done.stderr) == (1, True)
        done = run(*words, "--output_dir", f"direct-{target}", "--direct_mode", "adsp")
        assert exit_code(done) == 0
        assert f"target_env {target} is ignored" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("libQnnGpu.so", "is the backend for GPU; pass libQnnLpai.so or libQnnHtp.so"),
        ("libQnnLpai.so", "a QNN context binary for HTP, which runs with --backend libQnnHtp.so"),
    ],
)
def test_a_binary_for_another_backend_names_the_right_one(
    name: str, said: str, tmp_path: Path
) -> None:
    """A library or a binary for another backend is refused with the right backend's name."""
    binary = ROOT / "examples" / "small_htp.bin"
    words = ("--random-inputs", "1", "--output_dir", tmp_path / "out")
    done = run("net-run", binary, "--backend", name, *words)
    text = done.stderr if done.exception is None else sentence(done)
    assert (exit_code(done), said in text) == (2, True)


_NAMES = """
QNN_BACKEND_PROPERTY_OPTION_CUSTOM QNN_GRAPH_CONFIG_OPTION_CUSTOM QNN_GRAPH_PROPERTY_OPTION_CUSTOM
QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE
QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM
QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM QNN_LPAI_MEM_TYPE_UNDEFINED QNN_TENSORMEMTYPE_MEMHANDLE
QNN_TENSORMEMTYPE_RAW QnnBackend_Property_t QnnBackend_getProperty QnnContext_free QnnGraph_Config_t
QnnGraph_Property_t QnnGraph_addNode QnnGraph_finalize QnnGraph_getProperty QnnGraph_setConfig
QnnLpaiBackend_BufferAlignmentReq_t QnnLpaiBackend_CustomProperty_t QnnLpaiGraph_CustomConfig_t
QnnLpaiGraph_CustomProperty_t QnnLpaiGraph_Mem_t QnnSystemContext_BinaryInfo_t Qnn_Tensor_t
QnnSystemContext_GraphInfo_t QnnTensor_createGraphTensor Qnn_ContextBinarySize_t Qnn_OpConfig_t
Qnn_GraphHandle_t LPAIBackendExtensions binaryInfoSize systemContextGetBinaryInfo rpcmem_alloc
calculate_tensor_size allocate_aligned_memory contextBinaryInfoV1 graphInfoV1 graphInputs
graphOutputs numGraphInputs numGraphOutputs startAddrAlignment sizeAlignment memType clientBuf
dataSize memHandle
"""


def test_every_name_of_the_listings_has_a_place() -> None:
    """The reference page for C and Python has every name of the vendor's listings."""
    page = (ROOT / "docs" / "reference" / "lpai-c-and-python.md").read_text("utf-8")
    assert [name for name in _NAMES.split() if name not in page] == []
