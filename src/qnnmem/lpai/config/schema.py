"""The keys of the two config files: type, values, default and where each fact comes from.

The tool file is what `--config_file` names; it points to the LPAI file. Paths are dotted, and
`[]` stands for any entry of a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qnnmem.lpai.config.text import Kind

UINT32 = (1 << 32) - 1
UINT64 = (1 << 64) - 1

# Where the facts come from.
_GUIDE = "documented: QNN LPAI backend configuration guide"
_MEMORY = "documented: QNN LPAI memory allocations page"
_CONVERT = "documented: QNN LPAI model conversion page, example"
_TOOLS = "reported: public copy of the SDK's Python tools"
_HEADER = "reported: defaults of the LPAI graph header of 2024; JSON spelling inferred"
_SEEN = "reported: tool files of users"
_UNSURE = "reported: public tools page, not checked again"


class FileKind(Enum):
    """What a config file is for."""

    TOOL = "tool file"
    LPAI = "LPAI file"
    HTP = "HTP backend file"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a config file."""

    path: str
    kind: Kind
    source: str
    default: str | int | bool | None = None
    values: tuple[str, ...] = ()  # the only texts allowed; empty for any
    high: int = UINT32  # of a whole number; the lowest is always 0
    item: Kind | None = None  # what the entries of a list must be
    open: bool = False  # an object whose keys are not public

    @property
    def name(self) -> str:
        """The key itself, without its section."""
        return self.path.rpartition(".")[2]

    @property
    def section(self) -> str:
        """Dotted path of the object that holds the key; empty for the outermost."""
        return self.path.rpartition(".")[0]


_PRIORITIES = ("low", "normal", "normal_high", "high")

TOOL_KEYS = (
    Key("backend_extensions", Kind.OBJECT, _GUIDE),
    Key("backend_extensions.shared_library_path", Kind.TEXT, _GUIDE),
    Key("backend_extensions.config_file_path", Kind.TEXT, _GUIDE),
    Key("context_configs", Kind.OBJECT, _MEMORY),
    Key("context_configs.context_priority", Kind.TEXT, _TOOLS, "normal", _PRIORITIES),
    Key("context_configs.async_execute_queue_depth", Kind.WHOLE, _TOOLS, 0),
    Key("context_configs.enable_graphs", Kind.LIST, _TOOLS, item=Kind.TEXT),
    Key("context_configs.memory_limit_hint", Kind.WHOLE, _TOOLS, 0, high=UINT64),
    Key("context_configs.is_persistent_binary", Kind.FLAG, _MEMORY, False),
    Key(
        "context_configs.cache_compatibility_mode",
        Kind.TEXT,
        _TOOLS,
        "permissive",
        ("permissive", "strict"),
    ),
    Key("context_configs.graph_retention_order", Kind.LIST, _SEEN, item=Kind.TEXT),
    Key("graph_configs", Kind.LIST, _SEEN, item=Kind.OBJECT),
    Key("graph_configs[].graph_name", Kind.TEXT, _SEEN),
    Key("graph_configs[].graph_priority", Kind.TEXT, _UNSURE, "normal", _PRIORITIES),
    Key("graph_configs[].graph_profiling_start_delay", Kind.NUMBER, _UNSURE),
    Key("graph_configs[].graph_profiling_num_executions", Kind.WHOLE, _UNSURE, high=UINT64),
    Key("profile_configs", Kind.OBJECT, _UNSURE, open=True),
    Key("async_graph_execution_config", Kind.OBJECT, _UNSURE, open=True),
)

LPAI_KEYS = (
    Key("lpai_backend", Kind.OBJECT, _GUIDE),
    Key("lpai_backend.target_env", Kind.TEXT, _GUIDE, "adsp", ("arm", "adsp", "x86")),
    # v4 is of older pages, v7 of newer hardware.
    Key("lpai_backend.enable_hw_ver", Kind.TEXT, _GUIDE, "v6", ("v4", "v5", "v5_1", "v6", "v7")),
    Key("lpai_graph", Kind.OBJECT, _GUIDE),
    Key("lpai_graph.prepare", Kind.OBJECT, _CONVERT),
    Key("lpai_graph.prepare.enable_batchnorm_fold", Kind.FLAG, _CONVERT, True),
    Key("lpai_graph.prepare.exclude_io", Kind.FLAG, _CONVERT, False),
    Key("lpai_graph.prepare.enable_layer_fusion", Kind.FLAG, _HEADER, True),
    Key("lpai_graph.prepare.enable_channel_align", Kind.FLAG, _HEADER, False),
    Key("lpai_graph.prepare.enable_pad_split", Kind.FLAG, _HEADER, False),
    Key("lpai_graph.prepare.enable_per_layer", Kind.FLAG, _HEADER, False),
    Key("lpai_graph.execute", Kind.OBJECT, _GUIDE),
    Key("lpai_graph.execute.fps", Kind.WHOLE, _GUIDE, 1),
    Key("lpai_graph.execute.ftrt_ratio", Kind.WHOLE, _GUIDE, 10),
    Key(
        "lpai_graph.execute.client_type",
        Kind.TEXT,
        _GUIDE,
        "real_time",
        ("real_time", "non_real_time"),
    ),
    Key("lpai_graph.execute.affinity", Kind.TEXT, _GUIDE, "soft", ("soft", "hard")),
    Key("lpai_graph.execute.core_selection", Kind.WHOLE, _GUIDE, 0),
    Key("lpai_graph.execute.mem_type", Kind.TEXT, _MEMORY, "ddr", ("ddr", "tcm")),
    Key("lpai_profile", Kind.OBJECT, _GUIDE),
    Key("lpai_profile.level", Kind.TEXT, _GUIDE, "basic", ("basic", "detailed")),
    Key("lpai_debug", Kind.OBJECT, _GUIDE, open=True),
)

KEYS = {FileKind.TOOL: TOOL_KEYS, FileKind.LPAI: LPAI_KEYS}
BY_PATH = {key.path: key for key in (*TOOL_KEYS, *LPAI_KEYS)}

# Sections of the HTP backend's own file, which users hand over by mistake.
HTP_SECTIONS = ("graphs", "devices", "context", "groupContext", "memory")

MEM_TYPE = "lpai_graph.execute.mem_type"


def keys_of(section: str, kind: FileKind) -> dict[str, Key]:
    """The keys that a section of a file may hold, by name."""
    return {key.name: key for key in KEYS.get(kind, ()) if key.section == section}


def file_of(key: Key) -> FileKind:
    """The file that a key belongs to."""
    return FileKind.LPAI if key in LPAI_KEYS else FileKind.TOOL


def tcm_works_on(hw_version: str) -> bool:
    """Whether an LPAI version has the TCM pool: v6 and later."""
    return int(hw_version[1:].partition("_")[0]) >= 6
