"""Why there is no result, for programs: JSON of schema `qnnmem.error/1`."""

from __future__ import annotations

from qnnmem.report.schema import write_json

SCHEMA = "qnnmem.error/1"


def render_json(sentence: str, exit_code: int) -> str:
    """One JSON object in place of the result."""
    return write_json({"schema": SCHEMA, "error": sentence, "exit_code": exit_code})
