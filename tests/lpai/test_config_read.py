"""Config files read as the settings of a run."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import pytest
from tool_files import OUTSIDE, naming_below, naming_outside

from qnnmem.errors import LoadError
from qnnmem.lpai.config.schema import BY_PATH
from qnnmem.lpai.config.settings import (
    ContextSettings,
    GraphSettings,
    LpaiConfig,
    PrepareSettings,
    RunConfig,
    read_lpai_config,
    read_run_config,
)
from qnnmem.options.config import ExecuteSettings

EXTENSIONS = {
    "shared_library_path": "libQnnLpaiNetRunExtensions.so",
    "config_file_path": "lpai.conf",
}


def write(folder: Path, name: str, value: object) -> Path:
    """Write a config file and return its path; text is written unchanged."""
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def read_pair(folder: Path, lpai: object, **tool: object) -> RunConfig:
    """Return the settings of a tool file with an LPAI file beside it."""
    write(folder, "lpai.conf", lpai)
    return read_run_config(write(folder, "tool.json", {"backend_extensions": EXTENSIONS, **tool}))


@pytest.mark.parametrize(
    ("section", "form"),
    [
        ("lpai_graph.prepare", PrepareSettings),
        ("lpai_graph.execute", ExecuteSettings),
        ("context_configs", ContextSettings),
    ],
)
def test_settings_have_the_defaults_of_the_table(section: str, form: type) -> None:
    """The settings' defaults equal the defaults in the table of keys."""
    made = form()
    for name in signature(form).parameters:
        assert getattr(made, name) == BY_PATH[f"{section}.{name}"].default


def test_an_empty_pair_gives_every_default(tmp_path: Path) -> None:
    """An empty pair of files gives every default."""
    config = read_pair(tmp_path, {"lpai_backend": {}})
    assert config.lpai == LpaiConfig(file=tmp_path / "lpai.conf")
    assert config.context == ContextSettings()
    assert config.graphs == ()


def test_every_setting_of_the_lpai_file_is_read(tmp_path: Path) -> None:
    """Every section and key of the LPAI file is read."""
    config = read_pair(
        tmp_path,
        {
            "lpai_backend": {"target_env": "x86", "enable_hw_ver": "v5_1"},
            "lpai_graph": {
                "prepare": {
                    "enable_batchnorm_fold": False,
                    "exclude_io": True,
                    "enable_layer_fusion": False,
                    "enable_channel_align": True,
                    "enable_pad_split": True,
                    "enable_per_layer": True,
                },
                "execute": {
                    "fps": 2,
                    "ftrt_ratio": 50,
                    "client_type": "non_real_time",
                    "affinity": "hard",
                    "core_selection": 1,
                    "mem_type": "tcm",
                },
            },
            "lpai_profile": {"level": "detailed"},
        },
    )
    assert config.lpai == LpaiConfig(
        "x86",
        "v5_1",
        PrepareSettings(False, True, False, True, True, True),
        ExecuteSettings(2, 50, "non_real_time", "hard", 1, "tcm"),
        "detailed",
        tmp_path / "lpai.conf",
    )


def test_every_setting_of_the_context_is_read(tmp_path: Path) -> None:
    """The context and graph settings of the tool file are read."""
    context = {
        "context_priority": "high",
        "async_execute_queue_depth": 3,
        "enable_graphs": ["a", "b"],
        "memory_limit_hint": 64,
        "is_persistent_binary": True,
        "cache_compatibility_mode": "strict",
    }
    graphs = [{"graph_name": "a", "graph_priority": "low"}, {"graph_name": "b"}]
    config = read_pair(tmp_path, {}, context_configs=context, graph_configs=graphs)
    assert config.context == ContextSettings("high", 3, ("a", "b"), 64, True, "strict")
    assert config.graphs == (GraphSettings("a", "low"), GraphSettings("b"))


def test_a_profile_section_without_level_is_basic(tmp_path: Path) -> None:
    """A profile section without a level means "basic"."""
    config = read_lpai_config(write(tmp_path, "l.conf", {"lpai_profile": {}}))
    assert config.profile_level == "basic"


@pytest.mark.parametrize("text", ["TMC", "", "llc"])
def test_a_bad_mem_type_survives_to_run_time(text: str, tmp_path: Path) -> None:
    """An invalid mem_type is kept as text, so that the run fails as on the device."""
    config = read_pair(tmp_path, {"lpai_graph": {"execute": {"mem_type": text}}})
    assert config.lpai.execute.mem_type == text


def test_unknown_keys_are_ignored_as_the_tools_do(tmp_path: Path) -> None:
    """Unknown keys in both files are ignored, as in the vendor's tools."""
    lpai = {"lpai_graph": {"execute": {"fsp": 3}}, "more": 1}
    assert read_pair(tmp_path, lpai, more=1).lpai.execute.fps == 1


def test_of_a_repeated_key_the_last_counts(tmp_path: Path) -> None:
    """Of a repeated key, the last value counts."""
    path = write(tmp_path, "l.conf", '{"lpai_backend": {"target_env": "arm", "target_env": "x86"}}')
    assert read_lpai_config(path).target_env == "x86"


def test_the_lpai_file_can_be_read_through_either_file(tmp_path: Path) -> None:
    """The LPAI settings can be read through the LPAI file or the tool file."""
    lpai = {"lpai_graph": {"prepare": {"exclude_io": True}}}
    read_pair(tmp_path, lpai)
    through_tool = read_lpai_config(tmp_path / "tool.json")
    assert through_tool == read_lpai_config(tmp_path / "lpai.conf")
    assert through_tool.prepare.exclude_io


def test_a_tool_file_without_extensions_means_defaults(tmp_path: Path) -> None:
    """A tool file without backend_extensions needs no LPAI file and gives the defaults."""
    path = write(tmp_path, "tool.json", {"context_configs": {"is_persistent_binary": True}})
    config = read_run_config(path)
    assert (config.lpai, config.context.is_persistent_binary) == (LpaiConfig(), True)


def test_an_empty_object_means_defaults(tmp_path: Path) -> None:
    """An empty JSON object gives the defaults, as tool file and as LPAI file."""
    path = write(tmp_path, "x.json", {})
    assert read_run_config(path) == RunConfig(file=path)
    assert read_lpai_config(path) == LpaiConfig(file=path)


@pytest.mark.parametrize(
    ("lpai", "reason"),
    [
        ({"lpai_backend": {"target_env": "dsp"}}, "lpai_backend.target_env: 'dsp' is not a value"),
        ({"lpai_graph": {"execute": {"fps": "1"}}}, "lpai_graph.execute.fps: '1' is not a whole"),
        ({"lpai_graph": {"execute": {"mem_type": 3}}}, "mem_type: 3 is not a string"),
        ({"lpai_graph": []}, "lpai_graph: a list is not an object"),
        ({"lpai_profile": 1}, "lpai_profile: 1 is not an object"),
        ({"context_configs": {}}, "is not an LPAI file"),
        ('{"lpai_backend": {}, }', "line 1: a comma before the closing }"),
        ('{"lpai_backend": ', "the file ends"),
    ],
)
def test_a_bad_lpai_file_is_refused(lpai: object, reason: str, tmp_path: Path) -> None:
    """An invalid LPAI file is refused in one sentence with its path."""
    with pytest.raises(LoadError) as caught:
        read_pair(tmp_path, lpai)
    assert caught.value.path == str(tmp_path / "lpai.conf")
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({"lpai_backend": {}}, "is an LPAI file; pass the QNN tools' config file"),
        ({"graphs": []}, "of the HTP backend"),
        ({"x": 1}, "none of the known sections"),
        (
            {"backend_extensions": {"config_file_path": "gone"}},
            "names 'gone' in backend_extensions.config_file_path",
        ),
        (
            {"backend_extensions": {"shared_library_path": "libQnnHtp.so"}},
            "of the QNN tools for HTP",
        ),
        ({"context_configs": {"enable_graphs": [1]}}, "entry 0 is 1, not a string"),
        ({"graph_configs": [{}]}, "this entry has no graph_name"),
        ({"graph_configs": [{"graph_name": 1}]}, "graph_name: 1 is not a string"),
    ],
)
def test_a_bad_tool_file_is_refused(tool: object, reason: str, tmp_path: Path) -> None:
    """An invalid tool file is refused in one sentence with the reason."""
    with pytest.raises(LoadError) as caught:
        read_run_config(write(tmp_path, "tool.json", tool))
    assert reason in caught.value.reason


@pytest.mark.parametrize("content", [{"x": 1}, {"devices": []}])
def test_other_files_are_no_lpai_file(content: object, tmp_path: Path) -> None:
    """A file that is not an LPAI file is refused as such."""
    with pytest.raises(LoadError, match="is not an LPAI file"):
        read_lpai_config(write(tmp_path, "x.json", content))


@pytest.mark.parametrize("named", OUTSIDE)
def test_a_file_outside_both_folders_is_refused(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An LPAI file outside the tool file's and the current folder is refused, via links too."""
    path, current = naming_outside(tmp_path, named)
    monkeypatch.chdir(current)
    reason = "is outside the folder of the tools' config file and the current folder"
    with pytest.raises(LoadError, match=reason):
        read_run_config(path)


def test_files_below_the_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An LPAI file below either folder is found by relative and absolute path and by link."""
    monkeypatch.chdir(tmp_path)
    for path in naming_below(tmp_path):
        read_run_config(path)
