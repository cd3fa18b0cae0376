"""The rules of the memory contract, read from tables, and findings about broken rules.

    lpai_rules.toml      rules for clients of the LPAI backend: R, X, T, H, L, M, B, P
    qmem_rules.toml      rules for memory that an application shares with the HTP: Q
    program_rules.toml   rules that only a real program can break: C

Ids are unique over all tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from qnnmem.caller import Caller, current_caller
from qnnmem.finding import Finding
from qnnmem.qnn.codes import code_name

if TYPE_CHECKING:
    from qnnmem.results.lpai import Rule

LPAI, QMEM, PROGRAM = "lpai", "qmem", "program"  # names of the tables
MOST_FINDINGS = 1000  # of one client: later findings mostly repeat the first ones
# Source of rules for which libQnnHtp for x86 (onnxruntime-qnn 2.7.0) returned the same code.
MEASURED = "QNN headers; the x86 libQnnHtp returns the same code"

# The client's call that made a worker thread execute: the thread's stack lacks the client's line.
_asked_by: ContextVar[Caller | None] = ContextVar("_asked_by", default=None)


@cache
def rules(table: str = LPAI) -> Mapping[str, Rule]:
    """Return the rules of a table by id."""
    # msgspec takes longer to import than the rest of a runtime, so it is imported late.
    from qnnmem.results.lpai import Rule, RuleCode

    text = Path(__file__).with_name(f"{table}_rules.toml").read_text("utf-8")
    rows = tomllib.loads(text)
    # A table may name one source for all of its rules.
    common = {"consequence": "", "mark": "", "source": rows.pop("source", "")}
    by_id = {}
    for key, row in rows.items():
        codes = tuple(RuleCode(code, code_name(code)) for code in row.pop("codes"))
        by_id[key] = Rule(id=key, named_codes=codes, **(common | row))
    return MappingProxyType(by_id)


@cache
def every_rule() -> Mapping[str, Rule]:
    """Return the rules of all tables by id."""
    return MappingProxyType({**rules(LPAI), **rules(QMEM), **rules(PROGRAM)})


def finding(
    rule_id: str,
    sentence: str,
    call: str = "",
    *,
    buffer: str = "",
    address: int | None = None,
    need: int | None = None,
    given: int | None = None,
    cure: str = "",
    source: str = "",
    line: str | None = None,
) -> Finding:
    """Return the finding for a broken rule; by default with the cure and the source of the rule.

    `line` is by default the client's Python line that made the call.
    """
    rule = every_rule()[rule_id]
    caller = None if line is not None else _asked_by.get() or current_caller()
    return Finding(
        rule=rule_id,
        sentence=sentence,
        call=call,
        buffer=buffer,
        address=address,
        need=need,
        given=given,
        cure=cure or rule.cure,
        source=source or rule.source,
        line=caller.line if caller is not None else line or "",
        trace=caller.trace if caller is not None else (),
    )


@contextmanager
def asked_by(caller: Caller) -> Iterator[None]:
    """Make findings in the block name the line of `caller`.

    A worker thread needs this, because the client requested the work earlier, on another thread.
    """
    token = _asked_by.set(caller)
    try:
        yield
    finally:
        _asked_by.reset(token)


class FindingLog(list[Finding]):
    """The findings of one client in order; the list holds at most `MOST_FINDINGS`."""

    def note(self, found: Finding) -> None:
        """Add a finding, unless the log already holds `MOST_FINDINGS`."""
        if len(self) < MOST_FINDINGS:
            self.append(found)
