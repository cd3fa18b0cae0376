"""Render memory plans as text: the short answer, the full report, a table of several files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.flags import flag, flag_word, with_flags
from qnnmem.planner import Io, Pool
from qnnmem.planner.model_plan import alike, pool_sizes
from qnnmem.planner.planned_file import PlannedFile, PlanRow, Remedy
from qnnmem.planner.pools import TCM
from qnnmem.planner.tcm_pool import BINARY, TcmVerdict
from qnnmem.report.plan_picture import SHOWN_AT_PEAK, letter_map, peak_lines, percent
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.table import ANSWERS, table_lines
from qnnmem.report.tcm import fatal_lines
from qnnmem.results.files import RefusedFile
from qnnmem.results.plan import PlanResult, too_many
from qnnmem.results.proof import ProofScope
from qnnmem.targets.socs import most_tensors, tensor_count_words
from qnnmem.text import MAX_NAME, counted, shorten
from qnnmem.units import format_size

# notes in the short form; -v shows all
SHOWN_NOTES = 3
_TCM_NAMES = {BINARY: "constants"}  # names for a plan, which has no binary yet
_WHY = dict.fromkeys(Pool, "largest") | {Pool.SCRATCH: "these buffers cannot fit together"}
_LONGER = 60  # minimum seconds of a suggested longer search
_LONGEST = 86_400
_OF_FIX = ("--dim", "--shape", "--value", "--state", "--io", "--align", "--bits")
# plan options that `prepare` also accepts
_OF_PREPARE = (
    *("--dim", "--shape", "--value", "--state", "--io", "--align", "--inplace", "--reorder"),
)


def render_answer(planned: PlannedFile) -> str:
    """Render the short form: verdict, size of each pool, proof, next command."""
    parts = (_verdict, _other_pools, _budgets, useless_lines, _first_notes, next_lines)
    return "\n".join(line for part in parts for line in part(planned)) + "\n"


def render_text(planned: PlannedFile) -> str:
    """Render the full report: verdict, then numbers, reasons and next steps.

    Names from the file are made printable.
    """
    parts = (_verdict, _about, _pools, _budgets, remedy_lines, _reorder, _peak, _tcm, _map, _notes)
    blocks = ["\n".join(lines) for part in parts if (lines := list(part(planned)))]
    blocks += next_lines(planned, detailed=True)
    return "\n\n".join(["\n".join(blocks[:2]), *blocks[2:]]) + "\n"


def _verdict(planned: PlannedFile) -> Iterator[str]:
    plan = planned.plan
    if plan.model.assumed:
        yield with_flags(plan.model.assumed)
    yield from map(_shortened, plan.model.holds_for)
    yield from budget_lines(planned)
    yield from allocation_lines(planned.result)
    yield f"scratch {_bytes(plan.scratch_bytes)}, {plan.proof_words}"
    if len(plan.model.tensors) > most_tensors().value:
        yield tensor_count_words(len(plan.model.tensors))


def allocation_lines(plan: PlanResult) -> Iterator[str]:
    """Yield a line about too many TCM allocations, unless a TCM budget already reports them."""
    if TCM not in plan.limits:
        yield from fatal_lines(plan.tcm)


def budget_lines(planned: PlannedFile) -> Iterator[str]:
    """Yield one line for each budget, with its verdict."""
    plan = planned.plan
    in_time = "" if plan.search_missing else " in time"
    by = plan.proof.basis
    for budget in plan.budgets:
        name = budget.pool.value
        many = name.endswith("s")
        if budget.fits is None:
            yield (
                f"cannot tell whether it fits: no {name} plan within {_bytes(budget.have)} was "
                f"found{in_time}, but one might exist; smallest found {budget.need:,}, lower bound "
                f"{budget.at_least:,}"
            )
        elif budget.fits:
            takes = "take" if many else "takes"
            known = "cannot tell whether it fits: with only the known sizes,"
            fits = known if plan.model.assumed else f"fits{by}:"
            yield f"{fits} {name} {takes} {budget.need:,} of {_bytes(budget.have)}"
        elif budget.pool is Pool.SCRATCH and plan.proof is ProofScope.UPPER_BOUND:
            yield (
                f"not found to fit: {name} takes {_bytes(budget.need)}, "
                f"{budget.need - budget.have:,} more than {budget.have:,}; branch and "
                "loop bodies are planned separately, so fewer bytes might be enough"
            )
        else:
            missing = budget.at_least - budget.have
            needs = "need" if many else "needs"
            yield (
                f"does not fit{by}: {name} {needs} at least {_bytes(budget.at_least)}, "
                f"{missing:,} more than {budget.have:,}{_in_this_order(planned, budget.pool)}"
            )
    if planned.tcm_budget is not None:
        yield _tcm_budget_line(planned.tcm_budget, planned.tcm, by)


def _tcm_budget_line(verdict: TcmVerdict, documented: TcmVerdict | None, by: str) -> str:
    need, have = verdict.need, verdict.limit.value
    crowded = too_many(verdict.buffers, verdict.max_buffers.value) if verdict.is_crowded else ""
    if verdict.missing:
        also = f"; {crowded}" if crowded else ""
        return (
            f"does not fit{by}: constants and IO need {_bytes(need)} of TCM, "
            f"{verdict.missing:,} more than {have:,}{also}"
        )
    if crowded:
        return f"does not fit: {crowded}"
    pool = ""
    if documented is not None and documented.missing:
        pool = f"; the documented pool has {documented.limit.value:,}"
    return f"fits{by}: constants and IO take {need:,} of {_bytes(have)} of TCM{pool}"


def _other_pools(planned: PlannedFile) -> Iterator[str]:
    """Yield one line with the sizes of the pools other than scratch."""
    plan = planned.plan
    if plan.model.format == "csv":
        yield f"{counted(len(plan.model.buffers), 'buffer')} in one pool"
        return
    sizes = {pool: size for pool, size in planned.result.pools.items() if pool != "scratch"}
    inside = "; IO is inside scratch" if plan.options.io is Io.INSIDE else ""
    if inside:
        del sizes[Pool.IO.value]
    parts = (f"{'IO' if name == 'io' else name} {size:,}" for name, size in sizes.items())
    unit = "byte" if list(sizes.values())[-1] == 1 else "bytes"
    yield f"{', '.join(parts)} {unit}{inside}"


def _first_notes(planned: PlannedFile) -> Iterator[str]:
    notes = list(_notes(planned))
    yield from notes[:SHOWN_NOTES]
    if len(notes) > SHOWN_NOTES:
        yield f"note: {counted(len(notes) - SHOWN_NOTES, 'more note')}, shown with -v"


def _about(planned: PlannedFile) -> Iterator[str]:
    plan = planned.plan
    model = plan.model
    as_given = bool(model.buffers) and plan.options.align is None
    align = "alignments of the file" if as_given else f"alignment {plan.align}"
    facts = f"{align}, planned in {planned.seconds:.2f} s"
    if model.format == "csv":
        listed = counted(len(model.buffers), "buffer")
        yield f"{shorten(planned.input)}: {listed} in one pool, {facts}"
        return
    width = (
        f"floats stored in {plan.options.bits} bits"
        if plan.options.bits
        else "types as in the model"
    )
    yield (
        f"{shorten(planned.input)}: {counted(len(model.ops), 'op')}, "
        f"{counted(len(model.inputs), 'input')}, "
        f"{counted(len(model.outputs), 'output')}, {width}, {facts}"
    )
    if len(model.tensors) <= most_tensors().value:  # otherwise the verdict has this number
        yield tensor_count_words(len(model.tensors))


def _pools(planned: PlannedFile) -> Iterator[str]:
    plan = planned.plan
    if plan.model.format == "csv":
        return
    held = {pool: sum(b.pool is pool for b in plan.buffers) for pool in Pool}
    inside = plan.options.io is Io.INSIDE
    holds = {
        Pool.SCRATCH: f"{counted(held[Pool.SCRATCH], 'buffer')} in turn"
        + (", IO among them" if inside else ""),
        Pool.PERSISTENT: counted(held[Pool.PERSISTENT], "state"),
        Pool.IO: f"{counted(len(plan.io_sizes), 'tensor')}, inside scratch"
        if inside
        else f"{counted(held[Pool.IO], 'buffer')} of the application",
        Pool.CONSTANTS: f"{counted(len(plan.model.constants), 'tensor')} of the model binary",
    }
    yield f"{'pool':<11}{'bytes':>15}{'size':>13}   holds"
    for pool, size in planned.result.pools.items():
        yield f"{pool:<11}{size:>15,}{format_size(size):>13}   {holds[Pool(pool)]}"


def _budgets(planned: PlannedFile) -> Iterator[str]:
    """Yield the largest buffers for each failed budget, with their sizes and shares of the need."""
    for budget in planned.plan.budgets:
        if budget.fits or not budget.blockers:
            continue
        title = "fullest step" if budget.fits is None else _WHY[budget.pool]
        if title == _WHY[Pool.SCRATCH] and len(budget.blockers) == 1:
            title = "too large alone"
        sizes = pool_sizes(planned.plan, budget.pool)
        parts = [(name, sizes[name]) for name in budget.blockers]
        yield from _parts(title, budget.pool.value, parts, budget.need)
        if others := alike(planned.plan, budget):
            are = "is" if others == 1 else "are"
            as_well = "also too large" if len(parts) == 1 else "as large"
            yield f"  {counted(others, 'other')} {are} {as_well}"
    tcm = planned.tcm_budget
    if tcm is not None and tcm.missing:
        rows = sorted(tcm.rows, key=lambda row: (-row.exact, row.what))
        parts = [(_TCM_NAMES.get(row.what, row.what), row.exact) for row in rows]
        yield from _parts("largest", "TCM", parts, tcm.need)


def _parts(title: str, pool: str, parts: Sequence[tuple[str, int]], need: int) -> Iterator[str]:
    total = sum(size for _name, size in parts)
    yield f"{title} ({len(parts)} in {pool}, {_bytes(total)}{_share(total, need)}):"
    for name, size in parts[:SHOWN_AT_PEAK]:
        yield f"  {size:>13,} {percent(size, need):>7}  {shorten(name)}"
    rest = [size for _name, size in parts[SHOWN_AT_PEAK:]]
    if rest:
        yield f"  {sum(rest):>13,} {percent(sum(rest), need):>7}  {len(rest):,} more"


def _share(part: int, whole: int) -> str:
    return "" if part == whole else f", {percent(part, whole)} of {whole:,}"


def _reorder(planned: PlannedFile) -> Iterator[str]:
    reordered = planned.plan.reordered
    if reordered is None or reordered.skipped is not None:
        return
    proof = ", proven minimal for any order" if reordered.proven else ""
    if reordered.after < reordered.before:
        gain = 100 * (reordered.before - reordered.after) / reordered.before
        yield (
            f"reordering ops lowers the live scratch at the peak from {reordered.before:,} to "
            f"{_bytes(reordered.after)} "
            f"({gain:.1f} % less{proof})"
        )
    else:
        yield (
            f"reordering ops does not lower the {_bytes(reordered.before)} of live scratch at the "
            f"peak{proof}"
        )


def _peak(planned: PlannedFile) -> Iterator[str]:
    return peak_lines(planned.result.map)


def _tcm(planned: PlannedFile) -> Iterator[str]:
    tcm = planned.tcm
    if tcm is None:
        return
    spare = tcm.limit.value - tcm.need
    room = f"{spare:,} to spare" if spare >= 0 else f"{-spare:,} over the limit"
    verdict = ("fits" if tcm.fits else "does not fit") + planned.plan.proof.basis
    yield (
        f"TCM (aDSP direct mode, {tcm.limit.origin.value} limit): {verdict}, "
        f"constants and IO take {tcm.need:,} of {_bytes(tcm.limit.value)}, {room}; "
        f"{tcm.buffers} of {tcm.max_buffers.value} allocations"
    )


def _map(planned: PlannedFile) -> Iterator[str]:
    return letter_map(planned.result.map)


def _notes(planned: PlannedFile) -> Iterator[str]:
    if planned.plan.is_estimate:
        ops = counted(len(planned.plan.model.ops), "op")
        yield (
            f"note: the plan is for the {ops} of the float model; quantizing fuses some ops and "
            "adds others, so the bytes can change"
        )
    for note in planned.notes:
        yield f"note: {_shortened(note)}"


def _shortened(sentence: str) -> str:
    return shorten(sentence, 200)


def _in_this_order(planned: PlannedFile, pool: Pool) -> str:
    """Return a note if the proof holds only for the given order of ops, else an empty string."""
    known = (
        planned.plan.proof in (ProofScope.ANY_ORDER, ProofScope.LIFETIMES)
        or not planned.plan.model.ops
    )
    return "" if known or pool is not Pool.SCRATCH else ", with the ops in this order"


def _bytes(size: int) -> str:
    return counted(size, "byte")


def next_lines(planned: PlannedFile, *, detailed: bool = False) -> Iterator[str]:
    """Yield the next command; none for standard input, because it cannot be read again."""
    plan = planned.plan
    if planned.input == "-":
        return
    command = ["qnnmem", "plan", file_word(planned.input), *planned.given]
    proven = plan.scratch.optimal or any(b.fits is False for b in plan.budgets)
    if plan.likely_states:
        line = _next_states(plan.likely_states, command)
    elif planned.remedies is not None and planned.remedies.found:
        best = planned.remedies.found[0]
        line = next_line(_saving(best), command, *map(flag_word, best.settings))
    elif _may_be_fixed(planned):
        line = next_line("search for a change that fits", _fix_words(planned))
    elif not (proven or plan.scratch.search_missing) and planned.time_limit < _LONGEST:
        longer = min(max(_LONGER, 6 * planned.time_limit), _LONGEST)
        line = next_line("search longer", command, f"--time-limit={longer:.0f}")
    elif plan.options.bits is None and planned.computes_in_floats and planned.remedies is None:
        why = "LPAI runs 8- and 16-bit models; plan the model as int8"
        line = next_line(why, command, "--bits=8")
    elif plan.is_estimate and plan.model.format == "onnx":
        line = next_line("get the exact bytes", _prepare_command(planned))
    elif detailed:
        line = next_line("write a C header with every offset", command, "--format=c")
    else:
        line = next_line("show the peak and the memory map", command, "-v")
    if line:
        yield line


def _may_be_fixed(planned: PlannedFile) -> bool:
    """Return True if `fix` might meet the budgets: the model is ONNX and its state fits."""
    is_model = planned.input.lower().endswith(".onnx") and not planned.seen_as
    return is_model and bool(planned.result.lacking) and "persistent" not in planned.result.lacking


def _fix_words(planned: PlannedFile) -> list[str]:
    """Return the words of a `fix` command with the budgets of the plan."""
    words = [f"--budget={pool}={have}" for pool, have in planned.result.limits.items()]
    words += [word for word in planned.given if word.partition("=")[0] in _OF_FIX]
    return ["qnnmem", "fix", file_word(planned.input), *words, *output_words("fixed")]


def _prepare_command(planned: PlannedFile) -> list[str]:
    """Return a `prepare` command, which gives exact sizes; it calibrates with random samples."""
    kept = [word for word in planned.given if word.partition("=")[0] in _OF_PREPARE]
    target = output_words(f"{PurePath(planned.input).stem}.bin")
    width = f"--quantize=int{planned.plan.options.bits}"
    return ["qnnmem", "prepare", file_word(planned.input), *kept, width, *target]


def remedy_lines(planned: PlannedFile) -> Iterator[str]:
    """Yield each option that makes an oversized pool smaller, with the bytes it saves."""
    if planned.remedies is None:
        return
    for remedy in planned.remedies.found:
        yield f"{' '.join(map(flag, remedy.settings))}: {_saving(remedy)}"
    yield from useless_lines(planned, among_others=bool(planned.remedies.found))


def useless_lines(planned: PlannedFile, *, among_others: bool = False) -> Iterator[str]:
    """Yield the options that do not help, or one line if no option helps."""
    remedies = planned.remedies
    if remedies is None or bool(remedies.found) is not among_others:
        return
    used = {setting for remedy in remedies.found for setting in remedy.settings}
    useless = ", ".join(flag(setting) for setting in remedies.tried if setting not in used)
    if useless:
        pools = " or ".join(_pool(pool) for pool in planned.result.lacking)
        yield f"these options do not make {pools} smaller: {useless}"
    elif not remedies.tried and planned.plan.model.ops:
        yield "no other option makes the plan smaller"


def _saving(remedy: Remedy) -> str:
    quantizes = any(setting.name == "bits" for setting in remedy.settings)
    by = f" by an {ProofScope.ESTIMATE.value}" if quantizes else ""
    still = (
        f"which then fits{by}"
        if remedy.fits
        else f"still {remedy.after - remedy.have:,} over the limit"
    )
    saved = f"saves {counted(remedy.saved, 'byte')} of {_pool(remedy.pool)} ({still})"
    if remedy.moved:
        saved += f", moves {counted(remedy.moved, 'byte')} of IO to the application's buffers"
    return saved


def _pool(name: str) -> str:
    return {"io": "IO", "tcm": "TCM"}.get(name, name)


def _next_states(pairs: Sequence[tuple[str, str]], command: Sequence[str]) -> str:
    """Return a `plan` command with all state pairs: a plan with only some of them is wrong."""
    settings = [f"--state={old}={new}" for old, new in pairs]
    line = next_line("keep these likely states between runs", command, *settings)
    why = (
        f"{len(pairs)} pairs of input and output look like state kept between runs; the JSON key "
        "likely_states lists them"
    )
    return line or next_line(why, command, "--format=json")


_SHOWN = ("scratch", "persistent", "constants")
_TITLES = ("file", *_SHOWN, "answer")
_NOT_FOUND = "not found to fit"  # an upper bound: a smaller plan may exist
_NAMED = 3  # files named in verdict_on_all
_POOLS = ("scratch", "persistent", "io", "constants")
_COLUMNS = ("file", *(f"{pool}_bytes" for pool in _POOLS), "lower_bound_bytes", "answer")

Row = PlanResult | RefusedFile


def render_table(planned: Sequence[PlanRow]) -> str:
    """Render the overall verdict, then a row for each file."""
    rows = rows_of(planned)
    lines = [verdict_on_all(rows), "", *_table(rows)]
    crowded = [*crowded_lines(rows)]
    lines += ["", *crowded] if crowded else []
    files = [row for row in planned if isinstance(row, PlannedFile)]
    worst = [file for file in files if file.result.fits is not True]
    for shown in (*worst, *files)[:1]:
        words = ["qnnmem", "plan", file_word(shown.input), *shown.given]
        lines += ["", next_line("show one in detail", words, "-v")]
    return "\n".join(lines).rstrip("\n") + "\n"


def rows_of(planned: Sequence[PlanRow]) -> list[Row]:
    """Return a row for each file, in the given order: the result, or the error."""
    return [row.result if isinstance(row, PlannedFile) else row for row in planned]


def verdict_on_all(rows: Sequence[Row]) -> str:
    """Return a one-line verdict on all files: which meet their budgets, which were not planned."""
    planned = [row for row in rows if isinstance(row, PlanResult)]
    refused = len(rows) - len(planned)
    judged = [row for row in planned if row.has_verdict]
    parts = []
    if judged:
        count = {answer: sum(row.fits is answer for row in judged) for answer in ANSWERS}
        if count[True] == len(judged):
            whole = "all" if not refused else "the other"
            parts.append(f"fits: {whole} {len(judged)}" if len(rows) > 1 else "fits")
        elif count[False]:
            final = not all(map(_is_only_bound, (row for row in judged if row.fits is False)))
            words = ANSWERS[False] if final else _NOT_FOUND
            parts.append(f"{words}: {_some(judged, answer=False)}")
        if count[None]:
            parts.append(f"cannot tell: {_some(judged, answer=None)}")
    else:
        parts.append(f"{counted(len(planned), 'file')} planned")
    # Files that were not planned come first: without them there is no verdict on all files.
    return ", ".join([f"{refused} of {len(rows)} not planned"] * bool(refused) + parts)


def _some(judged: Sequence[PlanResult], answer: bool | None) -> str:
    """Return how many files have the verdict `answer`, with the names of some of them."""
    names = [shorten(row.input, 40) for row in judged if row.fits is answer]
    more = ", …" if len(names) > _NAMED else ""
    return f"{len(names)} of {len(judged)} ({', '.join(names[:_NAMED])}{more})"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    lines = list(table_lines(_TITLES, [_cells(row) for row in rows]))
    yield from lines
    text = "\n".join(lines)
    for row in rows:
        if isinstance(row, PlanResult) and row.graph not in text:
            yield f"whole graph: {shorten(row.graph, MAX_NAME)}"


def crowded_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield notes on plans that hold only under conditions or have too many TCM allocations."""
    notes = [
        f"{shorten(row.input, 200)}: {line}"
        for row in rows
        if isinstance(row, PlanResult)
        for line in (*row.holds_for, *allocation_lines(row))
    ]
    yield from notes[:_NAMED]
    if len(notes) > _NAMED:
        yield f"… and {counted(len(notes) - _NAMED, 'more note')}"


def _cells(row: Row) -> tuple[str, ...]:
    if isinstance(row, RefusedFile):
        return row.input, *["-"] * len(_SHOWN), "not planned"
    graph = f" {shorten(row.graph, 40)}" if row.graph else ""
    return row.input + graph, *(f"{row.pools[pool]:,}" for pool in _SHOWN), _answer(row)


def _answer(row: PlanResult) -> str:
    if row.has_verdict:
        return _NOT_FOUND if _is_only_bound(row) else ANSWERS[row.fits]
    return row.scope.value


def _is_only_bound(row: PlanResult) -> bool:
    """Return True if scratch is over its budget, but its size is only an upper bound."""
    return row.scope is ProofScope.UPPER_BOUND and row.lacking == ("scratch",)


def render_csv(rows: Sequence[Row]) -> str:
    """Render a CSV table with a row for each planned graph and each refused file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for row in rows:
        if isinstance(row, RefusedFile):
            table.writerow([row.input, *[""] * (len(_COLUMNS) - 2), "not planned"])
        else:
            table.writerow([row.input, *row.pools.values(), row.lower_bound_bytes, _answer(row)])
    return text.getvalue()
