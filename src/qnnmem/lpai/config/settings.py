"""Converts config files to the settings of a run, and settings to a pair of config files.

Unknown keys are ignored here, as the tools ignore them; `qnnmem lint` reports them. A value that is
not allowed is an error. The exception is `mem_type`: a wrong value fails later in the run, as it
does on the device.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from qnnmem.errors import Damaged, LoadError, Setting, UsageError
from qnnmem.lpai.config.check import check_value, classify, is_htp_library, locate, several_cores
from qnnmem.lpai.config.json_positions import Document, JsonKind, JsonNode, read_strictly
from qnnmem.lpai.config.schema import BY_PATH, MEM_TYPE, FileKind, Key, tcm_works_on
from qnnmem.options.config import ExecuteSettings
from qnnmem.text import plain_or_quoted, quote

EXTENSION = "libQnnLpaiNetRunExtensions.so"


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """`lpai_graph.prepare`: settings of the offline compiler."""

    enable_batchnorm_fold: bool = True
    exclude_io: bool = False
    enable_layer_fusion: bool = True
    enable_channel_align: bool = False
    enable_pad_split: bool = False
    enable_per_layer: bool = False


@dataclass(frozen=True, slots=True)
class LpaiConfig:
    """The settings of an LPAI file; the defaults if there is no file."""

    target_env: str = "adsp"  # or "arm", "x86"
    hw_version: str = "v6"  # or "v4", "v5", "v5_1", "v7"
    prepare: PrepareSettings = field(default_factory=PrepareSettings)
    execute: ExecuteSettings = field(default_factory=ExecuteSettings)
    profile_level: str | None = None  # "basic" or "detailed"; None without lpai_profile
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """`context_configs` of the tool file."""

    context_priority: str = "normal"  # or "low", "normal_high", "high"
    async_execute_queue_depth: int = 0
    enable_graphs: tuple[str, ...] | None = None  # None: all
    memory_limit_hint: int = 0  # MB; 0 is no hint
    is_persistent_binary: bool = False
    cache_compatibility_mode: str = "permissive"  # or "strict"


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """One entry of `graph_configs`."""

    graph_name: str
    graph_priority: str = "normal"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """All settings of a run from `--config_file`."""

    lpai: LpaiConfig = field(default_factory=LpaiConfig)
    context: ContextSettings = field(default_factory=ContextSettings)
    graphs: tuple[GraphSettings, ...] = ()
    file: Path | None = None
    note: str = ""  # set if another file was read in place of the named one


def read_run_config(path: Path) -> RunConfig:
    """Return the settings of a tool file and of the LPAI file that it points to."""
    document = read_strictly(path)
    kind = classify(document.root)
    if kind is FileKind.LPAI:
        raise LoadError(
            path,
            "is an LPAI file; pass the QNN tools' config file that names it in "
            "backend_extensions.config_file_path",
        )
    if kind is not FileKind.TOOL and document.root.members:
        raise LoadError(path, f"is not a config file of the QNN tools for LPAI: {_what(kind)}")
    library = _read(document, "backend_extensions.shared_library_path")
    if library is not None and is_htp_library(str(library)):
        problem = f"is a config file of the QNN tools for HTP: it loads {quote(library)}"
        raise LoadError(path, problem)
    lpai, note = _pointed(document)
    return RunConfig(
        lpai,
        _settings(document, "context_configs", ContextSettings),
        _graphs(document),
        path,
        note,
    )


def read_lpai_config(path: Path) -> LpaiConfig:
    """Return the settings of an LPAI file, given directly or named by a tool file."""
    document = read_strictly(path)
    kind = classify(document.root)
    if kind is FileKind.TOOL:
        return read_run_config(path).lpai
    if kind is not FileKind.LPAI and document.root.members:
        raise LoadError(path, f"is not an LPAI file: {_what(kind)}")
    return _lpai(document)


def _what(kind: FileKind) -> str:
    if kind is FileKind.HTP:
        return "it has the sections of the HTP backend"
    return "it has none of the known sections, such as backend_extensions or lpai_graph"


def _pointed(tool: Document) -> tuple[LpaiConfig, str]:
    """Return the settings of the LPAI file that a tool file names.

    The second value is a note if a local file is read in place of a path on the device.
    """
    named = _read(tool, "backend_extensions.config_file_path")
    if named is None:
        return LpaiConfig(), ""
    try:
        file = locate(str(named), tool.path)
    except Damaged as exc:
        what = f"its backend_extensions.config_file_path {exc}"
        raise LoadError(tool.path, what) from exc
    if file is None:
        raise LoadError(
            tool.path,
            f"names {quote(named)} in backend_extensions.config_file_path, but that file is "
            "neither in the same folder nor in the current folder",
        )
    document = read_strictly(file.path)
    kind = classify(document.root)
    if kind is not FileKind.LPAI and document.root.members:
        raise LoadError(
            file.path, "is not an LPAI file, but the config file of the QNN tools names it as one"
        )
    place = f"{plain_or_quoted(str(file.path))} is read instead"
    note = f"{quote(named)} is not on this machine: {place}" if file.in_place_of else ""
    return _lpai(document), note


def _lpai(document: Document) -> LpaiConfig:
    profiled = document.root.get("lpai_profile") is not None
    level = _read(document, "lpai_profile.level")
    return LpaiConfig(
        str(_read(document, "lpai_backend.target_env")),
        str(_read(document, "lpai_backend.enable_hw_ver")),
        _settings(document, "lpai_graph.prepare", PrepareSettings),
        _settings(document, "lpai_graph.execute", ExecuteSettings),
        str(level) if profiled else None,
        document.path,
    )


def _graphs(document: Document) -> tuple[GraphSettings, ...]:
    entries = document.root.find("graph_configs")
    if entries is None:
        return ()
    _refuse_fault(document, BY_PATH["graph_configs"], entries)
    return tuple(_graph(document, entry) for entry in entries.items)


def _graph(document: Document, entry: JsonNode) -> GraphSettings:
    values = {}
    for name in ("graph_name", "graph_priority"):
        member = entry.get(name)
        if member is not None:
            _refuse_fault(document, BY_PATH[f"graph_configs[].{name}"], member.node)
            values[name] = str(member.node.value)
    if "graph_name" not in values:
        raise LoadError(document.path, f"line {entry.at.line}: this entry has no graph_name")
    return GraphSettings(**values)


def _settings(document: Document, section: str, form: type[_T]) -> _T:
    """Return a `form` whose fields have the values of the keys with the same names in a section."""
    names = signature(form).parameters
    values: dict[str, Any] = {name: _read(document, f"{section}.{name}") for name in names}
    return form(**values)


def _read(document: Document, path: str) -> Any:
    """Return the value at a path or its default; raise LoadError if the value is not allowed."""
    node, names = document.root, path.split(".")
    for count in range(1, len(names) + 1):
        prefix = ".".join(names[:count])
        inner = document.root.find(prefix)
        if inner is None:
            return BY_PATH[path].default
        _refuse_fault(document, BY_PATH[prefix], inner)
        node = inner
    if node.kind is JsonKind.LIST:
        return tuple(item.value for item in node.items)
    return node.value


def _refuse_fault(document: Document, key: Key, node: JsonNode) -> None:
    fault = check_value(key, node)
    if fault is None or (key.path == MEM_TYPE and node.kind is JsonKind.TEXT):
        return
    where = f"line {node.at.line}, {key.path}: {fault.sentence}; {fault.cure}"
    raise LoadError(document.path, where)


@dataclass(frozen=True, slots=True)
class ConfigPair:
    """The names and contents of a tool file and its LPAI file."""

    tool_name: str
    tool_text: str
    lpai_name: str
    lpai_text: str


def make_pair(config: LpaiConfig) -> ConfigPair:
    """Return both config files for the settings; raise UsageError for contradictory settings."""
    refuse_contradictions(config)
    direct = config.target_env == "adsp"
    stem = "eaiParams_direct" if direct else "lpaiParams"
    lpai_name = f"{stem}.conf"
    tool: dict[str, Any] = {
        "backend_extensions": {"shared_library_path": EXTENSION, "config_file_path": lpai_name}
    }
    if direct:
        tool["context_configs"] = {"is_persistent_binary": True}
    return ConfigPair(f"{stem}.json", _json(tool), lpai_name, _json(_lpai_values(config)))


def refuse_contradictions(config: LpaiConfig) -> None:
    """Raise UsageError for settings that `qnnmem lint` would report."""
    execute = config.execute
    ddr = Setting("mem_type", "ddr")
    if execute.mem_type == "tcm" and config.target_env != "adsp":
        raise UsageError(
            f"TCM works only in direct mode on the aDSP, not with target {config.target_env}",
            cure=("use ", Setting("target_env", "adsp"), " or ", ddr),
        )
    if execute.mem_type == "tcm" and not tcm_works_on(config.hw_version):
        raise UsageError(
            f"TCM needs LPAI v6 or later, not {config.hw_version}",
            cure=("use ", Setting("hw_version", "v6"), " or ", ddr),
        )
    if execute.client_type == "real_time" and execute.fps == 0:
        other = Setting("client_type", "non_real_time")
        raise UsageError(
            "a real_time client needs more than 0 frames per second",
            cure=("use ", Setting("fps", "1"), " or more, or ", other),
        )
    if several_cores(execute.core_selection):
        raise UsageError(
            f"core selection {execute.core_selection} selects several cores, which LPAI does "
            "not support yet; use 0 for any core, 1 for core 0, 2 for core 1"
        )


def _lpai_values(config: LpaiConfig) -> dict[str, Any]:
    graph: dict[str, Any] = {}
    if config.prepare.exclude_io:
        graph["prepare"] = {"exclude_io": True}
    execute = config.execute
    graph["execute"] = {
        "fps": execute.fps,
        "ftrt_ratio": execute.ftrt_ratio,
        "client_type": execute.client_type,
        "affinity": execute.affinity,
        "core_selection": execute.core_selection,
    }
    if config.target_env == "adsp":  # only direct mode has this key
        graph["execute"]["mem_type"] = execute.mem_type
    backend = {"target_env": config.target_env, "enable_hw_ver": config.hw_version}
    return {"lpai_backend": backend, "lpai_graph": graph}


def run_command(config: LpaiConfig, tool_file: str) -> str:
    """Return the command that runs a model with this tool file."""
    words = ["qnn-net-run", "--retrieve_context", "model.bin", "--backend", "libQnnLpai.so"]
    words += ["--input_list", "input_list.txt"]
    words += ["--direct_mode", "adsp"] if config.target_env == "adsp" else []
    return shlex.join([*words, "--config_file", tool_file])


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"
