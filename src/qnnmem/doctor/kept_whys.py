"""Root causes of entries that earlier runs were asked for.

They stand in what only people read, which is not part of the packed knowledge base; reading the
Markdown of a team's entries again takes longer than reading a small log.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from qnnmem.doctor import cache
from qnnmem.doctor.kb.knowledge import Knowledge


def load_whys(knowledge: Knowledge) -> dict[str, str]:
    """What is kept for exactly this knowledge base, by name of the entry."""
    data = cache.load(_name(knowledge))
    try:
        return msgspec.json.decode(data or b"{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def keep_whys(knowledge: Knowledge, whys: Mapping[str, str]) -> None:
    """Keeps them for later runs."""
    cache.keep(_name(knowledge), msgspec.json.encode(whys))


def _name(knowledge: Knowledge) -> str:
    return cache.name_of("whys", (knowledge.key.encode("utf-8", "surrogateescape"),), ".json")
