"""C names and the equivalent Python names, for the page "C and Python side by side".

Functions and structs come from `c_and_python.toml`, constants from the enums themselves.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from c_names import kinds

from qnnmem.qnn.enums import CEnum, DataType

TABLE = Path(__file__).with_name("c_and_python.toml")
LAST_DECIMAL = 10001  # the largest option; larger values are versions with two parts, and "not set"
_ELSEWHERE = "~"  # prefix of a text in place of a name


@dataclass(frozen=True, slots=True)
class Pair:
    """Name in C, full name in Python if there is one, and a note."""

    c: str
    python: str
    note: str = ""

    @property
    def cells(self) -> tuple[str, str, str]:
        """Row of the table."""
        return f"`{self.c}`", shown(self.python), self.note


@cache
def table() -> dict[str, Any]:
    """Return the content of the table file."""
    return tomllib.loads(TABLE.read_text("utf-8"))


def functions(document: str) -> Iterator[Pair]:
    """Yield the C functions listed for a document, each with its Python name."""
    for name, said in table()["function"][document].items():
        yield Pair(name, said) if isinstance(said, str) else Pair(name, *said)


def structs(document: str) -> Iterator[tuple[Pair, list[Pair]]]:
    """Yield the structs of a document, each with its members."""
    for name, struct in table()["struct"][document].items():
        home = struct["python"]
        members = [_member(home, c, said) for c, said in struct["members"].items()]
        yield Pair(name, home), members


def _member(home: str, c: str, said: str) -> Pair:
    if said.startswith(_ELSEWHERE):
        return Pair(c, "", said[1:])
    return Pair(c, f"{home}.{said}")


def constants() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the title and the members (C name, number, Python name) of each enum."""
    for kind in kinds():
        title = (inspect.getdoc(kind) or "").splitlines()[0]
        named = {member: name for name, member in kind.__members__.items()}
        rows = [
            (c, _number(member), f"{kind.__module__}.{kind.__name__}.{named[member]}")
            for c, member in kind.c_names().items()
        ]
        yield title, rows


def _number(member: CEnum) -> str:
    """Return a number in the notation of the headers: hexadecimal for types and "not set"."""
    is_pattern = isinstance(member, DataType) or int(member) > LAST_DECIMAL
    return f"{int(member):#06x}" if is_pattern else str(int(member))


def every_python_name() -> set[str]:
    """Return all Python names on the page."""
    found = {pair.python for one in ("lpai", "htp") for pair in functions(one)}
    for document in ("lpai", "htp"):
        for struct, members in structs(document):
            found |= {struct.python, *(member.python for member in members)}
    found |= {python for _, rows in constants() for _, _, python in rows}
    return found - {""}


def resolve(name: str) -> object:
    """Return the object with a full name; raise AttributeError if there is none."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            value: Any = import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            fields = getattr(value, "__dataclass_fields__", {})
            value = fields[word] if word in fields else getattr(value, word)
        return value
    raise AttributeError(name)


def shown(python: str) -> str:
    """Return a full name in the form that programs use: `lpai` is imported from the package."""
    if not python:
        return ""
    return f"`{python.removeprefix('qnnmem.') if python.startswith('qnnmem.lpai.') else python}`"


def function_rows(document: str) -> Sequence[tuple[str, str, str]]:
    """Return the rows of the table of functions."""
    return [pair.cells for pair in functions(document)]


def struct_rows(document: str) -> Sequence[tuple[str, str, str]]:
    """Return the rows of the table of structs, each with the members not named in snake case."""
    return [
        (*struct.cells[:2], "; ".join(_otherwise(one) for one in members if _differs(one)))
        for struct, members in structs(document)
    ]


def _differs(member: Pair) -> bool:
    """Return True if a member's Python name differs from its C name in snake case."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", member.c).lower()
    return member.python.rpartition(".")[2] != snake


def _otherwise(member: Pair) -> str:
    python = f"`{member.python.rpartition('.')[2]}`" if member.python else member.note
    return f"`{member.c}`: {python}"


def constant_lines() -> Iterator[str]:
    """Yield a line for each enum: title, Python class, constants with their numbers."""
    for title, rows in constants():
        home = rows[0][2].rpartition(".")[0]
        yield f"{title} `{home}`: " + ", ".join(f"`{c}` {number}" for c, number, _ in rows)
