"""Results read from JSON of any program."""

from __future__ import annotations

from typing import Any

import pytest

from qnnmem.errors import UsageError
from qnnmem.results.read import read_result
from qnnmem.results.result import ErrorResult

ERROR: dict[str, Any] = {"schema": "qnnmem.error/1", "error": "no file", "exit_code": 2}


def test_a_result_that_names_no_tool_is_not_said_to_be_ours() -> None:
    """A result without a tool is read without one; new results name their own version."""
    found = read_result(ERROR, "old.json")
    assert isinstance(found, ErrorResult)
    assert found.tool == ""
    assert ErrorResult(error="no file", exit_code=2).tool.startswith("qnnmem ")


@pytest.mark.parametrize(
    "values",
    [None, [], 1, {}, {"schema": 3}, {"schema": "qnnmem.none/1"}, {**ERROR, "exit_code": "two"}],
)
def test_what_is_no_result_is_refused_in_a_sentence(values: Any) -> None:
    """Invalid JSON results are refused with the file's name."""
    with pytest.raises(UsageError, match=r"bad\.json"):
        read_result(values, "bad.json")
