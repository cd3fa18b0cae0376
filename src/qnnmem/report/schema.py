"""JSON of results: one way to write it, and the schemas that say what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qnnmem.version import __version__

TOOL = f"qnnmem {__version__}"


def write_json(values: Mapping[str, Any]) -> str:
    """A result as JSON text; `values` starts with the schema it satisfies.

    Behind it comes the program that wrote it, where the values do not say so themselves.
    """
    return json.dumps(_signed(values), indent=1, ensure_ascii=True) + "\n"


def _signed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if "qnnmem" in values:  # all that is ours stands under this key
        return {**values, "qnnmem": _signed(values["qnnmem"])}
    return {"schema": values["schema"], "tool": TOOL, **values}


def schema_names() -> tuple[str, ...]:
    """Every schema that is shipped, as results name it: `qnnmem.plan/1`."""
    stems = (path.name.removesuffix(".json") for path in _folder().iterdir())
    return tuple(sorted("qnnmem." + "/".join(stem.rsplit("-", 1)) for stem in stems))


def load_schema(name: str) -> dict[str, Any]:
    """Read the JSON Schema (2020-12) of a result, by the name that its `schema` field has."""
    file = name.removeprefix("qnnmem.").replace("/", "-") + ".json"
    found: dict[str, Any] = json.loads(_folder().joinpath(file).read_text("utf-8"))
    return found


def _folder() -> Any:
    from importlib.resources import files  # takes longer than writing most results

    return files("qnnmem.report").joinpath("schemas")
