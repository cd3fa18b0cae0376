"""Budgets in `[tool.qnnmem]` of pyproject.toml, or in qnnmem.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import is_there, read_bytes
from qnnmem.errors import LoadError, UsageError
from qnnmem.gate.comparison import NO_GROWTH, Tolerance, parse_tolerance
from qnnmem.gate.keys import KEYS, every_pool, is_pool, words
from qnnmem.options.parsers import text_item
from qnnmem.text import plain_or_quoted, quote, suggestion

OWN, SHARED = "qnnmem.toml", "pyproject.toml"
_LARGEST = 1 << 18  # bytes of a config: the time to parse tables grows with their square
_MOST = 1000  # tables of models
_MOST_DOTS = 50  # dots in a line: the time to parse a key grows with the square of its parts
_QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
_TOP = ("models", "model", "baseline", "tolerance")
_ENTRY = ("path", "name")


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """Entry of a config: files with their target and budgets."""

    paths: tuple[str, ...]  # names or patterns, relative to the config
    name: str = ""
    has_table: bool = True  # False: an item of `models`, which skips files with a table
    own: Mapping[str, Any] = field(default_factory=dict)  # the entry's own values
    common: Mapping[str, Any] = field(default_factory=dict)  # values common to all entries
    line: int | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the entry's own value for a key, else the common value."""
        return self.own.get(key, self.common.get(key, default))


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """All entries to check, with baseline and tolerance."""

    path: Path
    entries: tuple[BudgetEntry, ...]  # entries with their own table first
    baseline: Path | None = None
    tolerance: Tolerance = NO_GROWTH

    @property
    def folder(self) -> Path:
        """Folder that names in the config are relative to."""
        return self.path.parent


def check_inside(config: Path, name: str | Path, shown: str = "") -> None:
    """Raise UsageError if a path in a config, with links followed, is outside the project.

    The project is the folder of the config, its repository and the current folder.
    """
    folder = config.parent.absolute()
    tops = (top for top in (folder, *folder.parents) if is_there(top / ".git"))
    known = (folder, Path.cwd(), *islice(tops, 1))
    named = folder / name
    try:
        roots = [top.resolve() for top in known]
        # Check the unresolved path, too: `..` after a linked folder leads elsewhere.
        places = (named.resolve(), Path(os.path.normpath(named)).resolve())
        is_inside = all(any(map(place.is_relative_to, roots)) for place in places)
    except (OSError, RuntimeError, ValueError):  # circular links, or a name that is too long
        is_inside = False
    if not is_inside:
        raise UsageError(f"{quote(shown or str(name))} is outside the project", where=config)


def find_config(start: Path) -> Path:
    """Return the nearest file with budgets, searching from a folder up to the repository's top."""
    for folder in (start, *start.parents):
        if is_there(folder / OWN):
            return folder / OWN
        if is_there(folder / SHARED) and _section(folder / SHARED) is not None:
            return folder / SHARED
        if is_there(folder / ".git"):
            break
    example = f"""printf '%s\\n' 'models = ["models"]' 'budget = {{ scratch = "512K" }}' > {OWN}"""
    problem = (
        f"no budgets are configured: neither {OWN} nor [tool.qnnmem] in {SHARED} exists; "
        f"set a budget for a folder of models: `{example}`"
    )
    raise UsageError(problem, where=start)


def read_config(path: Path) -> BudgetConfig:
    """Read the budgets in a file; raise a UsageError that names any wrong key."""
    section = _section(path)
    if section is None:
        raise UsageError("[tool.qnnmem] is missing", where=path)
    try:
        return _config(path, section)
    except UsageError as exc:
        raise UsageError(exc.what, where=path) from exc


def _section(path: Path) -> Mapping[str, Any] | None:
    import tomllib

    try:
        document: Any = tomllib.loads(_bounded(path, _text(path)))
    except (ValueError, RecursionError) as exc:  # not UTF-8, not TOML
        is_syntax = isinstance(exc, tomllib.TOMLDecodeError)
        reason = str(exc) if is_syntax else "it is not UTF-8 text, or it is nested too deeply"
        raise LoadError(path, f"is not TOML: {reason}") from exc
    if path.name != SHARED:
        return document if isinstance(document, dict) else None
    tool = document.get("tool")
    section = tool.get("qnnmem") if isinstance(tool, dict) else None
    return section if isinstance(section, dict) else None


def _bounded(path: Path, text: str) -> str:
    """Return the text of a config; raise LoadError if a key has too many parts to parse quickly."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS and _QUOTED.sub("", line).count(".") > _MOST_DOTS:
            raise LoadError(path, f"line {number} has a key of more than {_MOST_DOTS} parts")
    return text


def _text(path: Path) -> str:
    try:
        is_empty = path.is_file() and path.stat().st_size == 0  # an empty file is valid TOML
    except (OSError, ValueError):
        is_empty = False  # the reader reports the reason
    return "" if is_empty else read_bytes(path, _LARGEST).decode("utf-8")


def _config(path: Path, section: Mapping[str, Any]) -> BudgetConfig:
    _check_keys(section, (*_TOP, *KEYS), "")
    common = _values(section, "")
    tables = section.get("model", [])
    if not isinstance(tables, list) or len(tables) > _MOST:
        raise UsageError("model must be a list of tables, [[tool.qnnmem.model]]")
    entries = [_entry(table, number) for number, table in enumerate(tables, 1)]
    if "models" in section:
        entries.append(BudgetEntry(words(section["models"], "models"), has_table=False))
    if not entries:
        raise UsageError('no models are set; write models = ["models/*.onnx"]')
    lines = _text(path).splitlines()
    baseline = text_item(section["baseline"], "baseline") if "baseline" in section else None
    for named in (*_named_files(common, entries), *([baseline] if baseline else [])):
        check_inside(path, named)
    with_common = (
        replace(entry, common=common, line=_line(lines, entry.paths[0])) for entry in entries
    )
    return BudgetConfig(
        path,
        tuple(with_common),
        None if baseline is None else path.parent / baseline,
        _tolerance(section.get("tolerance", 0)),
    )


def _named_files(common: Mapping[str, Any], entries: Sequence[BudgetEntry]) -> Iterator[str | Path]:
    """Yield the names or patterns of models, and the names of files with input values."""
    for entry in entries:
        yield from entry.paths
    for settings in (common, *(entry.own for entry in entries)):
        values = settings.get("values", {}).values()
        yield from (value for value in values if isinstance(value, Path))


def entry_of(path: str, values: Mapping[str, Any]) -> BudgetEntry:
    """Return an entry from Python keyword arguments: settings as in a file, and pools by name."""
    pools = dict(values.get("budget", {}))
    settings: dict[str, Any] = {}
    for name, value in values.items():
        # `io` is a place or a pool, distinguished by its value.
        if name in KEYS and (name != "io" or value in ("inside", "outside")):
            settings[name] = value
        elif is_pool(name):
            pools[name] = value
        else:
            _check_keys({name: value}, (*KEYS, *every_pool()), "")
    return BudgetEntry((path,), own=_values(settings | ({"budget": pools} if pools else {}), ""))


def _entry(table: object, number: int) -> BudgetEntry:
    where = f"model {number}: "
    if not isinstance(table, dict):
        raise UsageError(f"{where}the entry is not a table; write [[tool.qnnmem.model]]")
    _check_keys(table, (*_ENTRY, *KEYS), where)
    if "path" not in table:
        raise UsageError(f"{where}path is missing; set a file or a file pattern")
    name = text_item(table["name"], f"{where}name") if "name" in table else ""
    return BudgetEntry(words(table["path"], f"{where}path"), name, own=_values(table, where))


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            hint = suggestion(key, known)
            raise UsageError(f"{where}{plain_or_quoted(key)} is not a key; {hint}")


def _values(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    return {k: read(table[k], f"{where}{k}") for k, (_, read) in KEYS.items() if k in table}


def _tolerance(value: object) -> Tolerance:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Tolerance(value)
    if isinstance(value, str):
        return parse_tolerance(value)
    raise UsageError('tolerance must be written like 4096, "4K" or "2%"')


def _line(lines: Sequence[str], name: str) -> int | None:
    """Return the number of the first line that contains a quoted name; None if no line does."""
    numbers: Iterator[int] = (
        number for number, line in enumerate(lines, 1) if f'"{name}"' in line or f"'{name}'" in line
    )
    return next(numbers, None)
