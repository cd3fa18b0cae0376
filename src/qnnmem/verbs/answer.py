"""Run any verb on one file; return JSON and exit code, for the workbench and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from qnnmem.options.option import flags_of
from qnnmem.options.plan import PlanFileOptions
from qnnmem.results.schema import encode
from qnnmem.verbs import VerbCall

Answer = tuple[str, int]  # JSON result and exit code


def answer(verb: str, file: str, options: Any, call: VerbCall) -> Answer:
    """Run a verb on a file; return its JSON result and its exit code."""
    call.listener.say("reading")
    return _VERBS[verb](file, options, call)


def _plan(file: str, options: Any, call: VerbCall) -> Answer:
    from qnnmem.planner.planned_file import plans_result
    from qnnmem.verbs.plan import PlanRequest, plan_file

    planning = PlanFileOptions(**asdict(options))
    request = PlanRequest(Path(file), file, planning, tuple(call.words[1:-1]))
    reports = plan_file(request, call.listener)
    result = reports[0].result if len(reports) == 1 else plans_result(reports)
    return encode(result), result.exit_code


def _footprint(file: str, options: Any, call: VerbCall) -> Answer:
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.verbs.footprint import bill_exit_code, bill_file

    outcome = bill_file(file, options, call)
    if isinstance(outcome, CompileFailure):
        return _failed(outcome, "bill", call)
    return encode(outcome.bill), bill_exit_code(outcome.bill)


def _failed(failure: Any, missing: str, call: VerbCall) -> Answer:
    from qnnmem.verbs.refusal import failure_code, say_failure

    return say_failure(failure, missing, call.flags, as_json=True), failure_code(failure)


def _fit(file: str, options: Any, call: VerbCall) -> Answer:
    from qnnmem.verbs.fit import fit_file

    result = fit_file(file, options, call)
    return encode(result), result.exit_code


def _qmem(file: str, options: Any, call: VerbCall) -> Answer:
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.verbs.footprint import compare_io, qmem_exit_code

    table = compare_io(file, options, call)
    if isinstance(table, CompileFailure):
        return _failed(table, "table", call)
    return encode(table.result), qmem_exit_code(table)


def _sweep(file: str, options: Any, call: VerbCall) -> Answer:
    from qnnmem.verbs.sweep import run_sweep, sweep_task

    ran = run_sweep(sweep_task(file, options), call)
    return encode(ran.as_result(call.flags)), ran.exit_code


def _fix(file: str, options: Any, call: VerbCall) -> Answer:
    from qnnmem.options.prepare import PreparationOptions
    from qnnmem.verbs.fix import FixTask, check_fix, fix_file

    check_fix(options)
    typed = tuple(word for word in call.words[1:-1] if not word.startswith("--output"))
    shared = flags_of(PreparationOptions)
    shared_words = tuple(word for word in typed if word.partition("=")[0] in shared)
    done = fix_file(FixTask(file, options, shared_words, typed), call)
    return encode(done.as_result()), done.exit_code


def _inspect(file: str, _options: Any, _call: VerbCall) -> Answer:
    from qnnmem.verbs.inspect import inspect_file

    return inspect_file(Path(file), as_json=True)


def _lint(file: str, options: Any, _call: VerbCall) -> Answer:
    from qnnmem.lpai.config.check import lint_files

    result = lint_files([Path(file)], options.strict)
    return encode(result), result.exit_code


def _doctor(file: str, _options: Any, _call: VerbCall) -> Answer:
    from qnnmem.report.doctor import render_json
    from qnnmem.report.doctor_remedies import Guide
    from qnnmem.verbs.doctor import diagnose_streams, read_logs

    logs, guide = read_logs((file,)), Guide()
    guide.whys.update(logs.knowledge.packed.whys)
    diagnosis = diagnose_streams(logs.found.streams, logs.knowledge)
    try:
        logs.complete(diagnosis)
        stats = diagnosis.stats(logs.found.streams)
        text = "".join(render_json(diagnosis.rows(), stats, guide=guide))
        return text, diagnosis.exit_code
    finally:
        diagnosis.close()


def _watch(file: str, _options: Any, _call: VerbCall) -> Answer:
    from qnnmem.verbs.programs import read_watched, watch_exit_code

    report = read_watched(Path(file))
    return encode(report.bounded()), watch_exit_code(report, is_run=False)


_VERBS: Mapping[str, Callable[[str, Any, VerbCall], Answer]] = {
    "plan": _plan,
    "footprint": _footprint,
    "fit": _fit,
    "qmem": _qmem,
    "sweep": _sweep,
    "fix": _fix,
    "inspect": _inspect,
    "lint": _lint,
    "doctor": _doctor,
    "watch": _watch,
}
