"""Compiling without an SDK: declarations, libraries to link with, and a client by names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from client_mistakes import run
from command_line import exit_code, sentence, verb

from qnnmem.errors import NoCompiler
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.installed import installed_library
from qnnmem.native_parts import made_objects
from qnnmem.programs.c_headers import MAIN, headers, write_headers, write_libraries
from qnnmem.programs.functions import NAMES
from qnnmem.programs.launch import SHIM
from qnnmem.programs.layout import TENSOR_BYTES
from qnnmem.qnn.enums import TensorMemType

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
SOURCE = Path(__file__).parent / "programs" / "by_name.c"
SIZES = {  # sizes of the structs in the 64-bit interface
    **{"Qnn_ScaleOffset_t": 8, "Qnn_QuantizeParams_t": 40, "Qnn_ClientBuffer_t": 16},
    **{"Qnn_TensorV1_t": 112, "Qnn_TensorV2_t": 136, "Qnn_Tensor_t": TENSOR_BYTES},
    **{"Qnn_Scalar_t": 16, "Qnn_Param_t": 160, "Qnn_OpConfig_t": 80, "QnnContext_Config_t": 16},
    **{"QnnGraph_Config_t": 16, "QnnGraph_Property_t": 16, "QnnBackend_Property_t": 16},
    **{"Qnn_MemDescriptor_t": 48, "QnnSystemContext_BinaryInfo_t": 144},
    **{"QnnSystemContext_BinaryInfoV1_t": 128, "QnnSystemContext_BinaryInfoV2_t": 136},
    **{"QnnSystemContext_BinaryInfoV3_t": 136, "QnnSystemContext_GraphInfo_t": 88},
    **{"QnnLpaiGraph_Mem_t": 16, "QnnLpaiGraph_PerfCfg_t": 12, "QnnLpaiMem_MemInfoCustom_t": 8},
}
OFFSETS = {
    **{("QnnInterface_t", "v2_27.propertyHasCapability"): 40, ("QnnSystemInterface_t", "v1_1"): 32},
    **{("QnnInterface_t", "v2_27.graphExecute"): 40 + 8 * 21, ("Qnn_TensorV1_t", "clientBuf"): 96},
    ("QnnInterface_t", "v2_27.backendGetProperty"): 40 + 8 * 62,
    ("QnnSystemContext_BinaryInfoV3_t", "graphs"): 96,
    ("QnnSystemContext_BinaryInfoV1_t", "graphs"): 120,
}

ONLINE = Path(__file__).parent / "programs" / "online_prepare.c"
# Names that the listings on the pages take from the client, with the type of each.
ARGUMENTS = (
    "Qnn_BackendHandle_t backendHandle, Qnn_GraphHandle_t graphHandle, "
    "QnnSystemContext_Handle_t qnnSystemCtxHandle, void *contextBinaryBuffer, "
    "uint64_t contextBinaryBufferSize, QnnLpaiMem_MemType_t memType, uint32_t *scratchSize, "
    "void *scratchBuffer, uint32_t *startAddrAlignment, uint32_t *sizeAlignment"
)
LISTINGS = {
    "alignment": """
QnnLpaiBackend_BufferAlignmentReq_t need;
QnnLpaiBackend_CustomProperty_t custom = {QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ, &need};
QnnBackend_Property_t property = {QNN_BACKEND_PROPERTY_OPTION_CUSTOM, {&custom}};
QnnBackend_Property_t *list[2] = {&property, 0};
if (QnnBackend_getProperty(backendHandle, list)) return;
*startAddrAlignment = need.startAddrAlignment, *sizeAlignment = need.sizeAlignment;
""",
    "memory": """
QnnLpaiGraph_CustomProperty_t ask = {QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE, scratchSize};
QnnGraph_Property_t property = {QNN_GRAPH_PROPERTY_OPTION_CUSTOM, {&ask}};
QnnGraph_Property_t *asked[2] = {&property, 0};
if (QnnGraph_getProperty(graphHandle, asked)) return;
ask.option = QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE;
QnnLpaiGraph_Mem_t mem = {memType, *scratchSize, scratchBuffer};
QnnLpaiGraph_CustomConfig_t give = {QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM, &mem};
QnnGraph_Config_t config = {QNN_GRAPH_CONFIG_OPTION_CUSTOM, {&give}};
QnnGraph_Config_t *given[2] = {&config, 0};
if (QnnGraph_setConfig(graphHandle, (const QnnGraph_Config_t **)given)) return;
give.option = QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM;
""",
    "io": """
const QNN_SYSTEM_INTERFACE_VER_TYPE *qnnSystemInterface = 0;
const QnnSystemContext_BinaryInfo_t *info = 0;
Qnn_ContextBinarySize_t infoSize = 0;
qnnSystemInterface->systemContextGetBinaryInfo(
    qnnSystemCtxHandle, contextBinaryBuffer, contextBinaryBufferSize, &info, &infoSize);
QnnSystemContext_GraphInfo_t *graph = &info->contextBinaryInfoV1.graphs[0];
for (size_t i = 0; i < graph->graphInfoV1.numGraphInputs; i++) {
    Qnn_Tensor_t *tensor = &graph->graphInfoV1.graphInputs[i];
    tensor->v1.memType = QNN_TENSORMEMTYPE_RAW;
    tensor->v1.clientBuf.data = scratchBuffer, tensor->v1.clientBuf.dataSize = 64;
}
""",
}


def compiled(folder: Path, text: str, *flags: str) -> str:
    """Return the compiler's messages for a file that includes all headers."""
    write_headers(folder / "include", force=True)
    source = folder / "source.c"
    includes = "".join(f'#include "{name}"\n' for name in headers() if name != MAIN)
    source.write_text(f"{includes}\n{text}\n", "utf-8")
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", *flags, str(source)]
    made = [*command, f"-I{folder / 'include'}", "-c", "-o", str(folder / "source.o")]
    return subprocess.run(made, capture_output=True, text=True, check=False).stderr


def test_structs_have_the_sizes_and_offsets_of_the_interface(tmp_path: Path) -> None:
    """Each struct has the size and the offsets of the interface, checked by the compiler."""
    lines = [f'_Static_assert(sizeof({n}) == {size}, "{n}");' for n, size in SIZES.items()]
    lines += [
        f'_Static_assert(offsetof({kind}, {member}) == {at}, "{kind} {member}");'
        for (kind, member), at in OFFSETS.items()
    ]
    assert compiled(tmp_path, "\n".join(lines)) == ""
    assert "Qnn_Tensor_t" in compiled(tmp_path, '_Static_assert(sizeof(Qnn_Tensor_t) == 1, "");')


def test_libraries_export_every_function_by_its_name(tmp_path: Path) -> None:
    """The written libraries export each function that the headers declare."""
    include, folder = tmp_path / "include", tmp_path / "lib"
    write_headers(include)
    write_libraries(folder, include)
    made = made_objects(SHIM)
    exported = set()
    for name in ("libQnnLpai.so", "libQnnSystem.so"):
        assert (folder / name).read_bytes() == made[name]
        command = [str(shutil.which("nm")), "-D", str(folder / name)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        exported |= set(re.findall(r" T (Qnn\w+)", listed.stdout))
    declared = set(re.findall(r"F\(\w+, (\w+),", (include / MAIN).read_text("utf-8")))
    assert len(declared) == 63 + 8
    assert declared <= exported
    # One name ends with MetaData in C, and one function takes a struct of unpublished size.
    other = {"QnnSystemContext_getMetadata", "QnnContext_freeBinarySectionUpdate"}
    assert set(NAMES.values()) - other <= exported


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_a_client_by_names_compiles_and_is_clean(
    tmp_path: Path, binary: Path, version: str
) -> None:
    """A client linked with the libraries is clean for each version of the binary info."""
    include, folder = tmp_path / "include", tmp_path / "lib"
    write_headers(include)
    write_libraries(folder, include)
    program = tmp_path / "by_name"
    flags = ["-g", "-std=c11", "-Wall", "-Werror", f"-I{include}", f"-L{folder}"]
    command = ["gcc", *flags, str(SOURCE), "-lQnnLpai", "-lQnnSystem", "-o", str(program)]
    subprocess.run(command, check=True)
    done = verb("check-client")("--binary-info", version, "--", program, binary)
    assert exit_code(done) == 0, done.output
    assert "clean" in done.output
    assert run(program, binary).exit_code == 0


def test_headers_of_others_stay(tmp_path: Path) -> None:
    """A folder with a header of an SDK is refused before any file is written."""
    (tmp_path / "QnnInterface.h").write_text("/* of an SDK */\n", "utf-8")
    for words in ((), ("--force",)):
        done = verb("lpai", "headers")("-o", tmp_path, *words)
        assert exit_code(done) == 2
        assert "headers of an SDK" in sentence(done)
    assert [one.name for one in tmp_path.iterdir()] == ["QnnInterface.h"]
    (tmp_path / "QnnInterface.h").write_bytes(b"\xff" * 5000)
    assert exit_code(verb("lpai", "headers")("-o", tmp_path, "--force")) == 2


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_compiles(listing: str, tmp_path: Path) -> None:
    """Each listing on a page compiles without a warning against the headers."""
    text = f"void listing({ARGUMENTS}) {{\n{LISTINGS[listing]}\n}}"
    assert compiled(tmp_path, text, "-Wno-unused-parameter") == ""


@pytest.mark.htp
def test_online_preparation_in_c_carries_the_hint(tmp_path: Path) -> None:
    """A C program composes memhandle tensors in the real library, and the binary has the hint."""
    try:
        library = installed_library().folder / "libQnnHtp.so"
    except NoCompiler as missing:
        pytest.skip(str(missing))
    write_headers(tmp_path / "include")
    program, binary = tmp_path / "online_prepare", tmp_path / "net.bin"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path / 'include'}"]
    subprocess.run([*command, str(ONLINE), "-o", str(program), "-ldl"], check=True)
    subprocess.run([program, library, binary], check=True, timeout=60)
    (graph,) = read_context(binary).graphs
    assert {one.mem_type for one in graph.tensors} == {TensorMemType.MEMHANDLE}
