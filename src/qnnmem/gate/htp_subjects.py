"""Bills, fits and sweeps of HTP as subjects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from qnnmem.gate.loose import HTP, SWEEP, ComparedCount, LooseRead, tensors_by_name
from qnnmem.gate.subject import (
    BAD,
    OPEN,
    ComparedAnswer,
    ResultSubject,
    SubjectTensor,
    fit_answer,
)


class _ReadBytes(LooseRead, frozen=True):
    bytes: ComparedCount


class _ReadRange(LooseRead, frozen=True):
    high: _ReadBytes
    low: _ReadBytes | None = None

    @property
    def is_bound(self) -> bool:
        """Whether it is only known to be at most that."""
        return self.low is not None and self.low != self.high


class _ReadItem(LooseRead, frozen=True):
    name: str
    kind: str
    bytes: ComparedCount


class ReadBill(LooseRead, frozen=True):
    """`qnnmem.footprint/1`."""

    file: str
    parts: dict[str, _ReadBytes | None]
    total: _ReadBytes | None = None
    compile_estimate: _ReadBytes | None = None
    process_domain: _ReadRange | None = None
    largest_io: tuple[_ReadItem, ...] = ()
    largest_weights: tuple[_ReadItem, ...] = ()
    soc: str | None = None
    build_id: str = ""
    tool: str = ""


def bill_subjects(bill: ReadBill) -> Iterator[ResultSubject]:
    """A bill."""
    found = bill.process_domain
    domain = None if found is None else found.high
    only_bound = found is not None and found.is_bound
    yield ResultSubject(
        HTP,
        bill.file,
        bill.soc or "",
        pools=_known(
            {
                **bill.parts,
                "all together": bill.total,
                "compile estimate": bill.compile_estimate,
                "process domain": domain,
            }
        ),
        at_most=frozenset(["process domain"] if only_bound else []),
        tensors=_items([*bill.largest_io, *bill.largest_weights]),
        has_all_tensors=False,
        settings={"SoC": bill.soc or "unknown", "library": bill.build_id, "tool": bill.tool},
    )


def _known(sizes: Mapping[str, _ReadBytes | None]) -> dict[str, int]:
    return {name: size.bytes for name, size in sizes.items() if size is not None}


def _items(items: Iterable[_ReadItem]) -> dict[str, SubjectTensor]:
    return tensors_by_name((one.name, one.kind, one.bytes) for one in items if one.kind != "part")


class _ReadCheck(LooseRead, frozen=True):
    pool: str
    fits: bool | None
    need_high: _ReadBytes | None = None
    need_low: _ReadBytes | None = None
    limit: _ReadBytes | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the need is only known to be at most that."""
        return self.need_low is not None and self.need_low != self.need_high


class _ReadSoc(LooseRead, frozen=True):
    soc: str
    answer: str
    checks: tuple[_ReadCheck, ...] = ()
    parts: dict[str, _ReadBytes | None] = msgspec.field(default_factory=dict)
    total: _ReadBytes | None = None
    largest: tuple[_ReadItem, ...] = ()


class ReadFit(LooseRead, frozen=True):
    """`qnnmem.fit/1`."""

    file: str
    socs: list[_ReadSoc]
    tool: str = ""


_FITS = {"fits": True, "does-not-fit": False}
# Needs that are no part of a bill have the names that a bill has for them.
_NEEDS = {"compile": "compile estimate", "pd": "process domain", "host-ram": "host RAM"}


def fit_subjects(fit: ReadFit) -> Iterator[ResultSubject]:
    """A file on each SoC."""
    for soc in fit.socs:
        needs = {_NEEDS[one.pool]: one.need_high for one in soc.checks if one.pool in _NEEDS}
        answers = {"file": fit_answer(_FITS.get(soc.answer))}
        answers |= {f"limit of {one.pool}": fit_answer(one.fits) for one in soc.checks}
        yield ResultSubject(
            HTP,
            fit.file,
            soc.soc,
            pools=_known({**soc.parts, "all together": soc.total, **needs}),
            at_most=frozenset(
                _NEEDS[one.pool] for one in soc.checks if one.pool in _NEEDS and one.is_bound
            ),
            tensors=_items(soc.largest),
            has_all_tensors=False,
            answers=answers,
            limits={
                f"limit of {one.pool}": one.limit.bytes
                for one in soc.checks
                if one.limit is not None
            },
            settings={"SoC": soc.soc, "tool": fit.tool},
        )


class _ReadSwept(LooseRead, frozen=True):
    setting: dict[str, ComparedCount | str]
    state: str
    compile_need: ComparedCount | None = None
    pd_need: ComparedCount | None = None
    pd_low: ComparedCount | None = None
    vtcm: ComparedCount | None = None
    ram: ComparedCount | None = None
    weights: ComparedCount | None = None
    io: ComparedCount | None = None
    spill_fill: ComparedCount | None = None


class ReadSweep(LooseRead, frozen=True):
    """`qnnmem.sweep/1`."""

    file: str
    soc: str
    rows: list[_ReadSwept]
    library: str = ""
    tool: str = ""


_SWEPT = {
    "compile estimate": "compile_need",
    "process domain": "pd_need",
    "VTCM": "vtcm",
    "RAM": "ram",
    "weights": "weights",
    "IO": "io",
    "spill/fill": "spill_fill",
}
_STATES = {
    "fits": ComparedAnswer("fits"),
    "over": ComparedAnswer("does not fit", BAD),
    "refused": ComparedAnswer("refused", BAD),
}
_FAILED = ComparedAnswer("failed", OPEN)


def sweep_subjects(sweep: ReadSweep) -> Iterator[ResultSubject]:
    """Each setting."""
    for row in sweep.rows:
        sizes = {name: getattr(row, field) for name, field in _SWEPT.items()}
        only_bound = row.pd_low is not None and row.pd_low != row.pd_need
        yield ResultSubject(
            SWEEP,
            sweep.file,
            ", ".join(f"{name}={value}" for name, value in row.setting.items()),
            pools={name: size for name, size in sizes.items() if size is not None},
            at_most=frozenset(["process domain"] if only_bound else []),
            answers={"file": _STATES.get(row.state, _FAILED)},
            settings={"SoC": sweep.soc, "library": sweep.library, "tool": sweep.tool},
        )
