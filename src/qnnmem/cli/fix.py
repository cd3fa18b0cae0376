"""`qnnmem fix`: change a model until it fits, and prove that the results are the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from qnnmem.cli.options import printed, takes
from qnnmem.cli.output import say_refused, say_verdict
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args, verb_call
from qnnmem.errors import UsageError
from qnnmem.options.fix import FixOptions
from qnnmem.results.schema import encode

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.verbs.fix import FixTask

_NO_CHANGE = ("--cache", "--jobs", "--cluster")  # options that do not affect the answer


@click.command(cls=RecordingCommand)
@click.argument("models", nargs=-1, type=click.Path(), metavar="[MODEL...]")
@takes(FixOptions)
@printed("qnnmem.fix/1")
def fix(models: tuple[str, ...], options: FixOptions, output: Output) -> int:
    """Reorder, fuse, tile or partition MODEL so that it needs less memory for the same results.

    The mildest changes are tried first: element-wise ops in place and another order of ops, then
    regions computed in bands of rows, then parts that run one after the other. For HTP: VTCM size
    and optimisation level, loading order, parts. Every change is planned (LPAI), or compiled and
    loaded by the real library (HTP), then run and compared with the original model. The changed
    model, a recipe and a report are written to the folder of -o. Fewer bits, smaller batches and
    smaller images change results: they need --allow, and the difference is measured. For several
    models, a pattern or a folder, the result is a table. A run that was killed resumes from its
    cached results.

    Exit codes: 0 it fits, or there is no budget; 1 no
    change suffices, or --validate found a fault; 2 bad usage or an unreadable model; 3 cannot tell,
    or no change to a model prevents the failure in the log. With several models, the worst result
    counts: 2, then 1, then 3. 130 after Ctrl-C, which writes the best result so far.
    """
    from qnnmem.loader.file_kind import is_kind
    from qnnmem.verbs import fix_log
    from qnnmem.verbs.fix import FixTask, check_fix
    from qnnmem.verbs.named_files import log_names, named_files

    goal = None
    if options.logs:
        goal = fix_log.goal_in(log_names(options.logs), models, options.recipe)
        backend = fix_log.backend_for(goal, _given_backend(options))
        soc = options.soc or (goal.soc if backend == "htp" else None)
        options = replace(options, backend=backend, soc=soc)
    check_fix(options)
    typed = tuple(word for word in recorded_args() if word.partition("=")[0] not in _NO_CHANGE)
    task = FixTask("", options, prepare_options=recorded_args("prepare"), typed=typed)
    if goal is not None:
        return _show_fixed(fix_log.task_for(goal, models, task), output)
    if not models:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    named = named_files(models, lambda path: is_kind(path, ("onnx", "tflite")), "model")
    say_verdict("\n".join(named.left_out))
    is_one = len(models) == 1 and models == named.files
    if is_one and not (options.is_htp and len(options.socs) > 1):
        task = task._replace(model=models[0])
        return (
            _show_shapes(task, output) if _has_several_shapes(task) else _show_fixed(task, output)
        )
    return _show_all(named.files, task, output)


def _given_backend(options: FixOptions) -> str | None:
    """Return --backend if given, else "htp" if --soc is given, else None for the default."""
    source = click.get_current_context().get_parameter_source("backend")
    if source is click.core.ParameterSource.COMMANDLINE:
        return options.backend
    return "htp" if options.soc else None


def _show_fixed(task: FixTask, output: Output) -> int:
    """Fix one model and print the result; return the exit code."""
    from qnnmem.report.fix import render_text
    from qnnmem.verbs.fix import fix_file

    with ProgressBar(f"reading {Path(task.model).name}") as bar:
        done = fix_file(task, verb_call(bar))
    if output.is_json:
        output.write(encode(done.as_result(chain=task.chain)))
    else:
        facts = done.result, done.files, done.commands, task.chain, done.validation
        output.write(render_text(*facts))
    return done.exit_code


def _show_all(files: Sequence[str], task: FixTask, output: Output) -> int:
    """Fix several models and print a table; return the exit code."""
    from qnnmem.report.fix import render_table
    from qnnmem.results.fix import FixedModels
    from qnnmem.verbs.fix import INTERRUPTED
    from qnnmem.verbs.fix_many import fix_models

    rows, is_interrupted = fix_models(files, task, ProgressBar)
    results = FixedModels.of(rows)
    output.show(results, lambda: render_table(rows))
    say_refused(rows)
    return INTERRUPTED if is_interrupted else results.exit_code


def _has_several_shapes(task: FixTask) -> bool:
    """Return True if the user gave a tensor more than one shape."""
    names = [name for name, _ in task.options.shapes]
    return len(names) > len(set(names))


def _show_shapes(task: FixTask, output: Output) -> int:
    """Fix a model for each set of shapes; print the command that puts all results in one binary."""
    from qnnmem.fix.graph.shape_sets import set_names, shape_sets
    from qnnmem.report import fix as report
    from qnnmem.verbs.fix import fix_file

    if output.is_json or task.options.recipe is not None or task.options.is_htp:
        raise UsageError(
            "several --shape sets cannot be combined with --json, --apply or --backend htp; "
            "pass one set at a time"
        )
    sets, parts, done = shape_sets(task.options.shapes), [], []
    stem = Path(task.model).stem
    for name, shapes in zip(set_names(sets), sets, strict=True):
        options = replace(task.options, shapes=tuple(shapes.items()))
        own = task._replace(options=options, stem=f"{stem}_{name}", always=True)
        with ProgressBar(f"reading {Path(task.model).name}") as bar:
            outcome = fix_file(own, verb_call(bar))
        text = report.render_text(outcome.result, outcome.files, (), (), outcome.validation)
        parts.append(f"{name}: {text}")
        done.append(outcome)
    code = max(outcome.exit_code for outcome in done)
    if not code:
        files = [outcome.files[0] for outcome in done if outcome.files]
        binary = str(Path(task.options.output, f"{stem}.bin"))
        results = [outcome.result for outcome in done]
        parts += report.command_lines([report.together(results, files, binary)])
    output.write("\n".join((*parts, "")))
    return code
