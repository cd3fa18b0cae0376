"""`qnnmem fix`: from a model that does not fit to one that does, with the proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qnnmem.cli import options as texts
from qnnmem.cli.again import Remembering, given_words
from qnnmem.cli.fix_htp import HtpWish, htp_options, htp_wish
from qnnmem.errors import UsageError
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.fix.recipe import Recipe
    from qnnmem.fix.remedy import FixCase, JudgedChange
    from qnnmem.fix.run import FixResult
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.load.onnx.fixed import InputValue

Budgets = tuple[tuple[str, Bytes], ...]


def _budgets(text: str) -> Budgets:
    """`scratch=256K`, also `scratch=256K,tcm=1M`."""
    return tuple(texts.budget(part) for part in text.split(","))


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
    "without one, scratch is made as small as it gets. For htp: compile, pd, vtcm, ram, weights, "
    "io, spill-fill or host-ram, beside the limits of the SoC.",
)
@htp_options
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
    "--keep",
    multiple=True,
    type=click.Choice(["order", "settings", "one-file"]),
    help="What is not to change: the order of ops, how it is compiled for HTP, that it is one "
    "model.",
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
    help="Folder for the changed model or its parts, and the recipe.",
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
    regions of convolutions, pooling and element-wise ops computed in bands of rows, then a cut into
    parts that run one after the other. For HTP: VTCM size and optimisation level, the order of
    loading, parts. A change counts after it was planned, or compiled and loaded by the real library
    for HTP, run, and compared with the model as it was. What it becomes and a recipe go to the
    folder of -o.

    Exit codes: 0 it fits, or without a budget is as small as was found; 1 nothing helps enough;
    2 bad usage or an unreadable model; 3 cannot tell.
    """
    from tempfile import TemporaryDirectory

    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.fix.chain_manifest import FIRST_PART, MANIFEST
    from qnnmem.report import fix as report
    from qnnmem.report.fix_next import next_commands
    from qnnmem.whole_file import folder_for_output

    htp = htp_wish(backend, chosen)
    wish = _Wish(**chosen)
    folder, stem = Path(output), Path(model).stem
    names = (f"{stem}.onnx", f"{stem}.recipe.json", FIRST_PART, MANIFEST)
    with folder_for_output(folder), TemporaryDirectory(".qnnmem") as scratch:
        for name in (*names, *([f"{stem}.bin"] if htp else [])):
            check_free(folder / name, force)
        with ProgressBar(f"reading {Path(model).name}") as bar:
            result = _fixed(Path(model), wish, recipe, bar, htp, Path(scratch))
        files = _written(result, folder, stem, backend, force)
    commands = next_commands(result, files or [model], given_words("prepare"))
    render = report.render_json if as_json else report.render_text
    write(render(result, files, commands), None, force)
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
    keep: tuple[str, ...]
    data: str | None
    seed: int
    time_limit: float


def _fixed(
    path: Path,
    wish: _Wish,
    recipe: str | None,
    bar: ProgressBar,
    htp: HtpWish | None,
    scratch: Path,
) -> FixResult:
    """The result of a search, or of a recipe."""
    from qnnmem.cli.fix_htp import fixed_for_htp
    from qnnmem.fix.lpai import fix_for_lpai
    from qnnmem.fix.recipe import read_recipe

    said = None if recipe is None else read_recipe(Path(recipe))
    pair = None if said is None or recipe is None else (said, Path(recipe))
    if said is not None and said.backend != ("lpai" if htp is None else "htp"):
        raise UsageError(f"the recipe is for --backend {said.backend}")
    case = _case(path, wish, said, htp)
    watch = _Watcher(bar)
    if htp is not None:
        limits = [pair for budgets in wish.budgets for pair in budgets]
        return fixed_for_htp(case, htp, limits, scratch, watch=watch, progress=bar.say, recipe=pair)
    bar.say("planning")
    budget = _limits(wish.budgets)
    if pair is None:
        return fix_for_lpai(case, budget, watch=watch)
    return _repeated(case, budget, *pair)


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


def _case(path: Path, wish: _Wish, recipe: Recipe | None, htp: HtpWish | None) -> FixCase:
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
    options: PoolOptions | CompileOptions
    if htp is None:
        options = PoolOptions(io=wish.io, align=wish.align, bits=bits, states=wish.states)
    else:
        shaping = {"dims": dict(wish.dims), "shapes": shapes, "values": dict(wish.values)}
        options = htp.compile_options(**shaping)
    samples = (
        () if wish.data is None else find_samples(Path(wish.data), inputs_of(write_typed(model)))
    )
    return FixCase(
        path,
        model,
        options,
        keep=frozenset(wish.keep),
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
        self._bar.say("looking for changes")


def _written(result: FixResult, folder: Path, stem: str, backend: str, force: bool) -> list[str]:
    """The files of a change that is a change, all or none."""
    from qnnmem.fix.outputs import outputs_of
    from qnnmem.fix.recipe import recipe_of
    from qnnmem.report.schema import write_json
    from qnnmem.whole_file import write_together

    contents = outputs_of(result, stem)
    if not contents:
        return []
    recipe = write_json(recipe_of(result.case, result.best, backend)).encode()
    found = {folder / name: content for name, content in contents.items()}
    found[folder / f"{stem}.recipe.json"] = recipe
    write_together(found, force=force)
    return [str(path) for path in found]
