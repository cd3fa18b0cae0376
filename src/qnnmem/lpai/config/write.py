"""A pair of config files that the tools accept."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from qnnmem.errors import Setting, UsageError
from qnnmem.lpai.config.cross import several_cores
from qnnmem.lpai.config.read import ExecuteSettings, LpaiConfig
from qnnmem.lpai.config.schema import tcm_works_on

EXTENSION = "libQnnLpaiNetRunExtensions.so"


@dataclass(frozen=True, slots=True)
class ConfigPair:
    """Names and texts of a tool file and its LPAI file."""

    tool_name: str
    tool_text: str
    lpai_name: str
    lpai_text: str


def make_pair(config: LpaiConfig) -> ConfigPair:
    """Writes settings down as the two files; settings that contradict each other are refused."""
    refuse_contradictions(config)
    direct = config.target_env == "adsp"
    stem = "eaiParams_direct" if direct else "lpaiParams"
    lpai_name = f"{stem}.conf"
    tool: dict[str, Any] = {
        "backend_extensions": {"shared_library_path": EXTENSION, "config_file_path": lpai_name}
    }
    if direct:
        tool["context_configs"] = {"is_persistent_binary": True}
    return ConfigPair(f"{stem}.json", _json(tool), lpai_name, _json(_lpai(config)))


def refuse_contradictions(config: LpaiConfig) -> None:
    """Raises a UsageError for settings that `qnnmem lint` would complain about."""
    execute = config.execute
    ddr = Setting("mem_type", "ddr")
    if execute.mem_type == "tcm" and config.target_env != "adsp":
        raise UsageError(
            f"TCM works in direct mode on the aDSP only, not with target {config.target_env}",
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
            "a real_time client with 0 frames per second asks for nothing",
            cure=("use ", Setting("fps", "1"), " or more, or ", other),
        )
    if several_cores(execute.core_selection):
        raise UsageError(
            f"core selection {execute.core_selection} names several cores, which LPAI does not "
            "support yet; use 0 for any core, 1 for core 0, 2 for core 1"
        )


def _lpai(config: LpaiConfig) -> dict[str, Any]:
    graph: dict[str, Any] = {}
    if config.prepare.exclude_io:
        graph["prepare"] = {"exclude_io": True}
    graph["execute"] = _execute(config.execute, config.target_env)
    backend = {"target_env": config.target_env, "enable_hw_ver": config.hw_version}
    return {"lpai_backend": backend, "lpai_graph": graph}


def _execute(execute: ExecuteSettings, target: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "fps": execute.fps,
        "ftrt_ratio": execute.ftrt_ratio,
        "client_type": execute.client_type,
        "affinity": execute.affinity,
        "core_selection": execute.core_selection,
    }
    if target == "adsp":  # the key is of direct mode only
        found["mem_type"] = execute.mem_type
    return found


def run_command(config: LpaiConfig, tool_file: str) -> str:
    """The command that runs a model with this tool file."""
    words = ["qnn-net-run", "--retrieve_context", "model.bin", "--backend", "libQnnLpai.so"]
    words += ["--input_list", "input_list.txt"]
    words += ["--direct_mode", "adsp"] if config.target_env == "adsp" else []
    return shlex.join([*words, "--config_file", tool_file])


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"
