"""The rules of the LPAI memory contract, each with its consequence, source and cure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from qnnmem.caller import caller_line
from qnnmem.finding import Finding

# Of the client, where the work is done by a thread that the client's line is not on the stack of.
_asked_at: ContextVar[str] = ContextVar("_asked_at", default="")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule that a client of LPAI has to keep."""

    id: str
    title: str  # the rule itself
    consequence: str  # what is publicly said about breaking it
    codes: tuple[int, ...]  # QNN codes this runtime answers with
    mark: str  # how the answer is known: D documented, P practice, I inferred, C our choice
    source: str
    cure: str


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by its id."""
    table = tomllib.loads(files(__package__).joinpath("rules.toml").read_text("utf-8"))
    return MappingProxyType(
        {key: Rule(id=key, codes=tuple(row.pop("codes")), **row) for key, row in table.items()}
    )


def finding(
    rule_id: str,
    sentence: str,
    *,
    call: str = "",
    buffer: str = "",
    address: int | None = None,
    need: int | None = None,
    given: int | None = None,
    cure: str = "",
    line: str | None = None,
) -> Finding:
    """A broken rule; cure and source are the rule's own unless this case has a better cure.

    The line is that of the client's Python which made the call, unless another one is meant.
    """
    rule = rules()[rule_id]
    return Finding(
        rule=rule_id,
        sentence=sentence,
        call=call,
        buffer=buffer,
        address=address,
        need=need,
        given=given,
        cure=cure or rule.cure,
        source=rule.source,
        line=(_asked_at.get() or caller_line()) if line is None else line,
    )


@contextmanager
def asked_at(line: str) -> Iterator[None]:
    """Findings made inside are of a call that this line of the client asked for before."""
    token = _asked_at.set(line)
    try:
        yield
    finally:
        _asked_at.reset(token)
