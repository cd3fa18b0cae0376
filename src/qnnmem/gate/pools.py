"""Names of pools that a budget may have, on LPAI and on HTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qnnmem.errors import UsageError
from qnnmem.text import nearest, quote

LPAI, HTP = "lpai", "htp"
TOTAL = "total"
# All that LPAI tells apart, and their sum; `tcm` is what constants and IO take of TCM.
LPAI_POOLS = ("scratch", "persistent", "io", "constants", "tcm", TOTAL)
_ALSO: Mapping[str, Mapping[str, str]] = {
    LPAI: {"weights": "constants"},
    HTP: {"spill": "spill-fill", TOTAL: "ram", "host": "host-ram"},
}


def pools_of(target: str) -> tuple[str, ...]:
    """The pools of a target, without other spellings."""
    from qnnmem.htp.fit import POOLS

    return LPAI_POOLS if target == LPAI else POOLS


def pool_of(name: str, target: str) -> str | None:
    """The pool of a target that a word means; None where it has none of that name."""
    word = name.strip().lower().replace("_", "-")
    word = _ALSO[target].get(word, word)
    return word if word in pools_of(target) else None


def is_pool(name: str) -> bool:
    """Whether a word means a pool of any target."""
    return pool_of(name, LPAI) is not None or pool_of(name, HTP) is not None


def check_pool(name: str) -> None:
    """Refuses a word that means no pool at all."""
    if not is_pool(name):
        known = every_pool()
        meant = nearest(name, known)
        hint = f"did you mean {meant}?" if meant else f"pools are {', '.join(known)}"
        raise UsageError(f"{quote(name)} is not a pool; {hint}")


def every_pool() -> tuple[str, ...]:
    """All words that a budget may have."""
    others: Iterable[str] = (word for also in _ALSO.values() for word in also)
    return tuple(dict.fromkeys((*LPAI_POOLS, *pools_of(HTP), *others)))
