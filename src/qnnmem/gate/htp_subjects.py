"""Bills, fits and sweeps of HTP as subjects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qnnmem.gate.subject import (
    BAD,
    HTP,
    OPEN,
    SWEEP,
    ComparedAnswer,
    ResultSubject,
    SubjectTensor,
    fit_answer,
    tensors_by_name,
)
from qnnmem.provenance import Sourced
from qnnmem.results.fit import FitResult
from qnnmem.results.footprint import Bill, BillItem
from qnnmem.results.sweep import SweepResult


def bill_subjects(bill: Bill) -> Iterator[ResultSubject]:
    """A bill."""
    found = bill.process_domain
    domain = None if found is None else found.high
    only_bound = found is not None and found.low != found.high
    yield ResultSubject(
        HTP,
        bill.file,
        bill.soc or "",
        pools=_sizes(
            {
                **dict(bill.named_parts),
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


def _sizes(numbers: Mapping[str, Sourced | None]) -> dict[str, int]:
    return {name: number.value for name, number in numbers.items() if number is not None}


def _items(items: Iterable[BillItem]) -> dict[str, SubjectTensor]:
    return tensors_by_name((one.name, one.kind, one.bytes) for one in items if one.kind != "part")


# Needs that are no part of a bill have the names that a bill has for them.
_NEEDS = {"compile": "compile estimate", "pd": "process domain", "host-ram": "host RAM"}


def fit_subjects(fit: FitResult) -> Iterator[ResultSubject]:
    """A file on each SoC."""
    for soc in fit.socs:
        needs = {_NEEDS[one.pool]: one.need_high for one in soc.checks if one.pool in _NEEDS}
        answers = {"file": fit_answer(soc.fits)}
        answers |= {f"limit of {one.pool}": fit_answer(one.fits) for one in soc.checks}
        yield ResultSubject(
            HTP,
            fit.file,
            soc.soc,
            pools=_sizes({**soc.parts, "all together": soc.total, **needs}),
            at_most=frozenset(
                _NEEDS[one.pool] for one in soc.checks if one.pool in _NEEDS and one.is_bound
            ),
            tensors=_items(soc.largest),
            has_all_tensors=False,
            answers=answers,
            limits={
                f"limit of {one.pool}": one.limit.value
                for one in soc.checks
                if one.limit is not None
            },
            settings={"SoC": soc.soc, "tool": fit.tool},
        )


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
    "failed": ComparedAnswer("failed", OPEN),
}


def sweep_subjects(sweep: SweepResult) -> Iterator[ResultSubject]:
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
            answers={"file": _STATES[row.state]},
            settings={"SoC": sweep.soc, "library": sweep.library, "tool": sweep.tool},
        )
