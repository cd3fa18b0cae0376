"""The keys of both LPAI config files, with type, values, default and source of each.

`--config_file` names the tool file, which points to the LPAI file. Paths are dotted; `[]` matches
any entry of a list.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from qnnmem.lpai.config.json_positions import JsonKind

UINT32 = (1 << 32) - 1
UINT64 = (1 << 64) - 1

# Sources of the facts.
_GUIDE = "documented: QNN LPAI backend configuration guide"
_MEMORY = "documented: QNN LPAI memory allocations page"
_CONVERT = "documented: QNN LPAI model conversion page, example"
_TOOLS = "reported: public copy of the SDK's Python tools"
_HEADER = "reported: defaults of the LPAI graph header of 2024; JSON spelling inferred"
_SEEN = "reported: seen in config files of users"
_UNSURE = "reported: public tools page, not checked again"


class FileKind(Enum):
    """The kinds of config files."""

    TOOL = "tool file"
    LPAI = "LPAI file"
    HTP = "HTP backend file"
    UNKNOWN = "unknown"


class Key(Struct, frozen=True):
    """A key of a config file."""

    path: str
    kind: JsonKind
    source: str
    default: str | int | bool | None = None
    values: tuple[str, ...] = ()  # the only allowed texts; empty: any
    high: int = UINT32  # of a whole number; the lowest is always 0
    item: JsonKind | None = None  # type of the entries, for a list
    open: bool = False  # an object whose keys are not public

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.path.rpartition(".")[2]

    @property
    def section(self) -> str:
        """Dotted path of the object that contains the key; empty for the top level."""
        return self.path.rpartition(".")[0]


_PRIORITIES = ("low", "normal", "normal_high", "high")

TOOL_KEYS = (
    Key("backend_extensions", JsonKind.OBJECT, _GUIDE),
    Key("backend_extensions.shared_library_path", JsonKind.TEXT, _GUIDE),
    Key("backend_extensions.config_file_path", JsonKind.TEXT, _GUIDE),
    Key("context_configs", JsonKind.OBJECT, _MEMORY),
    Key("context_configs.context_priority", JsonKind.TEXT, _TOOLS, "normal", _PRIORITIES),
    Key("context_configs.async_execute_queue_depth", JsonKind.WHOLE, _TOOLS, 0),
    Key("context_configs.enable_graphs", JsonKind.LIST, _TOOLS, item=JsonKind.TEXT),
    Key("context_configs.memory_limit_hint", JsonKind.WHOLE, _TOOLS, 0, high=UINT64),
    Key("context_configs.is_persistent_binary", JsonKind.FLAG, _MEMORY, False),
    Key(
        "context_configs.cache_compatibility_mode",
        JsonKind.TEXT,
        _TOOLS,
        "permissive",
        ("permissive", "strict"),
    ),
    Key("context_configs.graph_retention_order", JsonKind.LIST, _SEEN, item=JsonKind.TEXT),
    Key("graph_configs", JsonKind.LIST, _SEEN, item=JsonKind.OBJECT),
    Key("graph_configs[].graph_name", JsonKind.TEXT, _SEEN),
    Key("graph_configs[].graph_priority", JsonKind.TEXT, _UNSURE, "normal", _PRIORITIES),
    Key("graph_configs[].graph_profiling_start_delay", JsonKind.NUMBER, _UNSURE),
    Key("graph_configs[].graph_profiling_num_executions", JsonKind.WHOLE, _UNSURE, high=UINT64),
    Key("profile_configs", JsonKind.OBJECT, _UNSURE, open=True),
    Key("async_graph_execution_config", JsonKind.OBJECT, _UNSURE, open=True),
)

LPAI_KEYS = (
    Key("lpai_backend", JsonKind.OBJECT, _GUIDE),
    Key("lpai_backend.target_env", JsonKind.TEXT, _GUIDE, "adsp", ("arm", "adsp", "x86")),
    # v4 comes from older pages, v7 from newer hardware.
    Key(
        "lpai_backend.enable_hw_ver", JsonKind.TEXT, _GUIDE, "v6", ("v4", "v5", "v5_1", "v6", "v7")
    ),
    Key("lpai_graph", JsonKind.OBJECT, _GUIDE),
    Key("lpai_graph.prepare", JsonKind.OBJECT, _CONVERT),
    Key("lpai_graph.prepare.enable_batchnorm_fold", JsonKind.FLAG, _CONVERT, True),
    Key("lpai_graph.prepare.exclude_io", JsonKind.FLAG, _CONVERT, False),
    Key("lpai_graph.prepare.enable_layer_fusion", JsonKind.FLAG, _HEADER, True),
    Key("lpai_graph.prepare.enable_channel_align", JsonKind.FLAG, _HEADER, False),
    Key("lpai_graph.prepare.enable_pad_split", JsonKind.FLAG, _HEADER, False),
    Key("lpai_graph.prepare.enable_per_layer", JsonKind.FLAG, _HEADER, False),
    Key("lpai_graph.execute", JsonKind.OBJECT, _GUIDE),
    Key("lpai_graph.execute.fps", JsonKind.WHOLE, _GUIDE, 1),
    Key("lpai_graph.execute.ftrt_ratio", JsonKind.WHOLE, _GUIDE, 10),
    Key(
        "lpai_graph.execute.client_type",
        JsonKind.TEXT,
        _GUIDE,
        "real_time",
        ("real_time", "non_real_time"),
    ),
    Key("lpai_graph.execute.affinity", JsonKind.TEXT, _GUIDE, "soft", ("soft", "hard")),
    Key("lpai_graph.execute.core_selection", JsonKind.WHOLE, _GUIDE, 0),
    Key("lpai_graph.execute.mem_type", JsonKind.TEXT, _MEMORY, "ddr", ("ddr", "tcm")),
    Key("lpai_profile", JsonKind.OBJECT, _GUIDE),
    Key("lpai_profile.level", JsonKind.TEXT, _GUIDE, "basic", ("basic", "detailed")),
    Key("lpai_debug", JsonKind.OBJECT, _GUIDE, open=True),
)

KEYS = {FileKind.TOOL: TOOL_KEYS, FileKind.LPAI: LPAI_KEYS}
BY_PATH = {key.path: key for key in (*TOOL_KEYS, *LPAI_KEYS)}

# Sections of the HTP backend's config file, which users pass by mistake.
HTP_SECTIONS = ("graphs", "devices", "context", "groupContext", "memory")

MEM_TYPE = "lpai_graph.execute.mem_type"


def keys_of(section: str, kind: FileKind) -> dict[str, Key]:
    """Return the keys allowed in a section of a kind of file, by name."""
    return {key.name: key for key in KEYS.get(kind, ()) if key.section == section}


def file_of(key: Key) -> FileKind:
    """Return the kind of file that a key belongs to."""
    return FileKind.LPAI if key in LPAI_KEYS else FileKind.TOOL


def tcm_works_on(hw_version: str) -> bool:
    """Return whether an LPAI version has the TCM pool; v6 and later have one."""
    return int(hw_version[1:].partition("_")[0]) >= 6


def looks_like_config(text: bytes) -> bool:
    """Return whether a text, JSON or not, mentions a section of these config files."""
    lower = text.lower()
    return any(section in lower for section in _SECTIONS)


# Prefixes, so that misspelt sections match too.
_SECTIONS = (b"lpai_", b"backend_extensions", b"context_configs", b"graph_configs")
