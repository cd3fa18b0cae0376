"""Parts for HTP: the fewest that the library compiles and loads, and which are loaded together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from qnnmem.errors import CannotTell, UsageError, Words, join_words
from qnnmem.fix.library.judge import NOUNS, TOGETHER, HtpBench, htp_bench
from qnnmem.fix.library.resident_contexts import read_rounds
from qnnmem.fix.parts.deployment import Arrangement, Deployment
from qnnmem.fix.parts.op_sequence import sequence_of
from qnnmem.fix.parts.partition import NoPartition
from qnnmem.fix.parts.partition_htp import HtpParts, LibraryJudge, partition_htp
from qnnmem.fix.parts.remedy import KEEP, NAME, Rounds, cut, cut_again
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.htp.compile import HtpPrecision
from qnnmem.htp.place import best_order, place
from qnnmem.provenance import Origin, Sourced
from qnnmem.text import counted


@dataclass(frozen=True, slots=True)
class HtpPartsRemedy:
    """The fewest parts that the library compiles and loads."""

    name: str = NAME

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Parts that are resident together where they find room, else loaded in turn."""
        own, start = htp_bench(bench), base.change
        if KEEP in own.case.keep or start.parts is not None or not base.need.over:
            return
        begin = monotonic()
        found = self._found(own, base)
        if not isinstance(found, HtpParts):
            own.obstacles.append(join_words(found))
            return
        if found.is_whole:
            return
        if base.need.what != TOGETHER:  # else it was held against what others leave
            own.loaded[id(found.partition)] = found
        for words, rounds in _residences(own, found):
            made = cut(start, found.partition, words, rounds)
            need = own.judge(made)
            if need.fits and need.deployment is not None:
                notes = (*made.notes, *_notes(found, words, need.deployment))
                judged = own.judged(replace(made, notes=notes))
                yield replace(judged, seconds=monotonic() - begin)
                return
            own.obstacles.append(join_words(need.why))

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """The cuts of a recipe."""
        return cut_again(base, step, read_rounds(step["rounds"]))

    def _found(self, bench: HtpBench, base: JudgedChange) -> HtpParts | Words:
        """The parts, or why there are none."""
        start = base.change
        if base.need.over == ("vtcm",) and base.need.what == NOUNS["vtcm"]:
            return "every part takes all the VTCM that it is given, as the whole does"
        if start.compile_options.precision is not HtpPrecision.FP16:
            return "a model that is quantized on the way cannot be cut; quantize it first"
        try:
            sequence = sequence_of(start.model)
            judge = LibraryJudge(bench.library.trials, start.compile_options)
            if base.need.what == TOGETHER:
                judge = _beside_others(bench, judge)
            else:
                judge.found[0, len(sequence)] = bench.library.trials_of(start)[0]
            found = partition_htp(sequence, judge, is_over=lambda: not bench.case.seconds_left)
        except (UsageError, CannotTell) as exc:
            return exc.what
        return found.why if isinstance(found, NoPartition) else found


def _notes(found: HtpParts, words: str, deployment: Deployment) -> Iterator[str]:
    if "process domain" in words:
        yield "on a SoC that gives a process one domain only, load the parts in turn"
    sizes = [one.spill_fill for one in found.residency.contexts]
    saved = sum(sizes) - max(sizes)
    if deployment.arrangement is Arrangement.SHARED:
        yield (
            f"the total counts one spill/fill buffer of {counted(max(sizes), 'byte')}: load the "
            "parts as one group of contexts (REGISTER_MULTI_CONTEXTS) and run one at a time"
        )
    elif saved and deployment.arrangement is Arrangement.RESIDENT:
        yield f"parts that share one spill/fill buffer take {saved:,} bytes less"


def _beside_others(bench: HtpBench, judge: LibraryJudge) -> LibraryJudge:
    """The same judge with as much of a process domain as the others leave."""
    library = bench.library
    sizes = [one.size for one in library.others]
    placed = best_order(sizes, library.domain_bytes)
    room = max((domain.left for domain in placed.domains), default=library.domain_bytes)
    left = Sourced(room, Origin.COMPUTED, "what other contexts leave of a process domain")
    trials = replace(judge.trials, budgets={**judge.trials.budgets, "pd": left})
    return LibraryJudge(trials, judge.options)


def _residences(bench: HtpBench, found: HtpParts) -> Iterator[tuple[str, Rounds]]:
    """In words and rounds, which parts are loaded at the same time: all, else one."""
    count = counted(len(found.binaries), "part")
    parts = found.residency.contexts
    names, others = tuple(one.file for one in parts), bench.library.others
    beside = tuple(one.name for one in others)
    sizes = [*(one.size for one in others), *(one.size for one in parts)]
    placed = place(sizes, bench.library.domain_bytes)
    if not others and found.together:
        yield f"{count}, all resident", (names,)
    elif placed.fits:
        domains = counted(len(placed.domains), "process domain")
        yield f"{count}, resident in {domains}", ((*beside, *names),)
    yield f"{count}, loaded in turn", tuple((*beside, name) for name in names)
