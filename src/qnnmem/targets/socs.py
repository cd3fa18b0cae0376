"""The SoCs that QNN names, and what its HTP compiler answers about each."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from qnnmem.errors import CannotTell, UsageError
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.result import SourcedNumber
from qnnmem.results.socs import Soc as Soc
from qnnmem.targets.names import hexagon_version, meant, model_id, near, spellings
from qnnmem.text import quote

MIB = 1 << 20
PD_BUDGET = "process domain budget"

_LIBRARY = "onnxruntime-qnn 2.7.0 (QAIRT 2.51)"
_ID_FROM = {"documents": "id from the QAIRT 2.47 documents", "library": "id from the library"}
_ANSWERS = {
    "htp": f"{_LIBRARY}, asked by id",
    "no-vtcm": f"{_LIBRARY}, asked by id: no VTCM",
    "refused": f"{_LIBRARY}, asked by id: refused",
}
_LISTED = 5


@cache
def socs() -> tuple[Soc, ...]:
    """Every SoC known here, sorted by name."""
    text = files(__package__).joinpath("socs.csv").read_text("utf-8")
    return tuple(_soc(row) for row in csv.DictReader(text.splitlines()))


def find_soc(text: str) -> Soc:
    """The HTP target meant by `SM8650`, `57` or `Snapdragon 8 Gen 3`, in any case."""
    found = _find(text)
    if found is None:
        raise _unknown(text)
    if not found.has_htp:
        what = f"{_shown(found)} is not a target of the HTP backend"
        raise CannotTell(what, cure="`qnnmem socs` lists those that are")
    return found


def soc_by_id(model_id: int) -> Soc | None:
    """The SoC of an id under the name that the library uses; None for an unknown id."""
    named = [soc for soc in socs() if soc.model_id == model_id]
    return min(named, key=lambda soc: (soc.library_name != soc.name, soc.name), default=None)


def any_soc(text: str) -> Soc:
    """The SoC meant by a text, whether or not it has an HTP."""
    found = _find(text)
    if found is None:
        raise _unknown(text)
    return found


def pd_budget() -> Sourced:
    """Bytes that the contexts in one process domain may be estimated at together."""
    facts = _facts()["process_domain"]
    return Sourced(facts["budget_bytes"], Origin(facts["origin"]), facts["source"])


def limits_of(soc: Soc) -> tuple[tuple[str, Sourced], ...]:
    """What bounds every model on a SoC, by name."""
    named = (
        (f"compile limit of {soc.name}", soc.compile_limit),
        (PD_BUDGET, pd_budget()),
        (f"largest VTCM of {soc.name}", soc.vtcm_bytes),
    )
    return tuple((name, part) for name, part in named if part is not None)


def htp_constant(section: str, name: str) -> Sourced:
    """A measured constant of the HTP backend, e.g. `("io", "unit")`."""
    facts = _facts()[section][name]
    return Sourced(facts["value"], Origin(facts["origin"]), facts["source"])


@cache
def _facts() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("htp.toml").read_text("utf-8"))


def _soc(row: Mapping[str, str]) -> Soc:
    asked = _ANSWERS[row["answer"]]
    fp16 = {"yes": True, "no": False, "": None}[row["fp16"]]
    seen = "compiles" if fp16 else "is refused"
    tried = f"{_LIBRARY}: a small model of floats {seen} for id {row['model_id']}"
    return Soc(
        name=row["name"],
        marketing_name=row["marketing_name"],
        model_id=int(row["model_id"]),
        arch=int(row["arch"]) if row["arch"] else None,
        has_htp=bool(row["vtcm_mb"]),
        vtcm_size=_measured(row["vtcm_mb"], asked),
        graph_limit=_measured(row["compile_limit_mib"], asked),
        fp16=fp16,
        fp16_source="" if fp16 is None else tried,
        source=f"{asked}; {_ID_FROM[row['id_from']]}",
        library_name=row["library_name"] or row["name"],
        note=row["note"],
    )


def _measured(mib: str, source: str) -> SourcedNumber | None:
    return SourcedNumber(int(mib) * MIB, Origin.MEASURED, source) if mib else None


def _find(text: str) -> Soc | None:
    number = model_id(text)
    if number is not None and (soc := soc_by_id(number)):
        return soc
    name = meant(text, _spellings())
    return None if name is None else next(soc for soc in socs() if soc.name == name)


@cache
def _spellings() -> Mapping[str, str]:
    return spellings({soc.name: soc.marketing_name for soc in socs()})


def _unknown(text: str) -> UsageError:
    """The error for a text that means no SoC, with those it may mean."""
    if of_version := with_hexagon(text):
        known = sorted(of_version, key=_fame)
        listed = ", ".join(soc.name for soc in known[:_LISTED])
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        what = f"{quote(text)} is a version of Hexagon, not a SoC"
        return UsageError(what, cure=f"name one that has it: {listed}{more}")
    close = near(text, _spellings())
    *first, last = close or ("",)
    which = f"{', '.join(first)} or {last}" if first else last
    cure = f"did you mean {which}?" if close else "`qnnmem socs` lists all"
    return UsageError(f"{quote(text)} is not a SoC known here", cure=cure)


def _fame(soc: Soc) -> tuple[bool, int, str]:
    """Puts those first that most people mean: the large ones that are sold under a name."""
    return not soc.marketing_name.startswith("Snapdragon"), -(soc.vtcm_mb or 0), soc.name


def with_hexagon(text: str) -> tuple[Soc, ...]:
    """The SoCs with the version of Hexagon that a text means, such as `v75`; none for others."""
    version = hexagon_version(text)
    return tuple(soc for soc in socs() if version is not None and soc.arch == version)


def _shown(soc: Soc) -> str:
    arch = f", Hexagon v{soc.arch}" if soc.arch is not None else ""
    about = f"{soc.marketing_name}{arch}".strip(", ")
    return f"{soc.name} ({about})" if about else soc.name
