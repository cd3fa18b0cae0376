"""What single keys cannot show: settings that contradict each other within and across files."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.lpai.config.check import Finder, is_htp_library, setting
from qnnmem.lpai.config.json_positions import Document, JsonKind, JsonNode, Position
from qnnmem.lpai.config.schema import MEM_TYPE, UINT32, tcm_works_on
from qnnmem.results.lint import ConfigFinding
from qnnmem.text import quote

_TARGET, _HW = "lpai_backend.target_env", "lpai_backend.enable_hw_ver"
_EXECUTE = "lpai_graph.execute"
_PERSISTENT = "context_configs.is_persistent_binary"
_LIBRARY = "backend_extensions.shared_library_path"
_POINTER = "backend_extensions.config_file_path"


def check_lpai(document: Document, find: Finder) -> Iterator[ConfigFinding]:
    """Contradictions inside of an LPAI file."""
    yield from _tcm(document.root, find)
    yield from _real_time(document.root, find)
    yield from _cores(document.root, find)


def _tcm(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    if setting(root, MEM_TYPE) != "tcm":
        return
    at, target, version = _place(root, MEM_TYPE), setting(root, _TARGET), setting(root, _HW)
    if target not in ("adsp", None):
        text = f'"tcm" works in direct mode on the aDSP only, and {_TARGET} is "{target}"'
        yield find.error(
            at, MEM_TYPE, "tcm-needs-adsp", text, f'set {_TARGET} to "adsp" or mem_type to "ddr"'
        )
    if isinstance(version, str) and not tcm_works_on(version):
        text = f'"tcm" needs LPAI v6 or later, and {_HW} is "{version}"'
        yield find.error(
            at, MEM_TYPE, "tcm-needs-v6", text, f'set mem_type to "ddr" for {version} hardware'
        )


def _real_time(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    fps, client = f"{_EXECUTE}.fps", f"{_EXECUTE}.client_type"
    if setting(root, fps) == 0 and setting(root, client) == "real_time":
        text = "0 frames per second asks for nothing, but a real_time client wants a guarantee"
        cure = 'set fps to the rate you need, or client_type to "non_real_time"'
        yield find.warning(_place(root, fps), fps, "real-time-without-fps", text, cure)


def _cores(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    path = f"{_EXECUTE}.core_selection"
    mask = setting(root, path)
    if isinstance(mask, int) and several_cores(mask):
        text = f"{mask} selects several cores, which the LPAI header calls not yet supported"
        cure = "write 0 for any core, or one bit: 1 for core 0, 2 for core 1"
        yield find.warning(_place(root, path), path, "several-cores", text, cure)


def several_cores(mask: int) -> bool:
    """Whether a core mask names more than one core; all ones mean any core, as 0 does."""
    return mask != UINT32 and mask.bit_count() > 1


def check_tool(document: Document, find: Finder) -> Iterator[ConfigFinding]:
    """What a tool file lacks; whether the files it names exist is asked elsewhere."""
    section = document.root.find("backend_extensions")
    if section is None:
        text = "there is no backend_extensions, so no LPAI file is read and its defaults apply"
        cure = "add backend_extensions with shared_library_path and config_file_path"
        yield find.warning(None, "backend_extensions", "missing-key", text, cure)
    elif section.kind is JsonKind.OBJECT:
        yield from _extension(document.root, section, find)
    yield from _graph_names(document.root, find)


def _extension(root: JsonNode, section: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    for path in (_LIBRARY, _POINTER):
        if root.find(path) is None:
            text = "is missing; the tools need the extension library and its file"
            yield find.error(section.at, path, "missing-key", text, "add it")
    library = root.find(_LIBRARY)
    if library is None or not isinstance(library.value, str):
        return
    if is_htp_library(library.value):
        text = f"{quote(library.value)} is the HTP's extension, so this tool file is not for LPAI"
        cure = 'for LPAI write "libQnnLpaiNetRunExtensions.so"'
        yield find.error(library.at, _LIBRARY, "htp-file", text, cure)
    elif "lpai" not in library.value.lower():
        text = f"{quote(library.value)} does not look like LPAI's extension library"
        cure = "its name is libQnnLpaiNetRunExtensions.so (.dll on Windows)"
        yield find.warning(library.at, _LIBRARY, "library-name", text, cure)


def _graph_names(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    entries = root.find("graph_configs")
    for number, entry in enumerate(() if entries is None else entries.items[:1000]):
        if entry.kind is JsonKind.OBJECT and entry.get("graph_name") is None:
            path = f"graph_configs[{number}].graph_name"
            text = "is missing, so the entry applies to no graph"
            yield find.error(entry.at, path, "missing-key", text, "name the graph")
            return  # one is enough to see what is meant


def check_pair(tool: Document, lpai: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    """What a tool file must say because of the LPAI file it points to."""
    direct = setting(lpai, _TARGET) == "adsp" and not _only_prepares(lpai)
    if direct and setting(tool.root, _PERSISTENT) is False:
        text = 'direct mode (target_env "adsp") reads the model binary in place and needs true here'
        cure = 'add "context_configs": {"is_persistent_binary": true}'
        yield find.error(
            _place(tool.root, _PERSISTENT), _PERSISTENT, "direct-needs-persistent", text, cure
        )


def _only_prepares(lpai: JsonNode) -> bool:
    """A file with prepare and without execute is for the offline generator, which runs nothing."""
    return lpai.find("lpai_graph.prepare") is not None and lpai.find(_EXECUTE) is None


def _place(root: JsonNode, path: str) -> Position | None:
    node = root.find(path)
    return None if node is None else node.at
