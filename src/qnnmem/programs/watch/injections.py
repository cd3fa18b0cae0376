"""Rules for calls that must fail: `contextCreateFromBinary#2=1002`, `memRegister>64M=1002`."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qnnmem.errors import UsageError
from qnnmem.programs.functions import NAMES, REGISTER, SIZES, in_table, number_of
from qnnmem.qnn.numbers import code_named
from qnnmem.text import quote
from qnnmem.units import parse_size

_LARGEST_CODE = 0xFFFF
_RULE = re.compile(
    r"(?P<function>\w+)(?:#(?P<nth>[0-9]{1,9}))?(?:>(?P<above>[^=]{1,30}))?=(?P<code>[\w-]{1,80})"
)


@dataclass(frozen=True, slots=True)
class Injection:
    """Rule that states which calls of a function fail, and with which code."""

    function: int
    code: int
    nth: int | None = None  # only this call, counted from 1 over all processes of the run
    above: int | None = None  # only calls about more bytes than this

    def __str__(self) -> str:
        """Return the rule in the syntax that users type."""
        nth = "" if self.nth is None else f"#{self.nth}"
        above = "" if self.above is None else f">{self.above}"
        return f"{in_table(NAMES[self.function])}{nth}{above}={self.code}"


def read_injection(text: str) -> Injection:
    """Parse an injection rule; raise UsageError for invalid syntax."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{quote(text)} does not state which calls must fail",
            cure="write it like contextCreateFromBinary#2=1002 or memRegister>64M=1002",
        )
    function = number_of(found["function"])
    above = None if found["above"] is None else parse_size(found["above"])
    if above is not None and function not in (REGISTER, *SIZES):
        with_sizes = ", ".join(in_table(NAMES[one]) for one in (REGISTER, *SIZES))
        raise UsageError(
            f"calls of {in_table(NAMES[function])} have no size to compare",
            cure=f"only calls of {with_sizes} have a size",
        )
    nth = None if found["nth"] is None else int(found["nth"])
    if nth == 0:
        raise UsageError(f"the call number in {quote(text)} must be at least 1")
    return Injection(function, read_code(found["code"]), nth, above)


def read_code(text: str) -> int:
    """Return a QNN error code from its number or its name."""
    try:
        code: int | None = int(text, 0)
    except ValueError:
        code = code_named(text)
    if code is None or not 0 < code <= _LARGEST_CODE:
        raise UsageError(
            f"{quote(text)} is not a QNN error code",
            cure="use a number such as 1002, or a name such as QNN_COMMON_ERROR_MEM_ALLOC",
        )
    return code


class InjectionCounter:
    """Decides for every call of one run whether it fails."""

    def __init__(self, injections: Sequence[Injection]) -> None:
        self._injections = tuple(injections)
        self._calls: Counter[int] = Counter()
        self._matched: set[Injection] = set()
        self._lock = threading.Lock()

    def code_for(self, function: int, size: int) -> int:
        """Return the code with which this call must fail; 0 if it must not fail."""
        with self._lock:
            self._calls[function] += 1
            number = self._calls[function]
            matching = [
                injection
                for injection in self._injections
                if _is_meant(injection, function, number, size)
            ]
            self._matched.update(matching)
        return matching[0].code if matching else 0

    def unmatched(self) -> tuple[Injection, ...]:
        """Return the rules that no call has matched."""
        with self._lock:
            return tuple(
                injection for injection in self._injections if injection not in self._matched
            )


def _is_meant(injection: Injection, function: int, number: int, size: int) -> bool:
    is_it = injection.function == function and injection.nth in (None, number)
    return is_it and (injection.above is None or size > injection.above)
