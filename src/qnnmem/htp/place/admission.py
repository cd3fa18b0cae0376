"""What the real library admits to its one process domain, beside what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qnnmem.errors import CannotTell
from qnnmem.htp.bill.loading import load_binaries
from qnnmem.htp.bill.stored import keep_loads
from qnnmem.htp.log import PdEstimate
from qnnmem.htp.place import Resident
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import SizeRange
from qnnmem.results.place import Admission


def one_domain(needs: Sequence[SizeRange], budget: int) -> tuple[bool | None, ...]:
    """Which contexts are admitted to a single domain, which is what x86 has."""
    low = high = 0
    answers: list[bool | None] = []
    for need in needs:
        surely = high + need.high.value <= budget
        maybe = low + need.low.value <= budget
        answers.append(True if surely else None if maybe else False)
        low += need.low.value if surely else 0  # one in doubt may take nothing
        high += need.high.value if maybe else 0
    return tuple(answers)


def admissions(
    binaries: Sequence[Path], residents: Sequence[Resident], budget: int, soc: int, worker: Worker
) -> tuple[Admission, ...]:
    """Load all binaries in order into the one domain of the x86 library."""
    loaded = load_binaries(worker, binaries, soc)
    keep_loads(binaries, soc, loaded.log)
    found, sentence = loaded.log.pd_estimates, loaded.outcome.sentence
    return compare(residents, budget, found, loaded.codes, sentence)


def compare(
    residents: Sequence[Resident],
    budget: int,
    found: Sequence[PdEstimate],
    codes: Sequence[int],
    sentence: str = "",
) -> tuple[Admission, ...]:
    """Prediction from the files beside fact; the log counts where the library died."""
    facts = [one for one in found if one.admitted is not None]
    if len(facts) != len(residents):
        reason = sentence or f"its log speaks of {len(facts)} of {len(residents)} contexts"
        raise CannotTell(f"the library did not load all contexts: {reason}")
    predicted = one_domain([one.need for one in residents], budget)
    answers = []
    for number, (guess, fact) in enumerate(zip(predicted, facts, strict=True)):
        code = codes[number] if number < len(codes) else None
        done = bool(fact.admitted) and not code
        answers.append(_admission(guess, done, code, fact.total, residents[number].need))
    return tuple(answers)


def _admission(
    predicted: bool | None,
    admitted: bool,
    code: int | None,
    estimate: int | None,
    need: SizeRange,
) -> Admission:
    low, high = need.low.value, need.high.value
    in_range = estimate is None or low <= estimate <= high
    return Admission(
        predicted=predicted,
        admitted=admitted,
        code=code,
        estimate=estimate,
        need_low=low,
        need_high=high,
        agrees=in_range and predicted in (None, admitted),
    )


def exact(
    residents: Sequence[Resident], found: Sequence[PdEstimate | Admission]
) -> tuple[Resident, ...]:
    """The same contexts with the library's own estimates in place of bounds."""
    answers = []
    for one, fact in zip(residents, found, strict=True):
        size = fact.total if isinstance(fact, PdEstimate) else fact.estimate
        if size is None:
            answers.append(one)
            continue
        said = Sourced(size, Origin.MEASURED, "estimate of the library when it loaded the binary")
        answers.append(replace(one, need=SizeRange(said, said)))
    return tuple(answers)
