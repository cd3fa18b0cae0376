"""Writes those parts of the documents that the program itself knows.

    python tools/reference.py            brings every page up to date
    python tools/reference.py --check    names the pages that are not, and exits with 1

A generated part stands between two comments; everything around it is written by hand:

    <!-- generated: options plan -->
    <!-- end of generated -->

The first word names one of `PARTS`, the rest are its arguments. Tables come from the command line's
own JSON where there is a command for them, so little here depends on where code lives.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import side_by_side
from click.testing import CliRunner

import qnnmem
from qnnmem import errors
from qnnmem.cli.verbs import SECTIONS
from qnnmem.cli.verbs import qnnmem as program
from qnnmem.gate.keys import HTP
from qnnmem.gate.keys import KEYS as BUDGET_KEYS
from qnnmem.loader.file_kind import KINDS
from qnnmem.options.htp import FitOptions
from qnnmem.options.option import option_fields
from qnnmem.options.plan import PlanOptions
from qnnmem.qnn.codes import codes
from qnnmem.results.read import document_type, result_type, result_types
from qnnmem.results.schema import schema_file, schema_name, schema_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SCHEMAS = ROOT / "src" / "qnnmem" / "results" / "schemas"
PART = re.compile(
    r"^<!-- generated: (?P<name>.+?) -->\n(?P<text>.*?)^<!-- end of generated -->$",
    re.MULTILINE | re.DOTALL,
)
DEFAULT = re.compile(r"\s*\[default: (.+)\]$")
EXIT_CODES = re.compile(r"Exit codes: (.+?)(?:\n\n|$)", re.DOTALL)
ANSWERS = {
    "D": "documented",
    "P": "seen in public client code",
    "I": "inferred from documented facts",
    "C": "our choice, see [LPAI choices](lpai-choices.md)",
}
MIB = 1 << 20
WIDE = 1000  # columns: a usage line is never wrapped


def main() -> int:
    """Writes or checks every page; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name stale pages")
    check = parser.parse_args().check
    found = list(stale())
    for page, text in found:
        print(f"{'not current' if check else 'Wrote'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(text, "utf-8")
    return 1 if check and found else 0


def stale() -> Iterator[tuple[Path, str]]:
    """Every page and schema that differs from what the program says, with what it should hold."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        wanted = PART.sub(_filled, text)
        if wanted != text:
            yield page, wanted
    for kind in result_types():
        file = SCHEMAS / schema_file(schema_name(kind))
        schema = schema_of(kind, document_type(schema_name(kind)))
        wanted = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        if not file.exists() or file.read_text("utf-8") != wanted:
            yield file, wanted


def parts() -> set[str]:
    """The names of all generated parts of all pages."""
    pages = [page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))]
    return {found["name"] for text in pages for found in PART.finditer(text)}


def _filled(found: re.Match[str]) -> str:
    name, *arguments = found["name"].split()
    text = PARTS[name](*arguments).strip("\n")
    return f"<!-- generated: {found['name']} -->\n\n{text}\n\n<!-- end of generated -->"


# --- Commands ---------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb and sub-verb by its words, groups themselves left out."""
    for name, command in program.commands.items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", verb) for sub, verb in command.commands.items())
        else:
            yield name, command


def _options(*words: str) -> str:
    """Usage, options and exit codes of one verb."""
    name = " ".join(words)
    command = dict(commands())[name]
    wide = {"max_content_width": WIDE, "terminal_width": WIDE}
    parent = click.Context(program, info_name="qnnmem", **{**program.context_settings, **wide})
    *groups, last = words
    for group in groups:
        parent = click.Context(program.commands[group], info_name=group, parent=parent)
    context = click.Context(command, info_name=last, parent=parent)
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    options = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    rows = [_option_row(option, context) for option in options if not option.hidden]
    lines = [f"Usage: `{usage}`", "", *_table(("option", "default", "meaning"), rows)]
    exit_codes = _exit_sentence(command)
    return "\n".join([*lines, "", f"Exit codes: {exit_codes}"] if exit_codes else lines)


def _option_row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    help_text = " ".join((option.help or "").split())
    stated = DEFAULT.search(help_text)
    meaning = DEFAULT.sub("", help_text)
    metavar, choices = "", ""
    if isinstance(option.type, click.Choice):
        choices = _list([f"`{choice}`" for choice in option.type.choices])
    elif not option.is_flag and not option.count:
        metavar = " " + option.make_metavar(context)
    if choices:
        meaning = f"{choices}. {meaning}".strip()
    if option.multiple and "repeated" not in meaning and "several times" not in meaning:
        meaning += " May be repeated."
    spellings = ", ".join(f"`{spelling}{metavar}`" for spelling in option.opts)
    default = stated[1] if stated else _default(option, context)
    return spellings, "required" if option.required else default, meaning


def _list(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _default(option: click.Option, context: click.Context) -> str:
    value = option.get_default(context)
    if option.is_flag or not isinstance(value, str | int | float):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _exit_sentence(command: click.Command) -> str:
    found = EXIT_CODES.search(inspect.cleandoc(command.help or ""))
    return " ".join(found[1].split()) if found else ""


def _command_table() -> str:
    """One row for each verb, in the sections and words of `qnnmem --help`."""
    lines: list[str] = []
    for title, verbs in SECTIONS.items():
        rows = [(f"[`qnnmem {name}`]({name}.md)", text) for name, text in verbs.items()]
        lines += [f"## {title}", "", *_table(("command", "does"), rows), ""]
    return "\n".join(lines)


def _exit_codes() -> str:
    """What every verb promises, in its own words."""
    general = _exit_sentence(program)
    rows = [(f"`qnnmem {name}`", _exit_sentence(command)) for name, command in commands()]
    return "\n".join(
        [f"All verbs: {general}", "", *_table(("command", "exit codes"), [r for r in rows if r[1]])]
    )


def _errors() -> str:
    """Every public error with its exit code."""
    public = {*qnnmem.__all__, *qnnmem.lpai.__all__}
    rows = [
        (f"`{name}`", str(kind.exit_code), inspect.getdoc(kind) or "")
        for name, kind in vars(errors).items()
        if name in public and issubclass(kind, errors.QnnMemError)
    ]
    return "\n".join(_table(("error", "exit code", "meaning"), rows))


# --- Tables of the program --------------------------------------------------------------------


def _json_of(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(program, [*words, "--json"], catch_exceptions=False)
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def _rules(letter: str) -> str:
    """The LPAI rules whose id starts with a letter, one section each."""
    lines: list[str] = []
    for rule in _json_of("lpai", "rules")["rules"]:
        if not rule["id"].startswith(letter):
            continue
        answer = ", ".join(f"`{one['name']}` ({one['code']})" for one in rule["codes"])
        lines += [f"### {rule['id']}", "", rule["title"], ""]
        lines += [
            f"- Said in public: {rule['consequence']}",
            f"- Answer here: {answer or 'a finding without a QNN code'}; {ANSWERS[rule['mark']]}",
            f"- Source: {rule['source']}",
            f"- What to do: {rule['cure']}",
            "",
        ]
    return "\n".join(lines)


def _choices() -> str:
    """The choices of the LPAI runtime, a table for each section."""
    lines: list[str] = []
    for section, group in groupby(_json_of("lpai", "choices")["choices"], lambda c: c["section"]):
        rows = [(f"`{c['id']}`", c["what"], c["why"], c["override"]) for c in group]
        title = section[0].upper() + section[1:]
        lines += [f"## {title}", "", *_table(("id", "what", "why", "change it with"), rows), ""]
    return "\n".join(lines)


def _file_kinds() -> str:
    """Every kind of file: what it is, the verbs that read it, and what to do where none does."""
    rows = [
        (
            kind.words,
            ", ".join(f"[`{verb}`](commands/{verb}.md)" for verb in kind.verbs) or "none",
            kind.cure,
        )
        for kind in KINDS.values()
    ]
    return "\n".join(_table(("kind of file", "read by", "otherwise"), rows))


def _diagnoses(stage: str) -> str:
    """The entries of the knowledge base about one stage."""
    entries = [e for e in _json_of("kb", "list")["entries"] if e["stage"] == stage]
    rows = [
        (f"`{e['id']}`", e["title"], f"`{e['cause']}`", e["verdict"], _known_from(e))
        for e in sorted(entries, key=lambda e: str(e["id"]))
    ]
    return "\n".join(_table(("entry", "diagnosis", "cause", "decides", "known from"), rows))


def _known_from(entry: dict[str, Any]) -> str:
    return "documents" if entry["documented"] else "stored log"


def _qnn_codes() -> str:
    """QNN's error codes, a table for each component."""
    lines: list[str] = []
    ordered = sorted(codes().values(), key=lambda one: one.code)
    for component, group in groupby(ordered, lambda one: one.component):
        rows = [(str(one.code), _names(one.name, one.aliases), one.meaning) for one in group]
        lines += [f"## {component}", "", *_table(("code", "name", "meaning"), rows), ""]
    return "\n".join(lines)


def _names(name: str, aliases: Sequence[str]) -> str:
    others = ", ".join(f"`{alias}`" for alias in aliases)
    return f"`{name}`" + (f"; also {others}" if others else "")


def _socs() -> str:
    """Every SoC with an HTP."""
    rows = [
        (
            f"`{soc['name']}`",
            soc["marketing_name"],
            str(soc["model_id"]),
            f"v{soc['arch']}",
            f"{soc['vtcm_bytes']['value'] // MIB}",
            f"{soc['compile_limit_bytes']['value'] // MIB:,}",
            "yes" if soc["fp16"] else "no",
        )
        for soc in _json_of("socs")["socs"]
    ]
    titles = ("name", "known as", "id", "arch", "VTCM MiB", "compile limit MiB", "fp16")
    return "\n".join(_table(titles, rows))


def _schemas() -> str:
    """Every JSON schema that is shipped."""
    rows = []
    for file in sorted(SCHEMAS.glob("*.json")):
        name, _, number = file.stem.rpartition("-")
        rows.append((f"`qnnmem.{name}/{number}`", f"`qnnmem/results/schemas/{file.name}`"))
    return "\n".join(_table(("schema", "file in the package"), rows))


def _keys(name: str) -> str:
    """The keys of a result; those of an object or of the objects in a list follow its own."""
    schema = schema_of(result_type(name))
    return "\n".join(_table(("key", "meaning"), list(_key_rows(schema, "", schema["$defs"]))))


def _key_rows(
    part: dict[str, Any], before: str, types: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    for key, field in part.get("properties", {}).items():
        written = json.dumps(field)
        kinds = [types[kind] for kind in re.findall(r"#/\$defs/(\w+)", written)]
        values = [value for part in (field, *kinds) for value in part.get("enum", ())]
        values += [field["const"]] if "const" in field else []
        choices = f"{_list([f'`{value}`' for value in values])}. " if values else ""
        yield f"`{before}{key}`", choices + field.get("description", "")
        inner = "[]." if '"items"' in written else "."
        for kind in kinds:
            yield from _key_rows(kind, f"{before}{key}{inner}", types)


def _public_names() -> str:
    """The names that `qnnmem.__all__` promises."""
    return ", ".join(f"`{name}`" for name in sorted(qnnmem.__all__, key=str.lower))


def _c_functions(document: str) -> str:
    """Functions in C and in Python."""
    return "\n".join(_table(("C", "Python", "note"), side_by_side.function_rows(document)))


def _c_structs(document: str) -> str:
    """Structs and their members in C and in Python."""
    return "\n".join(_table(("C", "Python", "note"), side_by_side.struct_rows(document)))


def _c_constants() -> str:
    """Every constant of every enum, a table for each."""
    lines: list[str] = []
    for title, constants in side_by_side.constants():
        rows = [(f"`{c}`", number, side_by_side.shown(name)) for c, number, name in constants]
        lines += [title, "", *_table(("C", "number", "Python"), rows), ""]
    return "\n".join(lines)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [_row(titles), "|---" * len(titles) + "|"]
    return [*lines, *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    joined = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return re.sub(r"(?<=\|) +(?=\|)", " ", f"| {joined} |")


def _budget_keys() -> str:
    """Keys of a budget file that are options, with the option that each one is."""
    rows = []
    for key, (target, _read) in BUDGET_KEYS.items():
        group = FitOptions if target == HTP else PlanOptions
        fields = [one for one in option_fields(group) if one.key == key]
        if fields:
            said = "LPAI, HTP" if target is None else target.upper()
            rows.append((f"`{key}`", said, f"`{fields[0].opt.flag}`", fields[0].opt.text))
    return "\n".join(_table(("key", "for", "option", "meaning"), rows))


PARTS: dict[str, Callable[..., str]] = {
    "file-kinds": _file_kinds,
    "options": _options,
    "budget-keys": _budget_keys,
    "commands": _command_table,
    "exit-codes": _exit_codes,
    "errors": _errors,
    "lpai-rules": _rules,
    "lpai-choices": _choices,
    "diagnoses": _diagnoses,
    "qnn-codes": _qnn_codes,
    "socs": _socs,
    "schemas": _schemas,
    "keys": _keys,
    "public-names": _public_names,
    "c-functions": _c_functions,
    "c-structs": _c_structs,
    "c-constants": _c_constants,
}


if __name__ == "__main__":
    sys.exit(main())
