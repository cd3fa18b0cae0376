"""`qnnmem fix`: from a model that does not fit to one that does, with the proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qnnmem.cli import options as texts
from qnnmem.cli.again import Remembering, given_words
from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.fix.recipe import Recipe
    from qnnmem.fix.remedy import FixCase, JudgedChange
    from qnnmem.fix.run import FixResult
    from qnnmem.load.onnx.fixed import InputValue

Budgets = tuple[tuple[str, Bytes], ...]


def _budgets(text: str) -> Budgets:
    """`scratch=256K`, also `scratch=256K,tcm=1M`."""
    return tuple(texts.budget(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    """`int8`, also `int16,batch`."""
    return tuple(word.strip().lower() for word in text.split(","))


@click.command(cls=Remembering)
@click.argument("model", type=click.Path(), metavar="MODEL")
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
    "--allow",
    multiple=True,
    type=_words,
    metavar="WORD",
    help="What may change results: int16, w8a16, int8 (fp16 for htp), batch, resolution, or all.",
)
@click.option(
    "--data",
    type=click.Path(),
    metavar="DIR",
    help="Sample inputs (.npy, .npz, .raw) to compare results on, and to quantize with.  "
    "[default: random data]",
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
    help="Seconds to search; quantizing and comparing results take as long as they need.",
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
    help="Folder for the changed model and its recipe.",
)
@click.option("--force", is_flag=True, help="Replace files of an earlier run.")
@texts.form_options("qnnmem.fix/1")
def fix(
    model: str,
    backend: str,
    recipe: str | None,
    output: str,
    force: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Change MODEL so that it needs less memory and computes the same, bit by bit.

    Tries what changes least first: element-wise ops in place and another order of ops, then
    regions of convolutions, pooling and element-wise ops computed in bands of rows. A change counts
    after it was planned, run and compared with the model as it was. The changed model and a recipe
    go to the folder of -o. Fewer bits, smaller batches and smaller pictures change results: they
    are tried only where --allow says so, and the difference is measured.

    Exit codes: 0 it fits, or without a budget is as small as was found; 1 nothing helps enough;
    2 bad usage or an unreadable model; 3 cannot tell.
    """
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.report import fix as report
    from qnnmem.whole_file import folder_for_output

    if backend == "htp":
        raise UsageError(
            "remedies for HTP are not there yet, only those for LPAI; --backend lpai, or for HTP "
            "`qnnmem fit` and `qnnmem sweep` say what fits"
        )
    wish = _Wish(**chosen)
    folder, stem = Path(output), Path(model).stem
    targets = (folder / f"{stem}.onnx", folder / f"{stem}.recipe.json")
    with folder_for_output(folder):
        for target in targets:
            check_free(target, force)
        with ProgressBar(f"reading {Path(model).name}") as bar:
            result = _fixed(Path(model), wish, recipe, bar)
        files = _written(result, targets, force)
    words = report.prepare_words(result, files[0] if files else model, given_words("prepare"))
    next_words = [] if result.exit_code else words
    if result.hints:
        place = ["-o", output, *["--force"] * bool(files)]
        next_words = report.allow_words(result, model, given_words(), place)
    render = report.render_json if as_json else report.render_text
    write(render(result, files, next_words), None, force)
    return result.exit_code


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
    allow: tuple[tuple[str, ...], ...]
    data: str | None
    seed: int
    time_limit: float


def _fixed(path: Path, wish: _Wish, recipe: str | None, bar: ProgressBar) -> FixResult:
    """The result of a search, or of a recipe."""
    from qnnmem.fix.lpai import fix_for_lpai
    from qnnmem.fix.recipe import read_recipe

    said = None if recipe is None else read_recipe(Path(recipe))
    case = _case(path, wish, said)
    watch = _Watcher(bar)
    bar.say("planning")
    budget = _limits(wish.budgets)
    if said is None or recipe is None:
        return fix_for_lpai(case, budget, watch=watch)
    return _repeated(case, budget, said, Path(recipe))


def _repeated(
    case: FixCase, budget: dict[str, Bytes] | None, recipe: Recipe, path: Path
) -> FixResult:
    """What a recipe brings for this model."""
    from qnnmem.fix.bench import CaseBench
    from qnnmem.fix.lossy import LOSSY_REMEDIES, judged_steps, lossy_words, needed_words
    from qnnmem.fix.lpai import REMEDIES
    from qnnmem.fix.planned import PlanJudge
    from qnnmem.fix.recipe import apply_recipe
    from qnnmem.fix.remedy import Change
    from qnnmem.fix.run import FixResult

    known = set(lossy_words("lpai")) - case.allow
    refused = [word for word in needed_words(recipe.steps) if word in known]
    if refused:
        raise UsageError(f"{path} changes results; --allow {','.join(refused)} lets it")
    change = apply_recipe(case, recipe, path, (*REMEDIES, *LOSSY_REMEDIES))
    with CaseBench(case, PlanJudge(budget, case.seed)) as bench:
        bench.judged(Change("none", "as it is", case.model, case.options))
        judged = judged_steps(bench, change)
    if not judged.holds:
        raise UsageError("with this model the recipe gives other results; search anew without it")
    return FixResult(case, (judged,), has_limits=bool(budget), notes=change.notes)


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
        allow=_allowed(wish.allow, "lpai"),
        samples=samples,
        seed=wish.seed,
        ends_at=monotonic() + wish.time_limit,
    )


def _allowed(given: tuple[tuple[str, ...], ...], backend: str) -> frozenset[str]:
    """What may change results; a word that means nothing here is refused."""
    from qnnmem.fix.lossy import lossy_words

    words = [word for several in given for word in several]
    known = lossy_words(backend)
    for word in words:
        if word not in (*known, "all"):
            raise UsageError(
                f"--allow takes {', '.join(known)} or all for {backend}, not {quote(word)}"
            )
    return frozenset(known if "all" in words else words)


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


def _written(result: FixResult, targets: tuple[Path, Path], force: bool) -> list[str]:
    """The files of a change that is a change, all or none."""
    from qnnmem.fix.recipe import recipe_of
    from qnnmem.fix.remedy import self_contained
    from qnnmem.report.schema import write_json
    from qnnmem.whole_file import write_together

    best = result.best
    if best.change.model is result.case.model:
        return []
    model, recipe = targets
    content = self_contained(best.change.model).SerializeToString(deterministic=True)
    words = write_json(recipe_of(result.case, best, "lpai")).encode()
    write_together({model: content, recipe: words}, force=force)
    return [str(model), str(recipe)]
