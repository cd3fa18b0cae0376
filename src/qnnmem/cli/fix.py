"""`qnnmem fix`: from a model that does not fit to one that does, with the proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qnnmem.cli import options as texts
from qnnmem.cli.again import Remembering, given_words
from qnnmem.errors import UsageError
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.cli.fix_output import FixFolder
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.fix.recipe import Recipe
    from qnnmem.fix.remedy import FixCase, JudgedChange
    from qnnmem.fix.run import FixResult
    from qnnmem.kept_results import ResultCache
    from qnnmem.load.onnx.fixed import InputValue

_NO_CHANGE = ("--cache", "--jobs", "--cluster")  # options that no answer depends on
_INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it
Budgets = tuple[tuple[str, Bytes], ...]


def _budgets(text: str) -> Budgets:
    """`scratch=256K`, also `scratch=256K,tcm=1M`."""
    return tuple(texts.budget(part) for part in text.split(","))


@click.command(cls=Remembering)
@click.argument("models", nargs=-1, type=click.Path(), metavar="[MODEL...]")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(),
    metavar="LOG",
    help="Start from what failed: backend, budget and, where it is named, MODEL come from the log.",
)
@click.option(
    "--backend",
    type=click.Choice(["lpai", "htp"]),
    default="lpai",
    show_default=True,
    help="Whose memory the model is to fit.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    type=_budgets,
    metavar="POOL=SIZE",
    help="Bytes that scratch, persistent, io, constants or tcm may take, e.g. scratch=256K; "
    "without one, scratch is made as small as it gets.",
)
@texts.model_options
@click.option(
    "--io",
    type=click.Choice(["inside", "outside"]),
    default="inside",
    show_default=True,
    help="Inputs and outputs inside scratch or in the application's buffers.",
)
@click.option(
    "--align",
    type=click.IntRange(1, 1 << 20),
    help="Alignment of start and size in bytes.  [default: 64]",
)
@click.option(
    "--bits",
    type=click.Choice(["8", "16"]),
    help="Width of floating-point elements once quantized.  [default: as in the model]",
)
@click.option(
    "--data",
    type=click.Path(),
    metavar="DIR",
    help="Sample inputs (.npy, .npz, .raw) to compare results on.  [default: random data]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 1 << 31),
    default=0,
    show_default=True,
    help="Of the random data, and of the plans.",
)
@click.option(
    "--time-limit",
    type=texts.seconds,
    metavar="S",
    default=120.0,
    show_default=True,
    help="Seconds to search; comparing results takes as long as it needs.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Models at the same time.",
)
@click.option("--cluster", metavar="ADDRESS", help="On a Dask cluster that sees the same files.")
@click.option(
    "--cache",
    type=click.Path(),
    metavar="DIR",
    help="Folder of what was found before.  [default: qnnmem in the user's cache folder]",
)
@click.option(
    "--apply",
    "recipe",
    type=click.Path(),
    metavar="RECIPE",
    help="Do again what a recipe of an earlier run says, without a search.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    required=True,
    metavar="DIR",
    help="Folder for the changed model, its recipe and a report; of several, one for each in it.",
)
@click.option("--force", is_flag=True, help="Replace files of an earlier run.")
@texts.form_options("qnnmem.fix/1")
def fix(
    models: tuple[str, ...],
    logs: tuple[str, ...],
    backend: str,
    recipe: str | None,
    jobs: int,
    cluster: str | None,
    cache: str | None,
    output: str,
    force: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Change MODEL so that it needs less memory and computes the same, bit by bit.

    Tries what changes least first: element-wise ops in place and another order of ops, then
    regions of convolutions, pooling and element-wise ops computed in bands of rows. A change counts
    after it was planned, run and compared with the model as it was. The changed model, a recipe and
    a report go to the folder of -o. Several models, a pattern or a folder give a table. What was
    found is kept: a run that was killed goes on where it was.

    Exit codes: 0 it fits, or without a budget is as small as was found; 1 nothing helps enough;
    2 bad usage or an unreadable model; 3 cannot tell, or a log that no change of a model helps. Of
    several models the worst counts: 2, then 1, then 3. 130 after Ctrl-C, which keeps what is known.
    """
    from qnnmem.cli import fix_log, fix_many

    task = FixTask("", backend, _Wish(**chosen), recipe, output, force, cache)
    typed = tuple(word for word in given_words() if word.partition("=")[0] not in _NO_CHANGE)
    task = task._replace(given=given_words("prepare"), typed=typed)
    if logs:
        return fix_log.run(logs, models, task, as_json)
    if not models:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    found = fix_many.named_models(models)
    if len(models) == 1 and models == found:
        return show_fixed(task._replace(model=models[0]), as_json)
    return fix_many.run(found, task, jobs, cluster, as_json)


class FixTask(NamedTuple):
    """One model, what is wanted of it, and where the result goes; can be sent to a worker."""

    model: str
    backend: str
    wish: _Wish
    recipe: str | None
    output: str
    force: bool
    cache: str | None
    given: tuple[str, ...] = ()  # options that `prepare` takes, too
    typed: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()  # from a log to what is wanted
    first: tuple[str, ...] = ()  # remedies to begin with
    place: str = ""  # of the model, where its name is not enough to find it


class FixOutcome(NamedTuple):
    """A result, and what was made of it."""

    result: FixResult
    files: list[str]
    next_words: list[str]

    @property
    def exit_code(self) -> int:
        """As the program leaves with it."""
        return _INTERRUPTED if self.result.interrupted else self.result.exit_code


def show_fixed(task: FixTask, as_json: bool) -> int:
    """Fix one model and print what came of it."""
    from qnnmem.cli.output import write
    from qnnmem.report import fix as report

    done = fix_file(task)
    render = report.render_json if as_json else report.render_text
    write(render(done.result, done.files, done.next_words, task.chain), None, task.force)
    return done.exit_code


def fix_file(task: FixTask) -> FixOutcome:
    """Fix one model, and write what it became."""
    from qnnmem.cli.fix_output import FixFolder, fix_folder
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.report import fix as report

    if task.backend == "htp":
        raise UsageError(
            "remedies for HTP are not there yet, only those for LPAI; --backend lpai, or for HTP "
            "`qnnmem fit` and `qnnmem sweep` say what fits"
        )
    path = Path(task.place or task.model)
    place = FixFolder(Path(task.output), path.stem, task.force)
    names = (f"{path.stem}.onnx", place.report.name, place.recipe.name)
    with fix_folder(place, names):
        with ProgressBar(f"reading {path.name}") as bar:
            result = _fixed(path, task, bar)
        is_new = result.best.change.model is not result.case.model
        made = str(place.folder / names[0]) if is_new else task.model
        words = [] if result.exit_code else report.prepare_words(result, made, task.given)
        files = _written(result, place, task, words) if is_new else []
    return FixOutcome(result, files, words)


class _Wish(NamedTuple):
    """What the model is to fit, and how it is planned and compared."""

    budgets: tuple[Budgets, ...]
    dims: tuple[tuple[str, int], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    values: tuple[tuple[str, InputValue], ...]
    states: tuple[tuple[str, str], ...]
    io: str
    align: int | None
    bits: str | None
    data: str | None
    seed: int
    time_limit: float


def _fixed(path: Path, task: FixTask, bar: ProgressBar) -> FixResult:
    """The result of a search, or of a recipe."""
    from qnnmem.fix.from_log import ordered
    from qnnmem.fix.lpai import REMEDIES, fix_for_lpai
    from qnnmem.fix.recipe import read_recipe

    wish, recipe = task.wish, task.recipe
    said = None if recipe is None else read_recipe(Path(recipe))
    case = _case(path, wish, said)
    watch = _Watcher(bar)
    bar.say("planning")
    budget = _limits(wish.budgets)
    if said is None or recipe is None:
        remedies = ordered(REMEDIES, task.first)
        memory = memory_of(task.cache)
        return fix_for_lpai(case, budget, watch=watch, remedies=remedies, memory=memory)
    return _repeated(case, budget, said, Path(recipe))


def memory_of(cache: str | None) -> ResultCache | None:
    """Where what was found is kept; nowhere for a user who has no home."""
    from qnnmem.cache_folder import NOWHERE, cache_folder
    from qnnmem.kept_results import ResultCache

    folder = cache_folder() if cache is None else Path(cache)
    return None if folder == NOWHERE else ResultCache(folder, "fix", must_keep=cache is not None)


def _repeated(
    case: FixCase, budget: dict[str, Bytes] | None, recipe: Recipe, path: Path
) -> FixResult:
    """What a recipe brings for this model."""
    from qnnmem.fix.bench import CaseBench
    from qnnmem.fix.lpai import REMEDIES
    from qnnmem.fix.planned import PlanJudge
    from qnnmem.fix.recipe import apply_recipe
    from qnnmem.fix.remedy import Change
    from qnnmem.fix.run import FixResult

    change = apply_recipe(case, recipe, path, REMEDIES)
    with CaseBench(case, PlanJudge(budget, case.seed)) as bench:
        bench.judged(Change("none", "as it is", case.model, case.options))
        judged = bench.judged(change)
    if not judged.holds:
        raise UsageError("with this model the recipe gives other results; search anew without it")
    return FixResult(case, (judged,), has_limits=bool(budget))


def _case(path: Path, wish: _Wish, recipe: Recipe | None) -> FixCase:
    from time import monotonic

    from qnnmem.calibration import find_samples
    from qnnmem.fix.prove import inputs_of
    from qnnmem.fix.remedy import FixCase
    from qnnmem.load import kind_of
    from qnnmem.load.onnx import read_shaped
    from qnnmem.load.onnx.typed import write_typed
    from qnnmem.plan import PoolOptions

    if kind_of(path) != "onnx":
        raise UsageError(f"{path} is no ONNX model; only those can be changed")
    shapes = dict(wish.shapes)
    if recipe is not None and not (wish.dims or wish.shapes):
        shapes = dict(recipe.shapes)
    model = read_shaped(path, dims=dict(wish.dims), shapes=shapes, values=dict(wish.values))
    bits = None if wish.bits is None else int(wish.bits)
    options = PoolOptions(io=wish.io, align=wish.align, bits=bits, states=wish.states)
    samples = (
        () if wish.data is None else find_samples(Path(wish.data), inputs_of(write_typed(model)))
    )
    return FixCase(
        path,
        model,
        options,
        samples=samples,
        seed=wish.seed,
        ends_at=monotonic() + wish.time_limit,
    )


def _limits(given: tuple[Budgets, ...]) -> dict[str, Bytes] | None:
    """Budgets by pool; which pools there are, the planner says."""
    from qnnmem.plan.pools import as_limits

    found: dict[str, Bytes] = {}
    for name, size in (pair for budgets in given for pair in budgets):
        if name.lower() in found:
            raise UsageError("a pool has two budgets; give one")
        found[name.lower()] = size
    as_limits(found)
    return found or None


class _Watcher:
    """Shows what was tried as soon as it is known, where somebody watches."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar, self._begun = bar, False

    def __call__(self, change: JudgedChange) -> None:
        import sys

        from qnnmem.cli.say import note
        from qnnmem.report.fix import HEADER, row

        if sys.stderr.isatty():
            if not self._begun:
                note(HEADER)
            note(row(change))
        self._begun = True
        self._bar.say("looking for regions to compute in bands")


def _written(
    result: FixResult, place: FixFolder, task: FixTask, next_words: list[str]
) -> list[str]:
    """The files of a change, all or none."""
    from qnnmem.fix.bench import runtime_words
    from qnnmem.fix.recipe import recipe_of
    from qnnmem.fix.remedy import self_contained
    from qnnmem.report.fix_report import RunFacts, render_report
    from qnnmem.report.schema import write_json

    best = result.best
    facts = RunFacts(sha256_of(result.case.path), task.typed, runtime_words(), task.chain)
    report = render_report(result, facts, [str(place.recipe)], next_words)
    model = self_contained(best.change.model).SerializeToString(deterministic=True)
    contents = {
        f"{place.stem}.onnx": model,
        place.report.name: report.encode("utf-8", "backslashreplace"),
        place.recipe.name: write_json(recipe_of(result.case, best, "lpai")).encode(),
    }
    return place.write(contents)


def sha256_of(path: Path) -> str:
    """Of a file."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
