"""Remedies that cut a model into parts; tried last, because the application must run a chain.

Results stay equal bit for bit. Several models run in sequence, and the application stores the
tensors that pass between them. The planner judges the parts for LPAI, the library for HTP. The
library also decides which parts are loaded together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic
from typing import Any

from qnnmem.errors import CannotTell, UsageError, Words, join_words
from qnnmem.fix.library.compile_judge import NOUNS, TOGETHER, HtpBench, htp_bench
from qnnmem.fix.library.resident_contexts import read_rounds
from qnnmem.fix.library.trials import HtpParts, LibraryJudge, partition_htp
from qnnmem.fix.parts.deployment import Arrangement, Deployment
from qnnmem.fix.parts.op_sequence import OpSequence, sequence_of
from qnnmem.fix.parts.partition import Cuts, NoPartition, Partition, PlannedParts, partition
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Rounds, Step
from qnnmem.htp.compile import HtpPrecision
from qnnmem.htp.first_fit import best_order, place
from qnnmem.planner import Io
from qnnmem.provenance import Origin, Sourced
from qnnmem.text import counted, quote

NAME = "partition"
KEEP = "one-file"  # `--keep` value that forbids cutting
_MOST_PARTS = 1000


@dataclass(frozen=True, slots=True)
class PlannedPartsRemedy:
    """Remedy for LPAI: parts that meet the budgets together, all resident or loaded in turn."""

    name: str = NAME

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield the change with the fewest parts that fit; yield nothing if there is no budget."""
        case, start = bench.case, base.change
        if KEEP in case.keep or not case.budget or start.parts is not None:
            return
        begin = monotonic()
        try:
            sequence = sequence_of(start.model)
        except UsageError:  # the results of its parts could not be compared
            return
        if _cannot_help(base):
            return
        judge = PlannedParts(case.budget, start.pool_options, seed=case.seed)
        parts = partition(sequence, judge, is_over=lambda: not case.seconds_left)
        if not isinstance(parts, Partition) or len(parts.parts) < 2:
            return
        change = cut(start, parts, counted(len(parts.parts), "part"), ())
        need = bench.judge(change)
        if need.missing or need.deployment is None:  # the deployed chain would not fit
            return
        words = f"{change.what}, {need.deployment.arrangement.value}"
        judged = bench.judged(replace(change, what=words))
        yield replace(judged, seconds=monotonic() - begin)

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with its model cut into parts as in a recipe."""
        return replay_cut(base, step, ())


def _cannot_help(base: JudgedChange) -> bool:
    """Return True if a single step needs more scratch than the limit, so cutting cannot help.

    Tensors held for later parts count as scratch too, so a cut does not reduce the need of a step.
    """
    plan, limit = base.need.plan, base.need.limit
    if plan is None or plan.peak is None or limit is None or plan.options.io is Io.OUTSIDE:
        return False
    return plan.peak.size > limit


def cut(base: Change, parts: Partition, words: str, rounds: Rounds) -> Change:
    """Return the change that cuts a model into the found parts."""
    ops = parts.sequence.model.ops
    step: dict[str, Any] = {
        "ops": len(ops),
        "cuts": [part.first for part in parts.parts[1:]],
        "last_tensors": [ops[part.last - 1].outputs[0] for part in parts.parts],
        "crossing_bytes": parts.cuts.crossing_bytes,
        "rounds": [list(names) for names in rounds],
    }
    return base.then(NAME, words, step, parts=parts, rounds=rounds)


def replay_cut(base: Change, step: Step, rounds: Rounds) -> Change:
    """Cut a model as in a recipe; raise UsageError if the recipe is for another model."""
    sequence = sequence_of(base.model)
    cuts = [*step["cuts"]]
    if len(sequence) != step["ops"]:
        raise UsageError(
            f"the recipe is for a model with {step['ops']} ops, but this one has {len(sequence)}"
        )
    if not 0 < len(cuts) < _MOST_PARTS or not all(type(op) is int for op in cuts):
        raise ValueError("cuts must be positions of ops")
    places = [0, *cuts, len(sequence)]
    if sorted({*places}) != places:
        raise ValueError("cuts must be positions of ops in ascending order")
    parts = parts_at(sequence, places)
    last = [sequence.model.ops[part.last - 1].outputs[0] for part in parts.parts]
    for name, expected in zip(last, step["last_tensors"], strict=True):
        if name != expected:
            raise UsageError(
                "the recipe is for another model: with its cuts, a part of this model ends at "
                f"{quote(name)} instead of {quote(expected)}"
            )
    words = f"{counted(len(parts.parts), 'part')} as in the recipe"
    return cut(base, parts, words, rounds)


def parts_at(sequence: OpSequence, places: list[int]) -> Partition:
    """Return the partition at these cut positions, which include both ends of the sequence."""
    crossing = sum(sequence.crossing[place] for place in places[1:-1])
    return Partition(sequence, Cuts(tuple(pairwise(places)), crossing, trials=0))


@dataclass(frozen=True, slots=True)
class HtpPartsRemedy:
    """Remedy for HTP: the fewest parts that the library compiles and loads."""

    name: str = NAME

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield the parts, all resident together if they fit, else loaded in turn."""
        own, start = htp_bench(bench), base.change
        if KEEP in own.case.keep or start.parts is not None or not base.need.over:
            return
        begin = monotonic()
        parts = self._found(own, base)
        if not isinstance(parts, HtpParts):
            own.obstacles.append(join_words(parts))
            return
        if parts.is_whole:
            return
        if base.need.what != TOGETHER:  # checked against the room that others leave
            own.loaded[id(parts.partition)] = parts
        for words, rounds in _residences(own, parts):
            change = cut(start, parts.partition, words, rounds)
            need = own.judge(change)
            if need.fits and need.deployment is not None:
                notes = (*change.notes, *_notes(parts, words, need.deployment))
                judged = own.judged(replace(change, notes=notes))
                yield replace(judged, seconds=monotonic() - begin)
                return
            own.obstacles.append(join_words(need.why))

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with its model cut into a recipe's parts, loaded in the recipe's rounds."""
        return replay_cut(base, step, read_rounds(step["rounds"]))

    def _found(self, bench: HtpBench, base: JudgedChange) -> HtpParts | Words:
        """Return the parts, or the reason why none were found."""
        start = base.change
        if base.need.over == ("vtcm",) and base.need.what == NOUNS["vtcm"]:
            return "parts do not help: each would use all of VTCM, like the whole model"
        if start.compile_options.precision is not HtpPrecision.FP16:
            return "a model cannot be split while it is quantized; quantize it first"
        try:
            sequence = sequence_of(start.model)
            judge = LibraryJudge(bench.library.trials, start.compile_options)
            if base.need.what == TOGETHER:
                judge = _beside_others(bench, judge)
            else:
                judge.found[0, len(sequence)] = bench.library.trials_of(start)[0]
            parts = partition_htp(sequence, judge, is_over=lambda: not bench.case.seconds_left)
        except (UsageError, CannotTell) as exc:
            return exc.what
        return parts.why if isinstance(parts, NoPartition) else parts


def _notes(parts: HtpParts, words: str, deployment: Deployment) -> Iterator[str]:
    if "process domain" in words:
        yield "on a SoC with one process domain per process, load the parts in turn"
    sizes = [context.spill_fill for context in parts.residency.contexts]
    saved = sum(sizes) - max(sizes)
    if deployment.arrangement is Arrangement.SHARED:
        yield (
            "the total counts only one spill/fill buffer, of "
            f"{counted(max(sizes), 'byte')}; to share it, load the parts as one group of contexts "
            "(REGISTER_MULTI_CONTEXTS) and run one part at a time"
        )
    elif saved and deployment.arrangement is Arrangement.RESIDENT:
        yield f"parts that share one spill/fill buffer need {saved:,} bytes less"


def _beside_others(bench: HtpBench, judge: LibraryJudge) -> LibraryJudge:
    """Return the judge, limited to the bytes that other contexts leave free in a process domain."""
    library = bench.library
    sizes = [context.size for context in library.others]
    placed = best_order(sizes, library.domain_bytes)
    room = max((domain.left for domain in placed.domains), default=library.domain_bytes)
    left = Sourced(room, Origin.COMPUTED, "the bytes that other contexts leave free in a domain")
    trials = replace(judge.trials, budgets={**judge.trials.budgets, "pd": left})
    return LibraryJudge(trials, judge.options)


def _residences(bench: HtpBench, htp_parts: HtpParts) -> Iterator[tuple[str, Rounds]]:
    """Yield a description and load rounds: for all parts together if they fit, then in turn."""
    count = counted(len(htp_parts.binaries), "part")
    parts, others = htp_parts.residency.contexts, bench.library.others
    names, beside = tuple(part.file for part in parts), tuple(other.name for other in others)
    sizes = [*(other.size for other in others), *(part.size for part in parts)]
    placed = place(sizes, bench.library.domain_bytes)
    if not others and htp_parts.together:
        yield f"{count}, all resident", (names,)
    elif placed.fits:
        domains = counted(len(placed.domains), "process domain")
        yield f"{count}, resident in {domains}", ((*beside, *names),)
    yield f"{count}, loaded in turn", tuple((*beside, name) for name in names)
