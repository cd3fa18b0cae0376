"""JSON of results: one writer, and its schemas."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct, to_builtins

from qnnmem.results.result import OMITTED, SchemaDocument

_ABOUT_SCHEMA = "Name and version of this format; a change that breaks readers raises the number."


def encode(result: Struct) -> str:
    """A result as JSON text: the schema's name first, then the program, then every field."""
    return json.dumps(to_builtins(result), indent=1, ensure_ascii=True) + "\n"


def schema_of(kind: type[SchemaDocument], document: type[Struct] | None = None) -> dict[str, Any]:
    """The JSON schema (2020-12) of a result type, as it is shipped.

    `document` is the vendor's nesting around the result, where there is one.
    """
    import msgspec

    name, outer = schema_name(kind), document or kind
    found = msgspec.json.schema(outer)
    definitions = found["$defs"]
    top = definitions.pop(outer.__name__)
    for part in (top, *definitions.values()):
        _require_defaults(part)
        _close(part)
    own = top if outer is kind else definitions[kind.__name__]
    own["properties"]["schema"] = {"description": _ABOUT_SCHEMA, "const": name}
    about = {"$id": f"urn:{name.replace('.', ':').replace('/', ':')}", "title": name}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **about,
        **{key: value for key, value in top.items() if key != "title"},
        **({"$defs": definitions} if definitions else {}),
    }


def _require_defaults(part: dict[str, Any]) -> None:
    """The program writes fields with a default, too; only results of older versions lack some.

    A field that is left out on purpose has the default `msgspec.UNSET`, which no schema shows, or
    is marked as omitted.
    """
    fields = part.get("properties", {})
    required = part.get("required", ())
    written = [
        name
        for name, field in fields.items()
        if name in required or ("default" in field and OMITTED not in field)
    ]
    for field in fields.values():
        field.pop("default", None)
        field.pop(OMITTED, None)
    if written:
        part["required"] = written


def _close(part: dict[str, Any]) -> None:
    """Admit no other field; readers skip unknown ones, the program writes none."""
    if "properties" in part:
        part["additionalProperties"] = False


def schema_name(kind: type[SchemaDocument]) -> str:
    """The name in the `schema` field: `qnnmem.plan/1`."""
    return str(kind.__struct_config__.tag)


def schema_file(name: str) -> str:
    """The file of a schema, by the name that results have for it."""
    return name.removeprefix("qnnmem.").replace("/", "-") + ".json"


def schema_names() -> tuple[str, ...]:
    """Every schema that is shipped, as results name it: `qnnmem.plan/1`."""
    stems = (path.name.removesuffix(".json") for path in _folder().iterdir())
    return tuple(sorted("qnnmem." + "/".join(stem.rsplit("-", 1)) for stem in stems))


def load_schema(name: str) -> dict[str, Any]:
    """Read the JSON Schema (2020-12) of a result, by the name that its `schema` field has."""
    found: dict[str, Any] = json.loads(_folder().joinpath(schema_file(name)).read_text("utf-8"))
    return found


def _folder() -> Any:
    from importlib.resources import files  # takes longer than writing most results

    return files("qnnmem.results").joinpath("schemas")
