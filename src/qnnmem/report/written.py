"""Files that a verb wrote, as JSON, schema `qnnmem.written/1`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qnnmem.results.schema import write_json

SCHEMA = "qnnmem.written/1"


def render_json(verb: str, files: Iterable[Path], next_step: str = "") -> str:
    """One JSON object; `next_step` is the command to go on with, if there is one."""
    written = [{"file": str(file), "bytes": file.stat().st_size} for file in files]
    return write_json({"schema": SCHEMA, "verb": verb, "files": written, "next": next_step})
