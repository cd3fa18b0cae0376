"""The SoCs known to QNN, spellings of their names, and their HTP limits."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from qnnmem.errors import CannotTell, UsageError
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.result import SourcedNumber
from qnnmem.results.socs import Soc as Soc
from qnnmem.text import counted, lazy_pattern, quote

MIB = 1 << 20
PD_BUDGET = "process domain budget"

_LIBRARY = "onnxruntime-qnn 2.7.0 (QAIRT 2.51)"
_ID_FROM = {"documents": "id from the QAIRT 2.47 documents", "library": "id from the library"}
_SOURCES = {
    "htp": f"compiler in {_LIBRARY}, values by SoC id",
    "no-vtcm": f"compiler in {_LIBRARY}: no VTCM for this SoC id",
    "refused": f"the compiler in {_LIBRARY} refuses this SoC id",
}
_LISTED = 5


@cache
def socs() -> tuple[Soc, ...]:
    """Return all known SoCs, sorted by name."""
    text = Path(__file__).with_name("socs.csv").read_text("utf-8")
    return tuple(_soc(row) for row in csv.DictReader(text.splitlines()))


def find_soc(text: str) -> Soc:
    """Return the SoC for a name such as `SM8650`, `57` or `Snapdragon 8 Gen 3`, in any letter case.

    The SoC must be a target of the HTP backend: raise UsageError for an unknown SoC, CannotTell for
    a SoC without HTP.
    """
    soc = any_soc(text)
    if not soc.has_htp:
        reason = f"{_shown(soc)} is not a target of the HTP backend"
        raise CannotTell(reason, cure="`qnnmem socs` lists the targets")
    return soc


def soc_by_id(model_id: int) -> Soc | None:
    """Return the SoC with this id; None for an unknown id.

    If several SoCs have the id, prefer the name that the library uses.
    """
    named = [soc for soc in socs() if soc.model_id == model_id]
    return min(named, key=lambda soc: (soc.library_name != soc.name, soc.name), default=None)


def any_soc(text: str) -> Soc:
    """Return the SoC with this name, with or without HTP; raise UsageError for an unknown name."""
    soc = _find(text)
    if soc is None:
        raise _unknown(text)
    return soc


def pd_budget() -> Sourced:
    """Return the limit on the estimated bytes of all contexts in one process domain."""
    return _sourced(_facts()["process_domain"], "budget_bytes")


def most_tensors() -> Sourced:
    """Return the largest number of tensors with which a graph is known to compile for HTP."""
    return _sourced(_facts()["process_domain"]["tensors"])


def tensor_count_words(count: int) -> str:
    """Return a clause that compares a tensor count with the largest count known to compile."""
    known = most_tensors()
    more = ", more than the" if count > known.value else ";"
    return (
        f"{counted(count, 'tensor')}{more} {known.value:,} known to compile for HTP "
        f"({known.origin.value}: {known.source}); no limit is documented"
    )


def limits_of(soc: Soc) -> tuple[tuple[str, Sourced], ...]:
    """Return the limits of a SoC that apply to every model, with their names."""
    named = (
        (f"compile limit of {soc.name}", soc.compile_limit),
        (PD_BUDGET, pd_budget()),
        (f"largest VTCM of {soc.name}", soc.vtcm_bytes),
    )
    return tuple((name, part) for name, part in named if part is not None)


def htp_constant(section: str, name: str) -> Sourced:
    """Return a measured constant of the HTP backend by its two names, e.g. `io` and `unit`."""
    return _sourced(_facts()[section][name])


def _sourced(facts: Mapping[str, Any], key: str = "value") -> Sourced:
    return Sourced(facts[key], Origin(facts["origin"]), facts["source"])


@cache
def _facts() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("htp.toml").read_text("utf-8"))


def _soc(row: Mapping[str, str]) -> Soc:
    source = _SOURCES[row["answer"]]
    fp16 = {"yes": True, "no": False, "": None}[row["fp16"]]
    verdict = "compiles" if fp16 else "is refused"
    fp16_source = f"a small float model {verdict} for id {row['model_id']} with {_LIBRARY}"
    return Soc(
        name=row["name"],
        marketing_name=row["marketing_name"],
        model_id=int(row["model_id"]),
        arch=int(row["arch"]) if row["arch"] else None,
        has_htp=bool(row["vtcm_mb"]),
        vtcm_size=_measured(row["vtcm_mb"], source),
        graph_limit=_measured(row["compile_limit_mib"], source),
        fp16=fp16,
        fp16_source="" if fp16 is None else fp16_source,
        source=f"{source}; {_ID_FROM[row['id_from']]}",
        library_name=row["library_name"] or row["name"],
        note=row["note"],
    )


def _measured(mib: str, source: str) -> SourcedNumber | None:
    return SourcedNumber(int(mib) * MIB, Origin.MEASURED, source) if mib else None


def _find(text: str) -> Soc | None:
    number = model_id(text)
    if number is not None and (soc := soc_by_id(number)):
        return soc
    name = soc_named(text, _spellings())
    return None if name is None else next(soc for soc in socs() if soc.name == name)


@cache
def _spellings() -> Mapping[str, str]:
    return spellings({soc.name: soc.marketing_name for soc in socs()})


def _unknown(text: str) -> UsageError:
    """Return the error about an unknown SoC, with suggestions."""
    if of_version := with_hexagon(text):
        known = sorted(of_version, key=_fame)
        listed = ", ".join(soc.name for soc in known[:_LISTED])
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        reason = f"{quote(text)} is a Hexagon version, not a SoC"
        return UsageError(reason, cure=f"name a SoC with that Hexagon version: {listed}{more}")
    close = similar_socs(text, _spellings())
    *first, last = close or ("",)
    which = f"{', '.join(first)} or {last}" if first else last
    cure = f"did you mean {which}?" if close else "`qnnmem socs` lists all SoCs"
    return UsageError(f"{quote(text)} is not a known SoC", cure=cure)


def _fame(soc: Soc) -> tuple[bool, int, str]:
    """Return a sort key that puts Snapdragon SoCs first, then SoCs with larger VTCM."""
    return not soc.marketing_name.startswith("Snapdragon"), -(soc.vtcm_mb or 0), soc.name


def with_hexagon(text: str) -> tuple[Soc, ...]:
    """Return the SoCs with a Hexagon version such as `v75`; empty if the text is no version."""
    version = hexagon_version(text)
    return tuple(soc for soc in socs() if version is not None and soc.arch == version)


def _shown(soc: Soc) -> str:
    arch = f", Hexagon v{soc.arch}" if soc.arch is not None else ""
    about = f"{soc.marketing_name}{arch}".strip(", ")
    return f"{soc.name} ({about})" if about else soc.name


_LONGEST = 80  # characters of a text that are examined
_BRAND = lazy_pattern(
    r"qualcomm|snapdragon|dragonwing|\b(?:mobile|compute|platform|processor|chipset|automotive|"
    r"soc|for galaxy)\b|[®™]"
)
_PLUS = lazy_pattern(r"(?<=\d)\s*plus\b")
_SHORT_GEN = lazy_pattern(r"(?<=\d)(s|\+)?g(?=\d$)")  # 8g3, 8sg3
_NOT_KEPT = lazy_pattern(r"[^a-z0-9+]+")
_PARENTHESIS = lazy_pattern(r"\([^()]*\)")
# A part number with the suffix of a bin or a package: SM8650-AB, QCS6490-1-AA.
_PART = lazy_pattern(r"([a-z]{2,4}\d{3,4}[a-z]{0,2})(?:[\s_./-].*|a[a-f]|[\s]*\(.*)")
_ID = lazy_pattern(r"(?:soc)?[\s_]*(?:id|model)?[\s_:=#]*([0-9]{1,5})")
_ARCH = lazy_pattern(
    r"(?:qualcomm|hexagon|htp|npu|nsp|c?dsp|arch|tensor|processor|[\s_=:-])*v?(\d\d)"
    r"(?:[\s_-]*(?:hexagon|htp|npu|nsp|c?dsp))?"
)
# Names that are not SoCs but refer to one: boards, laptop chips, and Android's platform names.
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
    """Return a name without brand and separators, in lower case: `8gen3`."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("_", " ")
    words = _PLUS.sub("+", _BRAND.sub(" ", folded))
    bare = _NOT_KEPT.sub("", words)
    return _SHORT_GEN.sub(lambda match: f"{match[1] or ''}gen", re.sub(r"^sd(?=\d)", "", bare))


def spellings(marketing: Mapping[str, str]) -> Mapping[str, str]:
    """Map each spelling to a SoC name; `marketing` maps SoC names to marketing names."""
    known = {plain(name): name for name in marketing}
    for words in (lambda sold: (sold,), _derived):
        for name, sold in marketing.items():
            for word in words(sold):
                known.setdefault(plain(word), name)
    known.pop("", None)
    return known


def _derived(sold: str) -> Iterator[str]:
    """Yield the parts of a marketing name that also name the SoC."""
    yield _PARENTHESIS.sub("", sold)
    yield from sold.split(" / ")


def soc_named(text: str, known: Mapping[str, str]) -> str | None:
    """Return the name of the SoC that a text names unambiguously, else None."""
    text = text[:_LONGEST].strip()
    if name := known.get(plain(text)):
        return name
    part = _PART.fullmatch(text.casefold())
    tried = [part[1] if part else "", _PARENTHESIS.sub("", text)]
    tried += (inside[1:-1] for inside in _PARENTHESIS.findall(text))
    return next((known[plain(spelling)] for spelling in tried if plain(spelling) in known), None)


def model_id(text: str) -> int | None:
    """Return the SoC id in a text: 57 for `57`, `id 57` or `soc_model: 57`; else None."""
    match = _ID.fullmatch(text[:_LONGEST].strip().casefold())
    return int(match[1]) if match else None


def hexagon_version(text: str) -> int | None:
    """Return the Hexagon version in a text: 75 for `v75` or `htp75`; None for a bare number."""
    text = text[:_LONGEST].strip().casefold()
    match = _ARCH.fullmatch(text)
    return int(match[1]) if match and not text.isdigit() and text.isascii() else None


def similar_socs(text: str, known: Mapping[str, str], count: int = 4) -> tuple[str, ...]:
    """Return SoCs that a mistyped name might mean, the likeliest first."""
    wanted = plain(text[:_LONGEST])
    tiers = (_elsewhere, _mistyped, _partly, _alike) if wanted else ()
    suggestions = (tuple(dict.fromkeys(tier(wanted, known))) for tier in tiers)
    return next(filter(None, suggestions), ())[:count]


def _elsewhere(wanted: str, _known: Mapping[str, str]) -> Iterator[str]:
    yield from next((to for word, to in _ELSEWHERE.items() if wanted.startswith(word)), ())


def _mistyped(wanted: str, known: Mapping[str, str]) -> Iterator[str]:
    """Yield names with the digits of `wanted`, two swapped characters, or one wrong character."""
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


def _is_swapped(first: str, second: str) -> bool:
    """Return True if the strings differ by one swap of neighbouring characters."""
    apart = [place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    if len(first) != len(second) or len(apart) != 2 or apart[1] - apart[0] != 1:
        return False
    left, right = apart
    return first[left] == second[right] and first[right] == second[left]


def _differs_once(first: str, second: str) -> bool:
    """Return True if the strings differ by one character."""
    short, long = sorted((first, second), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(first, second, strict=True)) == 1
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))
