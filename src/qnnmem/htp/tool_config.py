"""Config files of qnn-context-binary-generator for HTP: the SoC, and settings of each graph.

There are two files. The tool's file names the backend's file in
`backend_extensions.config_file_path`; the backend's file has the sections `devices`, `graphs` and
`context`. Settings that would change the binary, but cannot be passed to the compiler here, are
refused. Settings for running the binary are noted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import config_file, read_bytes
from qnnmem.errors import Damaged, LoadError
from qnnmem.targets.socs import Soc, find_soc
from qnnmem.text import nearest, quote

_MAX_FILE = 1 << 20  # the documented examples have less than 1 KB
_TOOL = ("backend_extensions", "context_configs", "graph_configs")
_SECTIONS = ("devices", "graphs", "context", "groupContext", "memory")
# Keys that only apply when the binary runs.
_RUNNING = {
    "devices": (
        *("device_id", "core_id", "core_type", "cores", "pd_session", "profiling_level"),
        *("use_client_context", "device_type", "enable_async_execute", "async_voting"),
    ),
    "graphs": ("perf_profile", "fp16_relaxed_precision"),
    "context": (
        *("group_id", "max_spill_fill_buffer_for_group", "file_read_memory_budget_in_mb"),
        *("concurrent_group_registration", "dsp_memory_profiling_enabled", "io_memory_estimation"),
        *("init_acceleration", "concurrent_deserialization_patch", "reused_io_limit_mb"),
        *("skip_validation_on_binary_section", "contextKey"),
    ),
}
# Keys that change the binary and have no option in ONNX Runtime, which drives the compiler.
_NOT_HERE = {
    "devices": ("use_dynamic_partitioning", "enable_htp_extension", "consolidate_htp_extension"),
    "graphs": (
        *("vtcm_size", "dlbc", "dlbc_weights", "sparse_weights_compression", "slc_alloc_enable"),
        *("hvx_threads", "num_cores", "weights_packing", "share_io_buffer", "assume_same_quant"),
        *("advanced_activation_fusion", "fold_relu_activation_into_conv_off"),
        *("short_depth_conv_on_hmx_off", "high_precision_sigmoid", "monolithic_lstm"),
        *("finalize_config", "pge", "hmx_op_bounding", "cached_weights", "vtcm_retention"),
        *("dynamic_partitioning", "precision_compensation", "fp16_clamp_overflow"),
    ),
    "context": (
        *("prepare_only", "extended_udma", "lora_weight_sharing", "detachable_buffers_enabled"),
        *("lora_weight_sharing_ram_preload", "graph_splitting_enabled", "hard_detach_enabled"),
        "reference_weight_sharing_enabled",
    ),
}
_READ = {
    "devices": ("soc_model", "soc_id", "dsp_arch"),
    "graphs": ("graph_names", "vtcm_mb", "O"),
    "context": ("weight_sharing_enabled",),
}
# The library's default SoC for an architecture, and the VTCM that it then uses.
_SOC_OF_ARCH = {68: 30, 69: 36, 73: 43, 75: 57, 79: 69, 81: 87, 85: 103}
_VTCM_OF_ARCH = 4
_SOC_OF_NOTHING = "SM8350"


@dataclass(frozen=True, slots=True)
class GraphSection:
    """An entry of `graphs`: settings of the graphs that it names."""

    names: tuple[str, ...]
    vtcm_mb: int | None = None  # 0: all VTCM of the SoC
    opt_level: int | None = None


@dataclass(frozen=True, slots=True)
class HtpToolConfig:
    """The settings in both files that affect the binary."""

    soc_id: int | None = None
    arch: int | None = None
    graphs: tuple[GraphSection, ...] = ()
    notes: tuple[str, ...] = ()  # about settings without effect


@dataclass(frozen=True, slots=True)
class HtpTarget:
    """The SoC and the settings that a graph is compiled with."""

    soc: Soc
    vtcm_mb: int | None = None  # None: the library's own choice
    opt_level: int | None = None
    notes: tuple[str, ...] = ()


def read_htp_config(path: Path) -> HtpToolConfig:
    """Return the settings of the tool's file and of the backend's file that it names."""
    tool = _read(path)
    if any(name in tool for name in _SECTIONS):
        problem = (
            "is the file of the HTP backend; pass the QNN tools' config file that names it in "
        )
        raise LoadError(path, f"{problem}backend_extensions.config_file_path")
    _check_names(path, "the file", tool, _TOOL)
    notes = _running_notes(tool, _TOOL[1:])
    extensions = _object(path, tool, "backend_extensions")
    library, named = extensions.get("shared_library_path"), extensions.get("config_file_path")
    if isinstance(library, str) and "lpai" in library.lower():
        problem = f"is a config file of the QNN tools for LPAI: it loads {quote(library)}"
        raise LoadError(path, problem)
    if named is None:
        return HtpToolConfig(notes=tuple(notes))
    return _backend_file(_beside(path, named), notes)


def htp_target(config: HtpToolConfig, graph: str) -> HtpTarget:
    """Return the SoC and the settings for the graph with this name."""
    notes = list(config.notes)
    soc, usual = _soc(config, notes)
    fitting = [section for section in config.graphs if graph in section.names]
    if config.graphs and not fitting:
        known = ", ".join(quote(n) for section in config.graphs[:4] for n in section.names[:4])
        notes.append(
            f"graphs has sections only for {known}, so none applies to {quote(graph)} (the real "
            "tool does not report this)"
        )
    vtcm = next((section.vtcm_mb for section in fitting if section.vtcm_mb is not None), usual)
    if vtcm == 0:
        vtcm = soc.vtcm_mb
    level = next((section.opt_level for section in fitting if section.opt_level is not None), None)
    return HtpTarget(soc, vtcm, level, tuple(notes))


def _soc(config: HtpToolConfig, notes: list[str]) -> tuple[Soc, int | None]:
    """Return the SoC, and the default VTCM in MiB if the config names only an architecture."""
    if config.soc_id is not None:
        soc = find_soc(str(config.soc_id))
        if config.arch not in (None, soc.arch):
            notes.append(f"dsp_arch v{config.arch} is ignored: it differs from that of {soc.name}")
        return soc, None
    if config.arch is None:
        notes.append(
            f"no SoC is set, so the binary is for {_SOC_OF_NOTHING}, the default of the real tool"
        )
        return find_soc(_SOC_OF_NOTHING), None
    soc = find_soc(str(_SOC_OF_ARCH[config.arch]))
    notes.append(
        f"only dsp_arch v{config.arch} is set, so the binary is for {soc.name} with "
        f"{_VTCM_OF_ARCH} MiB of VTCM, which the library also assumes; set soc_model for the "
        "real SoC"
    )
    return soc, _VTCM_OF_ARCH


def _backend_file(path: Path, notes: list[str]) -> HtpToolConfig:
    content = _read(path)
    _check_names(path, "the file", content, _SECTIONS)
    notes += _running_notes(content, _SECTIONS[3:])
    devices = list(_entries(path, content, "devices", notes))
    graphs = tuple(_graph(path, entry) for entry in _entries(path, content, "graphs", notes))
    for entry in _entries(path, content, "context", notes):
        if entry.get("weight_sharing_enabled"):
            notes.append("weight_sharing_enabled has no effect with one graph")
    first: Mapping[str, Any] = devices[0] if devices else {}
    if len(devices) > 1:
        notes.append(f"devices has {len(devices)} entries; only the first is used")
    ids = [
        _whole(path, f"devices[].{key}", first[key], 0, 1 << 16)
        for key in ("soc_model", "soc_id")
        if key in first
    ]
    return HtpToolConfig(ids[0] if ids else None, _arch(path, first), graphs, tuple(notes))


def _graph(path: Path, entry: Mapping[str, Any]) -> GraphSection:
    names = entry.get("graph_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise LoadError(path, "graphs[].graph_names is not a list of names")
    vtcm, level = entry.get("vtcm_mb"), entry.get("O")
    return GraphSection(
        tuple(names),
        None if vtcm is None else _whole(path, "graphs[].vtcm_mb", vtcm, 0, 64),
        None if level is None else _whole(path, "graphs[].O", level, 1, 3),
    )


def _arch(path: Path, device: Mapping[str, Any]) -> int | None:
    given = device.get("dsp_arch")
    if given is None:
        return None
    # Long values, such as deep lists or thousands of digits, are not shown.
    number = quote(given) if isinstance(given, int) else given if isinstance(given, str) else ""
    number = number.lower().removeprefix("v") if len(number) < 9 else ""
    if not number.isdecimal() or int(number) not in _SOC_OF_ARCH:
        known = ", ".join(f"v{arch}" for arch in _SOC_OF_ARCH)
        raise LoadError(
            path, f"devices[].dsp_arch {quote(given)} is not supported; choose one of {known}"
        )
    return int(number)


def _entries(
    path: Path, content: Mapping[str, Any], section: str, notes: list[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a section; raise LoadError for keys that are not supported here."""
    found = content.get(section, [])
    listed = found if isinstance(found, list) else [found]
    for entry in listed:
        if not isinstance(entry, dict):
            raise LoadError(path, f"{section} has an entry that is not an object")
        running, absent = _RUNNING[section], _NOT_HERE[section]
        _check_names(path, section, entry, (*_READ[section], *running, *absent))
        for key in absent:
            if entry.get(key):
                problem = f"{section}.{key} {quote(entry[key])} cannot be passed to the compiler"
                raise LoadError(path, problem, cure="remove it")
        notes += _running_notes(entry, running, f"{section}.")
        yield entry


def _running_notes(content: Mapping[str, Any], keys: Iterable[str], section: str = "") -> list[str]:
    """Return a note for each key that only matters when the binary runs."""
    words = "is for running the binary and has no effect here"
    return [f"{section}{key} {words}" for key in keys if content.get(key)]


def _check_names(path: Path, where: str, found: Mapping[str, Any], known: Iterable[str]) -> None:
    known = tuple(known)
    for name in found:
        if name not in known:
            near = nearest(name, known)
            meant = f"; did you mean {quote(near)}?" if near else ""
            raise LoadError(path, f"{where} has the unknown key {quote(name)}{meant}")


def _whole(path: Path, what: str, value: object, least: int, most: int) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Check the range first: an integer of hundreds of digits does not convert to float.
    if is_number and least <= value <= most and value == int(value):  # type: ignore[operator,call-overload]
        return int(value)  # type: ignore[call-overload,no-any-return]
    shown = quote(value) if isinstance(value, int | str) else "the value"
    raise LoadError(path, f"{what} must be a whole number from {least} to {most}, not {shown}")


def _object(path: Path, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise LoadError(path, f"{name} is not an object")
    return found


def _beside(tool: Path, named: object) -> Path:
    """Return the named config file, from the current folder or next to the tool's file."""
    if not isinstance(named, str) or not named or "\0" in named:
        raise LoadError(tool, "backend_extensions.config_file_path is not the name of a file")
    try:
        found = config_file(tool, named, here_first=True)
        found = found or config_file(tool, Path(named).name or named)
    except Damaged as exc:
        raise LoadError(tool, f"its backend_extensions.config_file_path {exc}") from exc
    if found is not None:
        return found
    where = "but that file is neither in the same folder nor in the current folder"
    raise LoadError(tool, f"names {quote(named)} in backend_extensions.config_file_path, {where}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(path, _MAX_FILE))
    except (ValueError, RecursionError) as exc:  # ValueError: not UTF-8, not JSON
        raise LoadError(path, "is not JSON", cure="`qnnmem lint` shows where") from exc
    if not isinstance(content, dict):
        raise LoadError(path, "is not a JSON object")
    return content
