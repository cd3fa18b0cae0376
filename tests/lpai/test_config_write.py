"""A written pair of config files passes lint and reads back as given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnmem.errors import UsageError
from qnnmem.lpai.config.check import lint_files
from qnnmem.lpai.config.schema import BY_PATH, UINT32
from qnnmem.lpai.config.settings import (
    LpaiConfig,
    PrepareSettings,
    make_pair,
    read_run_config,
    run_command,
)
from qnnmem.options.config import ExecuteSettings


def one_of(path: str) -> st.SearchStrategy[str]:
    """Return a strategy that draws one of the key's values."""
    return st.sampled_from(BY_PATH[path].values)


numbers = st.integers(0, 3) | st.integers(0, UINT32)
configs = st.builds(
    LpaiConfig,
    one_of("lpai_backend.target_env"),
    one_of("lpai_backend.enable_hw_ver"),
    st.builds(PrepareSettings, exclude_io=st.booleans()),
    st.builds(
        ExecuteSettings,
        numbers,
        numbers,
        one_of("lpai_graph.execute.client_type"),
        one_of("lpai_graph.execute.affinity"),
        numbers,
        one_of("lpai_graph.execute.mem_type"),
    ),
)


@settings(deadline=None)
@given(configs)
def test_what_is_written_passes_lint_and_reads_back(
    tmp_path_factory: pytest.TempPathFactory, config: LpaiConfig
) -> None:
    """A written pair has no findings and reads back equal; other settings raise UsageError."""
    folder = tmp_path_factory.mktemp("pair")
    try:
        pair = make_pair(config)
    except UsageError:
        return
    (folder / pair.tool_name).write_text(pair.tool_text)
    (folder / pair.lpai_name).write_text(pair.lpai_text)
    assert lint_files([folder / pair.tool_name], strict=True).findings == ()
    found = read_run_config(folder / pair.tool_name)
    assert replace(found.lpai, file=None) == config
    assert found.context.is_persistent_binary == (config.target_env == "adsp")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            LpaiConfig("arm", execute=ExecuteSettings(mem_type="tcm")),
            "direct mode on the aDSP",
        ),
        (
            LpaiConfig("x86", execute=ExecuteSettings(mem_type="tcm")),
            "direct mode on the aDSP",
        ),
        (LpaiConfig("adsp", "v5", execute=ExecuteSettings(mem_type="tcm")), "v6 or later, not v5"),
        (LpaiConfig(execute=ExecuteSettings(fps=0)), "0 frames per second"),
        (LpaiConfig(execute=ExecuteSettings(core_selection=3)), "selects several cores"),
    ],
)
def test_contradictions_are_refused(config: LpaiConfig, reason: str) -> None:
    """Settings that lint would report raise UsageError."""
    with pytest.raises(UsageError, match=reason):
        make_pair(config)


def test_names_tell_direct_mode_from_the_others() -> None:
    """The files of direct mode and of the other modes have the documented names."""
    direct, arm = make_pair(LpaiConfig("adsp")), make_pair(LpaiConfig("arm"))
    assert (direct.tool_name, direct.lpai_name) == (
        "eaiParams_direct.json",
        "eaiParams_direct.conf",
    )
    assert (arm.tool_name, arm.lpai_name) == ("lpaiParams.json", "lpaiParams.conf")


def test_only_direct_mode_is_told_about_memory_types() -> None:
    """The key mem_type is written in direct mode only, where it has a meaning."""
    assert "mem_type" in make_pair(LpaiConfig("adsp")).lpai_text
    assert "mem_type" not in make_pair(LpaiConfig("arm")).lpai_text


def test_the_command_fits_the_mode() -> None:
    """The command has `--direct_mode adsp` in direct mode only."""
    assert "--direct_mode adsp" in run_command(LpaiConfig("adsp"), "t.json")
    assert "--direct_mode" not in run_command(LpaiConfig("arm"), "t.json")
    assert run_command(LpaiConfig(), "a b.json").endswith("--config_file 'a b.json'")
