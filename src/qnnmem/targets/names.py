"""Which SoC a text means: names as people write them, and names that are nearly one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping

_LONGEST = 80  # characters of a text that are looked at
_BRAND = re.compile(
    r"qualcomm|snapdragon|dragonwing|\b(?:mobile|compute|platform|processor|chipset|automotive|"
    r"soc|for galaxy)\b|[®™]"
)
_PLUS = re.compile(r"(?<=\d)\s*plus\b")
_SHORT_GEN = re.compile(r"(?<=\d)(s|\+)?g(?=\d$)")  # 8g3, 8sg3
_NOT_KEPT = re.compile(r"[^a-z0-9+]+")
_PARENTHESIS = re.compile(r"\([^()]*\)")
# A part number with the letters of a bin or a package behind it: SM8650-AB, QCS6490-1-AA.
_PART = re.compile(r"([a-z]{2,4}\d{3,4}[a-z]{0,2})(?:[\s_./-].*|a[a-f]|[\s]*\(.*)")
_ID = re.compile(r"(?:soc)?[\s_]*(?:id|model)?[\s_:=#]*([0-9]{1,5})")
_ARCH = re.compile(
    r"(?:qualcomm|hexagon|htp|npu|nsp|c?dsp|arch|tensor|processor|[\s_=:-])*v?(\d\d)"
    r"(?:[\s_-]*(?:hexagon|htp|npu|nsp|c?dsp))?"
)
# What is not the name of a SoC and says much about which one is meant: boards, laptops' chips, and
# what Android calls the platform.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "rb3gen2": ("QCS6490",),
    "rb3": ("QCS6490", "SDM845"),
    "rb5": ("QRB5165",),
    "rb2": ("QRB4210",),
    "rubikpi3": ("QCS6490",),
    "rubikpi": ("QCS6490",),
    "x1e": ("SC8380XP",),
    "x1p": ("SC8380XP", "SC8340XP"),
    "xplus": ("SC8380XP", "SC8340XP"),
    "kona": ("SM8250",),
    "lahaina": ("SM8350",),
    "taro": ("SM8450",),
    "waipio": ("SM8450",),
    "kalama": ("SM8550",),
    "pineapple": ("SM8650",),
    "lanai": ("SM8650",),
    "sun": ("SM8750",),
}


def plain(text: str) -> str:
    """A name without brand, case and what is between its words: `8gen3`."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("_", " ")
    words = _PLUS.sub("+", _BRAND.sub(" ", folded))
    bare = _NOT_KEPT.sub("", words)
    return _SHORT_GEN.sub(lambda found: f"{found[1] or ''}gen", re.sub(r"^sd(?=\d)", "", bare))


def spellings(marketing: Mapping[str, str]) -> Mapping[str, str]:
    """The name of a SoC by everything it is called; `marketing` has other words by name."""
    found = {plain(name): name for name in marketing}
    for words in (lambda sold: (sold,), _derived):
        for name, sold in marketing.items():
            for word in words(sold):
                found.setdefault(plain(word), name)
    found.pop("", None)
    return found


def _derived(sold: str) -> Iterator[str]:
    """`Snapdragon 855 (SM8150)`, `Dragonwing QCM6490 / QCS6490`: the words apart."""
    yield _PARENTHESIS.sub("", sold)
    yield from sold.split(" / ")


def meant(text: str, known: Mapping[str, str]) -> str | None:
    """The name that a text means beyond doubt, if any."""
    text = text[:_LONGEST].strip()
    if found := known.get(plain(text)):
        return found
    part = _PART.fullmatch(text.casefold())
    tried = [part[1] if part else "", _PARENTHESIS.sub("", text)]
    tried += (inside[1:-1] for inside in _PARENTHESIS.findall(text))
    return next((known[plain(one)] for one in tried if plain(one) in known), None)


def model_id(text: str) -> int | None:
    """57 for `57`, `id 57` or `soc_model: 57`."""
    found = _ID.fullmatch(text[:_LONGEST].strip().casefold())
    return int(found[1]) if found else None


def hexagon_version(text: str) -> int | None:
    """75 for `v75`, `Hexagon v75` or `htp75`; a bare number is none."""
    text = text[:_LONGEST].strip().casefold()
    found = _ARCH.fullmatch(text)
    return int(found[1]) if found and not text.isdigit() and text.isascii() else None


def near(text: str, known: Mapping[str, str], count: int = 4) -> tuple[str, ...]:
    """The names that a text may mean, the likeliest first."""
    wanted = plain(text[:_LONGEST])
    tiers = (_elsewhere, _mistyped, _partly, _alike) if wanted else ()
    found = (tuple(dict.fromkeys(tier(wanted, known))) for tier in tiers)
    return next(filter(None, found), ())[:count]


def _elsewhere(wanted: str, _known: Mapping[str, str]) -> Iterator[str]:
    yield from next((to for word, to in _ELSEWHERE.items() if wanted.startswith(word)), ())


def _mistyped(wanted: str, known: Mapping[str, str]) -> Iterator[str]:
    """Another prefix, two characters that changed places, one that is wrong."""
    names = {plain(name): name for name in known.values()}
    wanted = re.sub(r"(?<=\d)o", "0", wanted)
    yield from filter(None, (names.get(wanted),))
    digits = re.sub(r"\D", "", wanted)
    if len(digits) > 2:
        yield from (name for key, name in names.items() if re.sub(r"\D", "", key) == digits)
    yield from (name for key, name in names.items() if _is_swapped(wanted, key))
    yield from (name for key, name in names.items() if _differs_once(wanted, key))


def _partly(wanted: str, known: Mapping[str, str]) -> Iterator[str]:
    if len(wanted) > 2:
        yield from (name for key, name in known.items() if wanted in key)


def _alike(wanted: str, known: Mapping[str, str]) -> Iterator[str]:
    from difflib import get_close_matches

    yield from (known[key] for key in get_close_matches(wanted, known, n=3, cutoff=0.6))


def _is_swapped(one: str, other: str) -> bool:
    """Whether two neighbours changed places, and nothing else."""
    apart = [at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if len(one) != len(other) or len(apart) != 2 or apart[1] - apart[0] != 1:
        return False
    first, second = apart
    return one[first] == other[second] and one[second] == other[first]


def _differs_once(one: str, other: str) -> bool:
    """Whether one character is another, missing or too many."""
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(one, other, strict=True)) == 1
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))
