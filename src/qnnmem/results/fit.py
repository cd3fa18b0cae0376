"""Results of `fit`: each limit of a SoC in bytes, the largest tensors, suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Struct, field

from qnnmem.provenance import Sourced
from qnnmem.results.files import SeveralFiles
from qnnmem.results.footprint import BillItem, SizeRange
from qnnmem.results.result import Count, Difference, Result, describe

FitAnswer = Literal["fits", "does-not-fit", "cannot-tell"]
_NAMES: Mapping[bool | None, FitAnswer] = {
    True: "fits",
    False: "does-not-fit",
    None: "cannot-tell",
}
_ANSWERS: Mapping[str, bool | None] = {name: answer for answer, name in _NAMES.items()}
_NAMED = 6  # SoCs named in a summary


def answer_name(fits: bool | None) -> FitAnswer:
    """Return the word for a verdict in results: fits, does-not-fit or cannot-tell."""
    return _NAMES[fits]


def answer_of(name: str) -> bool | None:
    """Return the verdict for a word in results; None if undecided."""
    return _ANSWERS.get(name)


def worst_answer(answers: Iterable[bool | None]) -> bool | None:
    """Return False if any answer is False, else None if any is None, else True."""
    verdicts = set(answers)
    return False if False in verdicts else None if None in verdicts else True


class FitCheck(Struct, frozen=True, kw_only=True):
    """The need of one pool compared with its limit; unknown numbers are null."""

    pool: str
    fits: bool | None
    need_low: Annotated[Sourced | None, describe("Lower bound of the bytes needed.")] = None
    need_high: Annotated[Sourced | None, describe("Upper bound of the bytes needed.")] = None
    limit: Sourced | None = None
    spare: Annotated[
        Difference | None,
        describe("Bytes left in the worst case; negative if the worst case does not fit."),
    ] = None
    refused: Annotated[
        bool,
        describe(
            "True if the library refused the model because of this limit, whether or not it "
            "stated a number."
        ),
    ] = False

    @classmethod
    def of(
        cls,
        pool: str,
        need: SizeRange | None,
        limit: Sourced | None,
        *,
        refused: bool = False,
        accepted: bool = False,
    ) -> FitCheck:
        """Return the comparison of a need with a limit.

        Acceptance or refusal by the library takes precedence over the sum that qnnmem computes. If
        the limit is between the bounds of the need, the result is undecided.
        """
        fits = None
        if refused or accepted:
            fits = accepted
        elif need is not None and limit is not None:
            over = need.low.value > limit.value
            fits = True if need.high.value <= limit.value else False if over else None
        spare = None
        if need is not None and limit is not None:
            # If the pool does not fit, use the lower bound: at least these bytes are missing.
            bound = need.low if fits is False else need.high
            spare = limit.value - bound.value
        return cls(
            pool=pool,
            fits=fits,
            need_low=None if need is None else need.low,
            need_high=None if need is None else need.high,
            limit=limit,
            spare=spare,
            refused=refused,
        )

    @property
    def need(self) -> SizeRange | None:
        """The lower and upper bound of the need."""
        if self.need_low is None or self.need_high is None:
            return None
        return SizeRange(self.need_low, self.need_high)

    @property
    def is_bound(self) -> bool:
        """True if the need is a range, not an exact number."""
        return self.need_low is not None and self.need_low != self.need_high

    @property
    def is_between(self) -> bool:
        """True if need and limit are known but the limit is between the bounds of the need."""
        return self.fits is None and self.need is not None and self.limit is not None


class FitFacts(Struct, frozen=True, kw_only=True):
    """The details of a verdict for one SoC."""

    code: Annotated[Difference | None, describe("QNN error code.")] = None
    line: Annotated[str, describe("Decisive line of the library's log.")] = ""
    reading: Annotated[str, describe("Explanation of the decisive log line.")] = ""
    timed_out: Annotated[bool, describe("Whether the time limit prevented an answer.")] = False
    operator: Annotated[str, describe("Operator that does not fit VTCM.")] = ""
    same_as: Annotated[
        str,
        describe(
            "The other SoC that the model was compiled for because it has the same limits; empty "
            "if the model was compiled for the requested SoC."
        ),
    ] = ""
    needs_int8: Annotated[bool, describe("True for a float model on a SoC without FP16.")] = False
    wrong_arch: Annotated[
        bool, describe("True if the binary was made for a newer Hexagon than the SoC has.")
    ] = False
    checks: tuple[FitCheck, ...] = ()
    total: Annotated[Sourced | None, describe("Total memory; null if a part is unknown.")] = None
    parts: Annotated[dict[str, Sourced], describe("Known parts of the total, by name.")] = field(
        default_factory=dict
    )
    largest: tuple[BillItem, ...] = ()

    @property
    def worst(self) -> FitCheck | None:
        """The deciding check: the tightest of the failed checks, or of all if none failed."""
        return _tightest([check for check in self.checks if check.fits is False] or self.checks)

    @property
    def beside_vtcm(self) -> FitCheck | None:
        """The tightest check of a pool other than VTCM, because VTCM is usually full."""
        return _tightest(check for check in self.checks if check.pool != "vtcm")

    @property
    def tightest(self) -> FitCheck | None:
        """The deciding check; if VTCM is exactly full, the tightest check of the other pools."""
        worst = self.worst
        whole = worst is not None and worst.fits and (worst.pool, worst.spare) == ("vtcm", 0)
        return self.beside_vtcm or worst if whole else worst


def _tightest(checks: Iterable[FitCheck]) -> FitCheck | None:
    known = (check for check in checks if check.spare is not None or check.refused)
    return min(known, key=_tightness, default=None)


def _tightness(check: FitCheck) -> float:
    if check.spare is None or check.limit is None:
        return 0.0
    return check.spare / max(1, check.limit.value)


class FitSuggestion(Struct, frozen=True):
    """A setting that is close to the given setting and might fit."""

    setting: Annotated[str, describe("Option to add to the command.")]
    verified: Annotated[bool, describe("Whether a compile confirmed that the setting fits.")]
    reason: str
    unfinished: Annotated[bool, describe("Whether the compile ran out of time.")] = False


class SocFit(FitFacts, frozen=True):
    """The verdict for one SoC."""

    soc: str
    answer: FitAnswer
    why: Annotated[str, describe("Reason for any answer other than `fits`.")] = ""
    suggestions: tuple[FitSuggestion, ...] = ()
    tried: Annotated[
        tuple[FitSuggestion, ...],
        describe("Settings that were tried and did not fit, or did not finish in time."),
    ] = ()

    @property
    def fits(self) -> bool | None:
        """True if the file fits; None if undecided."""
        return answer_of(self.answer)


class FitResult(Result, frozen=True, kw_only=True, tag="qnnmem.fit/1"):
    """The verdict on whether a model or context binary fits one or several SoCs."""

    file: str
    answer: Annotated[FitAnswer, describe("Verdict over all SoCs.")] = "cannot-tell"
    socs: tuple[SocFit, ...]
    tensors: Annotated[
        Count | None, describe("Tensors of the ONNX graph, weights included; null if not read.")
    ] = None

    @property
    def fits(self) -> bool | None:
        """True if the file fits all SoCs; None if undecided."""
        return answer_of(self.answer)

    @property
    def exit_code(self) -> int:
        """0 if all fit, 1 if any does not fit, 3 if undecided, 4 after a timeout."""
        if self.fits is not None:
            return 0 if self.fits else 1
        late = any(soc.timed_out and soc.answer == "cannot-tell" for soc in self.socs)
        return 4 if late else 3

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return ", ".join(f"{soc.soc} {soc.answer.replace('-', ' ')}" for soc in self.socs[:_NAMED])


class FitsResult(SeveralFiles, frozen=True, kw_only=True, tag="qnnmem.fits/1"):
    """Separate verdicts for several files."""

    listed = "answers"
    answers: Annotated[
        tuple[FitResult, ...], describe("The result of each file with an answer, in order.")
    ]
