"""Partition for HTP: the fewest parts that the real compiler and loader take.

Every part is compiled and loaded in a child process, and its bill is held against each limit.
Parts that do not find room in one process domain together are loaded and freed in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qnnmem.errors import CannotTell, UsageError
from qnnmem.fix.library.trials import HtpSource, LibraryTrial, LibraryTrials
from qnnmem.fix.parts.cut import PartFit, Rows, narrow_places
from qnnmem.fix.parts.deployment import first_over
from qnnmem.fix.parts.op_sequence import OpSequence, Stretch, write_part
from qnnmem.fix.parts.part_needs import library_need
from qnnmem.fix.parts.partition import NoPartition, Partition, PartVerdict, partition
from qnnmem.htp.compile import CompileOptions, HtpPrecision
from qnnmem.htp.fit import TITLES, Fit
from qnnmem.htp.measure import load_binaries
from qnnmem.htp.place import plan_residency
from qnnmem.results.fit import FitCheck
from qnnmem.results.place import PlaceResult
from qnnmem.targets.socs import Soc, pd_budget
from qnnmem.text import counted
from qnnmem.units import MAX_BYTES

_OF_SIZE = ("compile", "pd", "ram", "weights")  # pools that weights and IO fill
_MARGIN = 1.25  # of what is guessed from the whole
PLACES = 48  # for cuts, where the compiler is the judge
MOST_TRIALS = 60


@dataclass(frozen=True, slots=True)
class HtpParts:
    """A model in parts that the library compiled and loaded, one context binary each."""

    partition: Partition
    soc: Soc
    library: str  # package and version
    fits: tuple[Fit, ...]
    binaries: tuple[Path, ...]
    together: bool  # whether the library admits all to one process domain
    refused: int | None  # part, from 1, that found no room beside those before it
    residency: PlaceResult  # in the process domains of a device

    @property
    def is_whole(self) -> bool:
        """Whether nothing had to be cut."""
        return len(self.binaries) == 1


@dataclass(frozen=True, slots=True)
class _Guess:
    """What a stretch will need of a pool, by what the whole needed.

    Only a wide miss rules a stretch out: near the limit the library is asked.
    """

    limit: int
    base: int  # that every part has
    rate: float  # for each byte of weights as HTP stores them, and of IO
    counts_io: bool

    def may_fit(self, weights: int, io: int) -> bool:
        """Whether it is worth a compile."""
        filled = weights // 2 + (io if self.counts_io else 0)
        return self.base + self.rate * filled <= _MARGIN * self.limit


@dataclass(frozen=True)
class LibraryJudge:
    """Compiles and loads stretches of a sequence.

    One judge is for one sequence: it remembers what the library said.
    """

    trials: LibraryTrials
    options: CompileOptions = field(default_factory=CompileOptions)
    found: dict[tuple[int, int], LibraryTrial] = field(default_factory=dict)

    def __call__(self, sequence: OpSequence, stretch: Stretch) -> PartVerdict:
        """Whether a stretch compiles, loads and stays within every limit."""
        trial = self.trial(sequence, stretch)
        fit, worst = trial.fit, trial.fit.worst
        need = None if worst is None or worst.need is None else worst.need.low.value
        if fit.fits:
            limits = {pool: limit.value for pool, limit in self.trials.budgets.items()}
            broken = first_over(library_need(sequence, stretch, trial), limits)
            if broken is None:
                return PartVerdict(PartFit.YES, "", need)
            pool, size, most = broken
            why = f"{TITLES[pool]}: with tensors that wait for other parts {size:,} of {most:,}"
            return PartVerdict(PartFit.NO, why, size)
        never = fit.fits is False and worst is not None and _is_inside(worst, stretch)
        return PartVerdict(PartFit.NEVER if never else PartFit.NO, fit.why, need)

    def trial(self, sequence: OpSequence, stretch: Stretch) -> LibraryTrial:
        """What the library says of a stretch."""
        key = (stretch.first, stretch.last)
        if key not in self.found:
            ops = counted(stretch.last - stretch.first, "op")
            self.trials.progress(f"compiling {ops} from {stretch.first}")
            self.found[key] = self.trials.trial(_source(sequence, stretch), self.options)
        # An op that is not taken in the whole is no matter of size. In a part it may be one that
        # only stays at a cut, such as a Dropout whose result the part gives.
        found = self.found[key]
        if not found.is_taken and stretch.last - stretch.first == len(sequence):
            raise CannotTell(found.fit.why)
        return found

    def binary(self, sequence: OpSequence, stretch: Stretch) -> Path:
        """Where the context binary of a stretch is."""
        return self.trials.binary(_source(sequence, stretch), self.options)

    def rows(self, sequence: OpSequence) -> Rows | None:
        """Rule out what the bill, or the refusal, of the whole lets expect to be far too large."""
        guesses = tuple(self._guesses(sequence))
        if not guesses:
            return None

        def row(first: int) -> list[bool]:
            around = zip(*sequence.around(first, MAX_BYTES), strict=True)
            return [all(one.may_fit(*sizes) for one in guesses) for sizes in around]

        return row

    def _guesses(self, sequence: OpSequence) -> Iterator[_Guess]:
        whole = self.found.get((0, len(sequence)))
        weights, io = (sizes[-1] for sizes in sequence.around(0, MAX_BYTES))
        for check in () if whole is None else whole.fit.checks:
            if check.fits is not False or check.pool not in _OF_SIZE:
                continue
            counts_io = check.pool != "weights"
            filled = weights // 2 + (io if counts_io else 0)
            if whole is not None and check.need is not None and check.limit is not None and filled:
                base = whole.vtcm if check.pool in ("pd", "ram") else 0
                rate = max(0, check.need.low.value - base) / filled
                yield _Guess(check.limit.value, base, rate, counts_io)


def _source(sequence: OpSequence, stretch: Stretch) -> HtpSource:
    """The same bytes, whichever part of a chain the stretch becomes."""
    return HtpSource(write_part(sequence, stretch, 1))


def _is_inside(broken: FitCheck, stretch: Stretch) -> bool:
    """Whether a limit is broken without inputs and outputs, so that more ops cannot mend it."""
    if broken.pool == "vtcm":  # of one op that is in everything around it
        return True
    if broken.pool in ("io", "host-ram") or broken.need is None or broken.limit is None:
        return False
    around = 0
    if broken.pool in ("compile", "pd", "ram"):
        around = io_bytes(stretch)
    return broken.need.low.value - around > broken.limit.value


def io_bytes(stretch: Stretch) -> int:
    """Bytes of inputs and outputs."""
    tensors = stretch.model.tensors
    return sum(tensors[name].nbytes for name in {*stretch.inputs, *stretch.outputs})


def partition_htp(
    sequence: OpSequence,
    judge: LibraryJudge,
    *,
    most_trials: int = MOST_TRIALS,
    is_over: Callable[[], bool] | None = None,
) -> HtpParts | NoPartition:
    """Cut a model into the fewest parts that the library compiles and loads.

    Cuts are looked for at the narrowest of some places first, and at all places where that fails.
    `is_over` says that no more may be tried, because time is up.
    """
    if judge.options.precision is not HtpPrecision.FP16:
        raise UsageError("a model is quantized as a whole before it is cut")
    judge(sequence, sequence.stretch(0, len(sequence)))  # what it needs tells where to look
    places = narrow_places(sequence.crossing, sequence.work, PLACES)
    found = partition(sequence, judge, places=places, most_trials=most_trials, is_over=is_over)
    left = most_trials - found.trials
    if isinstance(found, NoPartition) and left > 0 and len(sequence) > len(places) + 1:
        found = partition(sequence, judge, most_trials=left, is_over=is_over)
    return found if isinstance(found, NoPartition) else loaded_parts(found, judge)


def loaded_parts(found: Partition, judge: LibraryJudge) -> HtpParts:
    """The parts, loaded together into the one process domain that the library has here."""
    trials, soc = judge.trials, judge.trials.soc
    binaries = tuple(judge.binary(found.sequence, part) for part in found.parts)
    trials.progress(f"loading {counted(len(binaries), 'part')} together")
    codes = load_binaries(trials.worker, binaries, soc.model_id).codes
    refused = next((n for n, code in enumerate(codes, start=1) if code), None)
    if refused is None and len(codes) < len(binaries):  # the library died at the next one
        refused = len(codes) + 1
    parts = [judge.trial(found.sequence, part) for part in found.parts]
    known = (part.resident(f"part{n}") for n, part in enumerate(parts, start=1))
    budget = trials.budgets.get("pd", pd_budget())
    residency = plan_residency([one for one in known if one is not None], budget)
    if refused is None and len(residency.given.domains) > 1:  # by a budget of the user's
        refused = residency.given.domains[1].contexts[0] + 1
    return HtpParts(
        partition=found,
        soc=soc,
        library=trials.worker.library.name,
        fits=tuple(part.fit for part in parts),
        binaries=binaries,
        together=refused is None,
        refused=refused,
        residency=residency,
    )
