"""C declarations of QNN for LPAI clients, so that they compile without an SDK.

The structs are in `headers/qnnmem_qnn.h`, the arguments of functions in `headers/functions.txt`.
Numbers and codes come from the tables of this package. Files have the names of the SDK's headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

from qnnmem.atomic_file import check_replaceable, folder_for_output, write_together
from qnnmem.errors import UsageError
from qnnmem.native_parts import made_objects
from qnnmem.programs.functions import in_table
from qnnmem.programs.launch import SHIM
from qnnmem.qnn import enums
from qnnmem.qnn.codes import codes
from qnnmem.qnn.enums import CEnum
from qnnmem.text import quote
from qnnmem.version import __version__

MAIN = "qnnmem_qnn.h"
_MARK = "written by qnnmem"
# header names in the SDK; each header includes all declarations
_NAMES = (
    *("QnnBackend", "QnnCommon", "QnnContext", "QnnDevice", "QnnError", "QnnGraph"),
    *("QnnInterface", "QnnLog", "QnnMem", "QnnOpDef", "QnnProfile", "QnnProperty", "QnnSignal"),
    *("QnnTensor", "QnnTypes", "System/QnnSystemCommon", "System/QnnSystemContext"),
    *("System/QnnSystemInterface", "LPAI/QnnLpaiBackend", "LPAI/QnnLpaiCommon"),
    *("LPAI/QnnLpaiContext", "LPAI/QnnLpaiGraph", "LPAI/QnnLpaiMem"),
)
_TYPES: dict[type[CEnum], str] = {
    enums.Target: "QnnLpaiBackend_Target_t",
    enums.HwVersion: "QnnLpaiBackend_HwVersion_t",
    enums.BackendConfigOption: "QnnBackend_ConfigOption_t",
    enums.BackendPropertyOption: "QnnBackend_PropertyOption_t",
    enums.BackendOption: "QnnLpaiBackend_SetConfigOption_t",
    enums.BackendProperty: "QnnLpaiBackend_GetPropertyOption_t",
    enums.ContextOption: "QnnContext_ConfigOption_t",
    enums.BinaryCompatibility: "QnnContext_BinaryCompatibility_t",
    enums.ContextCustomOption: "QnnLpaiContext_SetConfigOption_t",
    enums.GraphConfigOption: "QnnGraph_ConfigOption_t",
    enums.GraphPropertyOption: "QnnGraph_PropertyOption_t",
    enums.GraphOption: "QnnLpaiGraph_SetConfigOption_t",
    enums.GraphProperty: "QnnLpaiGraph_GetPropertyOption_t",
    enums.MemType: "QnnLpaiMem_MemType_t",
    enums.ClientPerfType: "QnnLpaiGraph_ClientPerfType_t",
    enums.CoreAffinity: "QnnLpaiGraph_CoreAffinityType_t",
    enums.Priority: "Qnn_Priority_t",
    enums.TensorMemType: "Qnn_TensorMemType_t",
    enums.TensorType: "Qnn_TensorType_t",
    enums.MemRegisterType: "Qnn_MemType_t",
    enums.BinaryInfoVersion: "QnnSystemContext_BinaryInfoVersion_t",
    enums.GraphInfoVersion: "QnnSystemContext_GraphInfoVersion_t",
    enums.LogLevel: "QnnLog_Level_t",
    enums.DataType: "Qnn_DataType_t",
}


def headers() -> dict[str, str]:
    """Return the text of every header by file name."""
    forward = f"/* Declarations of our own, {_MARK}. */\n"
    found = {MAIN: declarations()}
    for name in _NAMES:
        up = "../" * name.count("/")
        found[f"{name}.h"] = f'{forward}#include "{up}{MAIN}"\n'
    return found


def declarations() -> str:
    """Return the text of the header with all declarations."""
    text = files(__package__).joinpath("headers", MAIN).read_text("utf-8")
    text = text.replace("@VERSION@", f"Made by qnnmem {__version__}.")
    return text.replace("@ENUMS@\n", _enums()).replace("@FUNCTIONS@", _functions())


def write_headers(target: Path, *, force: bool = False) -> list[Path]:
    """Write every header into a folder; raise UsageError before replacing a foreign header."""
    contents = {target / name: text.encode() for name, text in headers().items()}
    for path in contents:
        if path.exists() and _MARK not in path.read_text("utf-8", "replace")[:400]:
            raise UsageError(
                f"{quote(str(path))} was not written by qnnmem: the folder holds headers of an SDK",
                cure="give another folder",
            )
    _write(contents, force=force)
    return list(contents)


def write_libraries(target: Path, include: Path, *, force: bool = False) -> list[Path]:
    """Write the two libraries that a linker needs, and a file for pkg-config."""
    made = made_objects(SHIM)
    contents = {target / name: made[name] for name in ("libQnnLpai.so", "libQnnSystem.so")}
    lines = (
        "Name: qnnmem-qnn",
        "Description: declarations of QNN for LPAI, and libraries to link with",
        f"Version: {__version__}",
        f'Cflags: -I"{include.resolve()}"',
        f'Libs: -L"{target.resolve()}" -lQnnLpai -lQnnSystem',
        "",
    )
    contents[target / "qnnmem-qnn.pc"] = "\n".join(lines).encode()
    for path in contents:
        if path.exists() and not _is_ours(path):
            raise UsageError(
                f"{quote(str(path))} was not written by qnnmem", cure=("give another folder")
            )
    _write(contents, force=force)
    return list(contents)


def _write(contents: dict[Path, bytes], *, force: bool) -> None:
    """Write all files or none; after a failure, no empty folder remains."""
    with ExitStack() as folders:
        for folder in sorted({path.parent for path in contents}):
            folders.enter_context(folder_for_output(folder))
        for path in contents:
            check_replaceable(path, force=force)
        write_together(contents, force=force)


def _is_ours(path: Path) -> bool:
    return b"qnnmem" in path.read_bytes()


def _enums() -> str:
    lines = list(_enum("", {name: int(value) for name, value in enums.BackendId.c_names().items()}))
    for kind, name in _TYPES.items():
        lines += _enum(name, {one: int(value) for one, value in kind.c_names().items()})
    known = {n: code.code for code in codes().values() for n in (code.name, *code.aliases)}
    lines += _enum("", {name: code for name, code in known.items() if name.isidentifier()})
    return "\n".join(lines) + "\n"


def _enum(name: str, members: dict[str, int]) -> Iterator[str]:
    rows = [f"    {member} = {value:#x}" for member, value in members.items()]
    if name:
        yield from ("typedef enum {", ",\n".join(rows), f"}} {name};", "")
    else:
        yield from ("enum {", ",\n".join(rows), "};", "")


def _functions() -> str:
    text = files(__package__).joinpath("headers", "functions.txt").read_text("utf-8")
    rows = []
    for line in text.splitlines():
        name, _, takes = line.partition(": ")
        rows.append(f"    F({in_table(name)}, {name}, ({takes}))")
    return " \\\n".join(rows)
