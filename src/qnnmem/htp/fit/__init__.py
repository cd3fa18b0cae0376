"""Does it fit: what a bill or a refusal needs against each limit of a SoC, in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qnnmem.errors import UsageError
from qnnmem.htp.bill.source import logged
from qnnmem.htp.bill.value import Bill, Item, SizeRange
from qnnmem.htp.compile import CompileFailure
from qnnmem.htp.log import Cause, Refusal
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc, pd_budget

POOLS = ("compile", "pd", "vtcm", "ram", "weights", "io", "spill-fill", "host-ram")
_LIMIT_OF = {
    Cause.GRAPH_LIMIT: "compile",
    Cause.OP_OVER_VTCM: "vtcm",
    Cause.PD_FULL: "pd",
}


@dataclass(frozen=True, slots=True)
class Check:
    """What one pool needs against what it may have; None is not known."""

    pool: str
    need: SizeRange | None
    limit: Sourced | None
    refused: bool = False  # the library said no, whether or not it said how much
    accepted: bool = False  # the library said yes, whatever our own sum says

    @property
    def fits(self) -> bool | None:
        """Whether there is room; None where the bounds lie on both sides of the limit."""
        if self.refused or self.accepted:
            return self.accepted
        if self.need is None or self.limit is None:
            return None
        if self.need.high.value <= self.limit.value:
            return True
        return False if self.need.low.value > self.limit.value else None

    @property
    def spare(self) -> int | None:
        """Bytes left at the worst; negative when some are missing."""
        if self.need is None or self.limit is None:
            return None
        # Bytes that are missing for sure are the claim when it does not fit.
        bound = self.need.low if self.fits is False else self.need.high
        return self.limit.value - bound.value


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A nearby setting; verified only if it was compiled and fits."""

    setting: str
    verified: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer for one SoC; `fits` is None where nobody can tell."""

    soc: Soc
    fits: bool | None
    checks: tuple[Check, ...]
    why: str = ""  # for anything but yes
    code: int | None = None  # of QNN
    operator: str = ""  # that does not fit VTCM
    largest: tuple[Item, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    tried: tuple[Suggestion, ...] = ()  # compiled without success
    same_as: str = ""  # SoC that was compiled for, where that has the same limits
    seconds: float | None = None  # of compiling

    @property
    def worst(self) -> Check | None:
        """The check that decides: one that fails, else the tightest.

        A graph takes all the VTCM that it is given, so there is never any to spare.
        """
        failing = [check for check in self.checks if check.fits is False]
        known = failing or [
            check for check in self.checks if check.spare is not None and check.pool != "vtcm"
        ]
        return min(known, key=_tightness, default=None)


def _tightness(check: Check) -> float:
    if check.spare is None or check.limit is None:
        return 0.0
    return check.spare / max(1, check.limit.value)


def exit_code(fits: tuple[Fit, ...]) -> int:
    """0 all fit, 1 one does not, 3 nobody can tell."""
    answers = [fit.fits for fit in fits]
    if False in answers:
        return 1
    return 3 if None in answers else 0


def check_pools(budgets: Mapping[str, int]) -> None:
    """Refuses pools that no bill has."""
    for name in budgets:
        if name not in POOLS:
            raise UsageError(f"'{name[:40]}' is no pool of HTP; there are {', '.join(POOLS)}")


# --- A bill --------------------------------------------------------------------------------------


def fit_bill(bill: Bill, soc: Soc, budgets: Mapping[str, int] | None = None) -> Fit:
    """The answer for a context binary, or for a model that was compiled to one.

    A binary made for this very SoC has passed the compiler's limit, which is the better proof.
    """
    checks = tuple(_checks(bill, soc, budgets or {}))
    stranger = _stranger(bill, soc)
    verdicts = [check.fits for check in checks]
    fits = False if False in verdicts else None if None in verdicts or stranger else True
    return Fit(
        soc=soc,
        fits=fits,
        checks=checks,
        why=_why(checks, fits) or stranger,
        largest=_largest(bill),
    )


def _checks(bill: Bill, soc: Soc, budgets: Mapping[str, int]) -> Iterator[Check]:
    needs: dict[str, SizeRange | None] = {
        "compile": _exactly(bill.compile_estimate),
        "pd": bill.pd,
        "vtcm": _largest_vtcm(bill),
        "ram": _exactly(bill.ram),
        "weights": _exactly(bill.weights),
        "io": _exactly(bill.io),
        "spill-fill": _exactly(bill.spill_fill),
        "host-ram": _exactly(bill.host_ram),
    }
    own = bill.soc is not None and bill.soc.model_id == soc.model_id
    for pool, limit in limits(soc, budgets, bill.compile_limit if own else None).items():
        passed = pool == "compile" and bill.context.soc_model == soc.model_id
        yield Check(pool, needs[pool], limit, accepted=passed and pool not in budgets)


def limits(
    soc: Soc, budgets: Mapping[str, int], compile_limit: Sourced | None = None
) -> dict[str, Sourced | None]:
    """Every limit that counts by pool: those of the SoC, and those that the user set."""
    found: dict[str, Sourced | None] = {
        "compile": compile_limit or soc.compile_limit,
        "pd": pd_budget(),
        "vtcm": soc.vtcm_bytes,
    }
    for pool, size in budgets.items():
        found[pool] = Sourced(size, Origin.REPORTED, "--budget")
    return found


def _exactly(part: Sourced | None) -> SizeRange | None:
    return None if part is None else SizeRange(part, part)


def _largest_vtcm(bill: Bill) -> SizeRange | None:
    """Of one graph: graphs of a context use it in turn."""
    found = [graph.vtcm for graph in bill.graphs if graph.vtcm is not None]
    if not found or len(found) < len(bill.graphs):
        return None
    return _exactly(max(found, key=lambda vtcm: vtcm.value))


def _stranger(bill: Bill, soc: Soc) -> str:
    """Why a binary cannot be judged for a SoC that it was not made for."""
    made = bill.context.dsp_arch
    if made is None or soc.arch is None or made <= soc.arch:
        return ""
    return (
        f"the binary was made for Hexagon v{made} and {soc.name} is v{soc.arch}; "
        "compile the model for it"
    )


def _why(checks: tuple[Check, ...], fits: bool | None) -> str:
    for check in checks:
        if fits is False and check.fits is False and check.need and check.limit:
            missing = check.need.low.value - check.limit.value
            return f"{TITLES[check.pool]} needs {missing:,} bytes more than there are"
    for check in checks:
        if fits is None and check.fits is None:
            return _unknown(check)
    return ""


def _unknown(check: Check) -> str:
    title = TITLES[check.pool]
    if check.need is None:
        return f"what the {title} needs is not known"
    if check.limit is None:
        return f"the limit of the {title} is not known"
    return (
        f"the {title} needs {check.need.low.value:,} to {check.need.high.value:,} bytes and has "
        f"{check.limit.value:,}; --load lets the library say exactly"
    )


TITLES = {
    "compile": "compile limit",
    "pd": "process domain",
    "vtcm": "VTCM",
    "ram": "RAM budget",
    "weights": "weights budget",
    "io": "IO budget",
    "spill-fill": "spill/fill budget",
    "host-ram": "host RAM budget",
}


def _largest(bill: Bill) -> tuple[Item, ...]:
    """Tensors that make the need, with the parts that have no names between them."""
    parts = tuple(
        Item("", f"all {name}", "part", size)
        for name, size in (
            ("weights", bill.weights),
            ("spill/fill", bill.spill_fill),
            ("DDR tensors", bill.ddr_tensors),
        )
        if size is not None and size.value
    )
    every = (*bill.largest, *bill.largest_weights, *parts)
    return tuple(sorted(every, key=lambda item: (-item.size.value, item.name))[:5])


# --- A refusal -----------------------------------------------------------------------------------


def fit_failure(
    failure: CompileFailure,
    budgets: Mapping[str, int] | None = None,
    largest: tuple[Item, ...] = (),
) -> Fit:
    """The answer for a model that the library refused to compile."""
    refusal = failure.refusal
    pool = None if refusal is None else _LIMIT_OF.get(refusal.cause)
    is_size = pool is not None and failure.outcome.kind == "refused"
    checks = tuple(_refused_checks(failure, budgets or {}, pool if is_size else None))
    return Fit(
        soc=failure.soc,
        fits=False if is_size else None,
        checks=checks,
        why=failure.sentence,
        code=failure.code,
        operator=refusal.operator if refusal is not None and pool == "vtcm" else "",
        largest=largest,
        seconds=failure.outcome.seconds,
    )


def _refused_checks(
    failure: CompileFailure, budgets: Mapping[str, int], pool: str | None
) -> Iterator[Check]:
    refusal, log = failure.refusal, failure.log
    for name, limit in limits(failure.soc, budgets).items():
        if refusal is None or name != pool:
            yield Check(name, None, limit)
            continue
        if name == "vtcm":
            limit = logged(log.vtcm_size, log) or limit
        elif refusal.limit is not None:
            limit = logged(refusal.limit, log)
        yield Check(name, _refused_need(failure, refusal), limit, refused=True)


def _refused_need(failure: CompileFailure, refusal: Refusal) -> SizeRange | None:
    return _exactly(logged(refusal.need, failure.log))
