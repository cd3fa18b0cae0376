"""Rules that only a real program can break, each with its consequence and cure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from qnnmem.finding import Finding

_SOURCE = "QNN's API as every backend implements it: see the page of check-client"


@dataclass(frozen=True, slots=True)
class ClientRule:
    """One rule about programs."""

    id: str
    title: str
    consequence: str
    codes: tuple[int, ...]
    cure: str


@cache
def client_rules() -> Mapping[str, ClientRule]:
    """Every rule by its id."""
    table = tomllib.loads(files(__package__).joinpath("rules.toml").read_text("utf-8"))
    found = {
        key: ClientRule(id=key, codes=tuple(row.pop("codes")), **row) for key, row in table.items()
    }
    return MappingProxyType(found)


def client_finding(
    rule: str, sentence: str, call: str = "", *, buffer: str = "", address: int | None = None
) -> Finding:
    """A rule that the program broke."""
    cure = client_rules()[rule].cure
    return Finding(
        rule, sentence, call=call, buffer=buffer, address=address, cure=cure, source=_SOURCE
    )


def title_of(rule: str) -> str:
    """What a rule says, ours or the contract's."""
    from qnnmem.lpai.rules import rules

    own = client_rules().get(rule)
    return own.title if own is not None else rules()[rule].title
