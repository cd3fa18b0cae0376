"""Write the generated parts of the documents.

    python tools/reference.py            updates every page
    python tools/reference.py --check    lists outdated pages and exits with 1

A generated part is between two comments; the text around it is written by hand:

    <!-- generated: options plan -->
    <!-- end of generated -->

The first word names one of `PARTS`, the other words are its arguments. Tables come from the JSON of
commands if possible, so this script depends little on the structure of the code.
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
from qnnmem.cli.help import is_shared
from qnnmem.cli.verbs import SECTIONS
from qnnmem.cli.verbs import qnnmem as program
from qnnmem.doctor.kb.entry import CAUSES
from qnnmem.gate.keys import HTP
from qnnmem.gate.keys import KEYS as BUDGET_KEYS
from qnnmem.loader.file_kind import KINDS
from qnnmem.options.htp import FitOptions
from qnnmem.options.option import option_fields
from qnnmem.options.plan import PlanOptions
from qnnmem.qnn.codes import codes
from qnnmem.results.read import document_type, result_types
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
MIB = 1 << 20
WIDE = 1000  # columns: a usage line is never wrapped
# verb -> verb whose options it takes with the same meaning, and the place of their description
BORROWED = {
    "diff": ("plan", "plan.md#options"),
    **{f"kb {verb}": ("kb list", "#qnnmem-kb-list") for verb in ("show", "find", "check")},
}


def main() -> int:
    """Write or check every page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help=("write nothing, list outdated pages"))
    check = parser.parse_args().check
    found = list(stale())
    for page, text in found:
        print(f"{'not current' if check else 'Wrote'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(text, "utf-8")
    return 1 if check and found else 0


def stale() -> Iterator[tuple[Path, str]]:
    """Yield every outdated page and schema with its new content."""
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
    """Return the names of all generated parts of all pages."""
    pages = [page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))]
    return {found["name"] for text in pages for found in PART.finditer(text)}


def _filled(found: re.Match[str]) -> str:
    name, *arguments = found["name"].split()
    text = PARTS[name](*arguments).strip("\n")
    return f"<!-- generated: {found['name']} -->\n\n{text}\n\n<!-- end of generated -->"


# --- Commands ---------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every verb and sub-verb by its words, without the groups themselves."""
    for name, command in program.commands.items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", verb) for sub, verb in command.commands.items())
        else:
            yield name, command


def _options(*words: str) -> str:
    """Return usage, options and exit codes of one verb."""
    name = " ".join(words)
    context = _context(words)
    command = context.command
    borrowed, place = BORROWED.get(name, ("", ""))
    known = set(_rows(_context(borrowed.split()))) if borrowed else set()
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    lines = [f"Usage: `{usage}`", ""]
    same: dict[str, list[str]] = {}
    for spellings, meaning in _rows(context):
        if (spellings, meaning) in known:
            meaning = f"as for [`{borrowed}`]({place})."
        for refusal in ("Ignored here", "Refused here"):
            if meaning.startswith(f"{refusal}: "):  # --help-all has the reasons
                spellings, meaning = spellings.partition(" ")[0] + "`", refusal.split()[0]
        same.setdefault(meaning, []).append(spellings)
    lines += [
        f"- {', '.join(spellings)}{': ' * bool(meaning)}{meaning}{'.' * meaning.isalpha()}"
        for meaning, spellings in same.items()
    ]
    shared = []
    for option in _visible(context):
        if is_shared(option):
            schema = (option.help or "").partition(" schema is ")[2].rstrip(".")
            spellings = "/".join(f"`{spelling}`" for spelling in option.opts)
            shared.append(spellings + (f" ({schema})" if schema else ""))
    lines += ["", f"[Shared options](index.md#shared-options): {', '.join(shared)}."]
    exit_codes = _exit_sentence(command)
    return "\n".join([*lines, "", f"Exit codes: {exit_codes}"] if exit_codes else lines)


def _context(words: Sequence[str]) -> click.Context:
    """Return the context of a verb, wide enough for its usage line."""
    wide = {"max_content_width": WIDE, "terminal_width": WIDE}
    parent = click.Context(program, info_name="qnnmem", **{**program.context_settings, **wide})
    *groups, last = words
    for group in groups:
        parent = click.Context(program.commands[group], info_name=group, parent=parent)
    return click.Context(dict(commands())[" ".join(words)], info_name=last, parent=parent)


def _visible(context: click.Context) -> list[click.Option]:
    """Return the options of a verb that its help shows."""
    options = context.command.get_params(context)
    return [p for p in options if isinstance(p, click.Option) and not p.hidden]


def _rows(context: click.Context) -> list[tuple[str, str]]:
    """Return the spellings and meanings of a verb's own options."""
    return [_option_row(option, context) for option in _visible(context) if not is_shared(option)]


def _option_row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Return an option's spellings, and its meaning with choices and default."""
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
        meaning += " Repeatable."
    default = stated[1] if stated else _default(option, context)
    if option.required:
        meaning += " Required."
    elif default:
        meaning += f" Default: {default}."
    return _spellings(option, metavar), meaning.strip()


def _spellings(option: click.Option, metavar: str = "") -> str:
    return ", ".join(f"`{spelling}{metavar}`" for spelling in option.opts)


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
    """Return a table of all verbs, in the sections and words of `qnnmem --help`."""
    lines: list[str] = []
    for title, verbs in SECTIONS.items():
        rows = [(f"[`qnnmem {name}`]({name}.md)", text) for name, text in verbs.items()]
        lines += [f"## {title}", "", *_table(("command", "does"), rows), ""]
    return "\n".join(lines)


def _errors() -> str:
    """Return a table of public errors with their exit codes."""
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
    """Return a table of the LPAI rules whose id starts with a letter."""
    rows = [
        (rule["id"], rule["title"], ", ".join(str(code["code"]) for code in rule["codes"]))
        for rule in _json_of("lpai", "rules")["rules"]
        if rule["id"].startswith(letter)
    ]
    return "\n".join(_table(("id", "rule", "QNN code"), rows))


def _choices() -> str:
    """Return the choices of the LPAI runtime, a list for each section."""
    lines: list[str] = []
    for section, group in groupby(_json_of("lpai", "choices")["choices"], lambda c: c["section"]):
        lines += [f"## {section[0].upper()}{section[1:]}", ""]
        lines += [f"- `{choice['id']}`: {choice['what']}" for choice in group]
        lines.append("")
    return "\n".join(lines)


def _file_kinds() -> str:
    """Return a table of file kinds, grouped by the verbs that read them, or by advice."""
    read: dict[tuple[str, ...], list[str]] = {}
    unread: dict[str, list[str]] = {}
    for kind in KINDS.values():
        if kind.verbs:
            read.setdefault(tuple(kind.verbs), []).append(kind.words)
        else:
            unread.setdefault(kind.cure, []).append(kind.words)
    rows = [("; ".join(kinds), ", ".join(f"`{v}`" for v in verbs)) for verbs, kinds in read.items()]
    others = [("; ".join(kinds), cure) for cure, kinds in unread.items()]
    lines = [*_table(("kind of file", "read by"), rows), ""]
    return "\n".join([*lines, *_table(("not read by any command", "do this instead"), others)])


def _diagnoses(stage: str) -> str:
    """Return the entries of the knowledge base about one stage, by cause."""
    entries = [e for e in _json_of("kb", "list")["entries"] if e["stage"] == stage]
    causes: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda e: (str(e["cause"]), str(e["id"]))):
        causes.setdefault(entry["cause"], []).append(f"`{entry['id']}`")
    return "\n".join(f"- `{cause}`: {', '.join(ids)}" for cause, ids in causes.items())


def _causes() -> str:
    """Return a list of all causes with their meanings."""
    return "\n".join(f"- `{cause}`: {meaning}" for cause, meaning in CAUSES.items())


def _qnn_codes() -> str:
    """Return QNN's error codes, a list for each component."""
    lines: list[str] = []
    ordered = sorted(codes().values(), key=lambda code: code.code)
    for component, group in groupby(ordered, lambda code: code.component):
        lines += [f"## {component}", ""]
        for code in group:
            names = ", ".join(f"`{name}`" for name in (code.name, *code.aliases))
            lines.append(f"- {code.code} {names}: {code.meaning}")
        lines.append("")
    return "\n".join(lines)


def _socs() -> str:
    """Return a table of SoCs with an HTP, grouped by their limits."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for soc in _json_of("socs")["socs"]:
        limits = (
            f"v{soc['arch']}",
            f"{soc['vtcm_bytes']['value'] // MIB}",
            f"{soc['compile_limit_bytes']['value'] // MIB:,}",
            "yes" if soc["fp16"] else "no",
        )
        groups.setdefault(limits, []).append(f"{soc['name']}")
    rows = [(*limits, ", ".join(names)) for limits, names in sorted(groups.items())]
    return "\n".join(_table(("arch", "VTCM MiB", "compile limit MiB", "fp16", "SoCs"), rows))


def _schemas() -> str:
    """Return the names of the JSON schemas in the package."""
    return ", ".join(f"`{file.stem}`" for file in sorted(SCHEMAS.glob("*.json")))


def _public_names() -> str:
    """Return the public names in `qnnmem.__all__`."""
    return ", ".join(f"`{name}`" for name in sorted(qnnmem.__all__, key=str.lower))


def _c_functions(document: str) -> str:
    """Return a table of functions in C and in Python."""
    return "\n".join(_table(("C", "Python", "note"), side_by_side.function_rows(document)))


def _c_structs(document: str) -> str:
    """Return a table of structs in C and in Python, with the members whose names differ."""
    titles = ("C", "Python", "members that differ")
    return "\n".join(_table(titles, side_by_side.struct_rows(document)))


def _c_constants() -> str:
    """Return a list of enums with their constants and numbers."""
    return "\n".join(f"- {line}" for line in side_by_side.constant_lines())


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [_row(titles), "|---" * len(titles) + "|"]
    return [*lines, *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    joined = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return re.sub(r"(?<=\|) +(?=\|)", " ", f"| {joined} |")


def _budget_keys() -> str:
    """Return a table of budget file keys that are options, with these options."""
    rows = []
    for key, (target, _read) in BUDGET_KEYS.items():
        group = FitOptions if target == HTP else PlanOptions
        fields = [field for field in option_fields(group) if field.key == key]
        if fields:
            backends = "LPAI, HTP" if target is None else target.upper()
            rows.append((f"`{key}`", backends, f"`{fields[0].opt.flag}`"))
    return "\n".join(_table(("key", "for", "option"), rows))


PARTS: dict[str, Callable[..., str]] = {
    "file-kinds": _file_kinds,
    "options": _options,
    "budget-keys": _budget_keys,
    "commands": _command_table,
    "errors": _errors,
    "lpai-rules": _rules,
    "lpai-choices": _choices,
    "causes": _causes,
    "diagnoses": _diagnoses,
    "qnn-codes": _qnn_codes,
    "socs": _socs,
    "schemas": _schemas,
    "public-names": _public_names,
    "c-functions": _c_functions,
    "c-structs": _c_structs,
    "c-constants": _c_constants,
}


if __name__ == "__main__":
    sys.exit(main())
