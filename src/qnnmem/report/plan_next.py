"""What to do after a plan: what was found to help, and the command that comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.flags import flag, flag_word
from qnnmem.planner.remedies import Remedy
from qnnmem.report.planned import PlanReport
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.results.proof import ProofScope
from qnnmem.text import counted

_LONGER = 60  # seconds to search at least, when told to search longer
_LONGEST = 86_400
_OF_FIX = ("--dim", "--shape", "--value", "--state", "--io", "--align", "--bits")
# Options of a plan that preparing takes, too.
_OF_PREPARE = (
    *("--dim", "--shape", "--value", "--state", "--io", "--align", "--inplace", "--reorder"),
)


def next_lines(report: PlanReport, *, detailed: bool = False) -> Iterator[str]:
    """The command to go on with; none for what came from a pipe, which would have to come again."""
    plan = report.plan
    if report.input == "-":
        return
    command = ["qnnmem", "plan", file_word(report.input), *report.given]
    proven = plan.scratch.optimal or any(b.fits is False for b in plan.budgets)
    if plan.likely_states:
        line = _next_states(plan.likely_states, command)
    elif report.remedies is not None and report.remedies.found:
        best = report.remedies.found[0]
        line = next_line(_saving(best), command, *map(flag_word, best.settings))
    elif _may_be_fixed(report):
        line = next_line("search for a change that fits", _fix_words(report))
    elif not (proven or plan.scratch.search_missing) and report.time_limit < _LONGEST:
        longer = min(max(_LONGER, 6 * report.time_limit), _LONGEST)
        line = next_line("search longer", command, f"--time-limit={longer:.0f}")
    elif plan.options.bits is None and report.computes_in_floats and report.remedies is None:
        why = "LPAI runs 8- and 16-bit models; as int8 it would be"
        line = next_line(why, command, "--bits=8")
    elif plan.is_estimate and plan.model.format == "onnx":
        line = next_line("the exact bytes", _prepare_command(report))
    elif detailed:
        line = next_line("every offset, as a C header", command, "--format=c")
    else:
        line = next_line("the peak, and what lies where", command, "-v")
    if line:
        yield line


def _may_be_fixed(report: PlanReport) -> bool:
    """Whether `fix` may meet the budgets: it changes ONNX models, and no state."""
    is_model = report.input.lower().endswith(".onnx") and not report.seen_as
    return is_model and bool(report.lacking) and "persistent" not in report.lacking


def _fix_words(report: PlanReport) -> list[str]:
    """The command that changes the model until it meets the same budgets."""
    budgets = {one.pool.value: one.have for one in report.plan.budgets}
    words = [f"--budget={pool}={have}" for pool, have in budgets.items()]
    if report.tcm_budget is not None:
        words.append(f"--budget=tcm={report.tcm_budget.limit.value}")
    words += [word for word in report.given if word.partition("=")[0] in _OF_FIX]
    return ["qnnmem", "fix", file_word(report.input), *words, *output_words("fixed")]


def _prepare_command(report: PlanReport) -> list[str]:
    """Quantize with ranges of made-up samples, which is enough for sizes."""
    kept = [word for word in report.given if word.partition("=")[0] in _OF_PREPARE]
    target = output_words(f"{PurePath(report.input).stem}.bin")
    width = f"--quantize=int{report.plan.options.bits}"
    return ["qnnmem", "prepare", file_word(report.input), *kept, width, *target]


def remedy_lines(report: PlanReport) -> Iterator[str]:
    """Every option that was planned for pools that are too large, and what it saves."""
    if report.remedies is None:
        return
    for remedy in report.remedies.found:
        yield f"{' '.join(map(flag, remedy.settings))}: {_saving(remedy)}"
    yield from useless_lines(report, among_others=bool(report.remedies.found))


def useless_lines(report: PlanReport, *, among_others: bool = False) -> Iterator[str]:
    """That nothing helps, or what among other options does not."""
    remedies = report.remedies
    if remedies is None or bool(remedies.found) is not among_others:
        return
    used = {setting for remedy in remedies.found for setting in remedy.settings}
    useless = ", ".join(flag(setting) for setting in remedies.tried if setting not in used)
    if useless:
        pools = " or ".join(_pool(pool) for pool in report.lacking)
        yield f"planned, too, and no smaller in {pools}: {useless}"
    elif not remedies.tried and report.plan.model.ops:
        yield "no option that was not given makes it smaller"


def _saving(remedy: Remedy) -> str:
    quantizes = any(setting.name == "bits" for setting in remedy.settings)
    by = f" by an {ProofScope.ESTIMATE.value}" if quantizes else ""
    still = (
        f"which then fits{by}" if remedy.fits else f"still {remedy.after - remedy.have:,} too many"
    )
    beside = f", {remedy.moved:,} of IO in the application's buffers" if remedy.moved else ""
    return f"{counted(remedy.saved, 'byte')} less of {_pool(remedy.pool)}, {still}{beside}"


def _pool(name: str) -> str:
    return {"io": "IO", "tcm": "TCM"}.get(name, name)


def _next_states(pairs: Sequence[tuple[str, str]], command: Sequence[str]) -> str:
    """All pairs or none: a plan with a part of the state is wrong without looking so."""
    settings = [f"--state={old}={new}" for old, new in pairs]
    line = next_line("these look like state kept between runs", command, *settings)
    why = f"{len(pairs)} pairs look like state kept between runs, likely_states lists them"
    return line or next_line(why, command, "--format=json")
