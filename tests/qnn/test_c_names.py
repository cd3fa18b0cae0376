"""QNN constants under their C names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import c_names as tool  # noqa: E402 - a script, not a package

from qnnmem.qnn import c_names  # noqa: E402
from qnnmem.qnn.codes import codes  # noqa: E402
from qnnmem.qnn.enums import ContextOption, GraphOption, HwVersion, MemType, Priority  # noqa: E402

# Spelled by hand as in the headers, so that a wrong prefix shows.
SPELLED = {
    "QNN_SUCCESS": 0,
    "QNN_COMMON_ERROR_MEM_ALLOC": 1002,
    "QNN_GRAPH_ERROR_MEM_ALLOC": 1002,
    "QNN_GRAPH_ERROR_EARLY_TERMINATION": 6038,
    "QNN_BACKEND_ID_LPAI": 12,
    "QNN_BACKEND_CONFIG_OPTION_CUSTOM": 0,
    "QNN_BACKEND_PROPERTY_OPTION_CUSTOM": 0,
    "QNN_LPAI_BACKEND_CUSTOM_CFG_HW_INFO": 0,
    "QNN_LPAI_BACKEND_CUSTOM_CFG_UNDEFINED": 0x7FFFFFFF,
    "QNN_LPAI_BACKEND_TARGET_ADSP": 2,
    "QNN_LPAI_BACKEND_HW_VERSION_V5_1": 0x00010005,
    "QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ": 0,
    "QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY": 1,
    "QNN_LPAI_BACKEND_GET_PROP_UNDEFINED": 0x7FFFFFFF,
    "QNN_CONTEXT_CONFIG_OPTION_CUSTOM": 0,
    "QNN_CONTEXT_CONFIG_OPTION_PRIORITY": 1,
    "QNN_CONTEXT_CONFIG_ASYNC_EXECUTION_QUEUE_DEPTH": 4,
    "QNN_CONTEXT_CONFIG_ENABLE_GRAPHS": 5,
    "QNN_CONTEXT_CONFIG_MEMORY_LIMIT_HINT": 6,
    "QNN_CONTEXT_CONFIG_PERSISTENT_BINARY": 7,
    "QNN_CONTEXT_CONFIG_BINARY_COMPATIBILITY": 8,
    "QNN_CONTEXT_CONFIG_OPTION_DEFER_GRAPH_INIT": 9,
    "QNN_CONTEXT_CONFIG_UNDEFINED": 0x7FFFFFFF,
    "QNN_CONTEXT_BINARY_COMPATIBILITY_STRICT": 1,
    "QNN_LPAI_CONTEXT_SET_CFG_MODEL_BUFFER_MEM_TYPE": 1,
    "QNN_LPAI_CONTEXT_SET_CFG_ENABLE_ISLAND": 11,
    "QNN_GRAPH_CONFIG_OPTION_CUSTOM": 0,
    "QNN_GRAPH_CONFIG_OPTION_PRIORITY": 3,
    "QNN_GRAPH_PROPERTY_OPTION_CUSTOM": 0,
    "QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM": 1,
    "QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM": 101,
    "QNN_LPAI_GRAPH_SET_CFG_PERF_CFG": 201,
    "QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY": 301,
    "QNN_LPAI_GRAPH_SET_CFG_PREPARE": 10001,
    "QNN_LPAI_GRAPH_SET_CFG_UNDEFINED": 0x7FFFFFFF,
    "QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE": 1,
    "QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE": 101,
    "QNN_LPAI_MEM_TYPE_DDR": 1,
    "QNN_LPAI_MEM_TYPE_TCM": 3,
    "QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME": 1,
    "QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_NON_REAL_TIME": 2,
    "QNN_LPAI_GRAPH_CORE_AFFINITY_HARD": 2,
    "QNN_PRIORITY_DEFAULT": 100,
    "QNN_PRIORITY_HIGH": 200,
    "QNN_TENSORMEMTYPE_RAW": 0,
    "QNN_TENSORMEMTYPE_MEMHANDLE": 1,
    "QNN_TENSOR_TYPE_APP_WRITE": 0,
    "QNN_TENSOR_TYPE_OPTIONAL_APP_READWRITE": 13,
    "QNN_MEM_TYPE_ION": 1,
    "QNN_MEM_TYPE_CUSTOM": 2,
    "QNN_MEM_TYPE_DMA_BUF": 3,
    "QNN_HTP_MEM_SHARED_BUFFER": 1,
    "QNN_HTP_MEM_SHARED_SPILLFILL_BUFFER": 3,
    "QNN_LOG_LEVEL_DEBUG": 5,
    "QNN_DATATYPE_UFIXED_POINT_16": 0x416,
    "QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3": 3,
    "QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_1": 1,
    "QNN_SYSTEM_CONTEXT_ERROR_MALFORMED_BINARY": 30010,
}


@pytest.mark.parametrize(("name", "value"), SPELLED.items())
def test_a_constant_has_the_name_and_the_number_of_the_headers(name: str, value: int) -> None:
    """A C name can be imported from `c_names` and has the number of the headers."""
    assert int(getattr(c_names, name)) == value


def test_the_module_is_what_the_tool_makes() -> None:
    """The module is exactly the output of tools/c_names.py."""
    assert tool.MODULE.read_text("utf-8") == tool.text(), "run python tools/c_names.py"


def test_no_constant_is_left_out() -> None:
    """Every enum member and every error code has at least one C name."""
    given = {name: value for name, value in vars(c_names).items() if name.startswith("QNN_")}
    for kind in tool.kinds():
        assert {member for member in given.values() if type(member) is kind} == set(kind)
    numbers = {name: value for name, value in given.items() if type(value) is int}
    wanted = {n: one.code for one in codes().values() for n in (one.name, *one.aliases)}
    assert numbers == wanted


def test_no_name_in_c_is_used_twice() -> None:
    """No C name belongs to two enums."""
    names = [name for kind in tool.kinds() for name in kind.c_names()]
    assert len(names) == len(set(names))


def test_members_say_their_name_in_c() -> None:
    """Each member states its C name, also for irregular headers and aliases."""
    assert GraphOption.SET_CFG_SCRATCH_MEM.c_name == "QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM"
    assert ContextOption.PRIORITY.c_name == "QNN_CONTEXT_CONFIG_OPTION_PRIORITY"
    assert ContextOption.ENABLE_GRAPHS.c_name == "QNN_CONTEXT_CONFIG_ENABLE_GRAPHS"
    assert Priority.DEFAULT.c_name == "QNN_PRIORITY_NORMAL"
    assert MemType(3).c_name == "QNN_LPAI_MEM_TYPE_TCM"


def test_a_name_that_no_header_has_is_not_made_up() -> None:
    """HwVersion.UNDEFINED has the header's name UNKNOWN, and no invented name."""
    assert HwVersion.UNDEFINED.c_name == "QNN_LPAI_BACKEND_HW_VERSION_UNKNOWN"
    assert not hasattr(c_names, "QNN_LPAI_BACKEND_HW_VERSION_UNDEFINED")


def test_the_tool_notices_a_module_that_is_not_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` exits with 1 for an outdated module; without it the tool writes the module."""
    monkeypatch.setattr(tool, "MODULE", tmp_path / "c_names.py")
    monkeypatch.setattr(sys, "argv", ["c_names.py", "--check"])
    assert tool.main() == 1
    monkeypatch.setattr(sys, "argv", ["c_names.py"])
    assert tool.main() == 0
    assert capsys.readouterr().out.splitlines() == ["not current c_names.py", "Wrote c_names.py"]
    monkeypatch.setattr(sys, "argv", ["c_names.py", "--check"])
    assert tool.main() == 0
