"""Findings as JSON against the shipped schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from qnnmem.lpai.config.lint import lint_files
from qnnmem.report import lint_json


@pytest.mark.parametrize(
    "content",
    [
        '{"lpai_backend": {"target_env": "arm"}}',
        '{"lpai_backend": {"target_env": "q", "<script>": 1}, // x\n}',
        '{"backend_extensions": {"shared_library_path": "/x/y.so", "config_file_path": "z"}}',
        '{"graphs": []}',
        '{"lpai_backend": ',
    ],
)
def test_every_report_satisfies_the_schema(content: str, tmp_path: Path) -> None:
    """Clean, faulty, foreign and unreadable files."""
    path = tmp_path / "a.conf"
    path.write_text(content)
    values = json.loads(lint_json.render(lint_files([path]), "qnnmem 0"))
    jsonschema.Draft202012Validator(lint_json.schema()).validate(values)
    assert values["schema"] == lint_json.SCHEMA == lint_json.schema()["title"]


def test_the_schema_lists_every_key_and_no_other() -> None:
    """Nothing is added or dropped without changing the schema."""
    schema = lint_json.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) == set(schema["properties"])
    assert set(lint_json.as_values(lint_files([]), "t")) == set(schema["properties"])
