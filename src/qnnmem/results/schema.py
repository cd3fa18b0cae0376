"""JSON text of results, and JSON schemas."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from qnnmem.results.result import OMITTED, SchemaDocument

_ABOUT_SCHEMA = "Name and version of this format; a change that breaks readers raises the number."


def encode(result: Struct) -> str:
    """Return a result as JSON text: the schema's name first, then the program, then all fields."""
    import json  # not for text results, which are the most

    return json.dumps(to_builtins(result), indent=1, ensure_ascii=True) + "\n"


def schema_of(kind: type[SchemaDocument], document: type[Struct] | None = None) -> dict[str, Any]:
    """Return the JSON schema (2020-12) that qnnmem ships for a result type.

    `document` is the type of the vendor's document that contains the result, if there is one.
    """
    import msgspec

    name, outer = schema_name(kind), document or kind
    schema = msgspec.json.schema(outer)
    definitions = schema["$defs"]
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
    """Mark fields with a default as required, because this version always writes them.

    Results of older versions can lack such a field. A field that this version can leave out is not
    marked: it has the default `msgspec.UNSET`, which no schema shows, or is marked as omitted.
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
    """Forbid additional fields: the program writes none, although readers skip unknown ones."""
    if "properties" in part:
        part["additionalProperties"] = False


def schema_name(kind: type[SchemaDocument]) -> str:
    """Return the name in the `schema` field, such as `qnnmem.plan/1`."""
    return str(kind.__struct_config__.tag)


def schema_file(name: str) -> str:
    """Return the file name of a schema, such as `plan-1.json` for `qnnmem.plan/1`."""
    return name.removeprefix("qnnmem.").replace("/", "-") + ".json"


def schema_names() -> tuple[str, ...]:
    """Return the names of all shipped schemas, such as `qnnmem.plan/1`."""
    stems = (path.name.removesuffix(".json") for path in _folder().iterdir())
    return tuple(sorted("qnnmem." + "/".join(stem.rsplit("-", 1)) for stem in stems))


def load_schema(name: str) -> dict[str, Any]:
    """Return a shipped JSON schema (2020-12) by its name, such as `qnnmem.plan/1`."""
    import json

    schema: dict[str, Any] = json.loads(_folder().joinpath(schema_file(name)).read_text("utf-8"))
    return schema


def _folder() -> Any:
    from importlib.resources import files  # takes longer than writing most results

    return files("qnnmem.results").joinpath("schemas")
