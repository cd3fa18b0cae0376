"""Regular expressions that an earlier run compiled.

Compiling the expressions with which lines are read takes longer than reading a small log. What
`re` compiles is a list of numbers for its engine; that list is kept in the user's cache folder, by
expression, under a name that changes with the interpreter. The engine checks such a list before it
takes it. Where anything is amiss, `re` compiles as ever.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec

from qnnmem.doctor import cache

_MOST = 2048  # expressions that are kept; when there are more, those of the last run
_LONGEST = 1 << 16  # of an expression that is


class _KeptPattern(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the engine is given for an expression, but for the expression."""

    flags: int
    groups: int
    names: dict[str, int]  # of groups
    code: bytes


class _Shelf:
    """Return kept patterns, and record the missing ones."""

    def __init__(self, compiler: Any, engine: Any) -> None:
        self._compiler, self._engine = compiler, engine
        self._compile = compiler.compile
        facts = (sys.version, sys.byteorder, str(engine.MAGIC), str(engine.CODESIZE))
        self._name = cache.name_of("patterns", (fact.encode() for fact in facts), ".bin")
        self._kept = _load(self._name)
        self._new: dict[str, re.Pattern[Any]] = {}
        self._used: set[str] = set()

    def compile(self, pattern: Any, flags: int = 0) -> Any:
        """As the function of `re` that it stands for."""
        name = _name_of(pattern, flags)
        if name and (kept := self._kept.get(name)):
            try:
                found = self._made(pattern, kept)
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
                pass  # not a list that the engine takes
            else:
                self._used.add(name)
                return found
        made = self._compile(pattern, flags)
        if name:
            self._new[name] = made
        return made

    def _made(self, pattern: Any, kept: _KeptPattern) -> Any:
        names: list[str | None] = [None] * (kept.groups + 1)
        for group, number in kept.names.items():
            names[number] = group
        code = array("I", kept.code).tolist()
        return self._engine.compile(
            pattern, kept.flags, code, kept.groups, kept.names, tuple(names)
        )

    def keep(self) -> None:
        """Keeps what this run compiled."""
        made = {name: found for name, one in self._new.items() if (found := self._take(one))}
        if not made:
            return
        kept = dict(self._kept)
        if len(kept) + len(made) > _MOST:
            kept = {name: one for name, one in kept.items() if name in self._used}
        cache.keep(self._name, msgspec.msgpack.encode({**kept, **made}))

    def _take(self, made: re.Pattern[Any]) -> _KeptPattern | None:
        """The list behind a compiled expression, if the same can be made of it again."""
        parsed = import_module("re._parser").parse(made.pattern, made.flags)
        code = array("I", self._compiler._code(parsed, made.flags))
        taken = _KeptPattern(made.flags, made.groups, dict(made.groupindex), code.tobytes())
        # Patterns are equal where their lists are.
        return taken if self._made(made.pattern, taken) == made else None


@contextmanager
def kept_patterns() -> Iterator[None]:
    """While it lasts, `re` is given what earlier runs compiled; after it, the rest is kept.

    For commands: a program that only uses this package compiles as it likes.
    """
    try:
        compiler, engine = import_module("re._compiler"), import_module("_sre")
        shelf = _Shelf(compiler, engine)
    except (ImportError, AttributeError):  # another interpreter, in which `re` is made otherwise
        yield
        return
    compile_anew = compiler.compile
    compiler.compile = shelf.compile  # type: ignore[attr-defined]
    try:
        yield
    finally:
        compiler.compile = compile_anew  # type: ignore[attr-defined]
    shelf.keep()


def _load(name: str) -> Mapping[str, _KeptPattern]:
    data = cache.load(name)
    try:
        return msgspec.msgpack.decode(data or b"\x80", type=dict[str, _KeptPattern])
    except msgspec.DecodeError:
        return {}


def _name_of(pattern: object, flags: int) -> str:
    """An expression with its flags; empty if it is not kept."""
    if isinstance(pattern, bytes):
        text, kind = pattern.decode("latin-1"), "b"
    elif isinstance(pattern, str) and _is_text(pattern):
        text, kind = pattern, "s"
    else:
        return ""
    return f"{int(flags)}{kind}{text}" if len(text) <= _LONGEST else ""


def _is_text(pattern: str) -> bool:
    """Whether a file can hold it: half a surrogate pair it cannot."""
    try:
        pattern.encode()
    except UnicodeEncodeError:
        return False
    return True
